"""A task that lacks a schema names all schemas of its slice that it lacks, so that the driver requests them at once."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from firn.model.jobs import IngestJob, KeySchema
from firn_spark.worker import landing
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding, land
from tests.unit.spark import records, tables
from tests.unit.spark.test_header_ids import GUID, by_guid, by_id
from tests.unit.spark.test_writer_schemas import NARROW, schema, value, writer


def narrow(number: int) -> bytes:
    return value(number, NARROW, a=number)


def job(**changes: Any) -> IngestJob:
    made = schema(("a", "long")).model_copy(update=changes)
    return records.job().model_copy(update={"record_schema": made})


def needed(tmp_path: Any, batches: Sequence[pa.RecordBatch], of: IngestJob | None = None, **known: Any) -> Any:
    """Return the result rows of a task, whose ids of schemas are sorted."""
    of = of or job()
    plan = LandingPlan({"t": TopicLanding(of, tables.table_of(of, tmp_path), **known)}, ingested_at=0)
    found = dict(tables.results(land(iter(batches), plan))["t"])
    for each in found.get(Kind.SCHEMAS_NEEDED, []):
        each["ids"].sort(key=str)
    return found


def test_all_blocks_of_a_slice_are_searched(tmp_path: Any) -> None:
    batches = [records.batch([narrow(1), narrow(100 + block)]) for block in range(20)]
    found = needed(tmp_path, batches, writer_schemas={1: writer(NARROW)})
    assert found == {Kind.SCHEMAS_NEEDED: [{"ids": [*range(100, 120)], "reader": "values"}]}
    assert not [*tmp_path.rglob("*.parquet")]
    known = {number: writer(NARROW) for number in (1, *range(100, 120))}
    assert needed(tmp_path, batches, writer_schemas=known)[Kind.STATS][0]["rows"] == 40


def test_schemas_of_values_and_keys_are_named_together(tmp_path: Any) -> None:
    key = KeySchema(columns="Flat", fields=schema(("k", "long")).fields, decoding=schema(("k", "long")))
    batches = [records.batch([narrow(number)], key=[narrow(50 + number)]) for number in (1, 2)]
    assert needed(tmp_path, batches, job(key=key)) == {
        Kind.SCHEMAS_NEEDED: [{"ids": [1, 2], "reader": "values"}, {"ids": [51, 52], "reader": "keys"}]
    }


def test_guids_and_ids_of_headers_are_named_together(tmp_path: Any) -> None:
    of = job()
    subject = of.record_schema.subject
    assert subject is not None
    of = job(subject=subject.model_copy(update={"id_in": "Header"}))
    headers = [by_guid(GUID), by_id(4), []]
    batches = [records.batch([bytes(9), b"\2", narrow(5)], headers=headers)]
    assert needed(tmp_path, batches, of) == {Kind.SCHEMAS_NEEDED: [{"ids": [str(GUID), 4, 5], "reader": "values"}]}


def test_records_that_are_dead_letters_already_need_no_schema(tmp_path: Any) -> None:
    batch = records.batch([narrow(1), narrow(2), narrow(3)])
    exclude = {0: {2: {records.fetched([narrow(1), narrow(2), narrow(3)]).identity(2)}}}
    found = needed(tmp_path, [batch], exclude=exclude)
    assert found == {Kind.SCHEMAS_NEEDED: [{"ids": [1, 2], "reader": "values"}]}


def test_bytes_that_are_no_ids_make_a_bounded_report(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(landing, "MOST_NEEDED", 7)
    batches = [records.batch([narrow(number) for number in range(block, block + 5)]) for block in range(0, 40, 5)]
    (report,) = needed(tmp_path, batches)[Kind.SCHEMAS_NEEDED]
    assert len(report["ids"]) == 7
