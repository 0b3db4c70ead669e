"""Merged objects without a commit, for a recovery: what the log has of their batches, and what it lost.

A merge gives batches their offsets. So each batch shows where it was in the log."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.log_types import Partition
from firn_broker.maintenance.commit_order import Written
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal
from firn_broker.storage.wal import IndexedBatch


class MergedBatch(NamedTuple):
    """A batch of a merged object."""

    indexed: IndexedBatch
    data: memoryview

    @property
    def base_offset(self) -> int:
        """Return the first offset."""
        return int.from_bytes(self.data[:8], "big")

    @property
    def last_offset(self) -> int:
        """Return the last offset."""
        ((_, _, offsets),) = record_batch.walk(self.data)
        return self.base_offset + offsets - 1

    @property
    def content(self) -> bytes:
        """Return what no step of a broker changes: the records."""
        return bytes(self.data[record_batch.HEADER :])


class MergedObject(NamedTuple):
    """A merged object as the bucket has it."""

    key: str
    size: int
    writer: tuple[int, int]
    batches: Sequence[MergedBatch]


def merged_copy_id(key: str) -> UUID:
    """Return the id of the object that takes the lost batches of a merged one: the same for a repeated recovery."""
    return UUID(int=wal.id_of(key.removesuffix(wal.MERGED)).int + 1)


async def read_merged(objects: ObjectStore, key: str) -> MergedObject:
    """Read a merged object. Raises CorruptDataError, KeyError, UnavailableError."""
    size = await objects.size(key)
    index = await wal.read_batches(objects, key, size)
    spans = [(0, wal.HEAD), *((batch.position, batch.position + batch.length) for batch in index)]
    head, *contents = await objects.get_ranges(key, spans)
    if not all(map(record_batch.intact, contents)):
        raise CorruptDataError(f"the merged object {key} is damaged")
    return MergedObject(key, size, wal.writer(head), [MergedBatch(*pair) for pair in zip(index, contents, strict=True)])


class LostBatches:
    """Batches of merged objects that the log does not have."""

    def __init__(self) -> None:
        self._lost: defaultdict[str, list[MergedBatch]] = defaultdict(list)
        self._objects: dict[str, MergedObject] = {}
        self._known: set[tuple[Partition, int, bytes]] = set()
        self._contents: Counter[tuple[Partition, bytes]] = Counter()
        self._sizes: set[tuple[Partition, int]] = set()

    def add(self, merged: MergedObject, batches: Sequence[MergedBatch]) -> None:
        """Add lost batches of an object, without those of another object that has them too."""
        for batch in batches:
            partition, content = batch.indexed.partition, batch.content
            identity = partition, batch.base_offset, content
            if identity not in self._known:
                self._known.add(identity)
                self._contents[partition, content] += 1
                self._sizes.add((partition, batch.indexed.length))
                self._lost[merged.key].append(batch)
                self._objects[merged.key] = merged

    async def has(self, objects: ObjectStore, key: str, batch: IndexedBatch) -> bool:
        """Return whether these batches have one with the same records as a batch of another object, once for each."""
        if (batch.partition, batch.length) not in self._sizes:
            return False
        start = batch.position + record_batch.HEADER
        (data,) = await objects.get_ranges(key, [(start, batch.position + batch.length)])
        content = batch.partition, bytes(data)
        if self._contents[content] <= 0:
            return False
        self._contents[content] -= 1
        return True

    async def copies(self, objects: ObjectStore) -> AsyncIterator[Written]:
        """Upload an object with the lost batches of each object, in the order of their offsets."""
        for merged in self._ordered():
            segments: defaultdict[Partition, list[MergedBatch]] = defaultdict(list)
            for batch in self._lost[merged.key]:
                segments[batch.indexed.partition].append(batch)
            data, positions = wal.assemble(
                merged_copy_id(merged.key),
                *merged.writer,
                [
                    (partition, [record_batch.rewritten(batch.data) for batch in batches])
                    for partition, batches in sorted(segments.items())
                ],
            )
            key = wal.key(merged_copy_id(merged.key))
            await objects.put(key, data)
            ordered = [batch for _, batches in sorted(segments.items()) for batch in batches]
            placed = [
                IndexedBatch(
                    batch.indexed.partition, position, batch.indexed.length, batch.indexed.records,
                    batch.indexed.max_timestamp, batch.indexed.producer_id, batch.indexed.producer_epoch,
                    batch.indexed.base_sequence,
                )
                for batch, position in zip(ordered, positions, strict=True)
            ]  # fmt: skip
            yield Written(*merged.writer, merged_copy_id(merged.key), key, len(data), placed)

    def _ordered(self) -> Sequence[MergedObject]:
        by_partition: defaultdict[Partition, list[tuple[int, str]]] = defaultdict(list)
        sorter = TopologicalSorter[str](dict.fromkeys(self._lost, ()))
        for key, batches in self._lost.items():
            for batch in batches:
                by_partition[batch.indexed.partition].append((batch.base_offset, key))
        for places in by_partition.values():
            for (_, first), (_, second) in pairwise(sorted(places)):
                if first != second:
                    sorter.add(second, first)
        try:
            return [self._objects[key] for key in sorter.static_order()]
        except CycleError:
            return [self._objects[key] for key in sorted(self._lost)]
