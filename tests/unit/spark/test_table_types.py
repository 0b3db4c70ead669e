"""Data files of tables with types and defaults that other engines gave them."""

import json
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from firn_spark.worker.data_files import DataFileWriter, TableSpec
from tests.unit.spark.tables import table_spec

DEFAULTS: list[tuple[str, Any, Any]] = [
    ("boolean", True, True),
    ("int", 7, 7),
    ("double", 2.5, 2.5),
    ("string", "x", "x"),
    ("date", "2020-01-02", 18263),
    ("timestamp", "2020-01-01T00:00:00.000001", 1577836800000001),
    ("timestamptz", "2020-01-01T00:00:00+00:00", 1577836800000000),
    ("timestamptz_ns", "2020-01-01T00:00:00.123456789+00:00", 1577836800123456789),
    ("uuid", "f79c3e09-677c-4bbd-a479-3f349cb785e7", uuid.UUID("f79c3e09-677c-4bbd-a479-3f349cb785e7")),
    ("binary", "AF01", b"\xaf\x01"),
    ("decimal(9, 2)", "1.25", "1.25"),
]


def column(number: int, name: str, kind: Any, **more: Any) -> dict[str, Any]:
    return {"id": number, "name": name, "required": False, "type": kind, **more}


def spec(directory: Path, *columns: dict[str, Any]) -> TableSpec:
    fields = [column(1, "id", "long"), *columns]
    return table_spec(directory, (), schema=json.dumps({"type": "struct", "schema-id": 0, "fields": fields}))


def written(directory: Path, *columns: dict[str, Any], rows: pa.Table | None = None) -> tuple[pa.Table, dict[str, Any]]:
    """Return the file of two rows, and its descriptor."""
    writer = DataFileWriter(spec(directory, *columns))
    files = [
        *writer.write(rows if rows is not None else pa.table({"id": pa.array([1, 2], pa.int64())})),
        *writer.finish(),
    ]
    (descriptor,) = map(json.loads, files)
    return pq.read_table(descriptor["file-path"].removeprefix("file://")), descriptor


def stored(array: pa.ChunkedArray) -> list[Any]:
    if pa.types.is_temporal(array.type):
        return [scalar.value for scalar in array]
    return [str(value) if pa.types.is_decimal(array.type) else value for value in array.to_pylist()]


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(("kind", "default", "value"), DEFAULTS, ids=lambda case: str(case))
def test_a_column_without_values_gets_its_write_default(
    tmp_path: Path, kind: str, default: Any, value: Any, required: bool
) -> None:
    table, descriptor = written(tmp_path, column(2, "w", kind, required=required, **{"write-default": default}))
    assert stored(table["w"]) == [value, value]
    assert dict(zip(*descriptor["null-value-counts"].values(), strict=True))[2] == 0


def test_a_column_with_values_keeps_its_nulls(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "w": pa.array([None, 5], pa.int32())})
    table, _ = written(tmp_path, column(2, "w", "int", **{"write-default": 7}), rows=rows)
    assert table["w"].to_pylist() == [None, 5]


SHAPE = {"type": "struct", "fields": [column(3, "a", "int"), column(4, "b", "geometry(srid:4326)")]}
FOREIGN = [
    "unknown", "geometry", "geometry(srid:4326)", "geography(srid:4326, spherical)", "quaternion",
    {"type": "list", "element-id": 3, "element": "geometry", "element-required": False},
    {"type": "map", "key-id": 3, "key": "string", "value-id": 4, "value": "geometry", "value-required": False},
    {"type": "struct", "fields": [column(3, "a", "unknown")]},
]  # fmt: skip


@pytest.mark.parametrize("kind", FOREIGN, ids=lambda kind: kind if isinstance(kind, str) else kind["type"])
def test_a_column_of_a_type_that_firn_does_not_write_stays_out_of_the_file(tmp_path: Path, kind: Any) -> None:
    table, descriptor = written(tmp_path, column(2, "other", kind), column(9, "last", "string"))
    assert table.column_names == ["id", "last"]
    assert descriptor["value-counts"]["keys"] == [1, 9]


def test_members_of_structs_that_firn_writes_stay(tmp_path: Path) -> None:
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"a": 1}], pa.struct([("a", pa.int32())]))})
    table, _ = written(tmp_path, column(2, "s", SHAPE), rows=rows)
    assert table["s"].to_pylist() == [{"a": 1}]


def test_a_required_column_of_such_a_type_is_named(tmp_path: Path) -> None:
    required = {"type": "struct", "fields": [column(3, "b", "geometry", required=True)]}
    with pytest.raises(
        ValueError, match=r"column s\.b has the type geometry, which Firn does not write, and it is required"
    ):
        written(tmp_path, column(2, "s", required))


def test_variants_have_two_columns_in_the_file_and_a_mark(tmp_path: Path) -> None:
    parts = pa.struct([pa.field(name, pa.binary(), nullable=False) for name in ("metadata", "value")])
    one = {"metadata": b"\x11\0\0", "value": b"\x0c\5"}
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int64()),
            "v": pa.array([one, None], parts),
            "vs": pa.array([[one, None], None], pa.list_(parts)),
            "name": pa.array(["a", "b"]),
        }
    )
    several = {"type": "list", "element-id": 4, "element": "variant", "element-required": False}
    table, descriptor = written(
        tmp_path, column(2, "v", "variant"), column(3, "vs", several), column(5, "name", "string"), rows=rows
    )
    assert table.to_pylist() == rows.to_pylist()
    assert str(pq.ParquetFile(descriptor["file-path"].removeprefix("file://")).schema).count("Variant(1)") == 2
    counts = {
        name: dict(zip(*descriptor[name].values(), strict=True)) for name in ("value-counts", "null-value-counts")
    }
    assert counts == {"value-counts": {1: 2, 2: 2, 5: 2}, "null-value-counts": {1: 0, 2: 1, 5: 0}}
    assert descriptor["lower-bounds"]["keys"] == [1, 5]
    assert set(descriptor["column-sizes"]["keys"]) == {1, 2, 4, 5}
    size = Path(descriptor["file-path"].removeprefix("file://")).stat().st_size
    assert descriptor["file-size-in-bytes"] == size


