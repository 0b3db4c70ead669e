"""Records by key, for topics with ``cleanup.policy=compact``: what of consecutive batches stays, and the batches that hold it.

A rewritten batch covers the offsets of what was left out behind its records (its last offset delta says so), and those in front of the first
one, so that batches still follow one another without a gap and consumers pass what is gone.
"""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import cramjam
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn_broker.wire import records
from firn_broker.wire.records import Batch, InvalidBatchError
from firn_broker.wire.times import CODECS, zigzag

GZIP = 1
"""What rewritten batches are compressed with if anything was: every client reads it."""
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")


class Record(NamedTuple):
    """One record. ``rest`` is all of it from the length of its key on."""

    offset: int
    timestamp: int
    key: bytes | None
    tombstone: bool
    rest: bytes


def decode(batch: memoryview) -> list[Record]:
    """The records of a batch whose base offset is written in. Raises ValueError when it cannot be decoded."""
    base = int.from_bytes(batch[:8], "big")
    newest, attributes, count = records.header(batch)
    first = int.from_bytes(batch[27:35], "big", signed=True)
    found = []
    try:
        data = CODECS[attributes & records.CODEC_BITS](batch[records.HEADER :])
        place = 0
        for _ in range(count):
            size, place = zigzag(data, place)
            end = place + size
            if size < 0 or end > len(data):
                raise ValueError(f"a record of {size} bytes at {place} of {len(data)}")
            time, place = zigzag(data, place + 1)
            delta, start = zigzag(data, place)
            length, place = zigzag(data, start)
            key = None if length < 0 else data[place : place + length]
            value, place = zigzag(data, place + max(length, 0))
            if place + max(value, 0) > end:
                raise ValueError(f"a record that passes its end at {end}")
            timestamp = newest if attributes & records.APPEND_TIME_BIT else first + time
            found.append(Record(base + delta, timestamp, key, value < 0, data[start:end]))
            place = end
    except (IndexError, KeyError, cramjam.DecompressionError) as error:
        raise ValueError(f"records cannot be decoded: {error!r}") from error
    return found


def require(batch: Batch) -> None:
    """Raises InvalidBatchError when a record of a batch as it was produced has no key."""
    try:
        found = decode(batch.data)
    except ValueError as error:
        raise InvalidBatchError(ErrorCode.invalid_record, str(error)) from error
    if any(it.key is None for it in found):
        raise InvalidBatchError(ErrorCode.invalid_record, "a compacted topic takes no record without a key")


def newest(all_: Iterable[Record], *, forget_before_ms: int) -> list[Record]:
    """The newest record of each key, in the order of offsets, without tombstones of a time before ``forget_before_ms``. Records without
    a key stay, as nothing says what replaces them; the very last one stays, whatever it is."""
    by_key: dict[bytes, Record] = {}
    keyless = []
    last = None
    for record in all_:
        last = record
        if record.key is None:
            keyless.append(record)
        else:
            by_key[record.key] = record
    kept = [it for it in by_key.values() if it is last or not (it.tombstone and it.timestamp < forget_before_ms)]
    return sorted([*kept, *keyless], key=lambda it: it.offset)


def encode(kept: Sequence[Record], base: int, last: int, *, compressed: bool, batch_bytes: int) -> list[bytearray]:
    """Batches of about ``batch_bytes`` before compression, that hold ``kept`` and cover the offsets from ``base`` to ``last``."""
    groups: list[list[Record]] = [[]]
    size = 0
    for record in kept:
        if size >= batch_bytes:
            groups.append([])
            size = 0
        groups[-1].append(record)
        size += len(record.rest) + 12
    found = []
    for number, group in enumerate(groups):
        end = groups[number + 1][0].offset - 1 if number + 1 < len(groups) else last
        found.append(_batch(group, base, end, compressed=compressed))
        base = end + 1
    return found


def _batch(group: Sequence[Record], base: int, last: int, *, compressed: bool) -> bytearray:
    first = group[0].timestamp if group else -1
    body = bytearray()
    for it in group:
        record = b"\0" + _zigzagged(it.timestamp - first) + _zigzagged(it.offset - base) + it.rest
        body += _zigzagged(len(record)) + record
    data = bytes(cramjam.gzip.compress(bytes(body))) if compressed else bytes(body)
    newest = max((it.timestamp for it in group), default=-1)
    after = _AFTER_CRC.pack(GZIP if compressed else 0, last - base, first, newest, -1, -1, -1, len(group)) + data
    return bytearray(_BEFORE_CRC.pack(base, len(after) + 9, 0, 2, crc32c(after)) + after)


def _zigzagged(value: int) -> bytes:
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
