"""The records inside a batch, for ListOffsets by timestamp and for compacted topics.

Bounds protect the broker from what clients send: a megabyte of zstd may decompress to many gigabytes, and each record
costs time and memory."""

import mmap
from collections.abc import Callable, Iterator
from typing import NamedTuple

import cramjam

from firn.records import record_batch

MAX_BYTES = 32 << 20
"""Bytes to which a batch may decompress."""
MAX_RECORDS = 100_000
"""Records of a batch that is decoded."""
MAX_TIME = (1 << 62) - 1
"""The greatest distance of a timestamp from 1970, in milliseconds. Differences of two timestamps fit into 64 bits then,
as batches need."""
_XERIAL = b"\x82SNAPPY\x00"


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
        data = _CODECS[attributes & record_batch.CODEC_BITS](batch[record_batch.HEADER :])
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
    except (IndexError, KeyError, cramjam.DecompressionError) as error:
        raise UndecodableError(f"records cannot be decoded: {error!r}") from error
    if place != len(data):
        raise UndecodableError(f"{count} records end at byte {place} of {len(data)}")
    yield data, places


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


def _into(decompress: Callable[[memoryview, memoryview], int]) -> Callable[[memoryview], bytes]:
    def bounded(data: memoryview) -> bytes:
        # The pages of an anonymous mapping cost no memory until they are written.
        with mmap.mmap(-1, MAX_BYTES) as space:
            with memoryview(space) as view:
                size = decompress(data, view)
            return space[:size]

    return bounded


def _snappy(data: memoryview) -> bytes:
    """Decompress raw snappy, or the blocks of Java clients (``SnappyOutputStream``: magic, two versions, then length
    and block)."""
    if bytes(data[:8]) != _XERIAL:
        return _block(data, MAX_BYTES)
    out, place = bytearray(), 16
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        out += _block(data[place + 4 : place + 4 + size], MAX_BYTES - len(out))
        place += 4 + size
    return bytes(out)


def _block(data: memoryview, limit: int) -> bytes:
    size: int = cramjam.snappy.decompress_raw_len(data)
    if size > limit:
        raise UndecodableError(f"a block has {size} bytes, more than {limit}")
    return bytes(cramjam.snappy.decompress_raw(data))


_CODECS: dict[int, Callable[[memoryview], bytes]] = {
    0: bytes,
    1: _into(cramjam.gzip.decompress_into),
    2: _snappy,
    3: _into(cramjam.lz4.decompress_into),
    4: _into(cramjam.zstd.decompress_into),
}