CURRENCY = column(4, "currency", "string", required=True, **{"write-default": "EUR"})
PRICE = {"type": "struct", "fields": [column(3, "amount", "int"), CURRENCY, column(8, "note", "string")]}
AMOUNT = pa.struct([("amount", pa.int32())])
FULL = {"amount": 5, "currency": "EUR", "note": None}
EMPTY = {"amount": None, "currency": "EUR", "note": None}


def list_of(number: int, kind: Any) -> dict[str, Any]:
    return {"type": "list", "element-id": number, "element": kind, "element-required": False}


def map_of(number: int, kind: Any) -> dict[str, Any]:
    ids = {"key-id": number, "value-id": number + 1}
    return {"type": "map", **ids, "key": "string", "value": kind, "value-required": False}


def struct_of(number: int, kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [column(number, "in", kind)]}


NESTED: list[tuple[Any, pa.DataType, list[Any], list[Any]]] = [
    (PRICE, AMOUNT, [{"amount": 5}, None, {"amount": None}], [FULL, None, EMPTY]),
    (struct_of(5, PRICE), pa.struct([("in", AMOUNT)]), [{"in": {"amount": 5}}, {"in": None}, None], [{"in": FULL}, {"in": None}, None]),
    (list_of(5, PRICE), pa.list_(AMOUNT), [[{"amount": 5}, None], None, []], [[FULL, None], None, []]),
    (
        map_of(5, PRICE),
        pa.map_(pa.string(), AMOUNT),
        [[("a", {"amount": 5}), ("b", None)], None, []],
        [[("a", FULL), ("b", None)], None, []],
    ),
    (
        list_of(5, struct_of(7, PRICE)),
        pa.list_(pa.struct([("in", AMOUNT)])),
        [[{"in": {"amount": 5}}], [{"in": None}], None],
        [[{"in": FULL}], [{"in": None}], None],
    ),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "arrow", "values", "expected"), NESTED, ids=range(len(NESTED)))
@pytest.mark.parametrize("sliced", [False, True])
def test_members_that_the_rows_lack_get_their_write_defaults(
    tmp_path: Path, kind: Any, arrow: pa.DataType, values: list[Any], expected: list[Any], sliced: bool
) -> None:
    before = [values[0], values[1]] if sliced else []
    array = pa.array([*before, *values], arrow)[len(before) :]
    rows = pa.table({"id": pa.array(range(len(values)), pa.int64()), "s": array})
    table, _ = written(tmp_path, column(2, "s", kind), rows=rows)
    assert table["s"].to_pylist() == expected


def test_members_with_values_keep_their_nulls(tmp_path: Path) -> None:
    optional = {"type": "struct", "fields": [column(3, "a", "int", **{"write-default": 7}), column(4, "b", "int")]}
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"a": None}], pa.struct([("a", pa.int32())]))})
    table, _ = written(tmp_path, column(2, "s", optional), rows=rows)
    assert table["s"].to_pylist() == [{"a": None, "b": None}]


def test_a_required_member_without_a_default_is_named(tmp_path: Path) -> None:
    required = {"type": "struct", "fields": [column(3, "amount", "int"), column(4, "b", "int", required=True)]}
    rows = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([{"amount": 1}], AMOUNT)})
    with pytest.raises(ValueError, match=r"column s\.b is required in the table, and the records do not have it"):
        written(tmp_path, column(2, "s", required), rows=rows)
    nothing = pa.table({"id": pa.array([1], pa.int64()), "s": pa.array([None], AMOUNT)})
    assert written(tmp_path, column(2, "s", required), rows=nothing)[0]["s"].to_pylist() == [None]


OF_NESTED: list[tuple[Any, Any, Any]] = [
    (PRICE, {}, EMPTY),
    (struct_of(5, PRICE), {}, {"in": None}),
    ({"type": "struct", "fields": [column(5, "in", PRICE, **{"write-default": {}})]}, {}, {"in": EMPTY}),
    (list_of(3, "int"), [1, 2], [1, 2]),
    (list_of(3, "uuid"), [], []),
    (list_of(5, PRICE), [{}, {"3": 5}], [EMPTY, FULL]),
    (map_of(3, "int"), {"keys": ["a"], "values": [1]}, [("a", 1)]),
]


@pytest.mark.parametrize(("kind", "default", "value"), OF_NESTED, ids=range(len(OF_NESTED)))
@pytest.mark.parametrize("required", [False, True])
def test_structs_lists_and_maps_have_defaults(
    tmp_path: Path, kind: Any, default: Any, value: Any, required: bool
) -> None:
    given = {"write-default": default, "initial-default": default}
    table, _ = written(tmp_path, column(2, "w", kind, required=required, **given))
    assert table["w"].to_pylist() == [value, value]


@pytest.mark.parametrize(("kind", "default"), [("int", "x"), (PRICE, 1), (list_of(3, "int"), ["x"]), ("variant", 1)])
def test_a_default_that_is_no_value_of_the_type_is_named(tmp_path: Path, kind: Any, default: Any) -> None:
    with pytest.raises(ValueError, match=r"column w: the default .* is not a value of"):
        written(tmp_path, column(2, "w", kind, **{"write-default": default}))
