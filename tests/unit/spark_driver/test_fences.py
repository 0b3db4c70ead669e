"""A fenced topic watches its table, and takes the topic back after the other driver has stopped."""

from typing import Any

import pytest

from firn.model.errors import FencedError
from firn_spark.ingestion.topics.state import FENCED_IDLE, FENCED_LOOK, FENCED_MEMORY
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.topic import topic


def fenced(at: float = 0.0, **state: Any) -> Topic:
    made = topic(**{"lag": 1, "waiting_since": 0.0, "epoch": 1, **state})
    made.failed(FencedError("another driver"), at)
    return made


def until_lifted(waiting: Topic, now: float, seen: object = "commit") -> float:
    """Look as often as the loop does. Return when the topic was taken back."""
    for _ in range(2000):
        now = max(now, waiting.attempts.next_at)
        if waiting.lift_fence(now, seen):
            return now
    raise AssertionError("the topic stays fenced")


def test_a_fenced_topic_looks_at_its_table_every_few_seconds() -> None:
    waiting = fenced(at=1000.0)
    assert waiting.fenced
    assert waiting.attempts.next_at <= 1000 + FENCED_LOOK * 1.2
    assert not waiting.lift_fence(1005.0, "commit")
    assert (waiting.attempts.next_at, waiting.attempts.failures) == (1005 + FENCED_LOOK, 1)


@pytest.mark.parametrize("freshness_ms", [1000, 10_000, 60_000, 3_600_000])
def test_a_topic_is_taken_back_within_40_s_after_the_other_driver_stops(freshness_ms: int) -> None:
    waiting = fenced(at=1000.0, freshness_ms=freshness_ms)
    for step in range(20):
        assert not waiting.lift_fence(1000 + 5.0 * step, f"commit {step}"), "the other driver commits"
    lifted = until_lifted(waiting, 1100.0, "last commit")
    assert 1105 < lifted <= 1140
    assert not waiting.fenced
    assert waiting.epoch is None, "the next round takes a new epoch"


def test_a_topic_without_waiting_records_stays_with_the_other_driver_while_that_one_commits() -> None:
    waiting = fenced(lag=0)
    looks = [FENCED_IDLE / 2 * number for number in range(1, 10)]
    assert not any(waiting.lift_fence(now, f"commit at {now}") for now in looks)
    now = looks[-1] + FENCED_IDLE / 2
    waiting.observe(now, {0: 0})
    waiting.observe(now + 1, {0: 1})
    assert not waiting.lift_fence(now + 2, f"commit at {looks[-1]}"), "the other driver has had no time for this record"


def test_a_topic_without_waiting_records_is_taken_back_after_ten_minutes_without_a_commit() -> None:
    waiting = fenced(lag=0)
    lifted = until_lifted(waiting, 100.0)
    assert FENCED_IDLE <= lifted - 100 <= FENCED_IDLE + FENCED_LOOK
    assert not waiting.fenced


def test_two_live_drivers_disturb_each_other_less_and_less() -> None:
    pair = [fenced(at=0.0), topic(lag=1, waiting_since=0.0, epoch=2)]
    now, pauses = 0.0, []
    for turn in range(8):
        loser, winner = pair[turn % 2], pair[1 - turn % 2]
        lifted = until_lifted(loser, now, turn)
        pauses.append(lifted - now)
        loser.prepared = winner.prepared = True
        winner.failed(FencedError("taken back"), lifted)
        now = lifted
    assert pauses[0] < 45
    assert all(pause > 200 for pause in pauses[-2:])


def test_a_driver_that_lands_within_its_freshness_is_disturbed_only_a_few_times() -> None:
    waiting = fenced(freshness_ms=600_000)
    taken = 0
    for commit in range(100):
        produced = commit * 700.0
        waiting.reading.position, waiting.log.ends = {0: commit}, {0: commit + 1}
        waiting.log.seen = ((produced, {0: commit}),)
        for now in range(int(produced), int(produced) + 600, 5):
            if waiting.lift_fence(float(now), commit):
                taken += 1
                waiting.failed(FencedError("the other driver landed the record"), now + 100.0)
                break
    assert taken <= 6


def test_an_old_fence_does_not_delay_the_next_one() -> None:
    waiting = fenced()
    for _ in range(3):
        waiting.failed(FencedError("again"), until_lifted(waiting, waiting.attempts.next_at))
    assert waiting.fence.times == 4
    lifted = until_lifted(waiting, waiting.attempts.next_at)
    waiting.failed(FencedError("much later"), lifted + FENCED_MEMORY)
    assert waiting.fence.times == 1
