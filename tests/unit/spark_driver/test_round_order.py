"""Due topics that get a round, and due topics that wait: topics of one profile and catalog share few rounds."""

import time
from collections.abc import Sequence
from typing import Any

import pytest

from firn.model.config import Executors
from firn.model.jobs import GroupSettings
from firn_spark.ingestion.loop import ALONE_FACTOR, ROUNDS_PER_KEY, SHARED_TOPICS, Loop
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.topic import PARTS, topic

ENDLESS = 10**9


class Turns:
    """Rounds of a loop, which last until the test ends them. None of them lands a record."""

    def __init__(self, settings: GroupSettings | None = None) -> None:
        nothing: Any = None
        self.loop = Loop(
            settings or GroupSettings(group="g"), nothing, lambda _: nothing, nothing, nothing, lambda: None
        )
        self.loop._rounds = self.loop._workers = self  # type: ignore[assignment]
        self.running: list[tuple[list[Topic], Any]] = []

    def add(self, *topics: Topic) -> None:
        """Add topics whose oldest record has waited for longer than their freshness."""
        for added in topics:
            self.loop._topics[added.job.uid] = added

    def submit(self, work: Any) -> None:
        group = [
            member
            for member in self.loop._topics.values()
            if member.busy and not any(member in g for g, _ in self.running)
        ]
        self.running.append((group, work))

    def run(self, group: Sequence[Topic]) -> None:
        """Run a round that lands no record."""

    def decide(self) -> list[set[str]]:
        """Return the topics of each active round after another decision."""
        self.loop._decide()
        return [{member.job.topic for member in group} for group, _ in self.running]

    def end(self, name: str) -> None:
        """End the round of this topic."""
        [ended] = [entry for entry in self.running if name in {member.job.topic for member in entry[0]}]
        self.running.remove(ended)
        ended[1]()


def waiting(name: str, lag: int, seconds: float = 600.0) -> Topic:
    return topic(name, lag, waiting_since=time.monotonic() - seconds)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_backlogs_leave_a_round_for_a_small_topic(turns: Turns) -> None:
    turns.add(waiting("a", ENDLESS, 900), waiting("b", ENDLESS, 900), waiting("small", 10))
    assert turns.decide() == [{"a"}, {"small"}]


def test_backlogs_take_turns(turns: Turns) -> None:
    names = ["a", "b", "c"]
    turns.add(*(waiting(name, ENDLESS, 900 - index) for index, name in enumerate(names)))
    served = []
    for _ in range(2 * len(names)):
        [[name]] = turns.decide()
        served.append(name)
        turns.end(name)
    assert served == names * 2


def test_a_due_topic_precedes_a_backlog_that_just_had_a_round(turns: Turns) -> None:
    turns.add(waiting("backlog", ENDLESS, 10_000))
    assert turns.decide() == [{"backlog"}]
    turns.add(waiting("large", ENDLESS, 60))
    turns.end("backlog")
    assert turns.decide() == [{"large"}]


def test_another_backlog_is_read_while_one_is_committed(turns: Turns) -> None:
    first, second = waiting("a", ENDLESS, 900), waiting("b", ENDLESS, 800)
    turns.add(first)
    assert turns.decide() == [{"a"}]
    assert turns.loop.next_bytes(first) == turns.loop.round_bytes([first])
    turns.add(second)
    assert turns.decide() == [{"a"}]
    assert turns.loop.next_bytes(first) == 0
    assert turns.decide() == [{"a"}, {"b"}]
    assert turns.loop.next_bytes(first) == 0
    assert turns.loop.next_bytes(second) > 0


@pytest.mark.parametrize(
    ("settings", "tasks"),
    [
        ({}, 1),
        ({"cores": 3}, 3),
        ({"executors": Executors(instances=4, cores=2)}, 8),
    ],
)
def test_the_bytes_of_a_round_grow_with_the_tasks_that_read_it(settings: dict[str, Any], tasks: int) -> None:
    turns = Turns(GroupSettings(group="g", bytes_per_commit=100, **settings))
    first = waiting("a", ENDLESS)
    turns.add(first)
    assert turns.loop.round_bytes([first]) == tasks * 100 * ALONE_FACTOR
    turns.add(waiting("b", ENDLESS))
    assert turns.loop.round_bytes([first]) == tasks * 100


def test_a_round_of_a_topic_that_halts_has_the_bytes_of_one_task_for_each_partition() -> None:
    turns = Turns(GroupSettings(group="g", bytes_per_commit=100, cores=8))
    halting = waiting("a", ENDLESS)
    halting.job = halting.job.model_copy(update={"on_bad_record": "Halt"})
    turns.add(halting)
    assert turns.loop.round_bytes([halting]) == len(halting.reading.position) * 100 * ALONE_FACTOR


def test_a_topic_does_not_go_on_under_an_old_contract(turns: Turns) -> None:
    changed = waiting("a", ENDLESS)
    turns.add(changed)
    turns.decide()
    changed.outdated = True
    assert turns.loop.next_bytes(changed) == 0


def test_small_topics_share_a_round_and_a_large_one_has_its_own(turns: Turns) -> None:
    turns.add(waiting("large", ENDLESS), waiting("b", 10), waiting("c", 10), topic("idle"))
    assert sorted(turns.decide(), key=len) == [{"large"}, {"b", "c"}]


@pytest.mark.parametrize("state", [{"failures": 1}, {"spark_source": True}])
def test_a_failing_topic_shares_no_round(turns: Turns, state: dict[str, Any]) -> None:
    odd = waiting("odd", 10)
    for key, value in state.items():
        setattr(getattr(odd, PARTS[key]), key, value)
    turns.add(waiting("a", 10, 700), waiting("b", 10), odd)
    assert turns.decide() == [{"a", "b"}, {"odd"}]


def test_the_number_of_topics_of_a_round_is_limited(turns: Turns) -> None:
    turns.add(*(waiting(f"t{number}", 1, 600 + number) for number in range(SHARED_TOPICS * 3)))
    assert [len(group) for group in turns.decide()] == [SHARED_TOPICS] * ROUNDS_PER_KEY


def test_topics_of_different_brokers_or_catalogs_share_no_round(turns: Turns) -> None:
    other = waiting("other", ENDLESS)
    other.job = other.job.model_copy(update={"profile": "other"})
    turns.add(waiting("a", ENDLESS, 900), waiting("b", ENDLESS, 900), other)
    assert turns.decide() == [{"a"}, {"other"}]


def test_topics_that_share_rounds_take_turns_while_more_are_due_than_the_driver_can_serve(turns: Turns) -> None:
    names = [f"t{number}" for number in range(SHARED_TOPICS * 5)]
    turns.add(*(waiting(name, 1) for name in names))
    served: set[str] = set()
    for _ in range(5 - ROUNDS_PER_KEY + 1):
        groups = turns.decide()
        served = served.union(*groups)
        turns.end(next(iter(groups[0])))
    assert served == set(names)
