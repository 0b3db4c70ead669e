"""What stays of batches when only the newest record of each key does."""

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_broker.blocks import numbered
from firn_broker.coordinates import Run, WalRange
from firn_broker.wire import keys, records
from firn_broker.wire.keys import Record


def record(offset: int, key: bytes | None, value: bytes | None, time: int = 1000) -> Record:
    def sized(data: bytes | None) -> bytes:
        return keys._zigzagged(-1) if data is None else keys._zigzagged(len(data)) + data

    return Record(offset, time, key, value is None, sized(key) + sized(value) + b"\0")


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    return [
        record(
            10 + number, draw(st.sampled_from([b"a", b"b", b"c", b"", b"k" * 200, None])), draw(st.sampled_from([b"v", None, b"x" * 300])),
            draw(st.integers(0, 1 << 40)),
        )
        for number in range(draw(st.integers(1, 40)))
    ]  # fmt: skip


@given(logs(), st.booleans(), st.integers(1, 2000), st.integers(0, 1 << 40))
def test_the_newest_of_each_key_is_what_is_read(log: list[Record], compressed: bool, size: int, before: int) -> None:
    kept = keys.newest(log, forget_before_ms=before)
    last = log[-1].offset
    batches = keys.encode(kept, 10, last, compressed=compressed, batch_bytes=size)
    data = memoryview(bytearray().join(batches))
    # The reader numbers them as any others, and finds no gap.
    block = numbered(Run(10, last, WalRange("k", 0, len(data)), 0, -1), data)
    found = [
        it for start, end in zip(block.positions, block.ends, strict=True) for it in keys.decode(block.data[start:end])
    ]
    assert found == kept
    final = {it.key: it for it in log if it.key is not None}
    assert {it.key: it for it in kept if it.key is not None} == {
        key: it for key, it in final.items() if not it.tombstone or it.timestamp >= before or it is log[-1]
    }
    assert [it for it in kept if it.key is None] == [it for it in log if it.key is None]


@pytest.mark.parametrize("damage", [b"", b"\x02", b"\xff" * 20])
def test_what_is_no_record_is_said(damage: bytes) -> None:
    (batch,) = keys.encode([record(0, b"k", b"v")], 0, 0, compressed=False, batch_bytes=100)
    with pytest.raises(ValueError, match="record"):
        keys.decode(memoryview(batch[: records.HEADER] + damage))
    assert bytes(cramjam.gzip.decompress(cramjam.gzip.compress(b"x"))) == b"x"
