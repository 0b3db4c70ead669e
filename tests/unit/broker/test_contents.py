"""Batches are decoded within bounds."""

import struct
from collections.abc import Callable

import cramjam
import pytest
from crc32c import crc32c

from firn.records import contents, record_batch


def zigzagged(value: int) -> bytes:
    """Return a zigzag varint, as Kafka encodes the integers of records."""
    value = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def record(delta: int, *, time: int = 0, key: bytes | None = b"k", value: bytes | None = b"v") -> bytes:
    def sized(data: bytes | None) -> bytes:
        return zigzagged(-1) if data is None else zigzagged(len(data)) + data

    body = b"\0" + zigzagged(time) + zigzagged(delta) + sized(key) + sized(value) + zigzagged(0)
    return zigzagged(len(body)) + body


def batch(
    body: bytes, count: int, *, attributes: int = 0, base: int = 0, time: int = 1000, delta: int | None = None
) -> memoryview:
    last = count - 1 if delta is None else delta
    after = struct.pack(">hiqqqhii", attributes, last, time, time, -1, -1, -1, count) + body
    return memoryview(bytearray(struct.pack(">qiibI", base, len(after) + 9, 0, 2, crc32c(after)) + after))


def _java_snappy(data: bytes) -> bytes:
    blocks = [bytes(cramjam.snappy.compress_raw(data[at : at + 32768])) for at in range(0, len(data), 32768)]
    return (
        b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1) + b"".join(struct.pack(">i", len(block)) + block for block in blocks)
    )


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "none": (0, bytes),
    "gzip": (1, lambda data: bytes(cramjam.gzip.compress(data))),
    "snappy": (2, lambda data: bytes(cramjam.snappy.compress_raw(data))),
    "snappy of Java": (2, _java_snappy),
    "lz4": (3, lambda data: bytes(cramjam.lz4.compress(data))),
    "zstd": (4, lambda data: bytes(cramjam.zstd.compress(data))),
}


@pytest.mark.parametrize("codec", CODECS)
def test_records_of_every_codec_are_found(codec: str) -> None:
    number, compress = CODECS[codec]
    body = record(0, value=b"x" * 100_000) + record(3, time=-5, key=None, value=None)
    data, places = next(contents.open_batch(batch(compress(body), 2, attributes=number, base=40, delta=7)))
    assert data == body
    assert [(place.offset, place.timestamp) for place in places] == [(40, 1000), (43, 995)]


@pytest.mark.slow
@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "none"])
def test_a_batch_that_decompresses_above_the_bound_is_rejected(codec: str) -> None:
    number, compress = CODECS[codec]
    fits = record(0, value=bytes(contents.MAX_BYTES - 30))
    assert len(fits) <= contents.MAX_BYTES
    assert len(next(contents.open_batch(batch(compress(fits), 1, attributes=number)))[1]) == 1
    with pytest.raises(ValueError, match=r"records cannot be decoded|more than"):
        next(contents.open_batch(batch(compress(record(0, value=bytes(contents.MAX_BYTES))), 1, attributes=number)))


def test_a_block_with_a_large_declared_size_allocates_nothing() -> None:
    with pytest.raises(ValueError, match="a block has 4294967295 bytes"):
        next(contents.open_batch(batch(b"\xff\xff\xff\xff\x0fx", 1, attributes=2)))


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param(batch(b"", 1), id="too few"),
        pytest.param(batch(record(0) * 2, 1), id="too many"),
        pytest.param(batch(record(0, time=1 << 63), 1, time=-(1 << 63)), id="a number of 65 bits"),
        pytest.param(batch(b"\xff" * 1_000_000, 1), id="an endless number"),
        pytest.param(batch(record(0) + record(0), 2), id="an offset occurs twice"),
        pytest.param(batch(record(1), 1), id="an offset beyond the last"),
        pytest.param(batch(record(-1), 1), id="an offset before the first"),
        pytest.param(batch(record(0, time=1 << 62), 1), id="a time out of range"),
        pytest.param(batch(record(0), 1, time=-1 << 62), id="a time too far from the others"),
        pytest.param(batch(record(0)[:-2], 1), id="an end that is too early"),
        pytest.param(batch(b"\x01", 1), id="a negative length"),
        pytest.param(batch(record(0), 1, attributes=7), id="an unknown codec"),
        pytest.param(batch(b"nonsense", 1, attributes=4), id="no zstd"),
        pytest.param(batch(b"\x80", 1, attributes=2), id="no snappy"),
        pytest.param(batch(b"\0" * 100, contents.MAX_RECORDS + 1), id="too many records"),
        pytest.param(batch(b"", -1), id="a negative number of records"),
    ],
)
def test_a_damaged_batch_raises_value_error(damaged: memoryview) -> None:
    with pytest.raises(ValueError, match=r"record|number"):
        next(contents.open_batch(damaged))


def test_records_with_append_time_have_the_time_of_their_batch() -> None:
    _, places = next(
        contents.open_batch(batch(record(0, time=9) + record(1), 2, attributes=record_batch.APPEND_TIME_BIT))
    )
    assert [place.timestamp for place in places] == [1000, 1000]
