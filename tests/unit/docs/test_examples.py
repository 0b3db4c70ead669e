"""The components that read the YAML examples of all Markdown pages accept them."""

import re
from collections.abc import Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from firn.api import crds
from firn.api.chart_values import Values
from firn.api.v1alpha1 import (
    CompactionPolicy,
    DeadLetterReplay,
    IcebergTopic,
    RetentionPolicy,
    TopicGrant,
    TopicSet,
    TopicUser,
)
from firn.model.config import Config
from firn_broker.settings import BrokerSettings
from tests import markdown
from tests.markdown import ROOT, Example

MODELS = {
    model.__name__: model
    for model in (IcebergTopic, CompactionPolicy, RetentionPolicy, DeadLetterReplay, TopicSet, TopicUser, TopicGrant)
}
VALUES = yaml.safe_load((ROOT / "charts/firn/values.yaml").read_text())
EXAMPLES = markdown.examples()
API = "firn.dev/v1alpha1"


def test_the_first_topic_page_explains_each_column() -> None:
    text = (ROOT / "docs/get-started/first-topic.md").read_text()
    narrow, wide = (
        text.split("The columns of `kubectl get` are ")[1].split("`status.bootstrapServers`")[0].split("`-o wide`")
    )
    [version] = crds.iceberg_topics()["spec"]["versions"]
    columns = {(column["name"].upper(), column.get("priority", 0)) for column in version["additionalPrinterColumns"]}
    named = {(word, 0) for word in re.findall(r"\b[A-Z][A-Z-]+\b", narrow)}
    named |= {
        (word, 1) for line in wide.splitlines() for word in re.findall(r"\b[A-Z][A-Z-]+\b", line.partition(":")[0])
    }
    assert named == columns


def kind(value: Any) -> str:
    """Return the kind of an example by its keys."""
    if isinstance(value, list) and all(isinstance(item, dict) and {"alert", "expr"} <= item.keys() for item in value):
        return "alerts"
    if not isinstance(value, dict):
        return "unknown"
    if str(value.get("apiVersion")).startswith("firn.dev/"):
        return "resource"
    if {"apiVersion", "kind"} <= value.keys():
        return "object"
    if value.keys() == {"spec"}:
        return "spec"
    if {"namespace", "images", "catalogs"} <= value.keys():
        return "config"
    if value.keys() <= VALUES.keys():
        return "values"
    if {"coordinator", "objects"} <= value.keys():
        return "broker"
    return "unknown"


def strict(schema: Any) -> Any:
    """Return a structural schema that rejects unknown fields, as kubectl does."""
    if isinstance(schema, list):
        return [strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(item) for key, item in schema.items()}
    if "properties" in schema and isinstance(schema.get("properties"), dict) and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


def validate(resource: Mapping[str, Any]) -> None:
    """Check a resource with its CRD's schema and with its model."""
    [crd] = [crd for crd in crds.all_crds() if crd["spec"]["names"]["kind"] == resource["kind"]]
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    jsonschema.validate(resource["spec"], strict(schema))
    MODELS[resource["kind"]].model_validate(resource)


def merged(base: Any, change: Any) -> Any:
    """Merge values as Helm does."""
    if isinstance(base, dict) and isinstance(change, dict):
        return {**base, **{key: merged(base.get(key), value) for key, value in change.items()}}
    return change


def test_the_pages_have_examples_of_each_kind() -> None:
    kinds = [kind(example.value) for example in EXAMPLES]
    assert {"resource", "spec", "values", "config", "broker", "alerts"} <= set(kinds)
    assert kinds.count("resource") >= 3


@pytest.mark.slow
@pytest.mark.parametrize("example", [pytest.param(example, id=example.place) for example in EXAMPLES])
def test_an_example_is_accepted(example: Example) -> None:
    value = example.value
    match kind(value):
        case "resource":
            validate(value)
        case "spec":
            validate({"apiVersion": API, "kind": "IcebergTopic", "metadata": {"name": "example"}, **value})
        case "values":
            Values.model_validate(merged(VALUES, value))
        case "config":
            Config.model_validate(value, context={"private": True})  # firn sql reads it on a user's machine
        case "broker":
            BrokerSettings.model_validate(value)
        case "object" | "alerts":
            pass  # read by Kubernetes, Argo CD, Flux or Prometheus
        case _:
            pytest.fail(f"{example.place}: nothing of Firn reads this: neither a resource nor values nor settings")


@pytest.mark.parametrize(
    "change",
    [{"freshnes": "30s"}, {"partitions": 0}, {"table": {"partitionBy": "a"}}, {"schema": {"format": "Csv"}}],
)
def test_a_wrong_resource_is_refused(change: dict[str, Any]) -> None:
    manifest = {"kind": "IcebergTopic", "metadata": {"name": "example"}, "spec": change}
    with pytest.raises(jsonschema.ValidationError):
        validate(manifest)
