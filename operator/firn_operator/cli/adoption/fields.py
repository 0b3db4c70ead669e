"""The fields of JSON records for the columns of a table. No I/O."""

import re
from typing import Any

from pyiceberg import types as iceberg
from pyiceberg.schema import Schema

from firn.model.errors import InvalidSpecError
from firn.tables import rows, types
from firn.tables.types import ListOf, MapOf, Primitive, Struct, Type

MOST_NAME, MOST_DOC, MOST_TYPE = 128, 1024, 4096
"""Most characters of a column's name, of a doc, and of a type in ``spec.schema.fields``."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_PRIMITIVES: dict[type[iceberg.IcebergType], str] = {
    iceberg.BooleanType: "boolean",
    iceberg.IntegerType: "int",
    iceberg.LongType: "long",
    iceberg.FloatType: "float",
    iceberg.DoubleType: "double",
    iceberg.DateType: "date",
    iceberg.TimeType: "time",
    iceberg.TimestampType: "timestamp",
    iceberg.TimestamptzType: "timestamptz",
    iceberg.TimestampNanoType: "timestamp_ns",
    iceberg.TimestamptzNanoType: "timestamptz_ns",
    iceberg.StringType: "string",
    iceberg.UUIDType: "uuid",
    iceberg.BinaryType: "binary",
}


def fields(table: str, schema: Schema) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return a field for each column, and the optional columns and members that no field can have.

    Raises InvalidSpecError if no field can have a required column, if no column has a field, or if there are too many columns.
    """
    found: dict[str, dict[str, Any]] = {}
    left_out: list[str] = []
    for field in schema.fields:
        members: list[str] = []
        kind = _checked(_type(field.field_type, field.name, members))
        usable = _is_name(field.name) and len(field.name) <= MOST_NAME and field.name.lower() not in found
        if kind is not None and usable and not field.name.startswith(rows.METADATA_COLUMN):
            # A table keeps its own doc if the field has none.
            doc = field.doc if field.doc and len(field.doc) <= MOST_DOC else ""
            found[field.name.lower()] = {
                "name": field.name,
                "type": str(kind),
                **({"required": True} if field.required else {}),
                **({"doc": doc} if doc else {}),
            }
            left_out += members
        elif field.required:
            raise InvalidSpecError(
                f"table {table}: column {field.name} of type {_short(field.field_type)} is required, and no field of an IcebergTopic can fill it;"
                " make the column optional first"
            )
        else:
            left_out.append(f"{field.name} ({_short(field.field_type)})")
    if not found:
        raise InvalidSpecError(
            f"table {table} has no column that a field of an IcebergTopic can fill: {', '.join(left_out) or 'it has no columns'}; rename a column"
            " to letters, digits and _, or add a column of a usable type"
        )
    if len(found) > types.MOST_COLUMNS:
        raise InvalidSpecError(
            f"table {table} has {len(found)} columns, and an IcebergTopic has at most {types.MOST_COLUMNS} fields; drop columns first"
        )
    return list(found.values()), tuple(left_out)


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def _short(kind: iceberg.IcebergType) -> str:
    text = str(kind)
    return text if len(text) <= 100 else f"{text[:100]}..."


def _checked(kind: Type | None) -> Type | None:
    """Return a type, or None if a spec cannot have it, for example because it has too many levels."""
    try:
        return kind if kind is not None and len(str(kind)) <= MOST_TYPE and types.parse(str(kind)) else None
    except InvalidSpecError:
        return None


def _type(kind: iceberg.IcebergType, path: str, left_out: list[str]) -> Type | None:
    """Return the type in the notation of fields; None if it has none. Optional members without a type go to ``left_out``."""
    match kind:
        case iceberg.DecimalType():
            return types.Decimal(kind.precision, kind.scale)
        case iceberg.FixedType():
            return types.Fixed(len(kind))
        case iceberg.ListType():
            element = _type(kind.element_type, f"{path}.element", left_out)
            return ListOf(element) if element is not None else None
        case iceberg.MapType():
            # A key without one of its members would be another key.
            of_key: list[str] = []
            key = _type(kind.key_type, f"{path}.key", of_key)
            value = _type(kind.value_type, f"{path}.value", left_out)
            return MapOf(key, value) if key is not None and value is not None and not of_key else None
        case iceberg.StructType():
            return _struct(kind, path, left_out)
        case _:
            name = _PRIMITIVES.get(type(kind))
            return Primitive(name) if name is not None else None


def _struct(kind: iceberg.StructType, path: str, left_out: list[str]) -> Type | None:
    members: dict[str, tuple[str, Type]] = {}
    for field in kind.fields:
        member = _type(field.field_type, f"{path}.{field.name}", left_out)
        if member is not None and _is_name(field.name) and field.name.lower() not in members:
            members[field.name.lower()] = field.name, member
        elif field.required:
            return None
        else:
            left_out.append(f"{path}.{field.name} ({_short(field.field_type)})")
    return Struct(tuple(members.values())) if members else None
