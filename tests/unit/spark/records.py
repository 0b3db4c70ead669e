"""Kafka record batches as Spark delivers them, and jobs that land them."""

import datetime
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from firn.model.jobs import Column, IngestJob, RecordSchema, TableTarget
from firn_spark.worker.fetched import Fetched

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
NOON = 1_700_000_000_000
"""A time, in milliseconds since 1970."""


def batch(values: Sequence[bytes | None], **columns: Any) -> pa.RecordBatch:
    """Return records of topic ``t``, partition 0, offsets from 0, unless ``columns`` override these."""
    count = len(values)
    given = {
        "key": [None] * count, "topic": ["t"] * count, "partition": [0] * count, "offset": list(range(count)),
        "timestamp": [NOON * 1000] * count, "timestampType": [0] * count, "headers": [None] * count,
    } | columns  # fmt: skip
    types = {
        "key": pa.binary(), "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(),
        "timestamp": pa.timestamp("us", tz="UTC"), "timestamp_ms": pa.int64(), "timestampType": pa.int32(), "headers": HEADERS,
    }  # fmt: skip
    if "timestamp_ms" in given:
        del given["timestamp"]
    arrays = {"value": pa.array(values, pa.binary())} | {name: pa.array(given[name], types[name]) for name in given}
    return pa.RecordBatch.from_pydict(arrays)


def fetched(values: Sequence[bytes | None], **columns: Any) -> Fetched:
    """Return the records as decoders take them."""
    return Fetched.from_arrow("t", batch(values, **columns))


def job(*fields: tuple[str, str] | Column, **changes: Any) -> IngestJob:
    """Return a job for topic ``t`` with these fields (name, type), or a raw one without fields."""
    columns = tuple(item if isinstance(item, Column) else Column(name=item[0], type=item[1]) for item in fields)
    schema = {"format": "Json" if fields else "Raw", "fields": columns}
    schema |= {key: changes.pop(key) for key in ("unknown_fields", "raw_as") if key in changes}
    table = {"catalog": "lake", "namespace": "n", "name": "t"}
    table |= {key: changes.pop(key) for key in ("metadata_columns", "partition_by", "sort_by") if key in changes}
    return IngestJob(
        uid="u", namespace="n", name="t", generation=7, group="default", profile="p", topic="t", freshness_ms=60_000,
        record_schema=RecordSchema(**schema), table=TableTarget(**table), **changes,
    )  # fmt: skip


def utc(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text).replace(tzinfo=datetime.UTC)
