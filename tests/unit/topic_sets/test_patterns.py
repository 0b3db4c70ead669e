"""Which topics a TopicSet matches, and the IcebergTopic of each."""

from typing import Any

import pytest

from firn.api.v1alpha1 import TopicSet
from firn.model import names
from firn.model.config import Config
from firn.model.errors import InvalidSpecError
from firn_controllers.cache.topics import topic_entry
from firn_controllers.topic_sets.checks import ReadySet, ready_set
from firn_controllers.topic_sets.template import Rendered
from tests import gen


def ready(config: Config | None = None, **spec: Any) -> ReadySet:
    return ready_set(TopicSet.parse(gen.topic_set(**spec)), config or gen.adopting())


def rendered(topic: str, **spec: Any) -> Rendered:
    return ready(**spec).render([topic], {})[topic]


@pytest.mark.parametrize(
    ("match", "exclude", "topic", "values"),
    [
        ("^dev", None, "dev.a", {}),
        ("dev", None, "prod.dev", {}),
        ("^dev$", None, "dev.a", None),
        (r"^(?P<team>[a-z]+)\.", r"\.internal$", "web.internal", None),
        (r"^(?P<team>[a-z]+)\.", r"\.internal$", "web.internal.a", {"team": "web"}),
        (r"^(?P<a>x)?(?P<b>y)$", None, "y", {"a": "", "b": "y"}),
        (".", None, "__consumer_offsets", None),
        ("^_", None, "__consumer_offsets", None),
        (".", None, "_schemas", None),
        ("^_schemas$", None, "_schemas", {}),
        ("_schemas", None, "_schemas", {}),
        (".", None, "orders__dlq", None),
        ("__dlq$", None, "orders__dlq", {}),
    ],
)
def test_names_that_match(match: str, exclude: str | None, topic: str, values: dict[str, str] | None) -> None:
    template = {"metadata": {"name": "$topic"}}
    assert ready(match=match, exclude=exclude, template=template).values(topic) == values


def test_an_expression_that_would_take_a_backtracking_engine_for_ever_ends() -> None:
    assert ready(match="^(?:a+)+$", template={"metadata": {"name": "x"}}).values("a" * 249 + "b") is None


@pytest.mark.parametrize(
    ("change", "reason", "words"),
    [
        ({"match": "("}, "BadPattern", "spec.match: ( is no RE2 expression: missing ): ("),
        ({"match": "(?=x)"}, "BadPattern", "spec.match"),
        ({"match": "((a{100}){100}){100}"}, "BadPattern", "spec.match"),
        ({"exclude": "["}, "BadPattern", "spec.exclude"),
        ({"template": {"metadata": {"name": "$nme"}}}, "BadPattern", "no group nme"),
        ({"template": {"metadata": {"name": "a"}, "spec": {"config": {"x": "${y}"}}}}, "BadPattern", "spec.config.x"),
        ({"template": {"metadata": {"name": "cost$"}}}, "BadPattern", "write $$"),
        ({"match": "^(?P<topic>.+)$"}, "BadPattern", "spec.match: the group topic would hide the placeholder $topic"),
        (
            {"template": {"metadata": {"name": "a"}, "spec": {"topicName": "b"}}},
            "InvalidSpec",
            "template has no topicName",
        ),
        ({"template": {"metadata": {"name": "a"}, "spec": {"profile": "b"}}}, "InvalidSpec", "template has no profile"),
        ({"profile": "nowhere"}, "ProfileNotFound", "one of classic, outside"),
        ({"profile": "outside"}, "NotAllowed", "tenancy.adopt to Any"),
    ],
)
def test_a_spec_that_cannot_work_is_refused(change: dict[str, Any], reason: str, words: str) -> None:
    with pytest.raises(InvalidSpecError) as refused:
        ready(**change)
    assert (refused.value.reason, words in str(refused.value)) == (reason, True), str(refused.value)


def test_a_namespace_uses_only_its_profiles_and_its_names() -> None:
    document = gen.adopting().model_dump(by_alias=True)
    document["profiles"]["classic"]["tenancy"]["topicNames"] = ["dev.shop.*"]
    assert ready(Config.model_validate(document)).values("dev.shop.orders") is not None
    assert ready(Config.model_validate(document)).values("dev.web.clicks") is None
    document["profiles"]["classic"]["namespaces"] = ["vault"]
    with pytest.raises(InvalidSpecError, match="namespace demo may not use profile classic"):
        ready(Config.model_validate(document))


def test_values_take_the_form_of_each_place() -> None:
    template = {
        "metadata": {"name": "Made-$name", "labels": {"topic": "$topic", "price": "$$5"}},
        "spec": {
            "table": {"namespace": "N_$team", "name": "${name}_raw", "properties": {"source": "${topic}!"}},
            "schema": {"format": "Json", "fields": [{"name": "id", "type": "long", "doc": "id of $name"}]},
        },
    }
    made = rendered("dev.shop.Big-Orders", match=r"^dev\.(?P<team>[a-z]+)\.(?P<name>.+)$", template=template)
    manifest = made.manifest
    assert manifest["metadata"]["name"] == "Made-big-orders"
    assert manifest["metadata"]["labels"] == {
        "topic": "dev.shop.Big-Orders",
        "price": "$5",
        names.LABEL_TOPIC_SET: "events",
    }
    assert manifest["spec"]["table"]["namespace"] == "N_shop"
    assert manifest["spec"]["table"]["name"] == "Big_Orders_raw"
    assert manifest["spec"]["table"]["properties"] == {"source": "dev.shop.Big-Orders!"}
    assert manifest["spec"]["schema"]["fields"][0]["doc"] == "id of Big-Orders"
    assert (manifest["spec"]["profile"], manifest["spec"]["topicName"]) == ("classic", "dev.shop.Big-Orders")
    assert made.refusal is not None
    assert made.refusal.why == "InvalidName", "capital letters of the template itself stay"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"table": {"name": "$name.x"}}, "spec.table.name"),
        ({"ingestion": {"freshness": "$name"}}, "spec.ingestion.freshness"),
        ({"table": {"name": "${name}__dlq"}}, "__dlq"),
    ],
)
def test_a_spec_that_is_no_iceberg_topic_is_refused_with_its_field(spec: dict[str, Any], words: str) -> None:
    made = rendered("dev.shop.orders", template={"metadata": {"name": "$name"}, "spec": spec})
    assert made.refusal is not None
    assert made.refusal.why == "InvalidSpec"
    assert words in made.refusal.message


@pytest.mark.parametrize(
    ("change", "agrees"),
    [
        (lambda live: None, True),
        (lambda live: live["spec"].update(suspend=True), True),
        (lambda live: live["spec"]["table"].update(properties={"a": "b"}), True),
        (lambda live: live["metadata"]["labels"].update(other="label"), True),
        (lambda live: live["spec"]["table"].update(name="other"), False),
        (lambda live: live["spec"].pop("table"), False),
        (lambda live: live["metadata"].update(labels={}), False),
        (lambda live: live["metadata"]["annotations"].update({names.TEMPLATE_HASH: "earlier"}), False),
    ],
)
def test_an_iceberg_topic_agrees_with_the_fields_of_the_template(change: Any, agrees: bool) -> None:
    made = rendered("dev.shop.orders")
    live = gen.topic("shop-orders")
    live["spec"] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in made.manifest["spec"].items()
    }
    metadata = made.manifest["metadata"]
    live["metadata"] |= {"labels": dict(metadata["labels"]), "annotations": dict(metadata["annotations"])}
    change(live)
    assert made.agrees(topic_entry(live, gen.adopting()), {}) is agrees
