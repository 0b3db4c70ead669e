"""WAL objects: each flush of a broker uploads one, with batches of many partitions and an index.

::

    head   32  magic LSW1, version u16, flags u16, writer node u32, writer epoch u32, id of the object (16 bytes)
    body       segments, ordered by (topic id, partition); each the partition's record batches in order of arrival, as producers sent them
    index      number of segments u32, then for each segment
                 topic id (16), partition i32, position u64, length u32, batches u32, records u32, crc32c of the segment u32
               and for each of its batches
                 position in the segment u32, length u32, records i32, max timestamp i64, producer id i64, epoch i16, base sequence i32
    tail   24  position of the index u64, its length u32, its crc32c u32, magic u32, version u32

The entries of a history object lie between its body and its index. `firn_broker.history.entries` reads their content::

    entry      12  magic LSH1, bytes of the content u32, crc32c of the content u32; then the content

Big-endian. Brokers find batches through the coordinator and never read the index; fsck and repairs read it. Base
offsets in the body have no meaning, because the commit of the object assigns the offsets. Merged and compacted objects have
the same layout, and the assigned offsets in their body."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn.records.record_batch import Batch
from firn_broker.log_types import Partition
from firn_broker.ports import ObjectStore
from firn_broker.storage.memory import PAGE, uncleared_pages

MAGIC = int.from_bytes(b"LSW1", "big")
VERSION = 1
PREFIX = "wal/"
MERGED = ".merged"
"""End of the key of a merged object."""
HISTORY = ".history"
"""End of the key of a history object, which has entries between its body and its index."""
RECOVERED = ".recovered"
"""End of the key of an object that a recovery made."""
PLACEHOLDERS = ".placeholders"
"""End of the key of an object with empty batches for offsets that a recovery fills."""
WITH_OFFSETS = (MERGED, RECOVERED)
"""Ends of the keys of objects whose batches have the offsets of their log."""
_HEAD = struct.Struct(">IHHII16s")
_COUNT = struct.Struct(">I")
_SEGMENT = struct.Struct(">16siQIIII")
_BATCH = struct.Struct(">IIiqqhi")
_TAIL = struct.Struct(">QIIII")
_ENTRY = struct.Struct(">4sII")
_ENTRY_MAGIC = b"LSH1"
HEAD, TAIL = _HEAD.size, _TAIL.size


@dataclass(frozen=True, slots=True)
class IndexedBatch:
    """A batch in the index. ``position`` is its position in the object."""

    partition: Partition
    position: int
    length: int
    records: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


class Part(NamedTuple):
    """The objects whose keys begin with ``prefix``, a 256th of all.

    In every collation of PostgreSQL, their keys sort before ``end``, and all others before ``prefix`` or after it: keys
    have one form, in which only the digits differ."""

    prefix: str
    end: str


PARTS = (
    *(Part(f"{PREFIX}{number:02x}/", f"{PREFIX}{number + 1:02x}/") for number in range(255)),
    Part(f"{PREFIX}ff/", f"{PREFIX}g"),
)


def key(id: UUID) -> str:
    """Return the key of the object ``id``. Its hash prefix spreads keys over the partitions of an object store, and
    files over 256 directories."""
    return f"{PREFIX}{crc32c(id.bytes) & 0xFF:02x}/{id}"


def compacted_key(id: UUID, horizon_ms: int) -> str:
    """Return the key of a compacted object, with the time when its first tombstone may be deleted (0 without
    tombstones)."""
    return f"{key(id)}.compacted-{horizon_ms}"


def horizon(key: str) -> int | None:
    """Return the time in a key of `compacted_key`; None for an object with batches of producers."""
    _, compacted, horizon_ms = key.partition(".compacted-")
    return int(horizon_ms) if compacted else None


def merged_key(id: UUID) -> str:
    """Return the key of a merged object, which has batches of other objects as they are."""
    return f"{key(id)}{MERGED}"


def history_key(id: UUID, generation: int) -> str:
    """Return the key of a history object, with which brokers rebuild batches from a table.

    A tag of the table holds the data files of a ``generation``."""
    return f"{key(id)}.{generation}{HISTORY}"


def generation(key: str) -> int:
    """Return the generation in a key of `history_key`."""
    return int(key.split(".")[1])


def recovered_key(id: UUID) -> str:
    """Return the key of an object with batches of a merged object that a recovery commits."""
    return f"{key(id)}{RECOVERED}"


def placeholder_key(id: UUID) -> str:
    """Return the key of an object with empty batches, the places of which a recovery gives to other objects."""
    return f"{key(id)}{PLACEHOLDERS}"


def is_copy(key: str) -> bool:
    """Return whether an object has only records of committed objects, or none, by its key."""
    return key.endswith((MERGED, HISTORY, RECOVERED, PLACEHOLDERS)) or horizon(key) is not None


def assemble(
    id: UUID,
    node: int,
    epoch: int,
    segments: Sequence[tuple[Partition, Sequence[Batch]]],
    entries: Sequence[bytes] = (),
) -> tuple[memoryview, list[int]]:
    """Build the object; return its bytes, and the positions of the batches and then of the ``entries`` of a history object.

    ``segments`` are ordered by partition, each partition once. The bytes begin at the start of a page, so that a directory
    writes them without a copy."""
    pieces: list[bytes | memoryview] = [_HEAD.pack(MAGIC, VERSION, 0, node, epoch, id.bytes)]
    index = Index()
    positions: list[int] = []
    for partition, batches in segments:
        index.begin(partition)
        positions += index.add(batches)
        pieces += (batch.data for batch in batches)
    end = index.end
    for entry in entries:
        positions.append(end)
        end += len(entry)
    pieces += [*entries, *index.pieces(end)]
    data = uncleared_pages(sum(map(len, pieces)))
    _copy(data, 0, pieces)
    return data, positions


def room(body: int, partitions: int) -> int:
    """Return the bytes that an object needs at most besides its body, of ``body`` bytes."""
    return HEAD + _COUNT.size + partitions * _SEGMENT.size + body // record_batch.HEADER * _BATCH.size + TAIL


class Index:
    """The index of an object whose batches follow one another from the end of the head on."""

    def __init__(self) -> None:
        self._segments: list[tuple[Partition, int, int, int, int, bytearray]] = []
        """Partition, position, batches, records, checksum and entries."""
        self.end = HEAD
        """The position behind the last batch."""

    def begin(self, partition: Partition) -> None:
        """Begin the segment of a partition. Partitions come in order."""
        self._segments.append((partition, self.end, 0, 0, 0, bytearray()))

    def add(self, batches: Sequence[Batch]) -> list[int]:
        """Add the next batches of the segment, and return their positions. Their data is not kept."""
        partition, start, count, records, checksum, entries = self._segments.pop()
        positions = []
        for batch in batches:
            positions.append(self.end)
            size = len(batch.data)
            checksum = crc32c(batch.data, checksum)
            entries += _BATCH.pack(
                self.end - start, size, batch.records, batch.max_timestamp, batch.producer_id, batch.producer_epoch,
                batch.base_sequence,
            )  # fmt: skip
            records += batch.records
            self.end += size
        self._segments.append((partition, start, count + len(batches), records, checksum, entries))
        return positions

    def pieces(self, position: int) -> tuple[bytes, bytes]:
        """Return the index, which has this position in the object, and the tail."""
        found: list[bytes | bytearray] = [_COUNT.pack(len(self._segments))]
        ends = [*(start for _, start, *_ in self._segments), self.end][1:]
        for (partition, start, count, records, checksum, entries), end in zip(self._segments, ends, strict=True):
            found.append(
                _SEGMENT.pack(partition.topic.bytes, partition.index, start, end - start, count, records, checksum)
            )
            found.append(entries)
        footer = b"".join(found)
        return footer, _TAIL.pack(position, len(footer), crc32c(footer), MAGIC, VERSION)


def seal(memory: memoryview, id: UUID, node: int, epoch: int, index: Index) -> memoryview:
    """Complete an object of which ``memory`` has the batches, behind the place of the head: add head, index and tail, and
    return its bytes. ``memory`` comes from `uncleared_pages` and has `room` for them."""
    _copy(memory, 0, [_HEAD.pack(MAGIC, VERSION, 0, node, epoch, id.bytes)])
    size = _copy(memory, index.end, index.pieces(index.end))
    # Otherwise a file could contain for a moment what was in memory before.
    padding = memory[size : size + -size % PAGE]
    padding[:] = bytes(len(padding))
    return memory[:size]


def _copy(memory: memoryview, start: int, pieces: Sequence[bytes | memoryview]) -> int:
    """Write the pieces one after the other from ``start`` on; return the end."""
    end = start
    for piece in pieces:
        start, end = end, end + len(piece)
        memory[start:end] = piece
    return end


def index_range(tail: memoryview, size: int) -> tuple[int, int]:
    """Return [start, end) of the index in an object of ``size`` bytes with these last `TAIL` bytes. Raises
    CorruptDataError."""
    position, length, _, magic, version = _TAIL.unpack(tail)
    if magic != MAGIC or version != VERSION or position + length + TAIL != size:
        raise CorruptDataError(
            f"not the end of a WAL object: magic={magic:#x} version={version} index={position}+{length}"
        )
    return position, position + length


def read_index(index: memoryview, tail: memoryview) -> list[IndexedBatch]:
    """Read all batches of an object, in its order. Raises CorruptDataError."""
    if crc32c(index) != _TAIL.unpack(tail)[2]:
        raise CorruptDataError("the index of a WAL object does not match its checksum")
    batches_read = []
    try:
        (segments,) = _COUNT.unpack_from(index)
        place = _COUNT.size
        for _ in range(segments):
            topic, part, start, _, batches, _, _ = _SEGMENT.unpack_from(index, place)
            place += _SEGMENT.size
            partition = Partition(UUID(bytes=topic), part)
            for _ in range(batches):
                position, length, *rest = _BATCH.unpack_from(index, place)
                place += _BATCH.size
                batches_read.append(IndexedBatch(partition, start + position, length, *rest))
    except struct.error as error:
        raise CorruptDataError(f"the index of a WAL object ends too early: {error}") from error
    return batches_read


def writer(head: memoryview) -> tuple[int, int]:
    """Return node id and epoch of the broker that wrote the object with these first `HEAD` bytes."""
    _, _, _, node, epoch, _ = _HEAD.unpack(head)
    return node, epoch


FRAME = _ENTRY.size
"""Bytes of an entry of a history object besides its content."""


def framed(content: bytes) -> bytes:
    """Return the entry of a history object with this content."""
    return _ENTRY.pack(_ENTRY_MAGIC, len(content), crc32c(content)) + content


def entries(data: memoryview) -> list[tuple[int, memoryview]]:
    """Return the position and the content of each entry of a whole history object. Raises CorruptDataError."""
    start, end = index_range(data[-TAIL:], len(data))
    batches = read_index(data[start:end], data[-TAIL:])
    first = max((batch.position + batch.length for batch in batches), default=HEAD)
    return [(first + place, content) for place, content in contents(data[first:start])]


def contents(entries: memoryview) -> list[tuple[int, memoryview]]:
    """Return the position and the content of each entry. ``entries`` are consecutive ones. Raises CorruptDataError."""
    found, place = [], 0
    while place < len(entries):
        if len(entries) - place < _ENTRY.size:
            raise CorruptDataError(f"{len(entries) - place} bytes are no entry of a history object")
        magic, size, checksum = _ENTRY.unpack_from(entries, place)
        content = entries[place + _ENTRY.size : place + _ENTRY.size + size]
        if magic != _ENTRY_MAGIC or len(content) != size or crc32c(content) != checksum:
            raise CorruptDataError(f"the entry at byte {place} does not match its checksum")
        found.append((place, content))
        place += _ENTRY.size + size
    return found


async def read_batches(store: ObjectStore, key: str, size: int) -> list[IndexedBatch]:
    """Read the batches of an object from its own index. Raises CorruptDataError, KeyError, UnavailableError."""
    if size < HEAD + TAIL:
        raise CorruptDataError(f"{key} is too short for a WAL object")
    (tail,) = await store.get_ranges(key, [(size - TAIL, size)])
    (index,) = await store.get_ranges(key, [index_range(tail, size)])
    return read_index(index, tail)


def check_segments(data: memoryview) -> None:
    """Compare each segment of a whole object with its checksum. Raises CorruptDataError."""
    start, end = index_range(data[-TAIL:], len(data))
    index = data[start:end]
    place = _COUNT.size
    for _ in range(_COUNT.unpack_from(index)[0]):
        _, _, position, length, batches, _, checksum = _SEGMENT.unpack_from(index, place)
        place += _SEGMENT.size + batches * _BATCH.size
        if crc32c(data[position : position + length]) != checksum:
            raise CorruptDataError(f"the segment at {position} of a WAL object does not match its checksum")


def id_of(key: str) -> UUID:
    """Return the id in a key."""
    return UUID(key.rpartition("/")[2].partition(".")[0])
