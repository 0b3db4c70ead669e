"""Batches that brokers rebuild from the columns of a table equal those that producers sent."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as PythonBuilder

from firn.records import record_batch
from firn_broker.history import heads, sections
from firn_broker.history.sections import HEADERS, Records
from tests.unit.broker.batches import raw

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
MOST_TIME = 2**62


class Row(NamedTuple):
    """A record."""

    time: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


def produced(
    rows: Sequence[Row],
    base: int = 0,
    codec: int = 0,
    *,
    builder: Any = DefaultRecordBatchBuilder,
    idempotent: bool = True,
) -> memoryview:
    """Return the batch of a client with these records, as a broker gives it to clients."""
    producer, epoch, sequence = (77, 3, 11) if idempotent else (-1, -1, -1)
    made = builder(
        magic=2, compression_type=codec, is_transactional=0, producer_id=producer, producer_epoch=epoch, base_sequence=sequence,
        batch_size=1 << 30,
    )  # fmt: skip
    for offset, row in enumerate(rows):
        added = made.append(offset, timestamp=row.time, key=row.key, value=row.value, headers=list(row.headers))
        assert added is not None
    data = memoryview(bytearray(made.build()))
    record_batch.number(data, 0, base)
    return data


def columns(rows: Sequence[Row], offsets: Sequence[int]) -> Records:
    """Return the rows that a table has for records."""
    return Records(
        np.array(offsets, np.int64),
        np.array([row.time for row in rows], np.int64),
        pa.array([row.key for row in rows], pa.binary()),
        pa.array([row.value for row in rows], pa.binary()),
        pa.array([[{"key": name.encode(), "value": value} for name, value in row.headers] for row in rows], HEADERS),
    )


def rebuilt(found: heads.Heads, records: Records) -> memoryview:
    parts = heads.sections(found, records)
    assert None not in parts
    return heads.assemble(found, [part for part in parts if part is not None])


TEXT = st.none() | st.binary(max_size=300)
ROWS = st.lists(
    st.builds(
        Row,
        # The builder takes -1 at first for a time that is not set.
        st.integers(0, MOST_TIME) | st.integers(1_700_000_000_000, 1_700_000_100_000),
        TEXT,
        TEXT,
        st.lists(st.tuples(st.text(max_size=9), TEXT), max_size=4),
    ),
    min_size=1,
    max_size=20,
)


@given(st.lists(ROWS, min_size=1, max_size=4), st.integers(0, 2**61))
def test_any_records_become_the_bytes_of_their_batches(batches: list[list[Row]], base: int) -> None:
    sent, offset = [], base
    for rows in batches:
        sent.append(produced(rows, offset))
        offset += len(rows)
    rows = [row for some in batches for row in some]
    again = rebuilt(heads.read(sent), columns(rows, range(base, offset)))
    assert again == b"".join(sent)


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_a_compressed_batch_is_rebuilt_without_its_codec(codec: int) -> None:
    rows = [Row(1_000 + number, b"k", b"value" * number, [("h", None), ("h", b"1")]) for number in range(100)]
    sent, uncompressed = produced(rows, 9, codec), produced(rows, 9)
    assert rebuilt(heads.read([sent]), columns(rows, range(9, 109))) == uncompressed


def test_two_clients_write_the_same_sections() -> None:
    rows = [Row(5, None, b"x" * 200, [("ä", b"")]), Row(3, b"", None)]
    assert produced(rows) == produced(rows, builder=PythonBuilder)


def test_a_batch_keeps_its_append_time_and_the_times_of_its_producer() -> None:
    rows = [Row(1_000 + 7 * number % 50, b"k", b"v") for number in range(30)]
    sent = [produced(rows[:10], 100), produced(rows[10:20], 110), produced(rows[20:], 120)]
    for batch in (sent[0], sent[2]):
        record_batch.stamp(batch, 9_999)
    landed = [row._replace(time=9_999) if not 10 <= number < 20 else row for number, row in enumerate(rows)]
    assert rebuilt(heads.read(sent), columns(landed, range(100, 130))) == b"".join(sent)
    # One of them has lost a row. The times of the others are still theirs.
    parts = heads.sections(heads.read(sent), columns(landed[1:], range(101, 130)))
    assert [part is None for part in parts] == [True, False, False]


@pytest.mark.parametrize(
    "changed",
    [
        {"time": 1_001},
        {"key": b"l"},
        {"key": None},
        {"value": b"w"},
        {"value": None},
        {"value": b""},
        {"headers": [("a", b"1")]},
        {"headers": [("b", b"2"), ("a", b"1")]},
    ],
)
def test_a_row_that_differs_from_its_record_is_never_used(changed: dict[str, Any]) -> None:
    rows = [Row(1_000, b"k", b"v", [("a", b"1"), ("b", b"2")])] * 3
    found = heads.read([produced(rows[:2], 5), produced(rows[2:], 7)])
    wrong = [rows[0], rows[1]._replace(**changed), rows[2]]
    first, second = heads.sections(found, columns(wrong, [5, 6, 7]))
    assert first is None
    assert second is not None


def test_only_whole_batches_match() -> None:
    rows = [Row(1_000, b"k", b"v")] * 4
    found = heads.read([produced(rows[:2], 5), produced(rows[2:], 7)])
    parts = heads.sections(found, columns([rows[0]] * 4, [4, 5, 7, 8]))
    assert [part is None for part in parts] == [True, False]
    parts = heads.sections(found, columns([rows[0]] * 5, [5, 5, 6, 7, 9]))
    assert [part is None for part in parts] == [True, True]
    assert heads.sections(found, columns([], [])) == [None, None]


def test_an_unusual_encoding_does_not_match() -> None:
    """A producer may write longer varints than needed. No row shows that."""
    short = produced([Row(1_000, None, b"v")])
    section = bytes(short[record_batch.HEADER :])
    assert section[-3:] == b"\x02v\x00"
    longer = raw(1, body=bytes([section[0] + 2]) + section[1:-3] + b"\x82\x00v\x00", base=0)
    assert heads.sections(heads.read([longer]), columns([Row(1_000, None, b"v")], [0])) == [None]


def test_heads_of_some_batches_are_those_of_the_batches_alone() -> None:
    rows = [Row(1_000 + number, b"k", b"v") for number in range(9)]
    sent = [produced(rows[:3], 20), produced(rows[3:5], 23), produced(rows[5:], 25)]
    record_batch.stamp(sent[1], 5_000)
    record_batch.stamp(sent[2], 5_000)
    for first, end in ((0, 3), (0, 1), (1, 2), (1, 3), (2, 3)):
        some, alone = heads.read(sent).select(first, end), heads.read(sent[first:end])
        assert (some.base_offset, some.last_offset) == (alone.base_offset, alone.last_offset)
        for name in (*heads.COLUMNS, "time_deltas"):
            assert np.array_equal(getattr(some, name), getattr(alone, name))


@pytest.mark.parametrize(
    "damaged",
    [
        raw(1, body=b"no gzip", attributes=1),
        raw(1, body=b"\x80", attributes=record_batch.APPEND_TIME_BIT),
        raw(1, body=b"\xff" * 12, attributes=record_batch.APPEND_TIME_BIT),
    ],
    ids=["codec", "end", "number"],
)
def test_heads_end_before_a_batch_that_cannot_be_decoded(damaged: memoryview) -> None:
    whole = produced([Row(1_000, None, b"v")] * 3, 7)
    found = heads.read([whole, damaged, whole])
    assert (len(found), found.base_offset, found.last_offset) == (1, 7, 9)
    assert len(heads.read([damaged])) == 0


def test_a_section_of_nulls_and_long_values_is_encoded() -> None:
    rows = [Row(0, None, None), Row(2**40, b"", b"x" * 100_000), Row(-1, None, None)]
    data, places = sections.encode(columns(rows, [0, 1, 2]), np.array([0, 2**40, -1]), np.array([0, 1, 2]))
    assert data == produced(rows)[record_batch.HEADER :]
    assert places.tolist()[::3] == [0, len(data)]
    assert crc32c(data) == heads.read([produced(rows)]).checksums[0]
