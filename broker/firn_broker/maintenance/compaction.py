"""Compaction by key: a pass reads a partition from its log start on and writes the newest record of each key into one
new object. The coordinator then swaps the batch ranges. A crash anywhere leaves the old ranges or the new ones;
maintenance deletes the objects of the others.

The keys of objects say which ranges are compacted (`wal.compacted_key`), so compaction stores no state of its own. A
pass reads the compacted ranges and some of the newer ones: these are at least `min.cleanable.dirty.ratio` of both. It
keeps the newest records in memory. A partition whose newest records take more than ``partition_bytes`` is too large for
compaction, and is left as it is, counted and logged. Compaction tries again when the log start moves or the size has
doubled. The same holds for a partition with a batch that cannot be decoded."""

import asyncio
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn.records import keys, record_batch
from firn.records.contents import UndecodableError
from firn_broker import metrics
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.log.decoder import TURN_RECORDS, Decoder
from firn_broker.log.reader import Reader, UnreadableError
from firn_broker.log_types import (
    RANGE_BYTES,
    BatchRange,
    Commit,
    LogState,
    Lookup,
    Partition,
    Rewrite,
    Swap,
    TableRange,
    Topic,
    WalRange,
)
from firn_broker.ports import LogStore, ObjectStore
from firn_broker.storage import wal
from firn_broker.topics import configs
from firn_broker.topics.configs import TopicConfigs

log = structlog.get_logger()

PASS_RANGES = 10_000
"""Batch ranges that one pass may replace."""


class _NotDue(NamedTuple):
    """The state of a partition that was not due. It is due at ``horizon_ms`` at the earliest, unless this state
    changes."""

    log_start: int
    high_watermark: int
    ratio: float
    horizon_ms: int


class _GivenUp(NamedTuple):
    """The state of a partition that could not be compacted, and the reason."""

    log_start: int
    size: int
    why: str


class _Part(NamedTuple):
    """The batch ranges of a partition from its log start on.

    ``clean`` are compacted, ``dirty`` follow. ``whole``: these are all. ``full``: one pass takes no more, so it is due
    whatever its ratio."""

    clean: Sequence[BatchRange]
    dirty: Sequence[BatchRange]
    whole: bool = False
    full: bool = False


