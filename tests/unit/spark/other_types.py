"""Columns of other types than the schema of a writer has."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from firn.decoders.bad_records import Code
from firn.model.jobs import Column, RecordSchema, SchemaFormat
from firn.tables import evolution, types
from firn.tables.types import Decimal, ListOf, MapOf, Primitive, Struct, Type
from firn_spark.worker.fetched import Places
from firn_spark.worker.formats.avro.decoding import AvroFormat
from firn_spark.worker.formats.protobuf.decoding import ProtobufFormat
from tests.unit.spark.records import fetched

Decoder = AvroFormat | ProtobufFormat

_TYPES = {
    "int": ("int", "long", "double", "decimal(10,0)", "decimal(14,3)"),
    "long": ("long", "decimal(19,0)", "decimal(38,19)"),
    "float": ("float", "double"),
    "string": ("string", "binary"),
}
_SOME: Mapping[SchemaFormat, Mapping[str, Sequence[str]]] = {
    SchemaFormat.AVRO: {"long": ("double",), "binary": ("string",)},
    SchemaFormat.PROTOBUF: {"binary": ("string",)},
}


def another(kind: Type, pick: random.Random, more: Mapping[str, Sequence[str]] = MappingProxyType({})) -> Type:
    """Return a type of a column that takes the values of a type, in Avro and in Protobuf. ``more`` take some of the values."""
    match kind:
        case Primitive(name) if name in _TYPES or name in more:
            return types.parse(pick.choice([*_TYPES.get(name, ()), *more.get(name, ())]))
        case Decimal(precision, scale):
            return Decimal(pick.randint(precision, 38), scale)
        case ListOf(element):
            return ListOf(another(element, pick, more))
        case MapOf(key, value):
            return MapOf(key, another(value, pick, more))
        case Struct(members):
            return Struct(tuple((name, another(member, pick, more)) for name, member in members))
    return kind


def with_other_columns(schema: RecordSchema, pick: random.Random, *, all_values: bool = True) -> RecordSchema:
    """Return the schema with columns of random types that take the values: all of them, or some."""
    found = []
    for field in schema.fields:
        written = types.parse(field.type)
        column = another(written, pick, {} if all_values else _SOME[schema.format])
        assert evolution.holding(column, written, schema.format, all_values=all_values) == column
        found.append(Column(name=field.name, type=str(column)))
    return schema.model_copy(update={"fields": tuple(found)})


def is_same(value: Any, other: Any) -> bool:
    """Return whether two values of different types are equal."""
    match value, other:
        case str(), bytes():
            return value.encode() == other
        case bytes(), str():
            return value == other.encode()
        case float(), float():
            return value == other or (math.isnan(value) and math.isnan(other))
        case dict(), dict():
            return value.keys() == other.keys() and all(is_same(value[name], other[name]) for name in value)
        case (list(), list()) | (tuple(), tuple()):
            return len(value) == len(other) and all(map(is_same, value, other))
    return bool(value == other)


def refusals(one: Decoder, own: Decoder, inputs: Sequence[bytes], plain: Callable[[Any], Any]) -> set[Code]:
    """Check that both decoders of ``one`` refuse the same values, and that the others are equal to those of ``own``.

    Return the codes of the refused values. ``plain`` returns the values of an array in a form that compares exactly.
    """
    found, strict = one.decode(fetched(inputs)), one._strict(Places.from_arrow(pa.array(inputs, pa.binary())), None)
    shown, shown_strict = (
        {row: (error.code, error.path, error.detail) for row, error in each.errors.items()} for each in (found, strict)
    )
    assert shown == shown_strict
    assert [plain(array) for array in found.arrays] == [plain(array) for array in strict.arrays]
    good = [row for row in range(len(inputs)) if row not in found.errors]
    for before, after in zip(own.decode(fetched(inputs)).arrays, found.arrays, strict=True):
        assert is_same(before.take(good).to_pylist(), after.take(good).to_pylist())
    return {error.code for error in found.errors.values()}
