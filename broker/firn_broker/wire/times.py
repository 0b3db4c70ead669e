"""Which record of a batch has which time: the only place where a broker looks into records, for ListOffsets by timestamp."""

from collections.abc import Callable

import cramjam

from firn_broker.wire import records

_XERIAL = b"\x82SNAPPY\x00"


def _snappy(data: memoryview) -> bytes:
    """Raw snappy, or the blocks that Java clients write (``SnappyOutputStream``: magic, two versions, then length and block)."""
    if bytes(data[:8]) != _XERIAL:
        return bytes(cramjam.snappy.decompress_raw(data))
    out, place = bytearray(), 16
    while place < len(data):
        size = int.from_bytes(data[place : place + 4], "big")
        out += bytes(cramjam.snappy.decompress_raw(data[place + 4 : place + 4 + size]))
        place += 4 + size
    return bytes(out)


CODECS: dict[int, Callable[[memoryview], bytes]] = {
    0: bytes,
    1: lambda data: bytes(cramjam.gzip.decompress(data)),
    2: _snappy,
    3: lambda data: bytes(cramjam.lz4.decompress(data)),
    4: lambda data: bytes(cramjam.zstd.decompress(data)),
}


def of_records(batch: memoryview) -> list[tuple[int, int]]:
    """(offset, timestamp) of each record of a batch whose base offset is written in. Raises ValueError when it cannot be decoded."""
    base = int.from_bytes(batch[:8], "big")
    newest, attributes, count = records.header(batch)
    if attributes & records.APPEND_TIME_BIT:
        return [(base + delta, newest) for delta in range(count)]
    first = int.from_bytes(batch[27:35], "big", signed=True)
    try:
        data = CODECS[attributes & records.CODEC_BITS](batch[records.HEADER :])
        found, place = [], 0
        for _ in range(count):
            size, place = zigzag(data, place)
            end = place + size
            time, place = zigzag(data, place + 1)
            delta, place = zigzag(data, place)
            found.append((base + delta, first + time))
            place = end
        return found
    except (IndexError, KeyError, cramjam.DecompressionError) as error:
        raise ValueError(f"records cannot be decoded: {error!r}") from error


def zigzag(data: bytes, place: int) -> tuple[int, int]:
    """The signed varint at ``place``, and where it ends."""
    value = shift = 0
    while True:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value >> 1 ^ -(value & 1), place
        shift += 7
