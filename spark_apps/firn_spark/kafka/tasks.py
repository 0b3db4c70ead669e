"""The work of a round's tasks: read records from Kafka or a bucket and land them. It runs in Spark's Python workers."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence

import pyarrow as pa

from firn_spark.kafka.clients import POLL_BYTES
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.fetching.access import Access, Bucket
from firn_spark.worker.fetching.slices import Slice
from firn_spark.worker.landing import Detour, Kind, LandingPlan, land, land_fetched

TASK_BATCH_RECORDS = 16_384


def land_slices(
    access: Access, bucket: Bucket | None, plan: LandingPlan, parts: Iterator[Sequence[Slice]]
) -> Iterator[tuple[str, str, str]]:
    """Read slices and land them; return rows of `firn_spark.worker.landing.RESULT_SCHEMA`.

    With a bucket, slices with ranges are read from there. Brokers serve the others, and what the bucket does not have.
    """
    from firn_spark.worker.fetching.objects import Objects
    from firn_spark.worker.fetching.source import read

    slices = [part for group in parts for part in group]
    stored = [part for part in slices if part.ranges] if bucket is not None else []
    objects = Objects(bucket, stored) if bucket is not None and stored else None

    def records() -> Iterator[Fetched]:
        if objects is None:
            yield from read(access, slices)
        else:
            yield from objects.blocks()
            yield from read(access, [*(part for part in slices if not part.ranges), *objects.rest])

    for batch in land_fetched(records(), plan):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)
    if objects is not None:
        for topic, partitions in Counter(part.topic for part in objects.rest).items():
            detour: Detour = {"partitions": partitions, "problem": objects.problem, "unusable": objects.unusable}
            yield topic, Kind.DETOUR.value, json.dumps(detour)


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
