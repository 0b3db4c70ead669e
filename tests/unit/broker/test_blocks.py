"""Batches from the object store get their offsets, in their bytes or in heads beside them."""

import struct
from random import Random

import pytest

from firn.records import record_batch
from firn_broker.log.blocks import LARGE, BlockCache, number_batches
from firn_broker.log_types import BatchRange, WalRange
from tests.unit.broker.batches import batch

BASE, ORIGIN, RECORDS, COUNT = 1000, 77, 3, 5


def stored(body: int, append_ms: int = -1) -> tuple[BatchRange, list[bytes]]:
    """Return a range of batches with bodies of random bytes, and the bytes of each as the producer sent them."""
    sent = [bytes(batch(RECORDS, body=Random(number).randbytes(body)).data) for number in range(COUNT)]
    place = WalRange("key", ORIGIN, sum(map(len, sent)))
    return BatchRange(BASE, BASE + COUNT * RECORDS - 1, place, 0, append_ms), sent


@pytest.mark.parametrize("body", [100, LARGE])
@pytest.mark.parametrize("writable", [False, True])
def test_a_slice_has_whole_batches_with_their_offsets(body: int, writable: bool) -> None:
    batch_range, sent = stored(body)
    data = b"".join(sent)
    block = number_batches(batch_range, memoryview(bytearray(data) if writable else data))
    assert bool(block.heads) is (body == LARGE and not writable)
    expected = [
        struct.pack(">qii", BASE + number * RECORDS, len(each) - 12, 0) + each[16:] for number, each in enumerate(sent)
    ]
    size = len(sent[0])
    for offset, most, first, last in (
        (BASE, len(data), 0, COUNT),
        (BASE + RECORDS + 1, len(data), 1, COUNT),
        (BASE, 2 * size, 0, 2),
        (BASE + RECORDS, 2 * size - 1, 1, 2),
    ):  # fmt: skip
        buffers = block.slice(batch_range, offset, most, at_least_one=False)
        assert b"".join(buffers) == b"".join(expected[first:last])
    assert block.slice(batch_range, BASE, size - 1, at_least_one=False) == []
    assert b"".join(block.slice(batch_range, BASE, 1, at_least_one=True)) == expected[0]
    assert block.whole(batch_range) == b"".join(expected)


def test_large_batches_are_not_copied() -> None:
    batch_range, sent = stored(LARGE)
    data = b"".join(sent)
    block = number_batches(batch_range, memoryview(data))
    bodies = [
        part for part in block.slice(batch_range, BASE, len(data), at_least_one=True) if isinstance(part, memoryview)
    ]
    assert [part.obj is data for part in bodies] == [True] * COUNT


def test_append_time_is_written_into_a_copy() -> None:
    batch_range, sent = stored(LARGE, append_ms=5)
    block = number_batches(batch_range, memoryview(b"".join(sent)))
    whole = block.whole(batch_range)
    assert not block.heads
    for place, size, _ in record_batch.walk(whole):
        assert record_batch.intact(whole[place : place + size])
        assert record_batch.header(whole, place)[0] == 5


@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
def test_a_range_that_got_other_offsets_is_not_cached(written: bool) -> None:
    """The coordinator has lost the commit, and its broker has committed the object again, behind other records."""
    before, sent = stored(100)
    after = before._replace(base_offset=BASE + 7, last_offset=before.last_offset + 7)
    cache, data = BlockCache(1 << 20, 1 << 20), b"".join(sent)
    block = number_batches(before, memoryview(data))
    if written:
        cache.put_written("key", block)
    else:
        cache.put_read(before, block, recent=True)
    assert cache.get(before) is block
    assert cache.get(after) is None
    again = number_batches(after, memoryview(data))
    cache.put_read(after, again, recent=False)
    assert cache.get(after) is again
