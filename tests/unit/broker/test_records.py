"""Errors of produced batches, and the changes that a broker makes to batches."""

import struct

import cramjam
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from firn.records import record_batch
from firn.records.cursor import varint
from tests.unit.broker.batches import raw


def test_a_valid_batch_is_parsed() -> None:
    data = raw(3, producer=7, epoch=1, sequence=5, time=77)
    parsed = record_batch.parse(data)
    assert (parsed.records, parsed.producer_id, parsed.producer_epoch, parsed.base_sequence) == (3, 7, 1, 5)
    assert (parsed.base_timestamp, parsed.max_timestamp, parsed.data) == (77, 77, data)


def damaged(data: memoryview) -> memoryview:
    data[-1] ^= 1
    return data


def in_format(magic: int) -> memoryview:
    """Return a batch that claims to be in another format. The checksum does not cover the byte."""
    data = raw()
    data[16] = magic
    return data


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (memoryview(b""), ErrorCode.invalid_record),
        (raw()[:60], ErrorCode.invalid_record),
        (raw()[:-1], ErrorCode.corrupt_message),
        (damaged(raw()), ErrorCode.corrupt_message),
        (memoryview(bytes(raw()) * 2), ErrorCode.invalid_record),
        (in_format(1), ErrorCode.unsupported_for_message_format),
        (raw(base=3), ErrorCode.invalid_record),
        (raw(0), ErrorCode.invalid_record),
        (raw(attributes=0x20), ErrorCode.invalid_record),
        (raw(attributes=5), ErrorCode.unsupported_compression_type),
        (raw(attributes=0x10, producer=1, epoch=0, sequence=0), ErrorCode.invalid_txn_state),
        (raw(producer=1), ErrorCode.invalid_record),
        (raw(3, body=b"r" * 20), ErrorCode.invalid_record),
        (raw((1 << 31) - 1, body=b""), ErrorCode.invalid_record),
        (raw((1 << 31) - 1, body=b"r" * 1000, attributes=4), ErrorCode.invalid_record),
    ],
    ids=[
        "nothing", "no whole header", "cut off", "damaged", "two batches", "old format", "a base offset", "no records",
        "control batch", "unknown codec", "transactional", "idempotent without a sequence",
        "records without room", "records without bytes", "more records than the compressed bytes can hold",
    ],
)  # fmt: skip
def test_an_invalid_batch_is_rejected(data: memoryview, code: ErrorCode) -> None:
    with pytest.raises(record_batch.InvalidBatchError) as refused:
        record_batch.parse(data)
    assert refused.value.code is code


def test_a_compressed_batch_may_hold_very_many_records() -> None:
    count = 50_000
    written = bytearray()
    for offset in range(count):
        # Length, attributes 0, timestamp 0, the offset as a zigzag varint, null key, null value, no headers.
        delta = varint(offset << 1)
        written += bytes((2 * (5 + len(delta)), 0, 0)) + delta + b"\x01\x01\x00"
    assert record_batch.parse(raw(count, body=bytes(written))).records == count
    for attributes, codec in ((1, cramjam.gzip), (4, cramjam.zstd)):
        assert (
            record_batch.parse(raw(count, body=bytes(codec.compress(bytes(written))), attributes=attributes)).records
            == count
        )


@given(st.binary(max_size=200))
def test_any_bytes_are_parsed_or_rejected(data: bytes) -> None:
    with pytest.raises(record_batch.InvalidBatchError):
        record_batch.parse(memoryview(data))


@given(st.lists(st.tuples(st.integers(1, 9), st.binary(max_size=50)), max_size=8))
def test_a_walk_returns_the_place_of_each_batch(made: list[tuple[int, bytes]]) -> None:
    batches = [raw(count, body=body) for count, body in made]
    places = record_batch.walk(memoryview(b"".join(batches)))
    assert [(size, count) for _, size, count in places] == [
        (len(encoded), count) for encoded, (count, _) in zip(batches, made, strict=True)
    ]
    assert [place for place, _, _ in places] == [sum(map(len, batches[:number])) for number in range(len(batches))]


@pytest.mark.parametrize("data", [b"x" * 20, bytes(raw())[:-3], bytes(raw()) + b"\0" * 70])
def test_a_walk_of_damaged_batches_raises_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        record_batch.walk(memoryview(data))


def test_numbering_a_batch_keeps_its_checksum_valid() -> None:
    data = raw(4)
    record_batch.number(data, 0, 1 << 40)
    assert struct.unpack_from(">q", data)[0] == 1 << 40
    assert struct.unpack_from(">i", data, 12)[0] == 0
    assert struct.unpack_from(">I", data, 17)[0] == crc32c(data[21:])


def test_a_stamp_sets_append_time_and_the_checksum() -> None:
    data = raw(4, attributes=2)
    record_batch.stamp(data, 99)
    newest, attributes, _ = record_batch.header(data)
    assert (newest, attributes) == (99, 2 | record_batch.APPEND_TIME_BIT)
    assert struct.unpack_from(">I", data, 17)[0] == crc32c(data[21:])


def test_sequences_follow_and_wrap() -> None:
    last = (1 << 31) - 1
    assert [record_batch.following_sequence(at, 1) for at in (0, last - 1, last)] == [1, last, 0]
