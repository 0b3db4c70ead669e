"""Merges in a task without Spark: Parquet files in, Parquet files and their descriptors out."""

import json
import math
import pickle
import random
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import NestedField

from firn_spark.worker.data_files import DataFileWriter, TableSpec, arrow_schema
from firn_spark.worker.merging import merge as merging
from firn_spark.worker.merging import reading
from firn_spark.worker.merging.merge import merge
from firn_spark.worker.merging.plan import Kind, MergePlan, SourceFile
from tests.unit.spark import tables

COUNT = 500
POINT = iceberg.StructType(
    NestedField(20, "x", iceberg.DoubleType(), required=False), NestedField(21, "name", iceberg.StringType())
)
FIELDS = (
    NestedField(1, "id", iceberg.LongType(), required=True),
    NestedField(2, "region", iceberg.StringType(), required=False),
    NestedField(3, "amount", iceberg.DecimalType(12, 2), required=False),
    NestedField(4, "score", iceberg.DoubleType(), required=False),
    NestedField(5, "at", iceberg.TimestamptzType(), required=False),
    NestedField(6, "key", iceberg.UUIDType(), required=False),
    NestedField(7, "tags", iceberg.ListType(30, iceberg.StringType(), element_required=False), required=False),
    NestedField(8, "point", POINT, required=False),
    NestedField(9, "raw", iceberg.BinaryType(), required=False),
)
WIDE = Schema(*FIELDS)


def spec_of(directory: Path, schema: Schema = WIDE, properties: Mapping[str, str] | None = None) -> TableSpec:
    return tables.table_spec(directory, (), schema=schema.model_dump_json(), properties=dict(properties or {}))


def rows(seed: int, count: int = COUNT) -> pa.Table:
    """Return rows with nulls, NaN, repeated and unique values."""
    pick = random.Random(seed)

    def perhaps(value: Any) -> Any:
        return None if pick.random() < 0.1 else value

    records = [
        {
            "id": seed * 1_000_000 + number,
            "region": perhaps(f"region-{pick.randrange(5)}"),
            "amount": perhaps(Decimal(pick.randrange(-(10**9), 10**9)).scaleb(-2)),
            "score": perhaps(pick.choice([math.nan, math.inf, -0.0, pick.gauss(0, 10)])),
            "at": perhaps(pick.randrange(2**50)),
            "key": perhaps(pick.randbytes(16)),
            "tags": perhaps([perhaps(f"t{pick.randrange(9)}") for _ in range(pick.randrange(4))]),
            "point": perhaps({"x": perhaps(pick.choice([math.nan, 1.5])), "name": perhaps(f"p{number}")}),
            "raw": perhaps(pick.randbytes(pick.randrange(40))),
        }
        for number in range(count)
    ]
    columns = [pa.array([record[field.name] for record in records], _storage(field)) for field in arrow_schema(WIDE)]
    return pa.table([column.cast(field.type) for column, field in zip(columns, arrow_schema(WIDE), strict=True)],
                    schema=arrow_schema(WIDE))  # fmt: skip


def _storage(field: pa.Field) -> pa.DataType:
    return pa.binary(16) if field.name == "key" else field.type


