"""The work of a round's tasks: read records from Kafka and land them. It runs in Spark's Python workers."""

from collections.abc import Iterator, Sequence

import pyarrow as pa

from firn_spark.kafka.clients import POLL_BYTES
from firn_spark.worker.fetching.access import Access
from firn_spark.worker.fetching.slices import Slice
from firn_spark.worker.landing import LandingPlan, land, land_fetched

TASK_BATCH_RECORDS = 16_384


def land_slices(access: Access, plan: LandingPlan, parts: Iterator[Sequence[Slice]]) -> Iterator[tuple[str, str, str]]:
    """Read slices and land them; return rows of `firn_spark.worker.landing.RESULT_SCHEMA`."""
    from firn_spark.worker.fetching.source import read

    slices = [part for group in parts for part in group]
    for batch in land_fetched(read(access, slices), plan):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def land_records(batches: Iterator[pa.RecordBatch], plan: LandingPlan) -> Iterator[pa.RecordBatch]:
    """Land the batches of Spark's Kafka source."""
    return land(together(batches), plan)


def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Join small batches to batches of `TASK_BATCH_RECORDS` records or `POLL_BYTES`, because decoding has a cost for
    each batch."""
    waiting: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        waiting.append(batch)
        records += len(batch)
        size += batch.nbytes
        if records >= TASK_BATCH_RECORDS or size >= POLL_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, records, size = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
