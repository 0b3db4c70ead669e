"""How many of a topic's newest records did not fit the schema."""

from typing import Any

import pytest

from firn.model.jobs import Column, RecordSchema
from firn.model.progress import RecentRecords
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import Recent
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


def test_progress_forgets_rejected_records_after_a_change_of_the_schema() -> None:
    orders = topic()
    orders.recent.add(1, 4, "WrongKind", "$.id")
    orders.accept(job(generation=2))
    assert progress_of(orders, 0.0, 0.0).recent == RecentRecords(records=5, rejected=4, code="WrongKind", path="$.id")
    orders.accept(job(record_schema=RecordSchema(format="Json", fields=(Column(name="id", type="string"),))))
    assert progress_of(orders, 0.0, 0.0).recent is None
