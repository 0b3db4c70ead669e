"""Entries of history objects: batches go into data files of a table, and come back from them."""

import random
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.history import entries, heads, rows
from firn_broker.history.entries import Entry
from firn_broker.history.indexing import building
from firn_broker.history.indexing.building import Kept, Table, build
from firn_broker.history.rebuilding.rebuilder import rebuild
from firn_broker.history.rows import RowReader, groups
from firn_broker.history.shapes.choosing import Chooser
from firn_broker.log_types import RANGE_BYTES, Partition, TableRange
from firn_broker.storage import wal
from tests.unit.broker.batches import raw
from tests.unit.broker.test_rebuilt_batches import Row, produced
from tests.unit.broker.typed_rows import Typed

PARTITION = Partition(UUID(int=7), 1)
FIELDS = RecordFields(partition=4, offset=5, time=6, key=7, value=2, headers=8)
MEMBERS = RecordFields(partition=4, offset=5, time=6, key=7, value=None, headers=8)
"""The columns of a topic whose values lie in columns of their members."""


def field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})


HEADER = pa.struct([field(10, "key", pa.string()), field(11, "value", pa.binary())])
KAFKA = [
    field(4, "partition", pa.int32()),
    field(5, "offset", pa.int64()),
    field(6, "timestamp_ms", pa.int64()),
    field(7, "key", pa.binary()),
    field(8, "headers", pa.list_(field(9, "element", HEADER))),
]


class Local:
    """Data files in a directory. ``opened`` counts how often a file was opened."""

    def __init__(self) -> None:
        self.opened = 0

    def open(self, file: DataFile) -> pq.ParquetFile:
        self.opened += 1
        return pq.ParquetFile(file.path)


Landed = tuple[int, int, Row]
"""Partition, offset and record of a row."""


def write(
    path: Path,
    rows: Sequence[Landed],
    *,
    group: int,
    flat: bool = False,
    text: bool = False,
    names: str = "",
    typed: Typed | None = None,
) -> DataFile:
    """Write a data file with ``group`` rows in each row group. ``names`` ends the names of columns.

    A file of JSON values has the columns of ``typed`` instead of the values."""
    headers = [[{"key": name, "value": value} for name, value in row.headers] or None for *_, row in rows]
    members = [
        pa.array([partition for partition, *_ in rows], pa.int32()),
        pa.array([offset for _, offset, _ in rows], pa.int64()),
        pa.array([row.time for *_, row in rows], pa.int64()),
        pa.array([row.key for *_, row in rows], pa.binary()),
        pa.array(headers, KAFKA[4].type),
    ]
    values = pa.array([row.value for *_, row in rows], pa.binary())
    other = (field(1, "other", pa.int32()), pa.nulls(len(rows), pa.int32()))
    value = (
        field(2, f"value{names}", pa.string() if text else pa.binary()),
        values.cast(pa.string()) if text else values,
    )
    if flat:
        kafka = [
            (each.with_name(f"_kafka_{each.name}{names}"), array) for each, array in zip(KAFKA, members, strict=True)
        ]
    else:
        kafka = [(field(3, f"_kafka{names}", pa.struct(KAFKA)), pa.StructArray.from_arrays(members, fields=KAFKA))]
    columns = [other, value, *kafka]
    if typed is not None:
        columns = [*zip(typed.schema, typed.columns_of([row.value for *_, row in rows]), strict=True), *kafka]
    table = pa.table([array for _, array in columns], schema=pa.schema([each for each, _ in columns]))
    pq.write_table(table, path, row_group_size=group)
    return DataFile(str(path), path.stat().st_size)


def table_of(files: Sequence[DataFile]) -> Table:
    return Table([group for file in files for group in groups(file, pq.ParquetFile(file.path), FIELDS)], FIELDS)


