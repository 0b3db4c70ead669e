"""An identifier field of a table, which another engine has set, stays required."""

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StructType

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, TableTarget
from firn_operator.adapters.iceberg import evolution

TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")


def steps(present: Schema, *columns: Column) -> list[str]:
    layout = evolution.layout(TARGET, RecordSchema(format="Json", fields=columns))
    found = evolution.schema_steps(present, layout, Reason.SCHEMA_INCOMPATIBLE)
    return [step.text for step in found if "_kafka" not in step.text]


def test_an_identifier_field_cannot_become_optional() -> None:
    present = Schema(NestedField(1, "id", LongType(), required=True), identifier_field_ids=[1])
    with pytest.raises(InvalidSpecError, match="column 'id' is an identifier field .* set required to true") as refused:
        steps(present, Column(name="id", type="long"))
    assert refused.value.reason == Reason.SCHEMA_INCOMPATIBLE
    assert steps(present, Column(name="id", type="long", required=True)) == []


def test_a_member_that_is_an_identifier_field_cannot_become_optional() -> None:
    inner = StructType(NestedField(2, "id", LongType(), required=True), NestedField(3, "x", LongType(), required=True))
    present = Schema(NestedField(1, "a", inner, required=True), identifier_field_ids=[2])
    column = Column(name="a", type="struct<id: long, x: long>", required=True)
    with pytest.raises(InvalidSpecError, match="column 'a.id' is an identifier field"):
        steps(present, column)
    others = Schema(NestedField(1, "a", inner, required=True))
    assert steps(others, column) == ["column a.id made optional", "column a.x made optional"]