def source(directory: Path, table: pa.Table, number: int, **options: Any) -> SourceFile:
    """Write a file to merge. Its rows have the ids from ``number`` thousands on, and ``number`` as sequence."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"source-{number}.parquet"
    pq.write_table(table, path, **options)
    return SourceFile(path.as_uri(), path.stat().st_size, table.num_rows, number, number * 1000)


def plan(spec: TableSpec, sources: list[SourceFile], **changes: Any) -> MergePlan:
    given: dict[str, Any] = {"outputs": 1, "partition": (), "partition_path": "", "lineage": False, **changes}
    return MergePlan(table=spec, files=tuple(sources), **given)


def merged(given: MergePlan) -> list[dict[str, Any]]:
    results = list(merge(iter([given])))
    assert [kind for kind, _ in results] == [Kind.FILE] * len(results), results
    return [json.loads(text) for _, text in results]


def reason(given: MergePlan) -> str:
    """Return why the task did not merge the files, and check that it left none."""
    (result,) = merge(iter([given]))
    assert result[0] == Kind.UNFIT
    data = Path(given.table.location.removeprefix("file://")) / "data"
    assert not data.exists() or tables.files_in(data) == []
    return result[1]


def texts(records: list[dict[str, Any]]) -> list[str]:
    """Return rows in a form in which NaN equals NaN."""
    return [repr(record) for record in records]


def test_a_plan_can_be_pickled(tmp_path: Path) -> None:
    given = plan(spec_of(tmp_path), [source(tmp_path, rows(1), 1)])
    assert pickle.loads(pickle.dumps(given)) == given


def test_every_row_is_in_the_new_file_in_order(tmp_path: Path) -> None:
    inputs = [rows(seed) for seed in range(3)]
    sources = [source(tmp_path, table, number, row_group_size=200) for number, table in enumerate(inputs)]
    (file,) = merged(plan(spec_of(tmp_path), sources))
    assert file["record-count"] == 3 * COUNT
    assert texts(tables.read([file])) == texts(pa.concat_tables(inputs).to_pylist())


def test_rows_are_shared_among_the_planned_number_of_files(tmp_path: Path) -> None:
    sources = [source(tmp_path, rows(seed), seed) for seed in range(4)]
    files = merged(plan(spec_of(tmp_path), sources, outputs=3))
    assert [file["record-count"] for file in files] == [667, 667, 666]
    assert [row["id"] for row in tables.read(files)] == [
        seed * 1_000_000 + n for seed in range(4) for n in range(COUNT)
    ]


def test_metrics_are_those_that_ingestion_writes_for_the_same_rows(tmp_path: Path) -> None:
    for properties in ({}, {"write.metadata.metrics.default": "full"}, {"write.metadata.metrics.column.id": "none"}):
        spec = spec_of(tmp_path, properties=properties)
        inputs = [rows(seed) for seed in range(2)]
        (file,) = merged(plan(spec, [source(tmp_path, table, number) for number, table in enumerate(inputs)]))
        writer = DataFileWriter(spec)
        (same,) = map(json.loads, [*writer.write(pa.concat_tables(inputs)), *writer.finish()])
        for name in ("value-counts", "null-value-counts", "lower-bounds", "upper-bounds", "spec-id", "partition"):
            assert file[name] == same[name], name
        assert set(file["column-sizes"]["keys"]) == set(same["column-sizes"]["keys"])


def test_not_a_number_is_counted(tmp_path: Path) -> None:
    table = rows(5)
    (file,) = merged(plan(spec_of(tmp_path), [source(tmp_path, table, 1), source(tmp_path, table, 2)]))
    scores = sum(2 for value in table["score"].to_pylist() if value is not None and math.isnan(value))
    xs = [row["x"] for row in table["point"].to_pylist() if row is not None]
    inner = sum(2 for value in xs if value is not None and math.isnan(value))
    counts = file["nan-value-counts"]
    assert dict(zip(counts["keys"], counts["values"], strict=True)) == {4: scores, 20: inner}


def test_split_offsets_are_the_starts_of_row_groups(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, properties={"write.parquet.row-group-size-bytes": "20000"})
    (file,) = merged(plan(spec, [source(tmp_path, rows(seed), seed) for seed in range(4)]))
    metadata = pq.read_metadata(file["file-path"].removeprefix("file://"))
    starts = [metadata.row_group(place).column(0) for place in range(metadata.num_row_groups)]
    assert len(starts) > 1
    assert file["split-offsets"] == [start.dictionary_page_offset or start.data_page_offset for start in starts]


def test_rows_inherit_the_lineage_of_their_file_and_keep_a_stored_one(tmp_path: Path) -> None:
    sources = [source(tmp_path, rows(seed), seed) for seed in (1, 2)]
    (first,) = merged(plan(spec_of(tmp_path), sources, lineage=True))
    expected = [(seed * 1000 + n, seed) for seed in (1, 2) for n in range(COUNT)]

    def lineage(file: dict[str, Any]) -> list[tuple[int, int]]:
        return [(row["_row_id"], row["_last_updated_sequence_number"]) for row in tables.read([file])]

    assert lineage(first) == expected
    again = SourceFile(first["file-path"], first["file-size-in-bytes"], 2 * COUNT, 9, 70_000)
    (second,) = merged(plan(spec_of(tmp_path), [again, source(tmp_path, rows(3), 3)], lineage=True))
    assert lineage(second) == [*expected, *((3000 + n, 3) for n in range(COUNT))]
    schema = pq.read_schema(second["file-path"].removeprefix("file://"))
    ids = {name: int(schema.field(name).metadata[b"PARQUET:field_id"]) for name in schema.names[-2:]}
    assert ids == {"_row_id": 2147483540, "_last_updated_sequence_number": 2147483539}


def test_rows_without_a_stored_id_inherit_one(tmp_path: Path) -> None:
    """Engines store null for rows that they inserted together with rows that they moved."""
    table = rows(1, 3)
    stored = {"_row_id": [7, None, 9], "_last_updated_sequence_number": [2, None, None]}
    for name, number in (("_row_id", 2147483540), ("_last_updated_sequence_number", 2147483539)):
        field = pa.field(name, pa.int64(), metadata={"PARQUET:field_id": str(number)})
        table = table.append_column(field, pa.array(stored[name], pa.int64()))
    (file,) = merged(plan(spec_of(tmp_path), [source(tmp_path, table, 5)], lineage=True))
    found = [(row["_row_id"], row["_last_updated_sequence_number"]) for row in tables.read([file])]
    assert found == [(7, 2), (5001, 5), (9, 5)]


def test_files_of_earlier_schemas_get_the_current_one(tmp_path: Path) -> None:
    old = Schema(
        NestedField(2, "place", iceberg.StringType(), required=False),
        NestedField(1, "id", iceberg.IntegerType(), required=True),
        NestedField(3, "amount", iceberg.DecimalType(9, 2), required=False),
        NestedField(11, "dropped", iceberg.StringType(), required=False),
        NestedField(4, "score", iceberg.FloatType(), required=False),
    )
    values = {
        "place": ["a", None],
        "id": [1, 2],
        "amount": [Decimal("1.25"), None],
        "dropped": ["x", "y"],
        "score": [0.5, math.nan],
    }
    before = pa.table(
        [pa.array(values[field.name], field.type) for field in arrow_schema(old)], schema=arrow_schema(old)
    )
    now = rows(3, 4)
    (file,) = merged(plan(spec_of(tmp_path), [source(tmp_path, before, 1), source(tmp_path, now, 2)]))
    written = pq.read_table(file["file-path"].removeprefix("file://"))
    assert written.schema.equals(arrow_schema(WIDE))
    nothing = dict.fromkeys(written.schema.names)
    expected = [
        nothing | {"id": 1, "region": "a", "amount": Decimal("1.25"), "score": 0.5},
        nothing | {"id": 2, "score": math.nan},
    ]
    assert texts(written.to_pylist()) == texts([*expected, *now.to_pylist()])


@pytest.mark.parametrize(
    ("kind", "values", "why"),
    [
        (pa.string(), ["1"], "is string in the file"),
        (pa.float64(), [1.0], "is double in the file"),
        (pa.int64(), [None], "is required"),
    ],
)
def test_columns_that_do_not_fit_are_left_to_spark(tmp_path: Path, kind: Any, values: Any, why: str) -> None:
    field = pa.field("id", kind, metadata={"PARQUET:field_id": "1"})
    odd = pa.table([pa.array(values, kind)], schema=pa.schema([field]))
    assert why in reason(plan(spec_of(tmp_path), [source(tmp_path, rows(1), 1), source(tmp_path, odd, 2)]))


def test_members_of_structs_that_changed_are_left_to_spark(tmp_path: Path) -> None:
    renamed = iceberg.StructType(
        NestedField(20, "y", iceberg.DoubleType(), required=False), NestedField(21, "name", iceberg.StringType())
    )
    schema = Schema(*(NestedField(8, "point", renamed) if field.field_id == 8 else field for field in FIELDS))
    assert "column point" in reason(plan(spec_of(tmp_path, schema), [source(tmp_path, rows(1), 1)]))


def test_files_without_field_ids_follow_the_name_mapping(tmp_path: Path) -> None:
    schema = Schema(FIELDS[0], FIELDS[1])
    plain = pa.table({"old_region": ["a", "b"], "id": pa.array([1, 2], pa.int64())})
    file = source(tmp_path, plain, 1)
    assert "no field ids" in reason(plan(spec_of(tmp_path, schema), [file]))
    mapping = json.dumps([{"field-id": 1, "names": ["id"]}, {"field-id": 2, "names": ["region", "old_region"]}])
    (merged_file,) = merged(plan(spec_of(tmp_path, schema, {"schema.name-mapping.default": mapping}), [file]))
    assert tables.read([merged_file]) == [{"id": 1, "region": "a"}, {"id": 2, "region": "b"}]


def strings(seed: int, count: int, distinct: int) -> pa.Table:
    """Return rows of an id and a text, of which there are ``distinct``."""
    pick = random.Random(seed)
    texts_ = [f"value-{pick.randrange(distinct):08d}" if pick.random() < 0.9 else None for _ in range(count)]
    ids = pa.array(range(seed * count, (seed + 1) * count), pa.int64())
    return pa.table([ids, pa.array(texts_)], schema=arrow_schema(Schema(FIELDS[0], FIELDS[1])))


@pytest.mark.parametrize("distinct", [(5, 5, 5, 5), (10**9,) * 4, (5, 10**9, 5, 10**9), (10**9, 5, 10**9, 5)])
def test_texts_stay_the_same_however_often_they_repeat(tmp_path: Path, distinct: tuple[int, ...]) -> None:
    """The first rows decide whether a file has dictionaries. Later rows may repeat more or less often."""
    spec = spec_of(tmp_path, Schema(FIELDS[0], FIELDS[1]), {"write.parquet.row-group-size-bytes": "30000"})
    inputs = [strings(seed, 1500, count) for seed, count in enumerate(distinct)]
    sources = [
        source(tmp_path, table, number, row_group_size=400, use_dictionary=bool(number % 3))
        for number, table in enumerate(inputs)
    ]
    files = merged(plan(spec, sources, outputs=2))
    assert tables.read(files) == pa.concat_tables(inputs).to_pylist()
    for file in files:
        assert pq.read_metadata(file["file-path"].removeprefix("file://")).num_row_groups > 1


def test_many_small_batches_are_folded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "FOLDED", 3)
    schema = Schema(FIELDS[0], FIELDS[1])
    inputs = [strings(seed, 50, 7 if seed % 2 else 10**9) for seed in range(10)]
    inputs[4] = inputs[4].select(["id"])
    sources = [source(tmp_path, table, number) for number, table in enumerate(inputs)]
    (file,) = merged(plan(spec_of(tmp_path, schema), sources))
    expected = [{"region": None} | row for table in inputs for row in table.to_pylist()]
    assert [sorted(row.items()) for row in tables.read([file])] == [sorted(row.items()) for row in expected]


def test_large_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "WHOLE_BYTES", 0)
    monkeypatch.setattr(reading, "BUFFERED_BYTES", 0)
    monkeypatch.setattr(reading, "BUFFER", 1024)
    monkeypatch.setattr(reading, "BATCH_ROWS", 64)
    inputs = [rows(seed) for seed in range(3)]
    (file,) = merged(plan(spec_of(tmp_path), [source(tmp_path, table, number) for number, table in enumerate(inputs)]))
    assert texts(tables.read([file])) == texts(pa.concat_tables(inputs).to_pylist())


def test_columns_of_identity_partitions_may_be_missing_in_files(tmp_path: Path) -> None:
    """Their values are in the table's metadata only (Iceberg specification, Column Projection), so Spark reads them."""
    field = PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="region")
    spec = tables.table_spec(
        tmp_path, (), schema=WIDE.model_dump_json(), partition_spec=PartitionSpec(field, spec_id=1).model_dump_json()
    )
    given = plan(
        spec, [source(tmp_path, rows(1).drop_columns(["region"]), 1)], partition=("eu",), partition_path="region=eu"
    )
    assert "no column region" in reason(given)


