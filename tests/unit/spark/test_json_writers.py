"""JSON values that name a JSON schema are decoded into the columns of the table, whichever schema they name."""

import json
import random
from typing import Any

from firn.decoders.bad_records import Code
from firn.model.jobs import Column, ColumnVersion, RecordSchema, Subject, WriterSchema
from firn_spark.worker.formats.registry import open_format
from firn_spark.worker.formats.writer_schemas import Refusal, WriterSchemas
from tests.unit.spark.records import fetched
from tests.unit.spark.test_unknown_fields import variant

GONE = Refusal(Code.UNKNOWN_SCHEMA, "the registry has no schema 9")
WRITERS: WriterSchemas = {1: WriterSchema(text='{"a": 1}'), 2: WriterSchema(text='{"a": 2}'), 9: GONE}


def schema(*columns: tuple[str, str]) -> RecordSchema:
    return RecordSchema(
        format="Json",
        framing="Registry",
        subject=Subject(registry="main", name="s"),
        fields=tuple(Column(name=name, type=kind) for name, kind in columns),
    )


def value(number: int, content: Any) -> bytes:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    return b"\0" + number.to_bytes(4) + text


def test_values_of_several_schemas_keep_their_order() -> None:
    pick = random.Random(7)
    ids = [pick.choice((1, 2, 9)) for _ in range(300)]
    values = [value(number, {"a": n, "b": str(n)} if number == 2 else {"a": n}) for n, number in enumerate(ids)]
    columns = open_format(schema(("a", "long"), ("b", "string")), WRITERS).decode(fetched(values))
    a, b = (array.to_pylist() for array in columns.arrays)
    assert a == [None if number == 9 else n for n, number in enumerate(ids)]
    assert b == [str(n) if number == 2 else None for n, number in enumerate(ids)]
    assert {place: error.code for place, error in columns.errors.items()} == {
        place: Code.UNKNOWN_SCHEMA for place, number in enumerate(ids) if number == 9
    }


def test_bad_values_are_errors_at_their_places() -> None:
    good = value(1, {"a": 7, "more": [{}]})
    values = [good, None, b'{"a": 1}', value(2, b"{"), value(2, b""), value(1, {"a": "x"}), value(1, b"\x02\x04"), good]
    columns = open_format(schema(("a", "long")), WRITERS).decode(fetched(values))
    assert columns.arrays[0].to_pylist() == [7, None, None, None, None, None, None, 7]
    assert {place: error.code for place, error in sorted(columns.errors.items())} == {
        2: Code.UNKNOWN_SCHEMA,
        3: Code.INVALID_JSON,
        4: Code.EMPTY_PAYLOAD,
        5: Code.WRONG_KIND,
        6: Code.INVALID_JSON,
    }
    assert "format: Avro" not in columns.errors[6].detail


def test_integer_times_are_counted_beside_refused_values() -> None:
    seconds = [value(1 + n % 2, {"at": 1_700_000_000 + n}) for n in range(10)]
    columns = open_format(schema(("at", "timestamptz")), WRITERS).decode(fetched([*seconds, value(9, {})]))
    assert (columns.times["at"].wrong, columns.times["at"].epoch) == (10, "s")


def test_a_field_of_one_schema_may_have_another_column() -> None:
    versions = (ColumnVersion(schema_id=2, field="a", column="a_v2"),)
    both = schema(("a", "long"), ("b", "string"), ("a_v2", "string")).model_copy(update={"versions": versions})
    values = [value(1, {"a": 1, "b": "x"}), value(2, {"a": "one", "b": "y"}), value(9, {}), value(2, {"a": 3})]
    columns = open_format(both, WRITERS).decode(fetched(values))
    a, b, other = (array.to_pylist() for array in columns.arrays)
    assert (a, b, other) == ([1, None, None, None], ["x", "y", None, None], [None, "one", None, None])
    assert {place: error.code for place, error in columns.errors.items()} == {
        2: Code.UNKNOWN_SCHEMA,
        3: Code.WRONG_KIND,
    }


def test_members_without_a_column_are_kept() -> None:
    versions = (ColumnVersion(schema_id=2, field="a", column="a_v2"),)
    update = {"versions": versions, "unknown_column": "rest"}
    both = schema(("a", "long"), ("a_v2", "string")).model_copy(update=update)
    records: list[Any] = [{"a": 1, "order-id": 7}, {"a": "one", "more": [True]}, {"a": 3}]
    values = [value(1, records[0]), value(2, records[1]), value(1, records[2]), None, value(9, {})]
    columns = open_format(both, WRITERS).decode(fetched(values))
    a, other, rest = columns.arrays
    assert (a.to_pylist(), other.to_pylist()) == ([1, None, 3, None, None], [None, "one", None, None, None])
    expected = [*map(variant, ({"order-id": 7}, {"more": [True]})), None, None, None]
    assert rest.to_pylist() == expected
    assert set(columns.errors) == {4}


def test_times_of_fields_with_several_columns_are_counted_together() -> None:
    versions = (ColumnVersion(schema_id=2, field="a", column="a_v2"),)
    both = schema(("a", "long"), ("a_v2", "string"), ("at", "timestamptz")).model_copy(update={"versions": versions})
    values = [value(1 + n % 2, {"at": 1_700_000_000 + n}) for n in range(10)]
    columns = open_format(both, WRITERS).decode(fetched(values))
    assert (columns.times["at"].values, columns.times["at"].wrong) == (10, 10)
