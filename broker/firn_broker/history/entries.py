"""The content of entries in history objects: the data with which brokers rebuild consecutive batches from data files.

::

    topic id (16) | partition i32 | first offset i64 | last offset i64 | bytes of the description u32 | number of batches u32 |
    number of time deltas u32 | zstd: description, columns of the heads, time deltas, numbers of shapes

Big-endian. The description is JSON: the data files, the pieces, the ids of the columns, and the shapes of values if the table has the
members of values in columns. Each offset has the number of a shape then, as one byte. Each column of the heads has the differences of
its values, as 8 planes of one byte for each value, because most planes are zero then."""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

import cramjam
import numpy as np

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn_broker.history.heads import COLUMNS, Heads
from firn_broker.history.sections import Numbers
from firn_broker.history.shapes import shape
from firn_broker.history.shapes.shape import Object
from firn_broker.log_types import RANGE_BYTES, BatchRange, Partition, TableRange

_HEAD = struct.Struct(">16siqqIII")
_LEVEL = 3
"""Level of zstd."""


class Piece(NamedTuple):
    """Rows in one row group of the data file with the number ``file``. They have offsets from ``first`` to ``last``."""

    file: int
    row_group: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Entry:
    """Consecutive batches of a partition, and the places of their records."""

    partition: Partition
    heads: Heads
    files: Sequence[DataFile]
    pieces: Sequence[Piece]
    fields: RecordFields
    shapes: Sequence[Object] = ()
    """How the columns of a row become the text of its value. Empty if the table has values as they came."""

    def ranges(self, key: str, position: int, length: int) -> list[BatchRange]:
        """Return the batch ranges of the entry, which has ``length`` bytes at ``position`` of the object ``key``.

        As in WAL objects, a range has `RANGE_BYTES` at most, unless one batch has more."""
        heads, ranges = self.heads, list[BatchRange]()
        places, bases = heads.places, heads.bases
        for first, end in heads.portions(RANGE_BYTES):
            size, stored = int(places[end] - places[first]), int(heads.stored[first:end].sum())
            place = TableRange(key, int(places[first]), size, position, length, stored)
            last = int(bases[end - 1] + heads.spans[end - 1]) - 1
            ranges.append(BatchRange(int(bases[first]), last, place, int(heads.max_times[first:end].max()), -1))
        return ranges


def encode(entry: Entry) -> bytes:
    """Return the content of an entry."""
    heads = entry.heads
    description = {"files": entry.files, "pieces": entry.pieces, "fields": entry.fields}
    if entry.fields.value is None:
        description["shapes"] = shape.described(entry.shapes)
    text = json.dumps(description, separators=(",", ":")).encode()
    planes = [_planes(getattr(heads, name)) for name in COLUMNS]
    body = b"".join([text, *planes, _planes(heads.time_deltas), heads.shapes.tobytes()])
    topic, index = entry.partition
    head = _HEAD.pack(
        topic.bytes, index, heads.base_offset, heads.last_offset, len(text), len(heads), len(heads.time_deltas)
    )
    return head + bytes(cramjam.zstd.compress(body, _LEVEL))


def decode(data: memoryview) -> Entry:
    """Read the content of an entry. Raises CorruptDataError."""
    if len(data) < _HEAD.size:
        raise CorruptDataError(f"an entry of {len(data)} bytes is shorter than its head")
    topic, index, base, last, size, batches, deltas = _HEAD.unpack_from(data)
    try:
        body = bytes(cramjam.zstd.decompress(data[_HEAD.size :]))
        described = json.loads(body[:size])
        numbers, place = [], size
        for count in [batches] * len(COLUMNS) + [deltas]:
            numbers.append(_numbers(body[place : place + 8 * count], count))
            place += 8 * count
        shapes = shape.shapes_of(described.get("shapes", []))
        columns = dict(zip(COLUMNS, numbers[:-1], strict=True))
        heads = Heads(base, **columns, time_deltas=numbers[-1], shapes=np.frombuffer(body, np.uint8, offset=place))
        files = [DataFile(*file) for file in described["files"]]
        pieces = [Piece(*piece) for piece in described["pieces"]]
        fields = RecordFields(*described["fields"])
        if len(heads.shapes) != (heads.spans.sum() if fields.value is None else 0):
            raise ValueError(f"{len(heads.shapes)} numbers of shapes")
    except (cramjam.DecompressionError, ValueError, LookupError, TypeError) as error:
        raise CorruptDataError(f"an entry cannot be read: {error!r}") from error
    if heads.last_offset != last:
        raise CorruptDataError(f"the batches of an entry end at offset {heads.last_offset}, not {last}")
    return Entry(Partition(UUID(bytes=topic), index), heads, files, pieces, fields, shapes)


def _planes(numbers: Numbers) -> bytes:
    differences = np.diff(numbers, prepend=np.int64(0)).astype("<i8")
    return np.ascontiguousarray(differences.view(np.uint8).reshape(-1, 8).T).tobytes()


def _numbers(planes: bytes, count: int) -> Numbers:
    matrix = np.frombuffer(planes, np.uint8).reshape(8, count)
    numbers: Numbers = np.cumsum(np.ascontiguousarray(matrix.T).view("<i8")[:, 0], dtype=np.int64)
    return numbers
