"""Record batches (magic 2) as bytes: their header, the checks of a produced batch, and the changes that a broker makes.

This module never decodes records. Source: ``DefaultRecordBatch.java``, ``LogValidator.java``.

::

     0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32 |
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 |
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 records count i32 | 61 records

The CRC (Castagnoli) covers byte 21 to the end, so base offset and leader epoch change freely, attributes and timestamps
do not."""

import struct
from dataclasses import dataclass

from crc32c import crc32c
from kio.schema.errors import ErrorCode

HEADER = 61
_FIELDS = struct.Struct(">qiibIhiqqqhii")
_HEAD = struct.Struct(">qii")
_PLACE = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_CRC_PLACE = 17
_ATTRIBUTES = 21
_MAX_TIMESTAMP = 35

CODEC_BITS = 0x07
LAST_CODEC = 4
"""zstd."""
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
_REFUSED_BITS = TRANSACTIONAL_BIT | CONTROL_BIT

NO_PRODUCER = -1

_SMALLEST = 7
"""Bytes of the smallest record: length, attributes, time, offset, no key, no value and no headers take one byte
each."""
_DENSEST = 8
"""Records for each compressed byte. Records differ in their offsets at least: zstd compresses a million of the smallest
ones to 1.7 records a byte."""


class InvalidBatchError(Exception):
    """A batch that cannot be appended; ``code`` is the error for the producer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Batch:
    """A record batch with the header fields that the broker uses. ``data`` is the whole batch."""

    data: memoryview
    attributes: int
    records: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def parse(data: memoryview) -> Batch:
    """Check the only batch in ``data`` as far as that is possible without decoding records. Raises
    `InvalidBatchError`."""
    if len(data) < HEADER:
        raise InvalidBatchError(ErrorCode.invalid_record, "the data is shorter than the header of a record batch")
    (base, length, _, magic, crc, attributes, delta, base_timestamp, timestamp, producer, epoch, sequence, count) = (
        _FIELDS.unpack_from(data)
    )
    if magic != 2:
        raise InvalidBatchError(
            ErrorCode.unsupported_for_message_format, f"magic {magic}: only record batches of magic 2 are supported"
        )
    if length + 12 < HEADER or length + 12 > len(data):
        raise InvalidBatchError(ErrorCode.corrupt_message, f"the batch claims {length + 12} bytes, but has {len(data)}")
    if length + 12 < len(data):
        raise InvalidBatchError(ErrorCode.invalid_record, "more than one record batch for a partition")
    if crc32c(data[_ATTRIBUTES:]) != crc:
        raise InvalidBatchError(ErrorCode.corrupt_message, "the checksum does not match the records")
    if base != 0:
        raise InvalidBatchError(ErrorCode.invalid_record, f"the base offset is {base}, and must be 0")
    if count <= 0 or delta != count - 1:
        raise InvalidBatchError(ErrorCode.invalid_record, f"{count} records do not fit a last offset delta of {delta}")
    # The claimed number of records becomes the number of offsets, and an object has a 32-bit sum of it for each
    # partition.
    body = length + 12 - HEADER
    if count > (body * _DENSEST if attributes & CODEC_BITS else body // _SMALLEST):
        raise InvalidBatchError(ErrorCode.invalid_record, f"{body} bytes cannot hold {count} records")
    if attributes & _REFUSED_BITS or attributes & CODEC_BITS > LAST_CODEC:
        raise _invalid_attributes(attributes)
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise InvalidBatchError(
            ErrorCode.invalid_record, f"invalid producer id {producer}, epoch {epoch} and sequence {sequence}"
        )
    return Batch(data, attributes, count, base_timestamp, timestamp, producer, epoch, sequence)


def _invalid_attributes(attributes: int) -> InvalidBatchError:
    if attributes & CONTROL_BIT:
        return InvalidBatchError(ErrorCode.invalid_record, "clients must not send control batches")
    if attributes & CODEC_BITS > LAST_CODEC:
        return InvalidBatchError(
            ErrorCode.unsupported_compression_type, f"codec {attributes & CODEC_BITS} does not exist"
        )
    return InvalidBatchError(ErrorCode.invalid_txn_state, "transactions are not supported on this cluster")


def rewritten(data: memoryview) -> Batch:
    """Read the header of a batch that the broker wrote itself, without checks."""
    (*_, attributes, _, base_timestamp, timestamp, producer, epoch, sequence, count) = _FIELDS.unpack_from(data)
    return Batch(data, attributes, count, base_timestamp, timestamp, producer, epoch, sequence)


def empty(offsets: int) -> memoryview:
    """Return a batch without records that covers this number of offsets, 1 to 2^31."""
    data = memoryview(bytearray(HEADER))
    _FIELDS.pack_into(data, 0, 0, HEADER - 12, 0, 2, 0, 0, offsets - 1, -1, -1, NO_PRODUCER, -1, -1, 0)
    _CRC.pack_into(data, _CRC_PLACE, crc32c(data[_ATTRIBUTES:]))
    return data


def walk(data: memoryview) -> list[tuple[int, int, int]]:
    """List (position, bytes, covered offsets) of each batch in ``data``. Raises ValueError if these are not whole
    batches.

    A batch covers as many offsets as it has records, unless compaction removed some (`keys`).
    """
    batches = []
    place, end = 0, len(data)
    while place < end:
        if end - place < HEADER:
            raise ValueError(f"{end - place} bytes are left at byte {place}, fewer than the header of a record batch")
        fields = _FIELDS.unpack_from(data, place)
        size = fields[1] + 12
        if size < HEADER or place + size > end:
            raise ValueError(
                f"the batch at byte {place} has an invalid size of {size} bytes; {end - place} bytes are left"
            )
        batches.append((place, size, fields[6] + 1))
        place += size
    return batches


def split(data: memoryview) -> list[memoryview]:
    """Return each of consecutive batches. Raises the errors of `walk`."""
    return [data[start : start + size] for start, size, _ in walk(data)]


def header(data: memoryview, place: int = 0) -> tuple[int, int, int]:
    """Return (max timestamp, attributes, records) of the batch at ``place``."""
    fields = _FIELDS.unpack_from(data, place)
    return fields[8], fields[5], fields[12]


def intact(data: memoryview) -> bool:
    """Return whether the batch ``data`` matches its checksum."""
    (crc,) = _CRC.unpack_from(data, _CRC_PLACE)
    return bool(crc32c(data[_ATTRIBUTES:]) == crc)


def number(data: memoryview, place: int, base_offset: int) -> None:
    """Write the assigned base offset into the batch at ``place``; the leader epoch is always 0."""
    _PLACE.pack_into(data, place, base_offset)
    _EPOCH.pack_into(data, place + 12, 0)


def head(size: int, base_offset: int) -> bytes:
    """Return the first bytes of a batch of ``size`` bytes as `number` would write them, with the length between."""
    return _HEAD.pack(base_offset, size - 12, 0)


def stamp(data: memoryview, append_ms: int) -> None:
    """Write the append time into a batch (``message.timestamp.type=LogAppendTime``), and a new checksum."""
    (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES)
    struct.pack_into(">h", data, _ATTRIBUTES, attributes | APPEND_TIME_BIT)
    _PLACE.pack_into(data, _MAX_TIMESTAMP, append_ms)
    _CRC.pack_into(data, _CRC_PLACE, crc32c(data[_ATTRIBUTES:]))


def following_sequence(sequence: int, records: int) -> int:
    """Return the sequence number ``records`` after ``sequence``; 0 follows 2,147,483,647."""
    return (sequence + records) & 0x7FFFFFFF


def precedes(sequence: int, other: int) -> bool:
    """Return whether a sequence number comes before another one of the same producer; 2,147,483,647 comes before 0."""
    return 0 < (other - sequence) & 0x7FFFFFFF < 1 << 30
