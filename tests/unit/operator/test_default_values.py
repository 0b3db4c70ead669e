"""Tables of format version 3 whose columns have defaults of other engines."""

from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, ListType, LongType, MapType, NestedField, StringType, StructType

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, TableTarget
from firn_operator.adapters import foreign_types
from firn_operator.adapters.iceberg import evolution

TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")


def steps(kind: IcebergType, wanted: str) -> list[str]:
    """Return the changes of a table with one column of the type ``kind``."""
    layout = evolution.layout(TARGET, RecordSchema(format="Json", fields=(Column(name="s", type=wanted),)))
    found = evolution.schema_steps(Schema(NestedField(1, "s", kind)), layout, Reason.SCHEMA_INCOMPATIBLE)
    return [step.text for step in found if "_kafka" not in step.text]


def price(default: str | None) -> StructType:
    currency = NestedField(4, "currency", StringType(), required=True, write_default=default)
    return StructType(NestedField(3, "amount", LongType()), currency)


@pytest.mark.parametrize(
    ("around", "wanted"),
    [
        (lambda kind: kind, "struct<amount: long>"),
        (lambda kind: ListType(5, kind), "list<struct<amount: long>>"),
        (lambda kind: MapType(5, StringType(), 6, kind), "map<string, struct<amount: long>>"),
    ],
)
def test_a_required_member_with_a_default_needs_no_field(around: Any, wanted: str) -> None:
    assert steps(around(price("EUR")), wanted) == []
    with pytest.raises(InvalidSpecError, match=r"currency' is required in the table, but no member of the schema"):
        steps(around(price(None)), wanted)


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ({"type": "struct", "fields": [{"id": 2, "name": "a", "required": False, "type": "int", "write-default": 7}]}, {}),
        ({"type": "list", "element-id": 2, "element": "int", "element-required": False}, [1]),
        (
            {"type": "map", "key-id": 2, "key": "string", "value-id": 3, "value": "int", "value-required": False},
            {"keys": [], "values": []},
        ),
        ("timestamp_ns", "2020-01-01T00:00:00.000000001"),
        ("variant", 1),
    ],
)  # fmt: skip
def test_schemas_with_defaults_that_pyiceberg_cannot_read_are_read(kind: Any, default: Any) -> None:
    field = {"id": 1, "name": "s", "required": False, "type": kind}
    given = {**field, "write-default": default, "initial-default": default}
    schema = {"type": "struct", "schema-id": 0, "fields": [given]}
    found = foreign_types.schema_of(schema)
    assert found == foreign_types.schema_of({**schema, "fields": [field]})
    assert evolution.schema_fields(found)[0]["type"] == kind
