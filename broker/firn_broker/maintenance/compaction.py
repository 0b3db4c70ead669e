"""Compaction by key: a partition is read from its log start on, its newest records are written into one new object, and the coordinator swaps
the runs. A crash anywhere leaves the old runs, or the new ones; the objects of the others die, with grace.

What is compacted already is known from the keys of the objects it lies in (`wal.compacted_key`), so nothing is remembered that matters. A
pass reads that and some of what came since, at least `min.cleanable.dirty.ratio` of both, and keeps the newest records in memory: a partition
whose newest records take more than ``partition_bytes`` there has outgrown compaction. It is left as it is, counted and logged, and looked at
again when its log start moves or its size has doubled; so is one with a batch that cannot be decoded.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn.model.errors import FencedError
from firn.records import keys, record_batch
from firn.records.contents import UndecodableError
from firn_broker import metrics
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.log.reader import Reader, UnreadableError
from firn_broker.log_types import RANGE_BYTES, BatchRange, Commit, LogState, Lookup, Partition, Rewrite, Topic, WalRange
from firn_broker.ports import LogStore, ObjectStore
from firn_broker.storage import wal
from firn_broker.topics import configs
from firn_broker.topics.configs import TopicConfigs

log = structlog.get_logger()

PASS_RUNS = 10_000
"""Runs that one pass replaces at most."""


class _Seen(NamedTuple):
    """A partition as it was when nothing was to do; it is not looked at again before ``horizon_ms`` unless something is written, or the ratio
    is another."""

    log_start: int
    high_watermark: int
    ratio: float
    horizon_ms: int


class _Given(NamedTuple):
    """A partition as it was when it could not be compacted, and why."""

    log_start: int
    size: int
    why: str


class _Part(NamedTuple):
    """Runs of a partition from its log start on: those that are compacted, what followed, whether that is all there is, and whether it is as
    much as one pass takes: whatever its ratio, waiting makes it no more."""

    clean: Sequence[BatchRange]
    dirty: Sequence[BatchRange]
    whole: bool = False
    full: bool = False


class Compaction:
    """Compacts partitions, within bounds."""

    def __init__(
        self, log_store: LogStore, objects: ObjectStore, membership: Membership, reader: Reader, identifiers: Identifiers,
        clock: Clock, topic_configs: TopicConfigs, partition_bytes: int,
    ) -> None:  # fmt: skip
        self._log_store = log_store
        self._objects = objects
        self._membership = membership
        self._reader = reader
        self._identifiers = identifiers
        self._clock = clock
        self._configs = topic_configs
        self._bytes = partition_bytes
        self._seen: dict[Partition, _Seen] = {}
        self._given_up: dict[Partition, _Given] = {}
        self._last: Partition | None = None
        """The partition whose turn it was last."""
        self._behind = 0
        """Partitions that may be due, but had no turn in the last round, or need another."""
        self._unsettled: Rewrite | Commit | None = None
        """What the coordinator has to be asked (again) before another object is announced, so that none is left behind."""

    async def round(self, topics: Sequence[Topic], seconds: float) -> None:
        """Compact what is due of these, all compacted topics, partition after partition in turn, a pass of each at a time: none begins when
        it has taken ``seconds``. What is due then waits for the next round, and is counted. Raises UnavailableError and FencedError."""
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        await self.settle()
        by_partition = {Partition(it.id, index): it for it in topics for index in range(it.partitions)}
        self._seen = {key: it for key, it in self._seen.items() if key in by_partition}
        self._given_up = {key: it for key, it in self._given_up.items() if key in by_partition}
        partitions = sorted(by_partition)
        if self._last is not None:
            turn = bisect_right(partitions, self._last)
            partitions = partitions[turn:] + partitions[:turn]
        self._behind = 0
        try:
            while partitions:
                states = zip(partitions, await self._log_store.states(partitions), strict=True)
                due = [(it, state) for it, state in states if state and self._may_be_due(by_partition[it], it, state)]
                partitions = []
                for number, (partition, state) in enumerate(due, 1):
                    # Whatever comes of it, others have their turn next.
                    self._last = partition
                    if await self._look(by_partition[partition], partition, state):
                        partitions.append(partition)
                    self._behind = len(due) - number + len(partitions)
                    if clock() >= end:
                        return
        finally:
            self._tell()

    def rest(self) -> None:
        """Somebody else compacts."""
        self._given_up.clear()
        self._behind = 0
        self._tell()

    def _tell(self) -> None:
        for why in ("outgrown", "undecodable"):
            metrics.NOT_COMPACTED.labels(why).set(sum(it.why == why for it in self._given_up.values()))
        metrics.NOT_COMPACTED.labels("behind").set(self._behind)

    async def settle(self) -> bool:
        """Ask what was not answered; whether runs were swapped. Raises UnavailableError."""
        asked, done = self._unsettled, False
        try:
            if isinstance(asked, Rewrite):
                done = await self._log_store.rewrite(asked)
            elif asked is not None:
                await self._log_store.commit(asked)
        except FencedError as error:
            # Our epoch is over: the reservation is withdrawn by whoever does the upkeep.
            log.warning("compaction refused", error=str(error))
        self._unsettled = None
        return done

    def _now(self) -> int:
        return int(self._clock.now().timestamp() * 1000)

    def _ratio(self, topic: Topic) -> float:
        return float(self._configs.get(topic, configs.MIN_DIRTY_RATIO))

    def _may_be_due(self, topic: Topic, partition: Partition, state: LogState) -> bool:
        if state.log_start == state.high_watermark:
            return False
        given, seen = self._given_up.get(partition), self._seen.get(partition)
        if given is not None:
            return given.log_start != state.log_start or state.size >= 2 * given.size
        return (
            seen is None
            or seen[:3] != (state.log_start, state.high_watermark, self._ratio(topic))
            or 0 < seen.horizon_ms <= self._now()
        )

    async def _look(self, topic: Topic, partition: Partition, state: LogState) -> bool:
        """Compact a partition if it is due; whether there is more of it than one pass takes."""
        part = await self._part(partition, state, int(self._configs.get(topic, configs.MIN_COMPACTION_LAG_MS)))
        horizon = min(filter(None, (wal.horizon(run.place.key) for run in part.clean)), default=0)
        dirty = _bytes(part.dirty)
        size, ratio = _bytes(part.clean) + dirty, self._ratio(topic)
        if not (part.full or (dirty and dirty >= ratio * size) or 0 < horizon <= self._now()):
            if part.whole:
                self._seen[partition] = _Seen(state.log_start, state.high_watermark, ratio, horizon)
            return False
        self._given_up.pop(partition, None)
        try:
            swapped = await self._pass(topic, partition, state.log_start, [*part.clean, *part.dirty])
            return swapped and part.full
        except UnreadableError as error:
            log.warning("cannot compact", topic=topic.name, partition=partition.index, error=str(error))
        except (keys.TooLargeError, UndecodableError) as error:
            why = "outgrown" if isinstance(error, keys.TooLargeError) else "undecodable"
            self._given_up[partition] = _Given(state.log_start, state.size, why)
            log.warning(
                "partition is not compacted any more, its records stay as they are", topic=topic.name, partition=partition.index,
                why=why, bytes=state.size, error=str(error),
            )  # fmt: skip
        return False

    async def _part(self, partition: Partition, state: LogState, lag_ms: int) -> _Part:
        clean: list[BatchRange] = []
        dirty: list[BatchRange] = []
        offset, size, newest = state.log_start, 0, self._now() - lag_ms
        while offset < state.high_watermark:
            (found,) = await self._log_store.find([Lookup(partition, offset, self._bytes)])
            if found.error is not ErrorCode.none or not found.ranges:
                return _Part((), ())
            for run in found.ranges:
                if not dirty and wal.horizon(run.place.key) is not None:
                    clean.append(run)
                elif size >= self._bytes or len(dirty) >= PASS_RUNS:
                    return _Part(clean, dirty, full=True)
                elif lag_ms and run.max_timestamp > newest:
                    return _Part(clean, dirty)
                else:
                    dirty.append(run)
                    size += run.place.length
            offset = found.ranges[-1].last_offset + 1
        return _Part(clean, dirty, whole=True)

    async def _pass(self, topic: Topic, partition: Partition, start: int, old: Sequence[BatchRange]) -> bool:
        newest = keys.Newest(self._bytes)
        compressed = False
        for run in old:
            block = await self._reader.read(run)
            data = block.slice(run, run.base_offset, len(block.data), at_least_one=True)
            for place, length, _ in record_batch.walk(data):
                batch = data[place : place + length]
                compressed |= bool(record_batch.header(batch)[1] & record_batch.CODEC_BITS)
                newest.add(it for it in keys.decode(batch) if it.offset >= start)
                # A batch is a piece of work that others may wait for.
                await asyncio.sleep(0)
        kept = newest.kept(self._now(), int(self._configs.get(topic, configs.DELETE_RETENTION_MS)))
        batches = []
        for made in keys.encode(
            kept, old[0].base_offset, old[-1].last_offset, compressed=compressed, batch_bytes=RANGE_BYTES // 4
        ):
            batches.append(memoryview(made))
            await asyncio.sleep(0)
        swapped = await self._swap(partition, old, batches, keys.next_horizon(kept))
        metrics.UPKEEP.labels("compacted partitions").inc(swapped)
        return swapped

    async def _swap(
        self, partition: Partition, old: Sequence[BatchRange], batches: list[memoryview], horizon: int
    ) -> bool:
        id, lease = self._identifiers.uuid7(), self._membership.lease
        key = wal.compacted_key(id, horizon)
        data, positions = wal.assemble(
            id, lease.node, lease.epoch, [(partition, [record_batch.rewritten(it) for it in batches])]
        )
        # A commit of nothing gives the key up, should it come to no more.
        self._unsettled = Commit(lease, key, 0, ())
        await self._log_store.reserve(lease, [key])
        await self._objects.put(key, memoryview(data))
        self._unsettled = Rewrite(lease, key, len(data), partition, old, _runs(key, batches, positions))
        return await self.settle()


def _bytes(runs: Sequence[BatchRange]) -> int:
    return sum(run.place.length for run in runs)


def _runs(key: str, batches: Sequence[memoryview], positions: Sequence[int]) -> list[BatchRange]:
    """Runs of consecutive batches, none longer than runs are."""
    found: list[BatchRange] = []
    for batch, position in zip(batches, positions, strict=True):
        ((_, size, offsets),) = record_batch.walk(batch)
        base = int.from_bytes(batch[:8], "big")
        run = BatchRange(base, base + offsets - 1, WalRange(key, position, size), record_batch.header(batch)[0], -1)
        if found and found[-1].place.length + size <= RANGE_BYTES:
            last = found.pop()
            run = BatchRange(
                last.base_offset, run.last_offset, WalRange(key, last.place.position, last.place.length + size),
                max(last.max_timestamp, run.max_timestamp), -1,
            )  # fmt: skip
        found.append(run)
    return found
