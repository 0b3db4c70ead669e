"""Merged objects without a commit, for a recovery: what the log has of their batches, and what it lost.

A merge gives batches their offsets. So each batch shows where it was in the log."""

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from firn.records import contents, record_batch
from firn.records.codecs import CodecError
from firn_broker.log_types import Partition
from firn_broker.maintenance.commit_order import Written
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal
from firn_broker.storage.wal import IndexedBatch

_BASE_TIME = slice(27, 35)
_PRODUCER = slice(43, record_batch.HEADER)
"""Places in a batch's header that no step of a broker changes, except that the greatest timestamp may become the append time."""


def content(data: memoryview) -> bytes:
    """Return a digest of what makes two copies of a batch equal, also if one of them has its append time, or was rebuilt without a codec."""
    digest = blake2b(data[_BASE_TIME], digest_size=16)
    digest.update(data[_PRODUCER])
    try:
        digest.update(contents.record_bytes(data, record_batch.rewritten(data).attributes))
    except CodecError:
        digest.update(data[record_batch.HEADER :])
    return digest.digest()


MOST_PRODUCERS = 1 << 62
"""Greatest producer id that counts. A client that makes up an id must not use up all ids."""
EndsOf = Callable[[Collection[Partition]], Awaitable[Mapping[Partition, int]]]
"""Reads the high watermarks of those of the partitions that exist."""


class MergedBatch(NamedTuple):
    """A batch of a merged object, without its data."""

    indexed: IndexedBatch
    base_offset: int
    last_offset: int
    newest: int
    """The greatest timestamp."""
    content: bytes
    """The digest that `content` returns."""


class MergedObject(NamedTuple):
    """A merged object as the bucket has it."""

    key: str
    size: int
    writer: tuple[int, int]
    batches: Sequence[MergedBatch]
    damaged: bool
    """True if the object has other batches too, which cannot be read."""


async def read_merged(objects: ObjectStore, key: str) -> MergedObject:
    """Read a merged object. Raises CorruptDataError, KeyError, UnavailableError."""
    size = await objects.size(key)
    index = await wal.read_batches(objects, key, size)
    (data,) = await objects.get_ranges(key, [(0, size)])
    batches = []
    for indexed in index:
        batch = data[indexed.position : indexed.position + indexed.length]
        if record_batch.intact(batch):
            ((_, _, offsets),) = record_batch.walk(batch)
            base = int.from_bytes(batch[:8], "big")
            batches.append(
                MergedBatch(indexed, base, base + offsets - 1, record_batch.header(batch)[0], content(batch))
            )
    return MergedObject(key, size, wal.writer(data[: wal.HEAD]), batches, len(batches) < len(index))


class LostBatches:
    """Batches of merged objects that the log does not have. Only their places are in memory."""

    def __init__(self) -> None:
        self._lost: defaultdict[str, list[MergedBatch]] = defaultdict(list)
        self._writers: dict[str, tuple[int, int]] = {}
        self._known: set[tuple[Partition, int, bytes]] = set()
        self._contents: Counter[tuple[Partition, bytes]] = Counter()
        self._counts: set[tuple[Partition, int]] = set()
        """Numbers of the records of a batch. Copies of a batch agree in it."""
        self.greatest_producer = -1

    def add(self, merged: MergedObject, batches: Sequence[MergedBatch]) -> None:
        """Add lost batches of an object, without those of another object that has them too."""
        for batch in batches:
            if self._is_new(batch):
                self._lost[merged.key].append(batch)
                self._writers[merged.key] = merged.writer

    @contextmanager
    def trial(self) -> Iterator[None]:
        """Let `has` find all batches again after the with block."""
        before = self._contents.copy()
        try:
            yield
        finally:
            self._contents = before

    def place(self, batches: Iterable[MergedBatch]) -> None:
        """Add batches that take the place of placeholders, so that `has` finds them in other objects."""
        for batch in batches:
            self._is_new(batch)

    def _is_new(self, batch: MergedBatch) -> bool:
        """Note a batch, and return whether it was not noted yet."""
        partition = batch.indexed.partition
        identity = partition, batch.base_offset, batch.content
        if identity in self._known:
            return False
        self._known.add(identity)
        self._contents[partition, batch.content] += 1
        self._counts.add((partition, batch.indexed.records))
        self.greatest_producer = max(self.greatest_producer, batch.indexed.producer_id)
        return True

    async def has(self, objects: ObjectStore, key: str, batch: IndexedBatch) -> bool:
        """Return whether these batches have one that equals a batch of another object: once for each, unless its producer is idempotent."""
        if (batch.partition, batch.records) not in self._counts:
            return False
        (data,) = await objects.get_ranges(key, [(batch.position, batch.position + batch.length)])
        found = batch.partition, content(data)
        if self._contents[found] <= 0:
            return False
        if batch.producer_id < 0:
            self._contents[found] -= 1
        return True

    async def copies(self, objects: ObjectStore, ends_of: EndsOf) -> AsyncIterator[Written]:
        """Upload an object with the lost batches of each object, in the order of their offsets.

        The copies have the offsets that they get behind the ends of their logs, which ``ends_of`` reads."""
        for key in self._ordered():
            batches = sorted(self._lost[key], key=lambda batch: (batch.indexed.partition, batch.base_offset))
            spans = [(each.indexed.position, each.indexed.position + each.indexed.length) for each in batches]
            segments: defaultdict[Partition, list[record_batch.Batch]] = defaultdict(list)
            ends = dict(await ends_of({batch.indexed.partition for batch in batches}))
            for batch, data in zip(batches, await objects.get_ranges(key, spans), strict=True):
                partition, copied = batch.indexed.partition, memoryview(bytearray(data))
                if partition in ends:
                    record_batch.number(copied, 0, ends[partition])
                    ends[partition] += batch.last_offset - batch.base_offset + 1
                segments[partition].append(record_batch.rewritten(copied))
            id = _copy_id(key, batches)
            data, positions = wal.assemble(id, *self._writers[key], list(segments.items()))
            copy = wal.recovered_key(id)
            await objects.put(copy, data)
            placed = [
                replace(batch.indexed, position=position) for batch, position in zip(batches, positions, strict=True)
            ]
            yield Written(*self._writers[key], id, copy, len(data), placed)

    def _ordered(self) -> Sequence[str]:
        """Return the objects in the order of the offsets of each partition."""
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
            return list(sorter.static_order())
        except CycleError:
            return sorted(self._lost)


def _copy_id(key: str, batches: Sequence[MergedBatch]) -> UUID:
    """Return the id of a copy: the same one for the same batches, so that a repeated recovery finds its commit."""
    digest = blake2b(key.encode(), digest_size=16)
    for batch in batches:
        digest.update(b"%d %d " % (batch.indexed.position, batch.base_offset))
    return UUID(bytes=digest.digest())
