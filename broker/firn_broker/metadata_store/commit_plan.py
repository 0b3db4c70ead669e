"""The rows of a commit whose batches are all in order, which a coordinator writes with a few statements.

Almost every batch is the next batch of its producer. Then the high watermark of its partition determines its offset, its
batch range and the new state of its producer. So a store reads and writes all partitions of a commit together. If the
plan or the stored states show another batch, such as a duplicate, the store judges the batches one by one
(`metadata_store.idempotence`). Both ways have the same result.

The rows are plain tuples, because a commit may have thousands of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence
from firn_broker.log_types import RANGE_BYTES, BatchEntry, BatchOutcome, Partition
from firn_broker.metadata_store.idempotence import KEPT
from firn_broker.ports import WentBackError

MOST_RECORDS = 1 << 28
"""Number of records from which a batch is not planned. Sequences begin again after 2,147,483,647. So after larger batches,
a producer may repeat sequences of a batch that the store still knows."""

PlannedBatch = tuple[int, int, int, bool]
"""First and last sequence of a batch, its offset, and whether it gets the append time. All offsets of a plan count from
the high watermark before the commit."""
PlannedRange = tuple[int, int, int, int, int, int, bool]
"""A new batch range: number of the partition, offset, records, position, length, greatest timestamp, append time."""
PlannedProducer = tuple[int, int, int, int, list[PlannedBatch]]
"""Number of the partition, producer id, epoch, the sequence of its first batch, and its newest `KEPT` batches."""


@dataclass(slots=True)
class CommitPlan:
    """The new rows of a commit. They apply if the first batch of each producer is the next one in the log."""

    partitions: list[Partition] = field(default_factory=list)
    records: list[int] = field(default_factory=list)
    """Records by number of the partition."""
    sizes: list[int] = field(default_factory=list)
    """Bytes by number of the partition."""
    ranges: list[PlannedRange] = field(default_factory=list)
    producers: list[PlannedProducer] = field(default_factory=list)
    places: list[tuple[int, int, bool]] = field(default_factory=list)
    """Number of the partition, offset and append time of each batch."""

    def outcomes(self, at_ms: int, high_watermarks: Sequence[int], log_starts: Sequence[int]) -> list[BatchOutcome]:
        """Return the outcomes after a commit at ``at_ms`` that found these bounds of the partitions."""
        none = ErrorCode.none
        return [
            BatchOutcome(none, high_watermarks[log] + offset, at_ms if append_time else -1, log_starts[log])
            for log, offset, append_time in self.places
        ]


def plan_commit(batches: Sequence[BatchEntry]) -> CommitPlan | None:
    """Plan a commit of these batches. Return None unless they are ordered by partition, and by sequence of each
    producer."""
    plan = CommitPlan()
    topics: set[UUID] = set()
    at: Partition | None = None
    log, offset = -1, 0
    producers: dict[int, PlannedProducer] = {}
    for partition, position, length, records, newest, append_time, id, epoch, sequence in batches:
        if partition != at:
            if not _is_new(partition, at, topics):
                return None
            at, log, offset, producers = partition, log + 1, 0, {}
            plan.partitions.append(partition)
            plan.records.append(0)
            plan.sizes.append(0)
        if id >= 0:
            batch = sequence, following_sequence(sequence, records - 1), offset, append_time
            if id not in producers:
                producers[id] = log, id, epoch, sequence, [batch]
                plan.producers.append(producers[id])
            elif not _follows(producers[id], epoch, batch):
                return None
            if records >= MOST_RECORDS:
                return None
        _extend(plan.ranges, (log, offset, records, position, length, newest, append_time))
        plan.places.append((log, offset, append_time))
        offset += records
        plan.records[log] = offset
        plan.sizes[log] += length
    return plan


def _is_new(partition: Partition, before: Partition | None, topics: set[UUID]) -> bool:
    """Return whether a partition follows all others, without a search among those of its topic."""
    if before is not None and partition.topic == before.topic:
        return partition.index > before.index
    if partition.topic in topics:
        return False
    topics.add(partition.topic)
    return True


def _follows(producer: PlannedProducer, epoch: int, batch: PlannedBatch) -> bool:
    """Add a batch to its producer if it is the producer's next batch, and return whether it is."""
    *_, known, _, batches = producer
    if epoch != known or following_sequence(batches[-1][1], 1) != batch[0]:
        return False
    batches.append(batch)
    del batches[:-KEPT]
    return True


def _extend(ranges: list[PlannedRange], added: PlannedRange) -> None:
    """Join a batch to the last range if it begins where that range ends."""
    if ranges:
        log, offset, records, position, length, newest, append_time = ranges[-1]
        if (
            position + length == added[3]
            and log == added[0]
            and append_time == added[6]
            and length + added[4] <= RANGE_BYTES
        ):
            joined = records + added[2], position, length + added[4], max(newest, added[5])
            ranges[-1] = log, offset, *joined, append_time
            return
    ranges.append(added)


def outcomes_of(reply: Any, batches: Sequence[BatchEntry]) -> list[BatchOutcome]:
    """Return the outcomes that a store keeps as JSON: those of all batches, or the bounds that a plan found.

    ``batches`` are those of the commit. Without them, return one outcome for each partition of the commit at least.
    Raises WentBackError if they are not those of the commit.
    """
    if not isinstance(reply, Mapping):
        if any(isinstance(swapped, bool) for swapped in reply):
            # A rewrite took place, so the empty commit that would have given its object up changes nothing.
            return []
        return [BatchOutcome(ErrorCode(error), *rest) for error, *rest in reply]
    plan = plan_commit(batches)
    if plan is None or (batches and len(plan.partitions) != len(reply["high"])):
        raise WentBackError("coordinator: an object was committed with other batches")
    if not batches:
        plan.places += [(log, 0, False) for log in range(len(reply["high"]))]
    return plan.outcomes(reply["at"], reply["high"], reply["start"])


def reply_of(at_ms: int, high_watermarks: Sequence[int], log_starts: Sequence[int]) -> dict[str, Any]:
    """Return what a store keeps of the outcomes of a planned commit."""
    return {"at": at_ms, "high": high_watermarks, "start": log_starts}
