"""`firn plan` of a DeadLetterReplay."""

from typing import Any

import pytest

from firn_controllers.cache.replays import KIND, ReplayEntry, replay_entry
from firn_controllers.cache.topics import topic_entry
from firn_controllers.preview.effects import EffectKind
from firn_controllers.preview.replays import preview
from tests import gen

TOPIC = topic_entry(gen.topic(), gen.config())


def replay(**spec: Any) -> ReplayEntry:
    manifest = gen.policy("mend", kind=KIND)
    manifest["spec"] = {"topicRef": {"name": "flights"}, **spec}
    return replay_entry(manifest, gen.config())


@pytest.mark.parametrize(
    ("mode", "result"),
    [("Enforce", "moves those that fit into its table"), ("DryRun", "commits nothing in mode DryRun")],
)
def test_a_new_replay_is_created_with_what_its_mode_does(mode: str, result: str) -> None:
    (effect,) = preview(None, replay(mode=mode), TOPIC, configured=True)
    assert effect.kind is EffectKind.CREATED
    assert (
        effect.text
        == f"DeadLetterReplay mend, which decodes the dead letters of IcebergTopic demo/flights and {result}"
    )


def test_a_replay_without_its_topic_says_that_it_waits() -> None:
    (effect,) = preview(None, replay(), None, configured=True)
    assert effect.kind is EffectKind.CREATED
    assert "this plan does not see IcebergTopic demo/flights, and the replay waits until it exists" in effect.text


def test_an_equal_replay_changes_nothing_and_another_spec_is_refused() -> None:
    assert preview(replay(), replay(mode="DryRun"), TOPIC, configured=True) == ()
    (effect,) = preview(replay(), replay(mode="Enforce"), TOPIC, configured=True)
    assert (effect.kind, effect.field) == (EffectKind.REFUSED, "spec")
    assert effect.text == "the spec of a DeadLetterReplay cannot change; create another DeadLetterReplay"


def test_a_replay_that_the_operator_refuses_is_refused() -> None:
    for configured in (True, False):
        wrong = replay(where={"codes": ["WrongKnd"]}, run={"size": "huge"})
        (effect,) = preview(None, wrong, TOPIC, configured=configured)
        assert (effect.kind, effect.reason) == (EffectKind.REFUSED, "InvalidSpec")


def test_only_the_configuration_decides_about_sizes_of_runs() -> None:
    (effect,) = preview(None, replay(run={"size": "huge"}), TOPIC, configured=True)
    assert (effect.kind, effect.reason) == (EffectKind.REFUSED, "NotAllowed")
    (effect,) = preview(None, replay(run={"size": "huge"}), TOPIC, configured=False)
    assert effect.kind is EffectKind.CREATED
