"""A text of a wrong form is answered with the way to write it, not with a pattern."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from firn.api import crds
from firn.api.model import Duration
from firn.api.v1alpha1.policy import ByteSize, Cron

FORMS = [
    (
        Duration,
        ["1ms", "30d"],
        ["30 days", "0s", "d", "1.5h", "30d\n"],
        "a number and a unit of ms, s, m, h or d, such as 30d",
    ),
    (ByteSize, ["1", "512Mi"], ["much", "0Mi", "512 Mi"], "a whole number of bytes, with a unit such as Mi or Gi"),
    (
        Cron,
        ["0 3 * * *", "*/5 0-6,22 * JAN-MAR MON-FRI"],
        ["@daily", "0 0 3 * * *", "0 3 * *"],
        "minute, hour, day of month",
    ),
]


@pytest.mark.parametrize(("kind", "valid", "invalid", "message"), FORMS)
def test_the_operator_says_how_to_write_a_text(kind: Any, valid: list[str], invalid: list[str], message: str) -> None:
    adapter = TypeAdapter(kind)
    assert [adapter.validate_python(text) for text in valid] == valid
    for text in invalid:
        with pytest.raises(ValidationError, match=message):
            adapter.validate_python(text)


def strings(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, list):
        return [found for each in schema for found in strings(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema] if schema.get("type") == "string" else []
    return own + [found for each in schema.values() for found in strings(each)]


# The template of a TopicSet has no rules, because its texts have placeholders.
@pytest.mark.parametrize("crd", crds.all_crds()[:3], ids=lambda crd: crd["spec"]["names"]["kind"])
def test_the_api_server_says_how_to_write_durations_sizes_and_times(crd: crds.Manifest) -> None:
    fields = strings(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"])
    assert not [
        field["pattern"] for field in fields if "(ms|s" in (pattern := field.get("pattern", "")) or "Ki|" in pattern
    ]
    rules = [rule for field in fields for rule in field.get("x-kubernetes-validations", ())]
    assert any("(ms|s|m|h|d)" in rule["rule"] and rule["message"].endswith("such as 30d") for rule in rules)
