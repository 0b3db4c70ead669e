"""A column may be wider in the table than in the latest schema of a registry, because records of other schemas needed that."""

import pytest

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, KeySchema, ProjectedColumn, Projection, RecordSchema, Subject, TableTarget
from firn_operator.adapters.iceberg import evolution

TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")
SUBJECT = Subject(registry="main", name="orders-key")


def schema(value: str, key: str, *, registered_key: bool, registered_value: bool) -> RecordSchema:
    decoding = RecordSchema(format="Avro", subject=SUBJECT if registered_key else None)
    return RecordSchema(
        format="Json",
        fields=(Column(name="total", type=value),),
        subject=SUBJECT if registered_value else None,
        key=KeySchema(columns="Flat", fields=(Column(name="id", type=key),), decoding=decoding),
    )


def steps(wanted: RecordSchema, kind: str = "long") -> list[str]:
    """Return the changes of a table whose columns have this type."""
    registered = wanted.subject is not None
    columns = evolution.layout(TARGET, schema(kind, kind, registered_key=False, registered_value=registered)).columns
    layout = evolution.layout(TARGET, wanted)
    present = evolution.new_schema(columns)
    return [step.text for step in evolution.schema_steps(present, layout, Reason.SCHEMA_INCOMPATIBLE)]


def test_a_column_of_a_key_may_be_wider_if_its_schema_is_registered() -> None:
    assert steps(schema("long", "int", registered_key=True, registered_value=False)) == []
    with pytest.raises(InvalidSpecError, match="key_id' is long in the table and int in the schema"):
        steps(schema("long", "int", registered_key=False, registered_value=False))


def test_a_column_of_values_may_be_wider_if_their_schema_is_registered() -> None:
    with pytest.raises(InvalidSpecError, match="total' is long in the table and int in the schema"):
        steps(schema("int", "long", registered_key=True, registered_value=False))


def test_a_column_may_have_another_type_that_holds_the_values() -> None:
    assert steps(schema("int", "int", registered_key=True, registered_value=True), "double") == []
    assert steps(schema("long", "int", registered_key=True, registered_value=True), "decimal(20,0)") == []
    assert steps(schema("long", "long", registered_key=True, registered_value=True), "double") == []
    # The values are JSON, and the keys are Avro.
    with pytest.raises(InvalidSpecError, match="total' is binary in the table and string in the schema"):
        steps(schema("string", "string", registered_key=True, registered_value=True), "binary")
    with pytest.raises(InvalidSpecError, match="total' is double in the table and int in the schema"):
        steps(schema("int", "double", registered_key=True, registered_value=False), "double")


def test_a_column_beside_computed_ones_may_have_another_type_that_holds_the_values() -> None:
    def schema_of(kind: str) -> RecordSchema:
        projection = Projection(columns=(ProjectedColumn(name="n", type="int", source="$.id"),), keeps_others=True)
        fields = (Column(name="id", type="int"), Column(name="total", type=kind))
        return RecordSchema(format="Avro", fields=fields, subject=SUBJECT, projection=projection)

    present = evolution.new_schema(evolution.layout(TARGET, schema_of("double")).columns)
    layout = evolution.layout(TARGET, schema_of("int"))
    assert evolution.schema_steps(present, layout, Reason.SCHEMA_INCOMPATIBLE) == []
