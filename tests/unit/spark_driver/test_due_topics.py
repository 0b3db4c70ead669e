from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import NotReadyError, UnavailableError
from firn.model.progress import HaltedAt
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import BACKOFF_MOST, FIRST_ROUND_SECONDS, NOT_READY_MOST
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import job, topic

MUCH = 2**40


def test_a_topic_without_waiting_records_is_not_due() -> None:
    assert topic(lag=0).due(MUCH) is None


def test_a_topic_is_due_before_its_oldest_record_exceeds_freshness() -> None:
    due = topic(lag=1, waiting_since=100.0, round_seconds=2.0).due(MUCH)
    assert due is not None
    assert 100 < due <= 160 - 2


def test_a_slow_round_begins_earlier_but_never_before_half_the_freshness() -> None:
    assert topic(lag=1, waiting_since=100.0, round_seconds=500.0).due(MUCH) == 130


def test_a_topic_is_due_at_once_with_enough_bytes_for_a_file() -> None:
    assert topic(lag=1000, waiting_since=100.0, record_bytes=1000.0).due(1_000_000) == 100


def test_a_round_ends_before_half_of_the_retention_of_the_log_has_passed() -> None:
    waiting = topic(lag=1, waiting_since=100.0, round_seconds=2.0, freshness_ms=86_400_000, retention_ms=3_600_000)
    due = waiting.due(MUCH)
    assert due is not None
    assert 100 + 1700 < due <= 100 + 1800 - 2


def test_a_round_starts_before_half_of_the_bytes_of_the_log_wait() -> None:
    state: dict[str, Any] = {"waiting_since": 100.0, "record_bytes": 1000.0, "retention_bytes": 1_000_000}
    assert (topic(lag=100, **state).due(MUCH) or 0) > 100
    assert topic(lag=300, **state).due(MUCH) == 100


def test_a_change_of_the_log_retention_does_not_prepare_the_topic_again() -> None:
    halted_topic = topic(lag=9, halted=HaltedAt(partition=0, offset=7))
    halted_topic.accept(job(retention_ms=1000, retention_bytes=5))
    assert halted_topic.halted is not None
    assert halted_topic.prepared
    assert halted_topic.job.retention_ms == 1000
    halted_topic.accept(job(retention_ms=2000, retention_bytes=5, freshness_ms=1000))
    assert not halted_topic.prepared


@pytest.mark.parametrize(
    "state",
    [
        {"suspended": True},
        {"fenced": True},
        {"removed": True},
        {"prepared": False},
        {"halted": HaltedAt(partition=0, offset=1)},
    ],
)
def test_a_topic_that_may_not_land_is_never_due(state: dict[str, Any]) -> None:
    assert topic(lag=10, waiting_since=1.0, **state).due(1) is None


def test_failures_back_off_exponentially_until_a_success() -> None:
    failing = topic(lag=1, waiting_since=0.0)
    waits = []
    for _ in range(12):
        failing.failed(UnavailableError("down"), 1000.0)
        waits.append(failing.attempts.next_at - 1000)
        assert not failing.prepared
    assert waits[3] > waits[0]
    assert max(waits) <= BACKOFF_MOST * 1.2
    failing.prepared = True
    assert failing.due(MUCH) == failing.attempts.next_at
    failing.attempts.succeeded()
    assert failing.attempts.failures == 0
    assert failing.due(MUCH) == pytest.approx(60 - 1 - 2 * FIRST_ROUND_SECONDS, abs=3)


def test_failing_rounds_back_off_after_successful_preparations() -> None:
    failing = topic(lag=1, waiting_since=0.0)
    for expected in range(1, 6):
        failing.failed(UnavailableError("no"), 0.0)
        assert failing.attempts.failures == expected
        failing.was_prepared()
        assert progress_of(failing, 0, 0).state == "BackingOff"
    failing.attempts.succeeded()
    assert progress_of(failing, 0, 0).state == "Running"


def test_a_failed_round_ends_when_no_record_waits() -> None:
    failing = topic(lag=1, waiting_since=0.0)
    failing.failed(UnavailableError("no answer"), 0.0)
    failing.reading.position = {0: 1}
    failing.was_prepared()
    assert progress_of(failing, 0, 0).state == "CaughtUp"


def test_an_error_of_the_brokers_shows_after_the_catalog_recovers() -> None:
    failing = topic()
    failing.prepared = False
    failing.failed(UnavailableError("no catalog", reason=Reason.CATALOG_UNREACHABLE), 0.0)
    failing.log.error = UnavailableError("no broker", reason=Reason.BROKER_UNREACHABLE)
    failing.was_prepared(complete=False)
    assert (failing.prepared, progress_of(failing, 0, 0).reason) == (False, "BrokerUnreachable")


def test_a_dependency_that_is_not_ready_is_checked_soon() -> None:
    waiting = topic()
    for _ in range(12):
        waiting.failed(NotReadyError("not yet"), 0.0)
    assert waiting.attempts.next_at <= NOT_READY_MOST * 1.2


def test_a_new_contract_ends_a_halt() -> None:
    halted_topic = topic(lag=9, halted=HaltedAt(partition=0, offset=7))
    halted_topic.accept(job(resume="skip:0:7"))
    assert halted_topic.halted is None
    assert not halted_topic.prepared


def test_progress_reports_the_error() -> None:
    assert progress_of(topic(lag=0), 0, 0).state == "CaughtUp"
    assert progress_of(topic(lag=5), 0, 0).state == "Running"
    assert progress_of(topic(prepared=False, ends={}), 0, 0).state == "Starting"
    assert progress_of(topic(suspended=True), 0, 0).state == "Suspended"
    halted = progress_of(topic(halted=HaltedAt(partition=2, offset=9, code="Type", column="id")), 0, 0)
    assert (halted.state, halted.reason, halted.message) == (
        "Halted",
        "BadRecordHalt",
        "partition 2, offset 9: Type id",
    )
    failing = topic()
    failing.failed(UnavailableError("down", reason="CatalogUnreachable"), 10.0)
    progress = progress_of(failing, 10.0, 1_000_000.0)
    assert (progress.state, progress.reason, progress.message, progress.failures) == (
        "BackingOff",
        "CatalogUnreachable",
        "down",
        1,
    )
    assert progress.next_attempt is not None
    assert progress.next_attempt > 1_000_000


def test_records_keep_their_age_while_the_table_is_unreadable() -> None:
    failing = topic(lag=5, waiting_since=100.0)
    failing.failed(UnavailableError("down"), 110.0)
    progress = progress_of(failing, 170.0, 0.0)
    assert (progress.lag_records, progress.lag_seconds) == (5, 70.0)


@pytest.mark.parametrize("state", [{"ends": {}}, {"reading": None}, {"live": None}, {"live": TopicInfo("id-2", (0,))}])
def test_the_lag_is_unknown_before_table_and_topic_are_read(state: dict[str, Any]) -> None:
    progress = progress_of(topic(lag=5, waiting_since=100.0, prepared=False, **state), 170.0, 0.0)
    assert (progress.lag_records, progress.lag_seconds) == (None, None)


def test_slow_rounds_start_the_next_ones_earlier_for_a_while() -> None:
    waiting = topic(lag=1, waiting_since=100.0)
    waiting.took(20.0)
    assert waiting.due(MUCH) == pytest.approx(100 + 60 - 30, abs=2)
    for _ in range(40):
        waiting.took(0.5)
    assert waiting.due(MUCH) == pytest.approx(100 + 60 - 2, abs=1)
    waiting.took(3600.0)
    assert waiting.due(MUCH) == 130