def again(entry: Entry, reader: RowReader) -> bytes:
    """Return the batches of an entry, read range by range."""
    parts = []
    for found in entry.ranges("key", 0, 0):
        assert isinstance(found.place, TableRange)
        parts.append(bytes(rebuild(entry, found.place.position, found.place.length, reader)))
    return b"".join(parts)


def batches_of(seed: int, *, large: int = 0) -> tuple[list[memoryview], list[Landed]]:
    """Return batches of the partition and the rows of all partitions."""
    rng, offset = random.Random(seed), 1_000
    sent, landed = [], list[Landed]()
    for _ in range(12):
        rows = [
            Row(
                rng.randrange(10**12),
                rng.choice([None, b"", b"key"]),
                rng.choice([None, b"", b"v" * large + b"x" * rng.randrange(90)]),
                [("h", rng.choice([None, b"1"]))] * rng.choice([0, 0, 2]),
            )
            for _ in range(rng.randrange(1, 30))
        ]
        sent.append(produced(rows, offset))
        landed += [(1, offset + number, row) for number, row in enumerate(rows)]
        landed += [(0, offset + number, row) for number, row in enumerate(rows[:3])]
        offset += len(rows)
    return sent, landed


@pytest.mark.parametrize("flat", [False, True])
def test_batches_come_back_from_files_in_any_order(tmp_path: Path, flat: bool) -> None:
    for seed in range(6):
        sent, landed = batches_of(seed)
        random.Random(seed).shuffle(landed)
        half = len(landed) // 2
        files = [
            write(tmp_path / f"{seed}a", landed[:half], group=37, flat=flat),
            write(tmp_path / f"{seed}b", landed[half:], group=1_000, flat=flat, text=True, names="_new"),
        ]
        reader = RowReader(Local())
        (entry,) = build(PARTITION, sent, table_of(files), reader)
        assert isinstance(entry, Entry)
        decoded = entries.decode(memoryview(entries.encode(entry)))
        assert again(decoded, reader) == b"".join(sent)
        assert (decoded.partition, decoded.files, decoded.pieces, decoded.fields) == (
            PARTITION, entry.files, entry.pieces, FIELDS,
        )  # fmt: skip


def test_batches_that_no_row_gives_back_are_kept_as_they_came(tmp_path: Path) -> None:
    sent, landed = batches_of(1)
    bases = [int.from_bytes(batch[:8], "big") for batch in sent]
    # One row is missing, one has changed, and two batches cannot be decoded.
    landed = [row for row in landed if row[:2] != (1, bases[3])]
    landed = [(*row[:2], row[2]._replace(time=5)) if row[:2] == (1, bases[6]) else row for row in landed]
    for number in (9, 11):
        record_batch.number(broken := raw(1, body=b"no gzip", attributes=1), 0, bases[number])
        sent[number] = broken
    parts = build(PARTITION, sent, table_of([write(tmp_path / "file", landed, group=50)]), RowReader(Local()))
    reader, found = RowReader(Local()), list[bytes]()
    kept = list[int]()
    for part in parts:
        if isinstance(part, Kept):
            kept += [int.from_bytes(batch[:8], "big") for batch in part.batches]
            found += map(bytes, part.batches)
        else:
            found.append(again(part, reader))
    assert b"".join(found) == b"".join(sent)
    assert kept == [bases[number] for number in (3, 6, 9, 11)]


def test_ranges_cover_an_entry_and_count_what_producers_sent(tmp_path: Path) -> None:
    rows = [Row(1_000 + number, None, b"v" * 100_000) for number in range(40)]
    sent = [produced(rows[first : first + 4], first, 4) for first in range(0, 40, 4)]
    landed = [(1, offset, row) for offset, row in enumerate(rows)]
    reader = RowReader(Local())
    (entry,) = build(PARTITION, sent, table_of([write(tmp_path / "file", landed, group=10)]), reader)
    assert isinstance(entry, Entry)
    ranges = entry.ranges("key", 300, 70)
    assert [(each.base_offset, each.last_offset) for each in ranges] == [
        (first, first + 7) for first in range(0, 40, 8)
    ]
    assert all(each.place.length <= RANGE_BYTES for each in ranges)
    assert sum(each.place.length for each in ranges) == sum(
        len(produced(rows[first : first + 4])) for first in range(0, 40, 4)
    )
    assert sum(each.place.stored for each in ranges if isinstance(each.place, TableRange)) == sum(map(len, sent))
    assert [each.max_timestamp for each in ranges] == [1_007, 1_015, 1_023, 1_031, 1_039]


