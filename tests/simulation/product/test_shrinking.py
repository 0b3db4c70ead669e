"""A failing story is printed with few steps, and its text fails in the same way."""

import pytest

from firn_spark.ingestion.topics.topic import Topic
from tests.simulation.product.shrinking import kind, report, shrunk
from tests.simulation.product.story import Step, Story, story_of, tell
from tests.simulation.product.world import Options


def test_only_the_steps_that_a_failure_needs_stay() -> None:
    story = Story(Options(), tuple(Step(float(number), "produce", (0, number, False)) for number in range(40)))
    needed = {story.steps[7], story.steps[23], story.steps[24]}
    tried = []

    def fails(shorter: Story) -> bool:
        tried.append(shorter)
        return needed <= set(shorter.steps)

    assert set(shrunk(story, fails).steps) == needed
    assert len(tried) < 60


def test_shrinking_ends_after_so_many_tries() -> None:
    story = Story(Options(), tuple(Step(float(number), "kill", ("driver", 0.0)) for number in range(40)))
    tried = []

    def never(shorter: Story) -> bool:
        tried.append(shorter)
        return False

    shrunk(story, never, tries=10)
    assert len(tried) == 10


def test_a_text_gives_the_story_again() -> None:
    story = story_of(5)
    assert Story.parse(str(story)) == story


def test_the_printed_story_fails_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Topic, "gaps", [])
    story = Story(
        Options(seed=1, partitions=1),
        tuple(
            sorted(
                (*(Step(float(at), "produce", (0, 3, False)) for at in range(1, 50, 3)),
                 Step(20.0, "kill", ("driver", 0.0)), Step(22.0, "retention", (0, 1.0)), Step(30.0, "add_column")),
                key=lambda step: step.at,
            )
        ),
    )  # fmt: skip
    outcome = tell(story)
    text = report(story, outcome)
    assert kind(outcome) == "8"
    printed = Story.parse(text.partition("NAME.txt:")[2])
    assert len(printed.steps) <= 6
    assert kind(tell(printed)) == "8"
