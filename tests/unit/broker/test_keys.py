"""Compaction keeps the newest record of each key in batches."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from firn.records import contents, keys, record_batch
from firn.records.keys import Newest, Record
from firn.records.record_batch import InvalidBatchError
from firn_broker.log.blocks import number_batches
from firn_broker.log_types import BatchRange, WalRange
from tests.unit.broker import test_contents as raw

ROOM = 1 << 30
NOW, DAY = 5_000_000, 86_400_000


def record(
    offset: int, key: bytes | None, value: bytes | None, time: int = 1000, *, appended: bool = False, horizon: int = -1
) -> Record:
    def sized(data: bytes | None) -> bytes:
        return keys._zigzagged(-1) if data is None else keys._zigzagged(len(data)) + data

    return Record(offset, time, appended, key, value is None, horizon, sized(key) + sized(value) + b"\0")


def written(
    kept: Sequence[Record], base: int, last: int, *, compressed: bool = False, size: int = 1 << 20
) -> list[Record]:
    """Encode ``kept`` and return the records that a reader finds. The reader numbers the batches and finds no gap."""
    data = memoryview(bytearray().join(keys.encode(kept, base, last, compressed=compressed, batch_bytes=size)))
    block = number_batches(BatchRange(base, last, WalRange("k", 0, len(data)), 0, -1), data)
    return [
        it for start, end in zip(block.positions, block.ends, strict=True) for it in keys.decode(block.data[start:end])
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    found = []
    for number in range(draw(st.integers(1, 40))):
        value = draw(st.sampled_from([b"v", None, b"x" * 300]))
        horizon = draw(st.sampled_from([-1, NOW - 1, NOW + 1])) if value is None else -1
        key = draw(st.sampled_from([b"a", b"b", b"c", b"", b"k" * 200, None]))
        time = draw(st.integers(0, 1 << 40))
        found.append(record(10 + number, key, value, time, appended=draw(st.booleans()), horizon=horizon))
    return found


@given(logs(), st.booleans(), st.integers(1, 2000))
def test_the_newest_of_each_key_is_what_is_read(log: list[Record], compressed: bool, size: int) -> None:
    newest = Newest(ROOM)
    for it in log:
        newest.add([it])
    kept = newest.kept(NOW, DAY)
    assert [it.offset for it in kept] == sorted(it.offset for it in kept)
    final = {it.key: it for it in log if it.key is not None}
    assert {it.key: it.offset for it in kept if it.key is not None} == {
        key: it.offset for key, it in final.items() if not it.tombstone or it.horizon != NOW - 1
    }
    assert [it for it in kept if it.key is None] == [it for it in log if it.key is None]
    found = written(kept, 10, log[-1].offset, compressed=compressed, size=size)
    assert [it._replace(horizon=-1) for it in found] == [it._replace(horizon=-1) for it in kept]
    assert [it.horizon for it in found if it.key is not None] == [it.horizon for it in kept if it.key is not None]


def test_a_tombstone_goes_so_long_after_it_was_first_compacted() -> None:
    found = [record(0, b"a", None, time=1)]
    for now, stays in ((NOW, True), (NOW + DAY - 1, True), (NOW + DAY, False)):
        newest = Newest(ROOM)
        newest.add(found)
        kept = newest.kept(now, DAY)
        assert [it.horizon for it in kept] == [NOW + DAY] * stays
        assert keys.next_horizon(kept) == (NOW + DAY) * stays
        found = written(kept, 0, 9)
    assert found == []


def test_no_time_is_too_far_away_for_a_batch() -> None:
    newest = Newest(ROOM)
    newest.add([record(0, b"old", b"v", -contents.MAX_TIME), record(1, b"gone", None, contents.MAX_TIME)])
    kept = newest.kept(NOW, (1 << 63) - 1)
    assert [it.horizon for it in kept] == [-1, contents.MAX_TIME]
    assert written(kept, 0, 1) == kept


def test_what_a_producer_said_about_its_tombstones_fits_beside_other_records() -> None:
    value = raw.record(0, time=1000 - (1 << 63), value=None)
    (found,) = keys.decode(raw.batch(value, 1, attributes=keys.HORIZON_BIT, time=(1 << 63) - 1))
    kept = [record(0, b"old", b"v", -contents.MAX_TIME), found._replace(offset=1)]
    assert written(kept, 0, 1) == kept


FAR = 1 << 31


@pytest.mark.parametrize("base", [0, 7])
@pytest.mark.parametrize(
    ("offsets", "last"),
    [
        pytest.param([FAR - 1], FAR - 1, id="as far as a batch goes"),
        pytest.param([FAR + 7], FAR + 7, id="nothing in front"),
        pytest.param([9], FAR + 7, id="nothing behind"),
        pytest.param([], 3 * FAR, id="nothing at all"),
        pytest.param([9, FAR + 9], FAR + 9, id="nothing in between"),
        pytest.param([FAR - 1, FAR + 9], FAR + 9, id="records on both sides of a batch's end"),
        pytest.param([3 * FAR, 5 * FAR, 9 * FAR], 11 * FAR, id="hardly anything"),
    ],
)
def test_offsets_are_covered_however_far_records_are_from_another(offsets: list[int], last: int, base: int) -> None:
    kept = [record(it, b"%d" % it, b"v") for it in offsets]
    assert written(kept, base, last) == kept


def test_memory_is_bounded() -> None:
    room = 10 * (keys.HELD + 100)
    newest = Newest(room)
    for number in range(1000):
        newest.add([record(number, b"%d" % (number % 10), b"v" * 80)])
    assert len(newest.kept(NOW, DAY)) == 10
    with pytest.raises(keys.TooLargeError, match=f"more than {room}"):
        newest.add([record(1000, b"another", b"v" * 500)])


@pytest.mark.parametrize(
    "body", [pytest.param(b"\x0c\0\0\0\x02k\x10v", id="a value"), pytest.param(b"\x0a\0\0\0\x20kv", id="a key")]
)
def test_a_field_that_passes_the_end_of_its_record_is_said(body: bytes) -> None:
    with pytest.raises(ValueError, match="record"):
        keys.decode(raw.batch(body, 1))


@pytest.mark.parametrize(
    ("batch", "why"),
    [
        (raw.batch(raw.record(0) + raw.record(1, key=None), 2), "no record without a key"),
        (raw.batch(b"nonsense", 1), "can decode"),
        (raw.batch(raw.record(0, value=None), 1, attributes=keys.HORIZON_BIT), "a producer must not set"),
    ],
)
def test_what_could_not_be_compacted_is_not_taken(batch: memoryview, why: str) -> None:
    with pytest.raises(InvalidBatchError, match=why) as refused:
        keys.require(record_batch.parse(batch))
    assert refused.value.code is ErrorCode.invalid_record
    keys.require(record_batch.parse(raw.batch(raw.record(0), 1)))
