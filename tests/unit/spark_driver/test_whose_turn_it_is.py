"""Which due topics get a round, and which have to wait for one: topics of one profile and catalog share few of them."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from firn.model.jobs import GroupSettings
from firn_spark.ingestion.loop import ROUNDS_PER_KEY, SHARED_TOPICS, Loop
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.topic import PARTS, topic

ENDLESS = 10**9


class Turns:
    """A loop's rounds, which last until the test ends them. None of them lands anything."""

    def __init__(self) -> None:
        nothing: Any = None
        self.loop = Loop(GroupSettings(group="g"), nothing, lambda _: nothing, nothing, nothing, lambda: None)
        self.loop._rounds = self.loop._workers = self  # type: ignore[assignment]
        self.running: list[tuple[list[Topic], Any]] = []

    def add(self, *topics: Topic) -> None:
        """Topics whose oldest record has waited for longer than their freshness."""
        for one in topics:
            self.loop._topics[one.job.uid] = one

    def submit(self, work: Any) -> None:
        group = [one for one in self.loop._topics.values() if one.busy and not any(one in g for g, _ in self.running)]
        self.running.append((group, work))

    def run(self, group: Sequence[Topic]) -> None:
        """A round that lands nothing."""

    def decide(self) -> list[set[str]]:
        """The topics of each round that runs, after another look."""
        self.loop._decide()
        return [{one.job.topic for one in group} for group, _ in self.running]

    def end(self, name: str) -> None:
        """Ends the round of this topic."""
        [found] = [it for it in self.running if name in {one.job.topic for one in it[0]}]
        self.running.remove(found)
        found[1]()


def waiting(name: str, lag: int, seconds: float = 600.0) -> Topic:
    return topic(name, lag, waiting_since=time.monotonic() - seconds)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_backlogs_leave_a_small_topic_a_round_of_its_own(turns: Turns) -> None:
    turns.add(waiting("a", ENDLESS, 900), waiting("b", ENDLESS, 900), waiting("small", 10))
    assert turns.decide() == [{"a"}, {"small"}]


def test_backlogs_have_their_rounds_in_turn(turns: Turns) -> None:
    names = ["a", "b", "c"]
    turns.add(*(waiting(name, ENDLESS, 900 - index) for index, name in enumerate(names)))
    served = []
    for _ in range(2 * len(names)):
        [[name]] = turns.decide()
        served.append(name)
        turns.end(name)
    assert served == names * 2


def test_a_topic_that_becomes_due_goes_before_a_backlog_that_just_had_its_round(turns: Turns) -> None:
    turns.add(waiting("backlog", ENDLESS, 10_000))
    assert turns.decide() == [{"backlog"}]
    turns.add(waiting("large", ENDLESS, 60))
    turns.end("backlog")
    assert turns.decide() == [{"large"}]


def test_small_topics_share_a_round_and_a_large_one_has_its_own(turns: Turns) -> None:
    turns.add(waiting("large", ENDLESS), waiting("b", 10), waiting("c", 10), topic("idle"))
    assert sorted(turns.decide(), key=len) == [{"large"}, {"b", "c"}]


@pytest.mark.parametrize("state", [{"failures": 1}, {"client_reader": True}])
def test_what_is_in_trouble_takes_nobody_with_it(turns: Turns, state: dict[str, Any]) -> None:
    odd = waiting("odd", 10)
    for key, value in state.items():
        setattr(getattr(odd, PARTS[key]), key, value)
    turns.add(waiting("a", 10, 700), waiting("b", 10), odd)
    assert turns.decide() == [{"a", "b"}, {"odd"}]


def test_a_round_is_shared_by_so_many_and_no_more(turns: Turns) -> None:
    turns.add(*(waiting(f"t{number}", 1, 600 + number) for number in range(SHARED_TOPICS * 3)))
    assert [len(group) for group in turns.decide()] == [SHARED_TOPICS] * ROUNDS_PER_KEY


def test_brokers_and_catalogs_of_their_own_have_rounds_of_their_own(turns: Turns) -> None:
    other = waiting("other", ENDLESS)
    other.job = other.job.model_copy(update={"profile": "other"})
    turns.add(waiting("a", ENDLESS, 900), waiting("b", ENDLESS, 900), other)
    assert turns.decide() == [{"a"}, {"other"}]
