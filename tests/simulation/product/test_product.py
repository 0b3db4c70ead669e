"""The whole product in a world that fails by a seed: drivers, commits, dead letters, operator and status.

Every offset below the landed ones is in the table or its dead letters, or recorded as lost, exactly once. A record
that the log wrote in place of a landed one is recorded as lost. The status says so, and after the last fault
everything lands.
"""

import os
from collections import Counter
from pathlib import Path

import pytest

from firn_spark.ingestion.rounds.ahead import NextRound
from tests.simulation.product.shrinking import report
from tests.simulation.product.story import Outcome, Story, story_of, tell

KEPT = sorted((Path(__file__).parent / "stories").glob("*.txt"))
"""Stories that failed once."""
SEEDS = range(1000 if os.environ.get("FIRN_LONG") else 200)
TOGETHER = 10
"""Seeds of a test."""
LANDED, FAULTS = 40, 2
"""Least records that land, and faults that happen, in a story on average. Less would prove too little."""


def check(story: Story) -> Outcome:
    """Tell a story, and fail with a shorter one that breaks the same invariant."""
    outcome = tell(story)
    if outcome.wrong:
        pytest.fail(f"seed {story.options.seed}: {report(story, outcome)}", pytrace=False)
    return outcome


@pytest.mark.parametrize("first", SEEDS[::TOGETHER])
def test_every_offset_lands_once(first: int) -> None:
    outcomes = [check(story_of(seed)) for seed in range(first, first + TOGETHER)]
    assert sum(outcome.landed for outcome in outcomes) >= LANDED * TOGETHER
    assert sum(sum(outcome.faults.values()) for outcome in outcomes) >= FAULTS * TOGETHER


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_a_story_that_failed_once_ends_well(path: Path) -> None:
    check(Story.parse(path.read_text()))


def test_a_story_always_ends_in_the_same_way() -> None:
    first, second = tell(story_of(3)), tell(story_of(3))
    assert first == second


def test_every_kind_of_fault_happens() -> None:
    happened: Counter[str] = Counter()
    for seed in SEEDS[:200]:
        steps = story_of(seed).steps
        happened.update(step.values[2] if step.action == "arm" else step.action for step in steps)
    assert min(happened.values()) >= 5, happened
    assert len(happened) >= 25


def test_next_rounds_are_read_during_commits_that_succeed_and_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    follows, answers = NextRound.follows, Counter[bool]()

    def counted(following: NextRound) -> bool:
        answer = follows(following)
        answers[answer] += 1
        return answer

    monkeypatch.setattr(NextRound, "follows", counted)
    for seed in SEEDS[:30]:
        check(story_of(seed))
    assert min(answers[True], answers[False]) >= 5, answers