class Compaction:
    """Compacts partitions in turn."""

    def __init__(
        self, log_store: LogStore, objects: ObjectStore, membership: Membership, reader: Reader, identifiers: Identifiers,
        topic_configs: TopicConfigs, decoder: Decoder, partition_bytes: int,
    ) -> None:  # fmt: skip
        self._log_store = log_store
        self._objects = objects
        self._membership = membership
        self._reader = reader
        self._identifiers = identifiers
        self._configs = topic_configs
        self._decoder = decoder
        self._bytes = partition_bytes
        self._not_due: dict[Partition, _NotDue] = {}
        self._given_up: dict[Partition, _GivenUp] = {}
        self._last: Partition | None = None
        """The partition that had the last turn."""
        self._behind = 0
        """Partitions that may be due and had no turn in the last round, or need another one."""
        self._unsettled: Rewrite | Commit | None = None
        """The request to the coordinator whose outcome is unknown. It is repeated before the next key is reserved, so
        that no object is leaked."""

    async def round(self, topics: Sequence[Topic], seconds: float) -> None:
        """Compact the due partitions of ``topics``, which are all compacted topics, in turn, one pass at a time.

        No pass starts after ``seconds``. Partitions that are due then are counted and wait for the next round. Raises
        UnavailableError and FencedError."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        await self.settle()
        by_partition = {Partition(topic.id, index): topic for topic in topics for index in range(topic.partitions)}
        self._not_due = {partition: state for partition, state in self._not_due.items() if partition in by_partition}
        self._given_up = {partition: state for partition, state in self._given_up.items() if partition in by_partition}
        partitions = sorted(by_partition)
        if self._last is not None:
            turn = bisect_right(partitions, self._last)
            partitions = partitions[turn:] + partitions[:turn]
        self._behind = 0
        try:
            while partitions:
                states = zip(partitions, await self._log_store.states(partitions), strict=True)
                due = [
                    (partition, state)
                    for partition, state in states
                    if state and self._may_be_due(by_partition[partition], partition, state)
                ]
                partitions = []
                for number, (partition, state) in enumerate(due, 1):
                    # Set before the pass, so that other partitions have their turn next even if it fails.
                    self._last = partition
                    if await self._compact_if_due(by_partition[partition], partition, state):
                        partitions.append(partition)
                    self._behind = len(due) - number + len(partitions)
                    if clock() >= end:
                        return
        finally:
            self._publish_metrics()

    def rest(self) -> None:
        """Reset the metrics while another broker compacts."""
        self._given_up.clear()
        self._behind = 0
        self._publish_metrics()

    def _publish_metrics(self) -> None:
        for why in ("outgrown", "undecodable"):
            metrics.NOT_COMPACTED.labels(why).set(sum(state.why == why for state in self._given_up.values()))
        metrics.NOT_COMPACTED.labels("behind").set(self._behind)

    async def settle(self) -> bool:
        """Repeat the request without a reply; return whether ranges were swapped. Raises UnavailableError."""
        request, done = self._unsettled, False
        try:
            if isinstance(request, Rewrite):
                (done,) = await self._log_store.rewrite(request)
            elif request is not None:
                await self._log_store.commit(request)
        except FencedError as error:
            # The epoch of this node is over: maintenance withdraws the reservation.
            log.warning("the coordinator rejected the compaction", error=str(error))
        self._unsettled = None
        return done

    def _ratio(self, topic: Topic) -> float:
        return float(self._configs.get(topic, configs.MIN_DIRTY_RATIO))

    def _may_be_due(self, topic: Topic, partition: Partition, state: LogState) -> bool:
        if state.log_start == state.high_watermark:
            return False
        given_up, not_due = self._given_up.get(partition), self._not_due.get(partition)
        if given_up is not None:
            return given_up.log_start != state.log_start or state.size >= 2 * given_up.size
        return (
            not_due is None
            or not_due[:3] != (state.log_start, state.high_watermark, self._ratio(topic))
            or 0 < not_due.horizon_ms <= self._identifiers.now_ms()
        )

    async def _compact_if_due(self, topic: Topic, partition: Partition, state: LogState) -> bool:
        """Compact a partition if it is due; return whether another pass is needed."""
        part = await self._part(partition, state, int(self._configs.get(topic, configs.MIN_COMPACTION_LAG_MS)))
        horizon = min(filter(None, (wal.horizon(batch_range.place.key) for batch_range in part.clean)), default=0)
        dirty = _bytes(part.dirty)
        size, ratio = _bytes(part.clean) + dirty, self._ratio(topic)
        if not (part.full or (dirty and dirty >= ratio * size) or 0 < horizon <= self._identifiers.now_ms()):
            if part.whole:
                self._not_due[partition] = _NotDue(state.log_start, state.high_watermark, ratio, horizon)
            return False
        self._given_up.pop(partition, None)
        try:
            swapped = await self._pass(topic, partition, state.log_start, [*part.clean, *part.dirty])
            return swapped and part.full
        except UnreadableError as error:
            log.warning(
                "cannot read the partition for compaction; the next pass retries",
                topic=topic.name,
                partition=partition.index,
                error=str(error),
            )
        except (keys.TooLargeError, UndecodableError) as error:
            why = "outgrown" if isinstance(error, keys.TooLargeError) else "undecodable"
            self._given_up[partition] = _GivenUp(state.log_start, state.size, why)
            log.warning(
                "cannot compact the partition; its records stay as they are", topic=topic.name, partition=partition.index,
                why=why, bytes=state.size, error=str(error),
            )  # fmt: skip
        return False

    async def _part(self, partition: Partition, state: LogState, lag_ms: int) -> _Part:
        clean: list[BatchRange] = []
        dirty: list[BatchRange] = []
        offset, size, newest = state.log_start, 0, self._identifiers.now_ms() - lag_ms
        while offset < state.high_watermark:
            (result,) = await self._log_store.find([Lookup(partition, offset, self._bytes)])
            if result.error is not ErrorCode.none or not result.ranges:
                return _Part((), ())
            for batch_range in result.ranges:
                if isinstance(batch_range.place, TableRange):
                    # A topic with its history in a table is not compacted. Its ranges may still be on the way back.
                    return _Part((), ())
                if not dirty and wal.horizon(batch_range.place.key) is not None:
                    clean.append(batch_range)
                elif size >= self._bytes or len(dirty) >= PASS_RANGES:
                    return _Part(clean, dirty, full=True)
                elif lag_ms and batch_range.max_timestamp > newest:
                    return _Part(clean, dirty)
                else:
                    dirty.append(batch_range)
                    size += batch_range.place.length
            offset = result.ranges[-1].last_offset + 1
        return _Part(clean, dirty, whole=True)

    async def _pass(self, topic: Topic, partition: Partition, start: int, old: Sequence[BatchRange]) -> bool:
        newest = keys.Newest(self._bytes)
        compressed = False
        for batch_range in old:
            block = await self._reader.read(batch_range)
            data = block.whole(batch_range)
            for place, length, _ in record_batch.walk(data):
                batch = data[place : place + length]
                compressed |= bool(record_batch.header(batch)[1] & record_batch.CODEC_BITS)
                parts = keys.decode_parts(batch, TURN_RECORDS)
                while await self._decoder.run(partial(_add, newest, parts, start)):
                    pass
        retention_ms = int(self._configs.get(topic, configs.DELETE_RETENTION_MS))
        kept, horizon = list[keys.Record](), 0
        parts_kept = newest.kept(self._identifiers.now_ms(), retention_ms, TURN_RECORDS)
        while (part := await self._decoder.run(partial(next, parts_kept, None))) is not None:
            kept += part
            horizon = keys.next_horizon(part, horizon)
        encoded = keys.encode(
            kept, old[0].base_offset, old[-1].last_offset, compressed=compressed, batch_bytes=RANGE_BYTES // 4
        )
        batches = []
        while (compacted := await self._decoder.run(lambda: next(encoded, None))) is not None:
            batches.append(memoryview(compacted))
        swapped = await self._swap(partition, old, batches, horizon)
        metrics.MAINTENANCE.labels("compacted partitions").inc(swapped)
        return swapped

    async def _swap(
        self, partition: Partition, old: Sequence[BatchRange], batches: list[memoryview], horizon: int
    ) -> bool:
        id, lease = self._identifiers.uuid7(), self._membership.lease
        key = wal.compacted_key(id, horizon)
        data, positions = await self._decoder.run(
            lambda: wal.assemble(
                id, lease.node, lease.epoch, [(partition, [record_batch.rewritten(batch) for batch in batches])]
            )
        )
        # If the upload or the swap fails, an empty commit gives the key up.
        self._unsettled = Commit(lease, key, 0, ())
        await self._log_store.reserve(lease, [key])
        await self._objects.put(key, data)
        self._unsettled = Rewrite(lease, key, len(data), [Swap(partition, old, batch_ranges(key, batches, positions))])
        return await self.settle()


def _add(newest: keys.Newest, parts: Iterator[list[keys.Record]], start: int) -> bool:
    """Add the next part of a batch; return False if there is none."""
    part = next(parts, None)
    if part is None:
        return False
    newest.add(record for record in part if record.offset >= start)
    return True


def _bytes(ranges: Sequence[BatchRange]) -> int:
    return sum(batch_range.place.length for batch_range in ranges)


def batch_ranges(key: str, batches: Sequence[memoryview], positions: Sequence[int]) -> list[BatchRange]:
    """Return the batch ranges of a compacted object: consecutive batches, joined up to `RANGE_BYTES`."""
    found = []
    for batch, position in zip(batches, positions, strict=True):
        ((_, size, offsets),) = record_batch.walk(batch)
        base = int.from_bytes(batch[:8], "big")
        place = WalRange(key, position, size)
        found.append(BatchRange(base, base + offsets - 1, place, record_batch.header(batch)[0], -1))
    return joined([], found)


def joined(before: list[BatchRange], ranges: Sequence[BatchRange]) -> list[BatchRange]:
    """Add ranges that follow one another in an object to ``before``, joined up to `RANGE_BYTES`."""
    for each in ranges:
        if before and before[-1].place.length + each.place.length <= RANGE_BYTES:
            last = before.pop()
            place = last.place._replace(length=last.place.length + each.place.length)
            newest = max(last.max_timestamp, each.max_timestamp)
            before.append(BatchRange(last.base_offset, each.last_offset, place, newest, -1))
        else:
            before.append(each)
    return before
