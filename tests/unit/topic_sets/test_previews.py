"""`firn plan` of a TopicSet, and its metrics."""

from typing import Any

import pytest

from firn.api.v1alpha1 import TopicSet
from firn_controllers.cache.topic_sets import set_entry
from firn_controllers.preview.effects import EffectKind
from firn_controllers.preview.topic_sets import preview
from firn_operator.process.telemetry import TopicSetMetrics
from tests import gen


def topic_set(**spec: Any) -> TopicSet:
    return TopicSet.parse(gen.topic_set(**spec))


def test_a_new_set_is_created() -> None:
    (effect,) = preview(None, topic_set(limit=7), gen.adopting(), configured=True)
    assert (effect.kind, "at most 7" in effect.text) == (EffectKind.CREATED, True)


def test_a_set_that_the_operator_refuses_is_refused() -> None:
    (effect,) = preview(None, topic_set(match="("), gen.adopting(), configured=True)
    assert (effect.kind, effect.reason) == (EffectKind.REFUSED, "BadPattern")
    (effect,) = preview(None, topic_set(), gen.config(), configured=True)
    assert (effect.kind, effect.reason) == (EffectKind.REFUSED, "NotAllowed")


def test_without_the_configuration_only_the_set_itself_is_checked() -> None:
    (effect,) = preview(None, topic_set(profile="unknown"), gen.config(), configured=False)
    assert effect.kind is EffectKind.CREATED


def test_changed_fields_have_their_effects() -> None:
    template = {"metadata": {"name": "$name"}, "spec": {"suspend": True}}
    effects = preview(topic_set(), topic_set(removal="Delete", template=template), gen.adopting(), configured=True)
    texts = {effect.field: effect.text for effect in effects}
    assert texts["spec.template.metadata.name"] == "new IcebergTopics get this name; the others keep theirs"
    assert texts["spec.removal"].startswith("it decides about IcebergTopics")
    assert any("applies the template" in text for text in texts.values())
    assert preview(topic_set(), topic_set(), gen.adopting(), configured=True) == ()


def test_a_set_without_status_has_no_metrics() -> None:
    counted = gen.with_status({"matched": 3, "made": 2, "kept": 0, "topicsRefused": 1})
    entries = [set_entry(gen.topic_set("counted", counted)), set_entry(gen.topic_set("new"))]
    (family,) = TopicSetMetrics(lambda: entries).collect()
    assert {(sample.labels["topic_set"], sample.labels["state"], sample.value) for sample in family.samples} == {
        ("counted", "matched", 3),
        ("counted", "made", 2),
        ("counted", "kept", 0),
        ("counted", "refused", 1),
    }


def templated(name: str = "$name", **spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "spec": spec}


BAD_TEMPLATES = [
    (templated(schema={"format": "Avro", "text": "{"}), "spec.schema.text"),
    (templated(schema={"format": "Json", "fields": [{"name": "id", "type": "integer"}]}), "integer"),
    (
        templated(
            schema={"format": "Json", "fields": [{"name": "id", "type": "long"}], "columns": [{"name": "a", "from": "$$.nothing"}]}
        ),
        "nothing",
    ),
    (templated(schema={"format": "Avro", "registry": {"name": "nowhere"}}), "spec.schema.registry.name: nowhere is not in"),
    (templated("$name-Raw"), "the template gives the name x-Raw"),
]  # fmt: skip


@pytest.mark.parametrize(("template", "words"), BAD_TEMPLATES)
@pytest.mark.parametrize("live", [False, True])
def test_a_template_without_a_valid_iceberg_topic_is_refused(template: Any, words: str, live: bool) -> None:
    wanted = topic_set(template=template)
    (effect,) = preview(topic_set() if live else None, wanted, gen.adopting(), configured=True)
    assert (effect.kind, effect.field) == (EffectKind.REFUSED, "spec.template")
    assert words in effect.text
    assert (
        'gives no valid IcebergTopic. The plan knows no Kafka topic that matches, and tried the template with the example name "x": '
        in effect.text
    )


def test_a_known_topic_is_the_example() -> None:
    wanted = topic_set(template=templated(schema={"format": "Avro", "registry": {"name": "$team"}}))
    (effect,) = preview(None, wanted, gen.adopting(), configured=True, topics=["dev.shop.orders", "other"])
    assert effect.kind is EffectKind.REFUSED
    assert (
        "for example for Kafka topic dev.shop.orders: template: spec.schema.registry.name: shop is not in"
        in effect.text
    )


def test_an_invented_example_refuses_nothing_that_depends_on_its_value() -> None:
    for spec in (
        {"schema": {"format": "Avro", "registry": {"name": "$team"}}},
        {"schema": {"format": "Json", "fields": [{"name": "id", "type": "$team"}]}},
    ):
        (effect,) = preview(None, topic_set(template=templated(**spec)), gen.adopting(), configured=True)
        assert effect.kind is EffectKind.CREATED


def test_one_topic_that_fits_is_enough() -> None:
    config = gen.adopting(registries={"shop": {"url": "http://registry"}})
    wanted = topic_set(template=templated(schema={"format": "Avro", "registry": {"name": "$team"}}))
    (effect,) = preview(None, wanted, config, configured=True, topics=["dev.a.orders", "dev.shop.orders"])
    assert effect.kind is EffectKind.CREATED


@pytest.mark.parametrize("field", ["name", "namespace", "catalog"])
def test_immutable_fields_of_the_template_are_named(field: str) -> None:
    table = {"namespace": "$team", "name": "$name", "catalog": "lake"}
    before = topic_set(template=templated(table=table))
    other = {**table, field: "private" if field == "catalog" else f"${{name}}_{field}"}
    config = gen.adopting()
    config.catalogs["private"].namespaces.append("demo")
    (effect,) = preview(before, topic_set(template=templated(table=other)), config, configured=True)
    assert effect.field == f"spec.template.spec.table.{field}"
    assert effect.text.startswith("IcebergTopics cannot change this field: existing ones keep their value")
