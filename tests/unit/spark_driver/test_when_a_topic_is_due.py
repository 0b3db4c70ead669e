from typing import Any

import pytest

from firn.model.conditions import Reason
from firn.model.errors import FencedError, NotReadyError, UnavailableError
from firn.model.progress import HaltedAt
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import BACKOFF_MOST, FENCED_QUIET, FIRST_ROUND_SECONDS, NOT_READY_MOST
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import job, topic

MUCH = 2**40


def test_nothing_waits_nothing_is_due() -> None:
    assert topic(lag=0).due(MUCH) is None


def test_due_before_the_oldest_record_that_waits_gets_older_than_freshness() -> None:
    due = topic(lag=1, waiting_since=100.0, round_seconds=2.0).due(MUCH)
    assert due is not None
    assert 100 < due <= 160 - 2


def test_a_slow_round_begins_earlier_but_never_before_half_the_freshness() -> None:
    assert topic(lag=1, waiting_since=100.0, round_seconds=500.0).due(MUCH) == 130


def test_due_at_once_when_enough_waits_for_a_good_file() -> None:
    assert topic(lag=1000, waiting_since=100.0, record_bytes=1000.0).due(1_000_000) == 100


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


def test_failures_back_off_further_each_time_and_a_success_forgets_them() -> None:
    one = topic(lag=1, waiting_since=0.0)
    waits = []
    for _ in range(12):
        one.failed(UnavailableError("down"), 1000.0)
        waits.append(one.attempts.next_at - 1000)
        assert not one.prepared
    assert waits[3] > waits[0]
    assert max(waits) <= BACKOFF_MOST * 1.2
    one.prepared = True
    assert one.due(MUCH) == one.attempts.next_at
    one.attempts.succeeded()
    assert one.attempts.failures == 0
    assert one.due(MUCH) == pytest.approx(60 - 1 - 2 * FIRST_ROUND_SECONDS, abs=3)


def test_rounds_that_fail_again_and_again_back_off_although_each_is_prepared_well() -> None:
    one = topic(lag=1, waiting_since=0.0)
    for expected in range(1, 6):
        one.failed(UnavailableError("no"), 0.0)
        assert one.attempts.failures == expected
        one.was_prepared()
        assert progress_of(one, 0, 0).state == "BackingOff"
    one.attempts.succeeded()
    assert progress_of(one, 0, 0).state == "Running"


def test_a_round_that_failed_is_over_when_nothing_waits_any_more() -> None:
    one = topic(lag=1, waiting_since=0.0)
    one.failed(UnavailableError("no answer"), 0.0)
    one.reading.position = {0: 1}
    one.was_prepared()
    assert progress_of(one, 0, 0).state == "CaughtUp"


def test_a_catalog_that_is_back_hides_no_longer_what_is_wrong_with_the_brokers() -> None:
    one = topic()
    one.prepared = False
    one.failed(UnavailableError("no catalog", reason=Reason.CATALOG_UNREACHABLE), 0.0)
    one.log.error = UnavailableError("no broker", reason=Reason.BROKER_UNREACHABLE)
    one.was_prepared(complete=False)
    assert (one.prepared, progress_of(one, 0, 0).reason) == (False, "BrokerUnreachable")


def test_what_is_on_its_way_is_looked_for_soon() -> None:
    one = topic()
    for _ in range(12):
        one.failed(NotReadyError("not yet"), 0.0)
    assert one.attempts.next_at <= NOT_READY_MOST * 1.2


def test_a_fenced_topic_is_left_alone_for_long() -> None:
    one = topic(lag=1)
    one.failed(FencedError("another"), 0.0)
    assert one.fenced
    assert one.attempts.next_at >= FENCED_QUIET * 0.8


def test_a_new_contract_ends_a_halt() -> None:
    one = topic(lag=9, halted=HaltedAt(partition=0, offset=7))
    one.accept(job(resume="skip:0:7"))
    assert one.halted is None
    assert not one.prepared


def test_progress_says_what_is_in_the_way() -> None:
    assert progress_of(topic(lag=0), 0, 0).state == "CaughtUp"
    assert progress_of(topic(lag=5), 0, 0).state == "Running"
    assert progress_of(topic(prepared=False, ends={}), 0, 0).state == "Starting"
    assert progress_of(topic(suspended=True), 0, 0).state == "Suspended"
    halted = progress_of(topic(halted=HaltedAt(partition=2, offset=9, code="Type", detail="no number")), 0, 0)
    assert (halted.state, halted.reason, halted.message) == (
        "Halted",
        "BadRecordHalt",
        "partition 2, offset 9: Type no number",
    )
    one = topic()
    one.failed(UnavailableError("down", reason="CatalogUnreachable"), 10.0)
    told = progress_of(one, 10.0, 1_000_000.0)
    assert (told.state, told.reason, told.message, told.failures) == ("BackingOff", "CatalogUnreachable", "down", 1)
    assert told.next_attempt is not None
    assert told.next_attempt > 1_000_000


def test_records_that_come_while_the_table_cannot_be_read_wait_as_long_as_they_wait() -> None:
    one = topic(lag=5, waiting_since=100.0)
    one.failed(UnavailableError("down"), 110.0)
    told = progress_of(one, 170.0, 0.0)
    assert (told.lag_records, told.lag_seconds) == (5, 70.0)


@pytest.mark.parametrize("state", [{"ends": {}}, {"reading": None}, {"live": None}, {"live": TopicInfo("id-2", (0,))}])
def test_what_waits_is_not_known_before_table_and_topic_were_seen(state: dict[str, Any]) -> None:
    told = progress_of(topic(lag=5, waiting_since=100.0, prepared=False, **state), 170.0, 0.0)
    assert (told.lag_records, told.lag_seconds) == (None, None)


def test_rounds_that_took_long_start_the_next_one_earlier_and_are_forgotten_slowly() -> None:
    one = topic(lag=1, waiting_since=100.0)
    one.took(20.0)
    assert one.due(MUCH) == pytest.approx(100 + 60 - 30, abs=2)
    for _ in range(40):
        one.took(0.5)
    assert one.due(MUCH) == pytest.approx(100 + 60 - 2, abs=1)
    one.took(3600.0)
    assert one.due(MUCH) == 130
