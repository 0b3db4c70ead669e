"""A fenced topic watches its table, and takes the topic back after the other driver has stopped."""

import time
from typing import Any

import pytest

from firn.model.errors import FencedError, UnavailableError
from firn.model.progress import Losses
from firn_spark.ingestion.rounds import planning
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import FENCED_IDLE, FENCED_LOOK, FENCED_MEMORY, FENCED_QUIET
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.losing import Brokers
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


def state(waiting: Topic, now: float) -> tuple[str, str]:
    progress = progress_of(waiting, now, 0.0)
    return progress.state, progress.message


def test_a_topic_without_waiting_records_is_ready_within_60_s_after_the_other_driver_stops() -> None:
    waiting = fenced(lag=0)
    for now in range(0, 100, 5):
        assert not waiting.lift_fence(float(now), f"commit at {now}")
        assert state(waiting, float(now)) == ("Fenced", "another driver")
    stopped, reported = 95.0, []
    for look in range(100, 3600, 5):
        if look >= waiting.attempts.next_at:
            assert not waiting.lift_fence(float(look), "the last commit"), "nothing needs a commit"
        reported += [(look - stopped, "CaughtUp")] if state(waiting, float(look)) == ("CaughtUp", "") else []
    assert reported[0][0] <= 50
    assert reported[-1][0] - reported[0][0] == 5 * (len(reported) - 1), "it stays so"
    waiting.observe(3600.0, {0: 0})
    waiting.observe(3601.0, {0: 1})
    assert until_lifted(waiting, 3601.0, "the last commit") <= 3601 + 40


def test_an_idle_topic_is_fenced_again_when_the_other_driver_commits() -> None:
    waiting = fenced(lag=0)
    for now in range(0, 100, 5):
        waiting.lift_fence(float(now), "a commit")
    assert state(waiting, 100.0)[0] == "CaughtUp"
    waiting.lift_fence(100.0, "another commit")
    assert state(waiting, 100.0)[0] == "Fenced"


def test_an_error_of_an_idle_topic_shows_until_a_look_succeeds() -> None:
    waiting = fenced(lag=0)
    for now in range(0, 100, 5):
        waiting.lift_fence(float(now), "a commit")
    waiting.failed(UnavailableError("no catalog"), 100.0)
    assert state(waiting, 100.0) == ("BackingOff", "no catalog")
    waiting.lift_fence(105.0, "a commit")
    assert state(waiting, 105.0) == ("CaughtUp", "")


def test_a_loss_of_an_idle_log_is_recorded_within_60_s() -> None:
    waiting = fenced(lag=0)
    waiting.table.losses = Losses()
    waiting.reading.position = {0: 9}
    for now in range(0, 100, 5):
        waiting.lift_fence(float(now), "a commit")
    waiting.observe(100.0, {0: 5})
    assert until_lifted(waiting, waiting.attempts.next_at, "a commit") <= 100 + 50
    waiting.prepared = True
    due = waiting.due(2**30)
    assert due is not None
    assert due <= 150


@pytest.mark.parametrize("freshness_ms", [1000, 10_000, 60_000, 3_600_000])
def test_a_topic_that_was_fenced_many_times_is_taken_back_within_50_s(freshness_ms: int) -> None:
    waiting = fenced(at=1000.0, freshness_ms=freshness_ms)
    for _ in range(10):
        waiting.failed(FencedError("again"), until_lifted(waiting, waiting.attempts.next_at))
    stopped = waiting.attempts.next_at
    assert stopped < until_lifted(waiting, stopped + FENCED_LOOK, "the last commit") <= stopped + 50


def contested(**state: Any) -> Topic:
    """Return a topic that this driver has taken back twice."""
    made = fenced(**state)
    for at in (100.0, 200.0):
        made.lift_fence(at, "commit")
        made.lift_fence(at + 50.0, "commit")
        made.failed(FencedError("again"), at + 60.0)
    made.lift_fence(300.0, "commit")
    made.lift_fence(400.0, "commit")
    assert not made.fenced
    made.prepared = True
    return made


def test_a_contested_topic_lands_soon_so_that_the_other_driver_sees_it_work() -> None:
    waiting = contested(freshness_ms=3_600_000)
    waiting.observe(500.0, {0: 0})
    waiting.observe(501.0, {0: 1})
    due = waiting.due(2**30)
    assert due is not None
    assert due < 500 + FENCED_QUIET[0] + FENCED_LOOK
    waiting.fence.lifted_at = -FENCED_MEMORY
    assert (waiting.due(2**30) or 0) > 500 + FENCED_MEMORY - 60


def test_a_contested_topic_reads_less_in_a_round() -> None:
    usual, disputed = topic(lag=1), contested()
    disputed.fence.lifted_at = time.monotonic()
    brokers: Any = Brokers(0, 40_000)
    whole, part = (planning.plan([each], brokers, 2**23)[each][0][1] for each in (usual, disputed))
    assert part * 4 == whole == 8192


def test_an_old_fence_does_not_delay_the_next_one() -> None:
    waiting = fenced()
    for _ in range(3):
        waiting.failed(FencedError("again"), until_lifted(waiting, waiting.attempts.next_at))
    assert waiting.fence.times == 4
    lifted = until_lifted(waiting, waiting.attempts.next_at)
    waiting.failed(FencedError("much later"), lifted + FENCED_MEMORY)
    assert waiting.fence.times == 1
