"""Iceberg's types as Arrow types in memory, between decoders and data files."""

from collections.abc import Iterable

import pyarrow as pa

from firn.model.jobs import Column
from firn.tables import types

VARIANT = pa.struct([pa.field("metadata", pa.binary(), nullable=False), pa.field("value", pa.binary(), nullable=False)])
"""A variant that is not shredded (Parquet specification, "Variant Binary Encoding")."""
_PRIMITIVES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", tz="UTC"),
    "timestamp_ns": pa.timestamp("ns"),
    "timestamptz_ns": pa.timestamp("ns", tz="UTC"),
    "string": pa.string(),
    "uuid": pa.binary(16),  # the storage of Arrow's uuid type, which most Arrow functions do not support
    "binary": pa.binary(),
    "variant": VARIANT,
}


def arrow_type(kind: types.Type) -> pa.DataType:
    """Return the Arrow type that holds values of ``kind``."""
    match kind:
        case types.Primitive(name):
            return _PRIMITIVES[name]
        case types.Decimal(precision, scale):
            return pa.decimal128(precision, scale)
        case types.Fixed(length):
            return pa.binary(length)
        case types.ListOf(element):
            return pa.list_(pa.field("element", arrow_type(element)))
        case types.MapOf(key, value):
            return pa.map_(arrow_type(key), arrow_type(value))
        case types.Struct(fields):
            return pa.struct([pa.field(name, arrow_type(member)) for name, member in fields])


def arrow_schema(columns: Iterable[Column]) -> pa.Schema:
    """Return the schema of rows with these columns. All columns are nullable: the decoder has checked required
    fields."""
    return pa.schema([pa.field(column.name, arrow_type(types.parse(column.type))) for column in columns])
