"""Record batches (magic 2) as bytes: the fields of their header, what is wrong with one, and the few changes a broker makes.

Nothing here looks into records. Source: ``DefaultRecordBatch.java``, ``LogValidator.java``.

::

     0 base offset i64 | 8 length i32 | 12 leader epoch i32 | 16 magic i8 | 17 crc u32 |
    21 attributes i16 | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64 |
    43 producer id i64 | 51 producer epoch i16 | 53 base sequence i32 | 57 records count i32 | 61 records

The CRC (Castagnoli) covers byte 21 to the end, so base offset and leader epoch change freely, attributes and timestamps do not.
"""

import struct
from dataclasses import dataclass

from crc32c import crc32c
from kio.schema.errors import ErrorCode

HEADER = 61
_FIELDS = struct.Struct(">qiibIhiqqqhii")
_PLACE = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
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
"""Bytes of the smallest record: its length, attributes, time, offset, no key, no value and no headers take a byte each."""
_DENSEST = 8
"""Records that a compressed byte may stand for. They differ in their offsets at least: the smallest ones, a million of them, come to 1.7 with
zstd."""


class InvalidBatchError(Exception):
    """A batch that cannot be appended; ``code`` is the answer."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Batch:
    """One record batch and the fields of its header that somebody needs. ``data`` is the whole batch."""

    data: memoryview
    attributes: int
    records: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int


def parse(data: memoryview) -> Batch:
    """The only batch in ``data``, as a producer sent it, checked by everything that can be checked without decoding records.

    Raises `InvalidBatchError`.
    """
    if len(data) < HEADER:
        raise InvalidBatchError(ErrorCode.invalid_record, "shorter than a record batch")
    (base, length, _, magic, crc, attributes, delta, base_timestamp, timestamp, producer, epoch, sequence, count) = (
        _FIELDS.unpack_from(data)
    )
    if magic != 2:
        raise InvalidBatchError(
            ErrorCode.unsupported_for_message_format, f"magic {magic}: only record batches of magic 2 are taken"
        )
    if length + 12 < HEADER or length + 12 > len(data):
        raise InvalidBatchError(ErrorCode.corrupt_message, f"a batch of {length + 12} bytes in {len(data)}")
    if length + 12 < len(data):
        raise InvalidBatchError(ErrorCode.invalid_record, "more than one record batch for a partition")
    if crc32c(data[_ATTRIBUTES:]) != crc:
        raise InvalidBatchError(ErrorCode.corrupt_message, "the checksum does not fit the records")
    if base != 0:
        raise InvalidBatchError(ErrorCode.invalid_record, f"base offset {base}, which has to be 0")
    if count <= 0 or delta != count - 1:
        raise InvalidBatchError(ErrorCode.invalid_record, f"{count} records with a last offset delta of {delta}")
    # What a batch claims is how many offsets it takes, and is summed up in 32 bits for each partition of an object.
    body = length + 12 - HEADER
    if count > (body * _DENSEST if attributes & CODEC_BITS else body // _SMALLEST):
        raise InvalidBatchError(ErrorCode.invalid_record, f"{count} records cannot be in {body} bytes")
    if attributes & _REFUSED_BITS or attributes & CODEC_BITS > LAST_CODEC:
        raise _invalid_attributes(attributes)
    if producer >= 0 and (epoch < 0 or sequence < 0):
        raise InvalidBatchError(
            ErrorCode.invalid_record, f"producer id {producer} with epoch {epoch} and sequence {sequence}"
        )
    return Batch(data, attributes, count, base_timestamp, timestamp, producer, epoch, sequence)


def _invalid_attributes(attributes: int) -> InvalidBatchError:
    if attributes & CONTROL_BIT:
        return InvalidBatchError(ErrorCode.invalid_record, "a control batch from a client")
    if attributes & CODEC_BITS > LAST_CODEC:
        return InvalidBatchError(ErrorCode.unsupported_compression_type, f"codec {attributes & CODEC_BITS}")
    return InvalidBatchError(ErrorCode.invalid_txn_state, "transactions are not supported on this cluster")


def rewritten(data: memoryview) -> Batch:
    """A batch of our own, as `parse` gives those of producers."""
    (*_, attributes, _, base_timestamp, timestamp, producer, epoch, sequence, count) = _FIELDS.unpack_from(data)
    return Batch(data, attributes, count, base_timestamp, timestamp, producer, epoch, sequence)


def walk(data: memoryview) -> list[tuple[int, int, int]]:
    """(place, bytes, offsets that it covers) of each batch in ``data``, which must hold whole batches. Raises ValueError where it does not.

    A batch covers as many offsets as it has records, unless some were left out of it (`keys`)."""
    found = []
    place, end = 0, len(data)
    while place < end:
        if end - place < HEADER:
            raise ValueError(f"{end - place} bytes at {place} are no record batch")
        fields = _FIELDS.unpack_from(data, place)
        size = fields[1] + 12
        if size < HEADER or place + size > end:
            raise ValueError(f"a batch of {size} bytes at {place} passes the end at {end}")
        found.append((place, size, fields[6] + 1))
        place += size
    return found


def header(data: memoryview, place: int = 0) -> tuple[int, int, int]:
    """(max timestamp, attributes, records) of the batch at ``place``."""
    fields = _FIELDS.unpack_from(data, place)
    return fields[8], fields[5], fields[12]


def number(data: memoryview, place: int, base_offset: int) -> None:
    """Write the offset that the batch at ``place`` got; the leader epoch is always 0."""
    _PLACE.pack_into(data, place, base_offset)
    _EPOCH.pack_into(data, place + 12, 0)


def stamp(data: memoryview, append_ms: int) -> None:
    """Make the batch ``data`` one of append time (``message.timestamp.type=LogAppendTime``), with a new checksum."""
    (attributes,) = struct.unpack_from(">h", data, _ATTRIBUTES)
    struct.pack_into(">h", data, _ATTRIBUTES, attributes | APPEND_TIME_BIT)
    _PLACE.pack_into(data, _MAX_TIMESTAMP, append_ms)
    struct.pack_into(">I", data, 17, crc32c(data[_ATTRIBUTES:]))


def following_sequence(sequence: int, records: int) -> int:
    """The sequence number ``records`` after ``sequence``; the one after 2,147,483,647 is 0."""
    return (sequence + records) & 0x7FFFFFFF
