"""`kubectl explain` shows the description of a field, and no default, limit, form or rule beside it."""

from collections.abc import Iterator
from typing import Any

import pytest

from firn.api import crds
from firn.api.explanations import explained


@pytest.mark.parametrize(
    ("schema", "description"),
    [
        ({"type": "string", "default": "Retain"}, "Fate. Default: Retain."),
        ({"type": "boolean", "default": False}, "Fate. Default: false."),
        ({"type": "integer", "minimum": 1, "maximum": 9}, "Fate. At least 1. At most 9."),
        ({"type": "array", "maxItems": 3, "items": {"type": "string"}}, "Fate. At most 3 items."),
        ({"type": "string", "pattern": "^a$"}, "Fate. Pattern `^a$`."),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "r", "message": "set a"}]}, "Fate. Rule: set a."),
        ({"type": "object", "default": {"a": 1}}, "Fate."),
        ({"type": "object", "x-kubernetes-validations": [{"rule": "self.a == oldSelf.a", "message": "a"}]}, "Fate."),
    ],
)
def test_a_description_states_default_limits_form_and_rules(schema: dict[str, Any], description: str) -> None:
    assert explained({**schema, "description": "Fate."})["description"] == description


def fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, member in schema.get("properties", {}).items():
        yield from fields(f"{path}.{name}", member)
    if isinstance(schema.get("items"), dict) and "properties" in schema["items"]:
        yield from ((place, field) for place, field in fields(f"{path}[]", schema["items"]) if place != f"{path}[]")


@pytest.mark.parametrize("crd", crds.all_crds(), ids=lambda crd: crd["spec"]["names"]["kind"])
def test_every_field_of_a_spec_states_its_default_and_its_largest_value(crd: crds.Manifest) -> None:
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    for path, field in fields("spec", spec):
        text = field.get("description", "")
        assert text, path
        default = field.get("default")
        if default is not None and not isinstance(default, dict):
            assert f"Default: {str(default).lower() if default is False else default}." in text, path
        for bound in ("maximum", "maxItems", "maxProperties"):
            assert bound not in field or str(field[bound]) in text or "type" not in field, path


def test_the_rule_on_partitions_belongs_to_the_field_and_names_the_way_out() -> None:
    [version] = crds.iceberg_topics()["spec"]["versions"]
    partitions = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["partitions"]
    [rule] = partitions["x-kubernetes-validations"]
    assert rule["message"].endswith("for fewer, create an IcebergTopic with another topicName")