def test_a_reader_of_the_next_range_reads_no_file_again(tmp_path: Path) -> None:
    sent, landed = batches_of(2, large=200_000)
    file = write(tmp_path / "file", [row for row in landed if row[0] == 1], group=10_000)
    (entry,) = build(PARTITION, sent, table_of([file]), RowReader(Local()))
    assert isinstance(entry, Entry)
    assert len(entry.ranges("key", 0, 0)) > 3
    local = Local()
    assert again(entry, RowReader(local)) == b"".join(sent)
    assert local.opened == 1


def test_row_groups_that_overlap_are_read_once(tmp_path: Path) -> None:
    sent, landed = batches_of(2, large=200_000)
    landed.sort(key=lambda row: row[1] % 9)
    file = write(tmp_path / "file", landed, group=len(landed) // 9)
    reader = RowReader(Local())
    (entry,) = build(PARTITION, sent, table_of([file]), reader)
    assert isinstance(entry, Entry)
    local = Local()
    few = RowReader(local, kept_bytes=1)
    assert again(entry, few) == b"".join(sent)
    assert len(entry.pieces) > 8
    assert local.opened == len(entry.pieces)


def test_rows_of_earlier_requests_are_forgotten(tmp_path: Path) -> None:
    sent, landed = batches_of(2)
    file = write(tmp_path / "file", [row for row in landed if row[0] == 1], group=20)
    (entry,) = build(PARTITION, sent, table_of([file]), RowReader(Local()))
    assert isinstance(entry, Entry)
    local = Local()
    reader, bases = RowReader(local, kept_bytes=1), [piece.first for piece in entry.pieces]
    for base in [*bases, bases[0]]:
        assert reader.read(entry, base, base).offsets.tolist() == [base]
    assert local.opened == len(bases) + 1
    reader = RowReader(local := Local())
    for base in [*bases, bases[0]]:
        reader.read(entry, base, base)
    assert local.opened == len(bases)


@pytest.mark.parametrize(
    ("name", "most"),
    [("MOST_PIECES", 2), ("READ_BYTES", 3_000)],
)
def test_batches_whose_rows_are_spread_over_much_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    sent, landed = batches_of(2)
    file = write(tmp_path / "file", landed, group=len(landed) // 3)
    monkeypatch.setattr(building, name, most)
    (kept,) = build(PARTITION, sent, table_of([file]), RowReader(Local()))
    assert isinstance(kept, Kept)
    assert b"".join(kept.batches) == b"".join(sent)


def test_large_row_groups_are_refused_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, landed = batches_of(4)
    file = write(tmp_path / "file", landed, group=1_000)
    monkeypatch.setattr(rows, "GROUP_BYTES", 1_000)
    with pytest.raises(
        CorruptDataError, match=r"row group 0 has \d+ bytes .* lower write.parquet.row-group-size-bytes"
    ):
        table_of([file])


def test_other_bytes_with_the_same_checksum_are_not_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows_ = [Row(1_000, None, b"paid: 10")]
    sent = [produced(rows_, 0), produced(rows_, 1)]
    landed = [(1, 0, Row(1_000, None, b"paid: 99")), (1, 1, rows_[0])]
    monkeypatch.setattr(heads, "crc32c", lambda data: 7)
    kept, entry = build(PARTITION, sent, table_of([write(tmp_path / "file", landed, group=9)]), RowReader(Local()))
    assert isinstance(kept, Kept)
    assert list(kept.batches) == sent[:1]
    assert isinstance(entry, Entry)
    assert entry.heads.base_offset == 1


def test_rows_that_change_later_are_an_error_and_never_wrong_bytes(tmp_path: Path) -> None:
    sent, landed = batches_of(3)
    file = write(tmp_path / "file", landed, group=50)
    (entry,) = build(PARTITION, sent, table_of([file]), RowReader(Local()))
    assert isinstance(entry, Entry)
    base = int.from_bytes(sent[5][:8], "big")
    (size,) = {each.place.length for each in entry.ranges("key", 0, 0)}
    write(tmp_path / "file", [row for row in landed if row[:2] != (1, base)], group=50)
    with pytest.raises(CorruptDataError, match=f"the batch of offsets {base} to .*: rows are missing, or have changed"):
        rebuild(entry, 0, size, RowReader(Local()))
    with pytest.raises(CorruptDataError, match="no batches at 1 of"):
        rebuild(entry, 1, size, RowReader(Local()))


def test_a_file_without_the_columns_or_their_bounds_is_refused(tmp_path: Path) -> None:
    _, landed = batches_of(4)
    file = write(tmp_path / "file", landed, group=50)
    with pytest.raises(CorruptDataError, match="no column with id 50"):
        groups(file, pq.ParquetFile(file.path), FIELDS._replace(offset=50))
    table = pq.read_table(file.path)
    pq.write_table(table, file.path, write_statistics=False)
    with pytest.raises(CorruptDataError, match="row group 0 has no bounds of the column with id 4"):
        groups(file, pq.ParquetFile(file.path), FIELDS)
    pq.write_table(pa.table({"value": [1]}), file.path)
    with pytest.raises(CorruptDataError, match="the columns of the data file have no ids"):
        groups(file, pq.ParquetFile(file.path), FIELDS)


def test_a_damaged_entry_is_refused(tmp_path: Path) -> None:
    sent, landed = batches_of(5)
    (entry,) = build(PARTITION, sent, table_of([write(tmp_path / "f", landed, group=50)]), RowReader(Local()))
    assert isinstance(entry, Entry)
    content = entries.encode(entry)
    data = wal.framed(content)
    assert [(place, bytes(found)) for place, found in wal.contents(memoryview(data * 2))] == [
        (0, content),
        (len(data), content),
    ]
    for place in range(0, len(data), 7):
        damaged = bytearray(data)
        damaged[place] ^= 1
        with pytest.raises(CorruptDataError):
            wal.contents(memoryview(damaged))
    for size in (1, 10, len(data) - 1):
        with pytest.raises(CorruptDataError):
            wal.contents(memoryview(data)[:size])
    for wrong in (b"", content[:30], content[:-9], content[:20] + bytes(16) + content[36:], content[:48] + b"no zstd"):
        with pytest.raises(CorruptDataError):
            entries.decode(memoryview(wrong))


def test_an_entry_is_small(tmp_path: Path) -> None:
    """The bar is 12 bytes a batch, beside the places of the rows."""
    rng = random.Random(1)
    sent = []
    for number in range(2_000):
        rows = [Row(1_700_000_000_000 + 250 * number + rng.randrange(9), None, b"v" * rng.randrange(80, 90))] * 40
        sent.append(produced(rows, 40 * number))
    found = heads.read(sent)
    empty = Entry(PARTITION, found, [], [], FIELDS)
    assert len(entries.encode(empty)) < 12 * len(sent)
    assert np.array_equal(entries.decode(memoryview(entries.encode(empty))).heads.checksums, found.checksums)


def json_table(files: Sequence[DataFile], names: dict[tuple[int, str], int]) -> Table:
    chooser = Chooser(names)
    found = [group for file in files for group in groups(file, pq.ParquetFile(file.path), MEMBERS, chooser.columns)]
    return Table(found, MEMBERS, chooser)


def test_json_comes_back_from_files_of_earlier_schemas(tmp_path: Path) -> None:
    """A column was added, another one got a wider type, and a third one another name. Each keeps its id."""
    before = Typed({"id": "int", "ratio": "float", "name": "string"})
    after = Typed({"id": "long", "ratio": "double", "title": "string", "price": "double"})
    old = [Row(1_000, None, b'{"id":%d,"ratio":0.1,"name":"a"}' % number) for number in range(20)]
    new = [
        Row(1_000, None, b'{"id":%d,"ratio":0.25,"title":null,"price":%d.5}' % (2**40, number)) for number in range(20)
    ]
    files = [
        write(tmp_path / "old", [(1, offset, row) for offset, row in enumerate(old)], group=9, typed=before),
        write(tmp_path / "new", [(1, offset, row) for offset, row in enumerate(new, 20)], group=9, typed=after),
    ]
    rows_ = [*old, *new]
    sent = [produced(rows_[first : first + 8], first) for first in range(0, 40, 8)]
    reader, names = RowReader(Local()), {**before.names, **after.names}
    (entry,) = build(PARTITION, sent, json_table(files, names), reader)
    assert isinstance(entry, Entry)
    decoded = entries.decode(memoryview(entries.encode(entry)))
    assert again(decoded, reader) == b"".join(sent)
    assert (decoded.shapes, decoded.fields) == (entry.shapes, MEMBERS)


def test_batches_of_records_without_a_value_come_back_from_columns(tmp_path: Path) -> None:
    typed = Typed({"id": "long"})
    rows_ = [Row(1_000, b"k", None)] * 5
    file = write(tmp_path / "file", [(1, offset, row) for offset, row in enumerate(rows_)], group=9, typed=typed)
    sent, reader = [produced(rows_)], RowReader(Local())
    (entry,) = build(PARTITION, sent, json_table([file], typed.names), reader)
    assert isinstance(entry, Entry)
    decoded = entries.decode(memoryview(entries.encode(entry)))
    assert (decoded.shapes, again(decoded, reader)) == ((), b"".join(sent))


def test_rows_whose_columns_have_other_types_later_are_an_error(tmp_path: Path) -> None:
    typed, other = Typed({"id": "long", "day": "date"}), Typed({"id": "string", "day": "boolean"})
    landed = [(1, offset, Row(1_000, None, b'{"id":%d,"day":"2026-11-25"}' % offset)) for offset in range(9)]
    file = write(tmp_path / "file", landed, group=9, typed=typed)
    sent, reader = [produced([row for *_, row in landed])], RowReader(Local())
    (entry,) = build(PARTITION, sent, json_table([file], typed.names), reader)
    assert isinstance(entry, Entry)
    changed = [(*row[:2], Row(1_000, None, b'{"id":"x","day":true}')) for row in landed]
    write(tmp_path / "file", changed, group=9, typed=other)
    with pytest.raises(CorruptDataError):
        again(entry, RowReader(Local()))


def test_rows_that_another_client_changed_leave_the_other_batches_alone(tmp_path: Path) -> None:
    typed = Typed({"tags": "list<string>", "labels": "map<string, int>"})
    rows_ = [Row(1_000, None, b'{"tags":["a","b"],"labels":{"x":%d}}' % number) for number in range(9)]
    changed = [*rows_[:6], *[Row(1_000, None, b'{"tags":[],"labels":{}}')] * 3]
    file = write(tmp_path / "file", [(1, offset, row) for offset, row in enumerate(changed)], group=9, typed=typed)
    sent, reader = [produced(rows_[first : first + 3], first) for first in (0, 3, 6)], RowReader(Local())
    entry, kept = build(PARTITION, sent, json_table([file], typed.names), reader)
    assert isinstance(entry, Entry)
    assert isinstance(kept, Kept)
    assert again(entry, reader) + b"".join(kept.batches) == b"".join(sent)
