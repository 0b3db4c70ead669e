"""Every record of every batch is read as it was written, whatever its codec, gaps, headers and times."""

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from firn.model.errors import CorruptDataError
from firn_spark.worker.fetching import batches
from firn_spark.worker.fetching.batches import OldFormatError
from tests.unit.fetching.log import APPEND_TIME, COMPRESS, Batch, Record, varint
from tests.unit.fetching.log import record as encoded
from tests.unit.fetching.reading import Row, blocks_of, rows_of

BYTES = st.none() | st.binary(max_size=300)
NAMES = st.text(max_size=5).map(str.encode)


@st.composite
def logs(draw: st.DrawFn) -> list[Batch]:
    """Draw batches whose offsets ascend, with gaps between batches and between records."""
    drawn, base = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 6))):
        deltas = sorted(draw(st.sets(st.integers(0, 40), max_size=12)))
        records = [
            Record(
                delta,
                draw(BYTES),
                draw(BYTES),
                draw(st.integers(-(2**40), 2**40)),
                tuple(draw(st.lists(st.tuples(NAMES, BYTES), max_size=3))),
            )
            for delta in deltas
        ]
        last = max(deltas, default=0) + draw(st.integers(0, 3))
        attributes = draw(st.sampled_from([0, APPEND_TIME]))
        drawn.append(Batch(base, records, last, draw(st.sampled_from(sorted(COMPRESS))), attributes))
        base += last + 1 + draw(st.integers(0, 9))
    return drawn


def expected(log: list[Batch], start: int, end: int) -> list[Row]:
    """Return the records of a log with offsets from ``start`` to ``end``."""
    rows = []
    for batch in log:
        appended = bool(batch.attributes & APPEND_TIME)
        for one in batch.records:
            time = batch.times[1] if appended else batch.times[0] + one.time
            headers = tuple((name.decode(), value) for name, value in one.headers)
            rows.append(Row(batch.base + one.delta, time, int(appended), one.key, one.value, headers))
    return [row for row in rows if start <= row.offset < end]


@given(logs(), st.data())
def test_the_wanted_offsets_are_read(log: list[Batch], data: st.DataObject) -> None:
    first, last = log[0].base, log[-1].base + (log[-1].last or 0)
    start = data.draw(st.integers(max(0, first - 3), last + 1))
    end = data.draw(st.integers(start + 1, last + 3))
    blocks, position = blocks_of(b"".join(batch.encode() for batch in log), start, end)
    assert rows_of(blocks) == expected(log, start, end)
    assert position.next == max(start, min(end, last + 1))


@given(logs(), st.integers(0, 10_000))
def test_a_batch_that_is_cut_short_waits_for_the_next_answer(log: list[Batch], missing: int) -> None:
    whole = [batch.encode() for batch in log]
    cut = 1 + missing % len(whole[-1])
    blocks, position = blocks_of(b"".join(whole)[:-cut], 0, 2**62)
    assert rows_of(blocks) == expected(log[:-1], 0, 2**62)
    assert position.next == (log[-2].base + (log[-2].last or 0) + 1 if len(log) > 1 else 0)


def test_blocks_are_bounded_by_records_and_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "BLOCK_RECORDS", 30)
    monkeypatch.setattr(batches, "BLOCK_BYTES", 5_000)
    for codec in COMPRESS:
        small = [Batch(10 * n, [Record(d) for d in range(10)], codec=codec) for n in range(9)]
        large = [Batch(90 + n, [Record(0, b"x" * 2_000)], codec=codec) for n in range(9)]
        blocks, _ = blocks_of(b"".join(batch.encode() for batch in small + large), 0, 1_000)
        assert [len(block) for block in blocks] == [30, 30, 30, 3, 3, 3]


def test_compressed_and_plain_batches_may_alternate() -> None:
    log = [Batch(n, [Record(0, b"%d" % n)], codec=n % 3 * 2) for n in range(30)]
    blocks, _ = blocks_of(b"".join(batch.encode() for batch in log), 0, 30)
    assert [row.value for row in rows_of(blocks)] == [b"%d" % n for n in range(30)]


