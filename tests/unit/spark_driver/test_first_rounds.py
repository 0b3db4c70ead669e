"""The first round of topics claims their tables: at the same time, and without delay for claimed topics."""

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds import rounds
from firn_spark.ingestion.rounds.rounds import COMMITS_PER_CATALOG, Rounds
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.topic import topic

SECONDS = 30.0


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of the topics that a round plans. No round has records to land."""
    names: list[str] = []

    def plan(topics: Sequence[Topic], *_: Any) -> dict[Topic, Any]:
        names.extend(each.job.topic for each in topics)
        return {}

    monkeypatch.setattr(rounds, "plan", plan)
    return names


def rounds_with(begin: Callable[[Topic], None]) -> Rounds:
    nothing: Any = None
    preparation: Any = SimpleNamespace(begin=begin)
    turns: Any = SimpleNamespace(round_bytes=lambda _: 1, next_bytes=lambda _: 0)
    return Rounds(lambda _: nothing, preparation, nothing, nothing, Failpoints(), turns, nothing)


def test_new_topics_of_a_round_claim_their_tables_at_the_same_time(planned: list[str]) -> None:
    together = threading.Barrier(COMMITS_PER_CATALOG, timeout=SECONDS)
    topics = [topic(f"t{number}") for number in range(COMMITS_PER_CATALOG)]

    def begin(_: Topic) -> None:
        together.wait()

    rounds_with(begin).run(topics)
    assert planned == [each.job.topic for each in topics]


def test_a_topic_whose_claim_fails_leaves_the_others_of_its_round(planned: list[str]) -> None:
    def begin(each: Topic) -> None:
        if each.job.topic == "b":
            raise UnavailableError("the catalog does not answer")

    topics = [topic(name) for name in ("a", "b", "c")]
    rounds_with(begin).run(topics)
    assert planned == ["a", "c"]
    assert [each.attempts.failures for each in topics] == [0, 1, 0]


def test_a_claimed_topic_does_not_wait_for_the_claims_of_other_rounds(planned: list[str]) -> None:
    begun, ended = threading.Semaphore(0), threading.Event()

    def begin(each: Topic) -> None:
        if not each.letters.claimed:
            begun.release()
            assert ended.wait(SECONDS)

    running = rounds_with(begin)
    new = [topic(f"new{number}") for number in range(COMMITS_PER_CATALOG + 1)]
    other = threading.Thread(target=running.run, args=[new])
    other.start()
    for _ in range(COMMITS_PER_CATALOG):
        assert begun.acquire(timeout=SECONDS)
    running.run([topic("claimed", claimed=True)])
    assert planned == ["claimed"]
    ended.set()
    other.join(SECONDS)
    assert len(planned) == 1 + len(new)
