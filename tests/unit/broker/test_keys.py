"""Compaction keeps the newest record of each key in batches."""

from collections.abc import Sequence
from itertools import chain

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
        return raw.zigzagged(-1) if data is None else raw.zigzagged(len(data)) + data

    return Record(offset, time, appended, key, value is None, horizon, sized(key) + sized(value) + b"\0")


def kept_of(newest: Newest, now: int = NOW, retention_ms: int = DAY) -> list[Record]:
    """Return all records that stay, from parts of 3 records."""
    return list(chain.from_iterable(newest.kept(now, retention_ms, 3)))


def written(
    kept: Sequence[Record], base: int, last: int, *, compressed: bool = False, size: int = 1 << 20
) -> list[Record]:
    """Encode ``kept`` and return the records that a reader finds. The reader numbers the batches and finds no gap."""
    data = memoryview(bytearray().join(keys.encode(kept, base, last, compressed=compressed, batch_bytes=size)))
    block = number_batches(BatchRange(base, last, WalRange("k", 0, len(data)), 0, -1), data)
    return [
        decoded
        for start, end in zip(block.positions, block.ends, strict=True)
        for decoded in keys.decode(block.data[start:end])
    ]


@st.composite
def logs(draw: st.DrawFn) -> list[Record]:
    records = []
    for number in range(draw(st.integers(1, 40))):
        value = draw(st.sampled_from([b"v", None, b"x" * 300]))
        horizon = draw(st.sampled_from([-1, NOW - 1, NOW + 1])) if value is None else -1
        key = draw(st.sampled_from([b"a", b"b", b"c", b"", b"k" * 200, None]))
        time = draw(st.integers(0, 1 << 40))
        records.append(record(10 + number, key, value, time, appended=draw(st.booleans()), horizon=horizon))
    return records


@pytest.mark.slow
@given(logs(), st.booleans(), st.integers(1, 2000))
def test_only_the_newest_record_of_each_key_is_read(log: list[Record], compressed: bool, size: int) -> None:
    newest = Newest(ROOM)
    for entry in log:
        newest.add([entry])
    kept = kept_of(newest)
    assert [entry.offset for entry in kept] == sorted(entry.offset for entry in kept)
    final = {entry.key: entry for entry in log if entry.key is not None}
    assert {entry.key: entry.offset for entry in kept if entry.key is not None} == {
        key: newest_record.offset
        for key, newest_record in final.items()
        if not newest_record.tombstone or newest_record.horizon != NOW - 1
    }
    assert [entry for entry in kept if entry.key is None] == [entry for entry in log if entry.key is None]
    read = written(kept, 10, log[-1].offset, compressed=compressed, size=size)
    assert [entry._replace(horizon=-1) for entry in read] == [entry._replace(horizon=-1) for entry in kept]
    assert [entry.horizon for entry in read if entry.key is not None] == [
        entry.horizon for entry in kept if entry.key is not None
    ]


def test_a_tombstone_expires_after_its_first_compaction() -> None:
    records = [record(0, b"a", None, time=1)]
    for now, stays in ((NOW, True), (NOW + DAY - 1, True), (NOW + DAY, False)):
        newest = Newest(ROOM)
        newest.add(records)
        kept = kept_of(newest, now)
        assert [entry.horizon for entry in kept] == [NOW + DAY] * stays
        assert keys.next_horizon(kept) == (NOW + DAY) * stays
        records = written(kept, 0, 9)
    assert records == []


def test_a_part_examines_few_records_even_if_none_stays() -> None:
    newest = Newest(ROOM)
    newest.add(record(number, b"%d" % number, None, horizon=NOW - 1) for number in range(10))
    assert list(newest.kept(NOW, DAY, 3)) == [[]] * 4


def test_the_first_tombstone_to_remove_may_be_in_any_part() -> None:
    assert keys.next_horizon([record(0, b"a", None, horizon=7)], 9) == 7
    assert keys.next_horizon([record(0, b"a", None, horizon=9)], 7) == 7
    assert keys.next_horizon([record(0, b"a", b"v")], 7) == 7
    assert keys.next_horizon([record(0, b"a", b"v")]) == 0


def test_a_batch_holds_any_two_timestamps() -> None:
    newest = Newest(ROOM)
    newest.add([record(0, b"old", b"v", -contents.MAX_TIME), record(1, b"gone", None, contents.MAX_TIME)])
    kept = kept_of(newest, retention_ms=(1 << 63) - 1)
    assert [entry.horizon for entry in kept] == [-1, contents.MAX_TIME]
    assert written(kept, 0, 1) == kept


def test_extreme_times_of_a_producer_fit_beside_other_records() -> None:
    value = raw.record(0, time=1000 - (1 << 63), value=None)
    (marked,) = keys.decode(raw.batch(value, 1, attributes=keys.HORIZON_BIT, time=(1 << 63) - 1))
    kept = [record(0, b"old", b"v", -contents.MAX_TIME), marked._replace(offset=1)]
    assert written(kept, 0, 1) == kept


FAR = 1 << 31


@pytest.mark.parametrize("base", [0, 7])
@pytest.mark.parametrize(
    ("offsets", "last"),
    [
        pytest.param([FAR - 1], FAR - 1, id="as far as a batch reaches"),
        pytest.param([FAR + 7], FAR + 7, id="no records at the start"),
        pytest.param([9], FAR + 7, id="no records at the end"),
        pytest.param([], 3 * FAR, id="no records"),
        pytest.param([9, FAR + 9], FAR + 9, id="no records in between"),
        pytest.param([FAR - 1, FAR + 9], FAR + 9, id="records on both sides of a batch's end"),
        pytest.param([3 * FAR, 5 * FAR, 9 * FAR], 11 * FAR, id="few records"),
    ],
)
def test_offsets_are_covered_however_far_apart_records_are(offsets: list[int], last: int, base: int) -> None:
    kept = [record(offset, b"%d" % offset, b"v") for offset in offsets]
    assert written(kept, base, last) == kept


def test_the_memory_for_keys_is_bounded() -> None:
    room = 10 * (keys.HELD + 100)
    newest = Newest(room)
    for number in range(1000):
        newest.add([record(number, b"%d" % (number % 10), b"v" * 80)])
    assert len(kept_of(newest)) == 10
    with pytest.raises(keys.TooLargeError, match=f"more than {room}"):
        newest.add([record(1000, b"another", b"v" * 500)])


@pytest.mark.parametrize(
    "body", [pytest.param(b"\x0c\0\0\0\x02k\x10v", id="a value"), pytest.param(b"\x0a\0\0\0\x20kv", id="a key")]
)
def test_a_field_beyond_the_end_of_its_record_raises_value_error(body: bytes) -> None:
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
def test_a_batch_that_cannot_be_compacted_is_rejected(batch: memoryview, why: str) -> None:
    with pytest.raises(InvalidBatchError, match=why) as refused:
        keys.require(record_batch.parse(batch))
    assert refused.value.code is ErrorCode.invalid_record
    keys.require(record_batch.parse(raw.batch(raw.record(0), 1)))