@pytest.mark.parametrize("codec", [codec for codec in COMPRESS if codec])
def test_a_batch_larger_than_the_first_space_is_read(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "SPACES", (1_000, 20_000, 200_000))
    sizes = [300, 900, 15_000, 100, 150_000, 5]
    log = [Batch(n, [Record(0, b"x" * size)], codec=codec) for n, size in enumerate(sizes)]
    blocks, _ = blocks_of(b"".join(batch.encode() for batch in log), 0, 100)
    assert [len(row.value or b"") for row in rows_of(blocks)] == sizes


@pytest.mark.parametrize("codec", [codec for codec in COMPRESS if codec])
def test_a_small_batch_that_decompresses_to_more_than_a_task_may_hold_is_refused(
    codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "SPACES", (1 << 20, 3 << 20))
    data = Batch(7, [Record(0, bytes(4 << 20))], codec=codec).encode()
    assert codec == 3 or len(data) < 300_000  # lz4 and snappy need a byte for 255 zeros at most
    with pytest.raises(CorruptDataError, match=r"offset 7: a record batch cannot be decompressed into 3 MiB, so"):
        blocks_of(data, 0, 100)


@pytest.mark.parametrize("codec", [0, 4])
def test_a_batch_with_more_records_than_a_task_may_hold_is_refused(codec: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_RECORDS", 5)
    with pytest.raises(
        CorruptDataError, match="offset 7: a record batch has 6 records, more than 5; skip the batch with"
    ):
        blocks_of(Batch(7, [Record(d) for d in range(6)], codec=codec).encode(), 0, 100)


def test_names_of_headers_that_are_not_utf_8_become_readable() -> None:
    names = [b"plain", b"\xff\xfe", b"cut short \xe2\x82"]
    one = Record(0, headers=tuple((name, b"v") for name in names))
    blocks, _ = blocks_of(Batch(0, [one, Record(1)]).encode(), 0, 2)
    assert [name for name, _ in rows_of(blocks)[0].headers] == ["plain", "\ufffd\ufffd", "cut short \ufffd"]


@pytest.mark.parametrize("magic", [0, 1])
def test_messages_of_older_formats_are_named(magic: int) -> None:
    data = bytearray(Batch(7, [Record(0)]).encode())
    data[16] = magic
    # A small message has fewer bytes than the header of a batch.
    for size in (len(data), 39):
        with pytest.raises(OldFormatError, match="topic orders, partition 3, offset 7: "):
            blocks_of(bytes(data[:size]), 7, 8)


def test_a_wrong_checksum_names_the_place() -> None:
    data = bytearray(Batch(7, [Record(0, b"value")]).encode())
    data[-3] ^= 1
    with pytest.raises(CorruptDataError, match=r"topic orders, partition 3, offset 7: the checksum.*; check the disks"):
        blocks_of(bytes(data), 0, 100)


GOOD = encoded(Record(0, b"x" * 20))
WRONG = {
    "a record longer than its batch": varint(60) + GOOD[1:],
    "a record shorter than its fields": varint(10) + GOOD[1:],
    "a negative length": varint(-5) + GOOD[1:],
    "bytes behind the last record": GOOD + b"\0",
    "an offset beyond the batch": encoded(Record(5, b"x" * 20)),
    "a varint without an end": b"\xff" * len(GOOD),
    "more headers than bytes": GOOD[:-1] + varint(9),
    "a header without a name": encoded(Record(0, headers=((b"n", b"v"),)))[:-4] + varint(-1) + b"\0\0\0",
    "no bytes": b"",
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("codec", [0, 4])
def test_malformed_records_are_refused(name: str, codec: int) -> None:
    batch = Batch(7, [Record(0)], last=0, codec=codec, body=WRONG[name])
    with pytest.raises(CorruptDataError, match="topic orders, partition 3, offset 7: "):
        blocks_of(batch.encode(), 0, 100)


def test_more_records_than_bytes_are_refused_before_memory_is_taken() -> None:
    data = bytearray(Batch(7, [Record(0)], last=2**31 - 1).encode())
    data[57:61] = (2**31 - 1).to_bytes(4, "big")
    data[17:21] = crc_of(data[21:])
    with pytest.raises(CorruptDataError, match="too few bytes"):
        blocks_of(bytes(data), 0, 2**40)


def crc_of(data: bytes | bytearray) -> bytes:
    """Return the checksum of a batch as it stands in its header."""
    return int(crc32c(bytes(data))).to_bytes(4, "big")
