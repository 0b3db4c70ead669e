"""Compaction by key: what a compacted partition holds is read whole, its newest records are written into one new object, and the coordinator
swaps the runs. A crash anywhere leaves the old runs, or the new ones; the objects of the others die, with grace.

A partition is compacted when at least `min.cleanable.dirty.ratio` of its bytes came since the last time (which a new holder of the upkeep does
not know), and only up to a size, because it goes through memory.
"""

import asyncio

import structlog
from kio.schema.errors import ErrorCode

from firn.model.clock import Clock
from firn_broker import configs, metrics
from firn_broker.configs import TopicConfigs
from firn_broker.coordinates import RUN_BYTES, Partition, Rewrite, Run, Topic, WalRange, Wanted
from firn_broker.identifiers import Identifiers
from firn_broker.membership import Membership
from firn_broker.ports import Coordinator, ObjectStore
from firn_broker.reader import Reader, UnreadableError
from firn_broker.storage import wal
from firn_broker.wire import keys, records

log = structlog.get_logger()


class Compaction:
    """Compacts partitions, within bounds."""

    def __init__(
        self, coordinator: Coordinator, objects: ObjectStore, membership: Membership, reader: Reader, identifiers: Identifiers,
        clock: Clock, topic_configs: TopicConfigs, partition_bytes: int,
    ) -> None:  # fmt: skip
        self._coordinator = coordinator
        self._objects = objects
        self._membership = membership
        self._reader = reader
        self._identifiers = identifiers
        self._clock = clock
        self._configs = topic_configs
        self._bytes = partition_bytes
        self._clean: dict[Partition, tuple[int, int]] = {}
        """(offset up to which a partition is compacted, its bytes then)."""

    async def topic(self, topic: Topic, budget: int) -> int:
        """Compact what is due of a topic, until ``budget`` bytes were read; how many were."""
        used = 0
        ratio = float(self._configs.get(topic, configs.MIN_DIRTY_RATIO))
        partitions = [Partition(topic.id, index) for index in range(topic.partitions)]
        for partition, state in zip(partitions, await self._coordinator.states(partitions), strict=True):
            if used >= budget:
                break
            upto, size = self._clean.get(partition, (-1, 0))
            if state is None or state.high_watermark in (upto, state.log_start):
                continue
            if upto >= 0 and state.size - size < ratio * state.size:
                continue
            if state.size > self._bytes:
                log.warning(
                    "partition too large to be compacted", topic=topic.name, partition=partition.index, bytes=state.size
                )
                continue
            try:
                used += await self._partition(topic, partition, state.log_start)
            except (UnreadableError, ValueError) as error:
                log.warning("cannot compact", topic=topic.name, partition=partition.index, error=str(error))
        return used

    async def _partition(self, topic: Topic, partition: Partition, start: int) -> int:
        old: list[Run] = []
        high = offset = start
        while offset < high or not old:
            (found,) = await self._coordinator.find([Wanted(partition, offset, self._bytes)])
            if found.error is not ErrorCode.none or not found.runs:
                return 0
            high = high if old else found.high_watermark
            old += [run for run in found.runs if run.base_offset < high]
            offset = old[-1].last_offset + 1
        size = sum(run.place.length for run in old)
        read: list[keys.Record] = []
        compressed = False
        for run in old:
            block = await self._reader.read(run)
            data = block.slice(run, run.base_offset, len(block.data), at_least_one=True)
            for place, length, _ in records.walk(data):
                batch = data[place : place + length]
                compressed |= bool(records.header(batch)[1] & records.CODEC_BITS)
                read += keys.decode(batch)
            # A run is a piece of work that others may wait for.
            await asyncio.sleep(0)
        before = int(self._clock.now().timestamp() * 1000) - int(self._configs.get(topic, configs.DELETE_RETENTION_MS))
        kept = keys.newest((it for it in read if it.offset >= start), forget_before_ms=before)
        if len(kept) == len(read):
            self._clean[partition] = high, size
            return size
        batches = keys.encode(
            kept, old[0].base_offset, old[-1].last_offset, compressed=compressed, batch_bytes=RUN_BYTES // 4
        )
        await self._swap(partition, old, [memoryview(it) for it in batches])
        return size

    async def _swap(self, partition: Partition, old: list[Run], batches: list[memoryview]) -> None:
        id = self._identifiers.uuid7()
        key, lease = wal.key(id), self._membership.lease
        await self._coordinator.reserve(lease, [key])
        data, positions = wal.assemble(
            id, lease.node, lease.epoch, [(partition, [records.rewritten(it) for it in batches])]
        )
        await self._objects.put(key, memoryview(data))
        new = []
        for batch, position in zip(batches, positions, strict=True):
            ((_, size, offsets),) = records.walk(batch)
            base = int.from_bytes(batch[:8], "big")
            new.append(Run(base, base + offsets - 1, WalRange(key, position, size), records.header(batch)[0], -1))
        if await self._coordinator.rewrite(Rewrite(lease, key, len(data), partition, old, new)):
            self._clean[partition] = old[-1].last_offset + 1, sum(it.place.length for it in new)
            metrics.UPKEEP.labels("compacted partitions").inc()
