"""A round whose records, rows and files disagree with its offsets is not committed."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import CorruptDataError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.auditing import disagreement, empty_offsets
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.landing_job import TopicResult, parse_results
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.tables.commits import Landed
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.unit.spark import tables
from tests.unit.spark.records import batch, job
from tests.unit.spark_driver.results import SCHEMA, descriptor, landed
from tests.unit.spark_driver.topic import topic

RANGES = {0: (10, 20), 1: (5, 8)}
GOOD = landed(RANGES)
PLACE = {"partition": 0, "offset": 15, "code": "c", "stage": "s", "path": "", "detail": ""}


def checked(result: TopicResult, passed: Any = RANGES) -> str:
    return disagreement(RANGES, passed, result, SCHEMA, SCHEMA)


def test_a_round_that_lands_every_offset_agrees() -> None:
    assert checked(GOOD) == ""
    assert empty_offsets(RANGES, GOOD) == 0


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (replace(GOOD, partitions={**GOOD.partitions, 7: (1, 0, 0)}), "partition 7: records at offsets 0 to 0"),
        (replace(GOOD, partitions={**GOOD.partitions, 0: (10, 9, 18)}), "outside of the range 10 to 19"),
        (replace(GOOD, partitions={**GOOD.partitions, 0: (10, 11, 20)}), "outside of the range 10 to 19"),
        (replace(GOOD, partitions={**GOOD.partitions, 0: (11, 10, 19)}), "read 11 records of 10 offsets"),
        (replace(GOOD, rows=12, data=GOOD.data[1:]), "the tasks read 13 records, of which 12 would land"),
        (replace(GOOD, skipped=1, records=14), "14 records would land for 13 offsets"),
        (replace(GOOD, data=GOOD.data[1:]), "the files have 3 rows, and the tasks made 13"),
        (
            replace(GOOD, rows=12, dead_rows=1, data=[descriptor(9, (0, 0), (10, 18)), GOOD.data[1]]),
            "the files have 0 rows, and the tasks made 1",
        ),
        (replace(GOOD, data=[descriptor(13, (0, 1), (5, 20))]), "has offsets 5 to 20, outside of the range 5 to 19"),
        (replace(GOOD, data=[descriptor(13, (0, 0), (9, 19))]), "has offsets 9 to 19, outside of the range 10 to 19"),
        (replace(GOOD, data=[descriptor(13, (2, 3), (10, 19))]), "has offsets 10 to 19, outside of the range 0 to -1"),
        (replace(GOOD, data=[descriptor(10, (0, 0), (10, 18)), GOOD.data[1]]), "has 10 rows with offsets 10 to 18"),
    ],
)
def test_a_disagreement_is_found(result: TopicResult, problem: str) -> None:
    assert problem in checked(result)


def test_offsets_without_a_record_are_counted_and_no_disagreement() -> None:
    gaps = replace(GOOD, rows=11, records=11, partitions={0: (8, 10, 19), 1: (3, 5, 7)})
    gaps.data = [descriptor(8, (0, 0), (10, 18)), GOOD.data[1]]
    assert checked(gaps) == ""
    assert empty_offsets(RANGES, gaps) == 2


def test_records_read_beyond_a_halt_do_not_land() -> None:
    halted = replace(GOOD, rows=8, halts=[cast(Any, PLACE)], data=[descriptor(5, (0, 0), (10, 14)), GOOD.data[1]])
    passed = {0: (10, 15), 1: (5, 8)}
    assert checked(halted, passed) == ""
    halted.data[0] = descriptor(5, (0, 0), (11, 15))
    assert "has offsets 11 to 15, outside of the range 10 to 14" in checked(halted, passed)


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
@pytest.mark.parametrize("mode", ["full", "none"])
def test_files_of_the_workers_agree_with_their_offsets(tmp_path: Path, shape: str, mode: str) -> None:
    given = job(("a", "int"), metadata_columns=shape)
    properties = {"write.metadata.metrics.default": mode}
    spec = tables.table_of(given, tmp_path / "t", properties=properties)
    dead = replace(tables.dead_letters(tmp_path / "t__dlq"), properties=properties)
    values = [b'{"a": 1}', b'{"a": "x"}', b'{"a": 3}', b'{"a": 4}']
    records = batch(values, partition=[0, 0, 1, 1], offset=[10, 13, 5, 7])
    plan = LandingPlan({"t": TopicLanding(given, spec, dead)}, ingested_at=1)
    rows = [tuple(row.values()) for output in land(iter([records]), plan) for row in output.to_pylist()]
    result = parse_results(cast(Any, rows))["t"]
    assert disagreement(RANGES, RANGES, result, spec.schema, dead.schema) == ""
    assert empty_offsets(RANGES, result) == 9
    short = {0: (10, 13), 1: (5, 8)}
    found = disagreement(RANGES, short, result, spec.schema, dead.schema)
    assert ("offsets 13 to 13, outside of the range 10 to 12" in found) is (mode == "full")


def committing(committed: list[Any], audits: list[Any]) -> TopicCommits:
    def commit(*given: Any) -> Landed:
        committed.append(given)
        return Landed("id-1", 1, given[5])

    committer = SimpleNamespace(commit=commit, discard=lambda _, files: committed.append(files))
    meter = SimpleNamespace(
        landed=lambda *_: None, audited=lambda _, empty, agrees: audits.append((empty, agrees)), lost=None
    )
    preparation = SimpleNamespace(follow_table=lambda _: None)
    return TopicCommits(*cast(Any, (None, committer, preparation, Failpoints(), meter)))


def waiting() -> Topic:
    made = topic(epoch=1)
    made.table.java, made.reading.position = object(), {0: 10, 1: 5}
    return made


def test_a_round_that_disagrees_is_not_committed_and_its_files_are_deleted() -> None:
    committed: list[Any] = []
    audits: list[Any] = []
    behind, wrong = waiting(), replace(GOOD, rows=12)
    with pytest.raises(
        CorruptDataError, match=r"topic orders: the audit of a round failed.* the driver reads the records"
    ):
        committing(committed, audits).commit(behind, RANGES, wrong, 0.0)
    assert committed == [wrong.data]
    assert (audits, behind.reading.position) == ([(0, False)], {0: 10, 1: 5})


def test_a_round_that_agrees_is_committed() -> None:
    committed: list[Any] = []
    audits: list[Any] = []
    behind = waiting()
    committing(committed, audits).commit(behind, RANGES, landed(RANGES), 0.0)
    assert len(committed) == 1
    assert (audits, behind.reading.position) == ([(0, True)], {0: 20, 1: 8})


def test_a_commit_says_before_which_offsets_records_were_skipped() -> None:
    committed: list[Any] = []
    skipping = replace(GOOD, rows=12, skipped=1, data=[descriptor(9, (0, 0), (10, 18)), GOOD.data[1]])
    committing(committed, []).commit(waiting(), RANGES, skipping, 0.0)
    committing(committed, []).commit(waiting(), RANGES, landed(RANGES), 0.0)
    assert [given[6].skipped for given in committed] == [{0: 20, 1: 8}, {}]
