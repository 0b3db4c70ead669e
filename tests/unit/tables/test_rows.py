"""The columns of tables."""

import pytest

from firn.model.jobs import Column, RecordSchema
from firn.tables import rows, types


@pytest.mark.parametrize(("raw_as", "kind"), [("Binary", "binary"), ("String", "string")])
def test_a_raw_table_has_key_and_value(raw_as: str, kind: str) -> None:
    schema = RecordSchema.model_validate({"format": "Raw", "raw_as": raw_as})
    assert [(column.name, column.type) for column in rows.schema_columns(schema)] == [("key", kind), ("value", kind)]


def test_kafka_columns_are_equal_as_a_struct_and_flat() -> None:
    (struct,) = rows.metadata_columns("Struct")
    flat = rows.metadata_columns("Flat")
    kind = types.parse(struct.type)
    assert isinstance(kind, types.Struct)
    assert [(f"_kafka_{name}", member) for name, member in kind.fields] == [
        (column.name, types.parse(column.type)) for column in flat
    ]
    assert str(kind) == (
        "struct<partition: int, offset: long, timestamp: timestamptz, timestamp_ms: long, timestamp_type: int,"
        " key: binary, headers: list<struct<key: string, value: binary>>>"
    )


@pytest.mark.parametrize("shape", ["Struct", "Flat"])
def test_columns_of_the_schema_come_first(shape: str) -> None:
    schema = RecordSchema(format="Json", fields=(Column(name="a", type="int"), Column(name="b", type="long")))
    columns = [column.name for column in rows.table_columns(schema, shape)]
    assert columns[:2] == ["a", "b"]
    assert all(name.startswith("_kafka") for name in columns[2:])


def test_dead_letters_have_columns_for_cause_and_origin() -> None:
    assert [(column.name, column.type) for column in rows.dead_letter_columns()][:8] == [
        ("error_code", "string"),
        ("error_stage", "string"),
        ("error_path", "string"),
        ("error_detail", "string"),
        ("key", "binary"),
        ("value", "binary"),
        ("generation", "long"),
        ("ingested_at", "timestamptz"),
    ]
    assert rows.dead_letter_columns()[8:] == rows.metadata_columns("Struct")
