"""The records inside a batch, for ListOffsets by timestamp, for compacted topics and for the gate at produce.

Bounds protect the broker from what clients send: a megabyte of zstd may decompress to many gigabytes, and each record
costs time and memory."""

import mmap
from collections.abc import Iterator
from typing import NamedTuple

from firn.records import record_batch
from firn.records.codecs import CodecError, decompress_into

MAX_BYTES = 32 << 20
"""Bytes to which a batch may decompress."""
MAX_RECORDS = 100_000
"""Records of a batch that is decoded."""
MAX_TIME = (1 << 62) - 1
"""The greatest distance of a timestamp from 1970, in milliseconds. Differences of two timestamps fit into 64 bits then,
as batches need."""


class UndecodableError(ValueError):
    """A batch that no Kafka client writes, or that exceeds the bounds."""


class Place(NamedTuple):
    """The position of one record: from the length of its key on it is ``[start, end)`` of the decompressed bytes."""

    offset: int
    timestamp: int
    start: int
    end: int


def open_batch(batch: memoryview, records: int = MAX_RECORDS) -> Iterator[tuple[bytes, list[Place]]]:
    """Decompress a batch with an assigned base offset; yield the bytes and the position of each record, for ``records``
    of them at a time. The last part may be empty. Raises UndecodableError."""
    base = int.from_bytes(batch[:8], "big")
    newest, attributes, count = record_batch.header(batch)
    appended = bool(attributes & record_batch.APPEND_TIME_BIT)
    last_delta = int.from_bytes(batch[23:27], "big", signed=True)
    first = int.from_bytes(batch[27:35], "big", signed=True)
    if not 0 <= count <= MAX_RECORDS:
        raise UndecodableError(f"a batch has {count} records, more than {MAX_RECORDS}")
    places: list[Place] = []
    try:
        data = record_bytes(batch, attributes)
        place, before = 0, -1
        for _ in range(count):
            if len(places) == records:
                yield data, places
                places = []
            size, place = zigzag(data, place)
            end = place + size
            time, place = zigzag(data, place + 1)
            delta, place = zigzag(data, place)
            timestamp = newest if appended else first + time
            if not before < delta <= last_delta or not place < end <= len(data) or abs(timestamp) > MAX_TIME:
                raise UndecodableError(
                    f"invalid record: offset delta {delta}, time {timestamp}, end {end} of {len(data)} bytes"
                )
            places.append(Place(base + delta, timestamp, place, end))
            place, before = end, delta
    except (IndexError, CodecError) as error:
        raise UndecodableError(f"records cannot be decoded: {error!r}") from error
    if place != len(data):
        raise UndecodableError(f"{count} records end at byte {place} of {len(data)}")
    yield data, places


def record_bytes(batch: memoryview, attributes: int, most: int = MAX_BYTES) -> bytes:
    """Return the bytes of all records of a batch with these ``attributes``, decompressed to at most ``most`` bytes.

    Raises CodecError.
    """
    codec, packed = attributes & record_batch.CODEC_BITS, batch[record_batch.HEADER :]
    return _decompressed(codec, packed, most) if codec else bytes(packed)


def zigzag(data: bytes, place: int) -> tuple[int, int]:
    """Read the signed varint at ``place``; return it and its end. Raises UndecodableError for more than 64 bits,
    IndexError at the end."""
    value = shift = 0
    while shift < 70:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80 and (shift < 63 or byte < 2):
            return value >> 1 ^ -(value & 1), place
        shift += 7
    raise UndecodableError(f"the number at {place} has more than 64 bits")


def _decompressed(codec: int, data: memoryview, most: int) -> bytes:
    # The pages of an anonymous mapping cost no memory until they are written. It ends with the last reference to it.
    space = mmap.mmap(-1, most)
    size = decompress_into(codec, data, memoryview(space))
    return space[:size]
