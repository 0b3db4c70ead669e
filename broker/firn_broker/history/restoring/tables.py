"""Makes the log of a topic from the rows of its table, for a recovery without the bucket.

A row has the key, the value, the headers, the offset and the time of a record, but not its batch. So the batches are new ones, without a
producer and without compression. They are uploaded as merged objects, which show offsets. `firn_broker.maintenance.placeholders` puts
them into the log.

The rows of a partition may lie in many row groups, and a row group may have rows of all partitions. So the work goes through the offsets of
all partitions side by side, and keeps the row groups that it read last."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from crc32c import crc32c

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.history.heads import Heads, assemble
from firn_broker.history.rows import KEPT_BYTES, Files, Group, groups, has_fields, ordered, read_group
from firn_broker.history.sections import Numbers, Records, encode
from firn_broker.log_types import Partition
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal

log = structlog.get_logger()

BATCH_BYTES = 512 << 10
"""Bytes of the records of a batch, unless one record has more."""
OBJECT_BYTES = 64 << 20
"""Bytes of the rows of an object, and about those that are read at a time."""
MOST_OFFSETS = 1 << 26
"""Offsets of the records of a piece, of those that are missing before it, and of those behind the last one. A partition has at most four
times as many in an object, as a placeholder has."""
_RECORD_BYTES = 24
"""Bytes of a record without its key, its value and its headers."""
_SCALE = 40
"""Bits of the fractions of bytes for each offset. Integers add up without errors."""


class TableRows(NamedTuple):
    """The rows of a topic: the data files, the columns, and the partitions with the offsets behind the landed records.

    ``seed``: first hexadecimal digits of the ids of the new objects.
    """

    topic: UUID
    files: Sequence[DataFile]
    fields: RecordFields
    partitions: int
    landed: Mapping[int, int]
    seed: str


class Piece(NamedTuple):
    """Records of a partition, and the offsets that their batches cover: from ``base`` to before ``end``."""

    records: Records
    base: int
    end: int


async def rebuild(objects: ObjectStore, rows: TableRows, files: Files) -> list[str]:
    """Upload the records as merged objects, and return their keys. Raises CorruptDataError, UnavailableError.

    A repetition uploads the same objects."""
    reader, keys = _Reader(files, rows.fields), list[str]()
    for number, pieces in enumerate(_objects(_pieces(reader, _groups(rows, files), rows))):
        id = UUID(hex=f"{rows.seed}{number:0{32 - len(rows.seed)}x}")
        segments = []
        for index, own in sorted(pieces.items()):
            batches = [batch for piece in own for batch in record_batch.split(_batches(piece))]
            segments.append((Partition(rows.topic, index), [record_batch.rewritten(batch) for batch in batches]))
        data, _ = wal.assemble(id, 0, 0, segments)
        keys.append(wal.merged_key(id))
        await objects.put(keys[-1], data)
        log.info("records of a table are in the bucket", topic=str(rows.topic), objects=len(keys))
    return keys


def _groups(rows: TableRows, files: Files) -> list[Group]:
    """Return the row groups with records. Raises CorruptDataError if a row is of a partition that the topic lacks."""
    found = []
    for file in rows.files:
        opened = files.open(file)
        if has_fields(opened, rows.fields):
            found += groups(file, opened, rows.fields)
    beyond = max((group.partitions[1] for group in found), default=-1)
    if beyond >= rows.partitions:
        raise CorruptDataError(
            f"topic {rows.topic}: the table has rows of partition {beyond}, and the topic has {rows.partitions} partitions;"
            " correct partitions in the file"
        )
    return found


class _Reader:
    """Reads records, and keeps the row groups that it read last."""

    def __init__(self, files: Files, fields: RecordFields) -> None:
        self._files = files
        self._fields = fields
        self._kept: dict[Group, tuple[Numbers, Records]] = {}
        """The partitions of rows and the records, both in the order of partition and offset."""

    def read(self, found: Sequence[Group], partition: int, first: int, last: int) -> Records:
        """Return the records of a partition with these offsets. Raises CorruptDataError and UnavailableError."""
        parts = [self._of_group(group, partition, first, last) for group in found if group.has(partition, first, last)]
        records = ordered(parts)
        # A row that is in the table twice is one record.
        again = np.flatnonzero(records.offsets[1:] == records.offsets[:-1]) + 1
        return records.select(np.delete(np.arange(len(records)), again)) if len(again) else records

    def _of_group(self, group: Group, partition: int, first: int, last: int) -> Records:
        kept = self._kept.pop(group, None)
        if kept is None:
            partitions, records = read_group(self._files.open(group.file), group.file, group.number, self._fields)
            order = np.lexsort((records.offsets, partitions))
            kept = partitions[order], records.select(order)
        self._kept[group] = kept
        while len(self._kept) > 1 and sum(records.nbytes for _, records in self._kept.values()) > KEPT_BYTES:
            del self._kept[next(iter(self._kept))]
        partitions, records = kept
        start, end = np.searchsorted(partitions, (partition, partition + 1)).tolist()
        inner, outer = np.searchsorted(records.offsets[start:end], (first, last + 1)).tolist()
        # The row group leaves the memory before these records.
        return records.select(np.arange(start + inner, start + outer))


def _pieces(reader: _Reader, found: Sequence[Group], rows: TableRows) -> Iterator[tuple[int, Piece]]:
    """Yield the pieces of all partitions side by side, those of a partition in the order of their offsets."""
    places = {group: place for place, group in enumerate(found)}
    waiting: list[tuple[int, int, Iterator[tuple[int, int, Sequence[Group]]], tuple[int, int, Sequence[Group]]]] = []

    def push(index: int, parts: Iterator[tuple[int, int, Sequence[Group]]]) -> None:
        following = next(parts, None)
        if following is not None:
            heapq.heappush(waiting, (min(map(places.__getitem__, following[2])), index, parts, following))

    for index in range(rows.partitions):
        push(index, windows([group for group in found if group.partitions[0] <= index <= group.partitions[1]]))
    last: dict[int, Piece] = {}
    while waiting:
        _, index, parts, (first, end, touched) = heapq.heappop(waiting)
        for records in _cut(reader.read(touched, index, first, end - 1)):
            begin, behind = int(records.offsets[0]), int(records.offsets[-1]) + 1
            before = last.pop(index, None)
            if before is not None:
                yield index, before
            # Deleted rows leave no gap between batches, unless it is large.
            base = before.end if before is not None and begin - before.end <= MOST_OFFSETS else begin
            last[index] = Piece(records, base, behind)
        push(index, parts)
    for index, piece in sorted(last.items()):
        landed = rows.landed.get(index, 0)
        yield index, piece._replace(end=landed if 0 < landed - piece.end <= MOST_OFFSETS else piece.end)


def _cut(records: Records) -> Iterator[Records]:
    """Yield records in parts with at most about `OBJECT_BYTES` and at most `MOST_OFFSETS`."""
    if not len(records):
        return
    # Dictionaries can make the rows of a row group much larger than the row group.
    numbers = np.stack(
        [np.cumsum(_sizes(records)) // OBJECT_BYTES, (records.offsets - records.offsets[0]) // MOST_OFFSETS]
    )
    edges = [0, *(np.flatnonzero(np.diff(numbers).any(axis=0)) + 1).tolist(), len(records)]
    yield from (records.slice(start, end) for start, end in pairwise(edges))


def windows(found: Sequence[Group]) -> Iterator[tuple[int, int, Sequence[Group]]]:
    """Yield consecutive ranges of offsets, from the first one to before the second one, with the row groups that have some.

    Their rows have at most about `OBJECT_BYTES`, if those of a row group have equal distances. Rows of all partitions count."""
    most = OBJECT_BYTES << _SCALE
    begins = sorted(found, key=lambda group: group.offsets)[::-1]
    edges = sorted({edge for group in found for edge in (group.offsets[0], group.offsets[1] + 1)})
    active: list[Group] = []
    begin, size, touched = 0, 0, dict[Group, None]()
    for start, end in pairwise(edges):
        active = [group for group in active if group.offsets[1] >= start]
        while begins and begins[-1].offsets[0] == start:
            active.append(begins.pop())
        density = sum((group.size << _SCALE) // (group.offsets[1] - group.offsets[0] + 1) for group in active)
        place = start
        while active and place < end:
            if not touched:
                begin, size = place, 0
            touched |= dict.fromkeys(active)
            step = min(end - place, max((most - size) // density, 1)) if density else end - place
            place, size = place + step, size + step * density
            if size + density > most:
                yield begin, place, list(touched)
                touched = {}
    if touched:
        yield begin, edges[-1], list(touched)


def _objects(pieces: Iterator[tuple[int, Piece]]) -> Iterator[Mapping[int, Sequence[Piece]]]:
    """Yield the pieces of one object after the other by partition."""
    waiting: dict[int, list[Piece]] = {}
    size = 0
    for index, piece in pieces:
        bytes_of = int(_sizes(piece.records).sum())
        own = waiting.get(index)
        if waiting and (size + bytes_of > OBJECT_BYTES or (own and piece.end - own[0].base > 4 * MOST_OFFSETS)):
            yield waiting
            waiting, size = {}, 0
        waiting.setdefault(index, []).append(piece)
        size += bytes_of
    if waiting:
        yield waiting


def _batches(piece: Piece) -> memoryview:
    """Return a piece as batches, one after the other. Each has the offsets from the end of the one before."""
    records = piece.records
    starts = np.concatenate([[0], np.flatnonzero(np.diff(np.cumsum(_sizes(records)) // BATCH_BYTES)) + 1])
    counts = np.diff(np.concatenate([starts, [len(records)]]))
    owners = np.repeat(np.arange(len(starts)), counts)
    ends = np.concatenate([records.offsets[starts[1:] - 1] + 1, [piece.end]])
    bases = np.concatenate([[piece.base], ends[:-1]])
    times = records.times[starts]
    data, places = encode(records, records.times - times[owners], records.offsets - bases[owners])
    edges = places[np.concatenate([starts, [len(records)]])].tolist()
    sections = [data[start:end] for start, end in pairwise(edges)]
    lengths = np.diff(edges)
    none = np.full(len(starts), -1, np.int64)
    made = Heads(
        piece.base,
        spans=ends - bases,
        counts=counts,
        attributes=np.zeros(len(starts), np.int64),
        base_times=times,
        max_times=np.maximum.reduceat(records.times, starts),
        producers=none,
        epochs=none,
        sequences=none,
        sizes=lengths,
        checksums=np.array([crc32c(section) for section in sections], np.int64),
        stored=lengths + record_batch.HEADER,
        time_deltas=np.zeros(0, np.int64),
    )
    return assemble(made, sections)


def _sizes(records: Records) -> Numbers:
    """Return about the bytes of each record."""
    found = np.full(len(records), _RECORD_BYTES, np.int64)
    for array in (records.keys, records.values):
        found += _lengths(array)
    counts = pc.call_function("list_value_length", [records.headers]).fill_null(0).to_numpy(zero_copy_only=False)
    if counts.any():
        entries = records.headers.flatten()
        sizes = 2 + _lengths(entries.field(0)) + _lengths(entries.field(1))
        totals = np.concatenate([[0], np.cumsum(sizes)])
        found += np.diff(totals[np.concatenate([[0], np.cumsum(counts)])])
    return found


def _lengths(array: pa.Array) -> Numbers:
    found: pa.Array = pc.call_function("binary_length", [array])
    lengths: Numbers = found.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return lengths