def test_a_damaged_file_is_left_to_spark(tmp_path: Path) -> None:
    good, damaged = source(tmp_path, rows(1), 1), source(tmp_path, rows(2), 2)
    path = Path(damaged.path.removeprefix("file://"))
    given = plan(spec_of(tmp_path), [good, damaged])
    path.write_bytes(path.read_bytes()[:-9] + b"damaged!!")
    assert reason(given)


def test_memory_is_bounded_by_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is written while others are still unread, so its size does not matter."""
    unread = []
    spec = spec_of(tmp_path, properties={"write.parquet.row-group-size-bytes": "50000"})
    sources = [source(tmp_path, rows(seed), seed) for seed in range(40)]
    write: Any = pq.ParquetWriter.write_table

    def counted(writer: Any, table: pa.Table, **options: Any) -> None:
        unread.append(table.num_rows)
        write(writer, table, **options)

    monkeypatch.setattr(pq.ParquetWriter, "write_table", counted)
    merged(plan(spec, sources))
    assert sum(unread) == 40 * COUNT
    assert max(unread) <= 2 * COUNT


def test_repeated_texts_of_many_files_share_a_dictionary(tmp_path: Path) -> None:
    sources = [source(tmp_path, rows(seed), seed) for seed in range(3)]
    (file,) = merged(plan(spec_of(tmp_path), sources))
    metadata = pq.read_metadata(file["file-path"].removeprefix("file://")).row_group(0)
    encodings = {metadata.column(place).path_in_schema: metadata.column(place).encodings for place in range(9)}
    assert "RLE_DICTIONARY" in encodings["region"]


def test_a_file_with_other_rows_than_its_table_says_stays_with_spark(tmp_path: Path) -> None:
    file = replace(source(tmp_path, rows(1), 1), records=COUNT + 1)
    assert f"has {COUNT} rows" in reason(plan(spec_of(tmp_path), [file]))


def test_texts_in_lists_are_read_in_small_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    iterate = pq.ParquetFile.iter_batches

    def recorded(self: pq.ParquetFile, size: int, **options: Any) -> Any:
        sizes.append(size)
        return iterate(self, size, **options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", recorded)
    merged(plan(spec_of(tmp_path), [source(tmp_path, rows(1), 1)]))
    assert sizes
    assert max(sizes) <= reading.NESTED_BATCH_ROWS
