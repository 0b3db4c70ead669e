"""How many of a topic's newest records did not fit the schema."""

from typing import Any

import pytest

from firn.model.jobs import Column, RecordSchema
from firn.model.progress import RecentRecords, SuspiciousTimes
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import Recent
from firn_spark.worker.formats.format import Times
from tests.unit.spark_driver.topic import job, topic


def report(*rounds: tuple[int, int]) -> Any:
    recent = Recent()
    for accepted, rejected in rounds:
        recent.add(accepted, rejected, "WrongKind" if rejected else "", "$.id" if rejected else "")
    return recent.report()


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([(5, 0)], (5, 0)),
        ([(0, 500)], (500, 500)),
        ([(400_000, 0), (0, 501)], (1000, 501)),
        ([(400_000, 0), (0, 500)], (1000, 500)),
        ([(0, 900), (999, 0)], (1000, 1)),
        ([(0, 900), (1000, 0)], (1000, 0)),
        ([(399_999, 1)], (1000, 1)),
        ([(399_999, 1), (999, 0)], (1000, 1)),
        ([(399_999, 1), (1000, 0)], (1000, 0)),
        ([(1, 0)] * 3000, (1000, 0)),
    ],
)
def test_the_newest_thousand_records_count(rounds: list[tuple[int, int]], expected: tuple[int, int]) -> None:
    reported = report(*rounds)
    assert (reported.records, reported.rejected) == expected


def test_the_report_has_cause_and_place_only_while_a_record_is_rejected() -> None:
    assert report((3, 2)) == RecentRecords(records=5, rejected=2, code="WrongKind", path="$.id")
    assert report((0, 2), (1000, 0)) == RecentRecords(records=1000)


def test_nothing_is_reported_before_a_record_lands() -> None:
    assert report() is None
    assert report((0, 0)) is None


@pytest.mark.parametrize(
    ("rounds", "expected"),
    [
        ([Times(4, 3, "s", 1_760_000_000_000)], SuspiciousTimes(column="at", epoch="s", sample="1970-01-21")),
        ([Times(4, 2, "s", 1_760_000_000_000)], None),
        ([Times(9, 9, "s", 0), Times(9, 0, "ms", 0)], None),
        ([Times(9, 9, "us", 1_760_000_000_000_000_000)], SuspiciousTimes(column="at", epoch="us", sample="the year 57742")),
        ([Times(5000, 5000, "s", 0), Times(501, 0, "ms", 0)], None),
        ([Times(9, 9, "ns", 1_760_000_000_000_000_000_000)], SuspiciousTimes(column="at", epoch="ns", sample="the year 55774149")),
        ([Times(5000, 0, "ms", 0), Times(501, 501, "s", 0)], SuspiciousTimes(column="at", epoch="s", sample="1970-01-01")),
    ],
)  # fmt: skip
def test_times_are_suspicious_if_most_need_another_epoch(rounds: list[Times], expected: SuspiciousTimes | None) -> None:
    recent = Recent()
    recent.add(1, 0, "", "")
    for times in rounds:
        recent.add_times({"at": times})
    reported = recent.report()
    assert reported is not None
    assert reported.times == expected


def test_times_of_tasks_are_added_up() -> None:
    both = Times(4, 2, "s", 5).plus(Times(3, 3, "s", 7))
    assert both == Times(7, 5, "s", 7)
    assert both.plus(Times(9, 1, "us", 8)) == Times(16, 5, "s", 7)


def test_progress_forgets_rejected_records_after_a_change_of_the_schema() -> None:
    orders = topic()
    orders.recent.add(1, 4, "WrongKind", "$.id")
    orders.accept(job(generation=2))
    assert progress_of(orders, 0.0, 0.0).recent == RecentRecords(records=5, rejected=4, code="WrongKind", path="$.id")
    orders.accept(job(record_schema=RecordSchema(format="Json", fields=(Column(name="id", type="string"),))))
    assert progress_of(orders, 0.0, 0.0).recent is None
    orders.recent.add(1, 0, "", "")
    assert progress_of(orders, 0.0, 0.0).recent == RecentRecords(records=1, new_schema=True)
