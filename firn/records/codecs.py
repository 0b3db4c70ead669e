"""The codecs of record batches.

Source: ``CompressionType.java``. Snappy has two forms: raw, and the blocks of Java clients (``SnappyOutputStream``: magic, two
versions, then length and block).
"""

from collections.abc import Callable, Mapping

import cramjam

_XERIAL = b"\x82SNAPPY\x00"
_XERIAL_HEADER = 16


class CodecError(ValueError):
    """Bytes that cannot be decompressed, or do not fit into the space for them."""


def decompress_into(codec: int, data: memoryview, space: memoryview) -> int:
    """Decompress the records of a batch into ``space``, which is writable, and return their size in bytes.

    ``codec`` is the number in the batch's attributes; 0 copies. Raises CodecError.
    """
    decompress = _CODECS.get(codec)
    if decompress is None:
        raise CodecError(f"codec {codec} does not exist")
    try:
        return decompress(data, space)
    except (cramjam.DecompressionError, ValueError) as error:
        raise CodecError(f"the records cannot be decompressed to at most {len(space)} bytes: {error!r}") from error


def _copy(data: memoryview, space: memoryview) -> int:
    space[: len(data)] = data
    return len(data)


def _snappy(data: memoryview, space: memoryview) -> int:
    if bytes(data[:8]) != _XERIAL:
        return _block(data, space)
    size, place = 0, _XERIAL_HEADER
    while place < len(data):
        length = int.from_bytes(data[place : place + 4], "big")
        size += _block(data[place + 4 : place + 4 + length], space[size:])
        place += 4 + length
    return size


def _block(data: memoryview, space: memoryview) -> int:
    size: int = cramjam.snappy.decompress_raw_len(data)
    if size > len(space):
        raise CodecError(f"a block has {size} bytes, more than {len(space)}")
    return int(cramjam.snappy.decompress_raw_into(data, space[:size]))


_CODECS: Mapping[int, Callable[[memoryview, memoryview], int]] = {
    0: _copy,
    1: cramjam.gzip.decompress_into,
    2: _snappy,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
