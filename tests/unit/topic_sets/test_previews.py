"""`firn plan` of a TopicSet, and its metrics."""

from typing import Any

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
