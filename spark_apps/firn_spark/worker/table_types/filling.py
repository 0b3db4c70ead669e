"""Fills the columns and the members of structs that rows lack with the write defaults of the table.

Source: Iceberg specification, "Default values" and "JSON single-value serialization".
"""

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyiceberg import types
from pyiceberg.conversions import from_json


@from_json.register(types.TimestampNanoType)
@from_json.register(types.TimestamptzNanoType)
def _nanoseconds(_: types.PrimitiveType, text: str) -> int:
    """Return a default in the JSON of a schema as nanoseconds from 1970, which PyIceberg does not read."""
    return int(np.datetime64(text.removesuffix("+00:00"), "ns").astype(np.int64))


class Filling:
    """The columns and members that a table fills for rows without them."""

    def __init__(self, columns: Sequence[types.NestedField], arrow: pa.Schema, defaults: Mapping[int, Any]) -> None:
        """Prepare to fill. ``arrow`` has the types of ``columns``, ``defaults`` the JSON of write defaults by field id.

        Raises ValueError for a default that is not a value of its type.
        """
        self._json = defaults
        self._values: dict[int, pa.Scalar] = {}
        self._to_fill = {
            column.name
            for column, field in zip(columns, arrow, strict=True)
            if self._prepare(column, field.type, (column.name,))
        }
        """The names of the columns whose structs can lack a member that is required or has a default."""

    def missing(self, column: types.NestedField, kind: pa.DataType, count: int, path: Sequence[str]) -> pa.Array:
        """Return ``count`` values of the column or member at ``path``, which the rows lack. Raises ValueError if it is required."""
        value = self._values.get(column.field_id)
        if value is not None:
            return pa.repeat(value, count)
        if column.required:
            raise ValueError(
                f"column {'.'.join(path)} is required in the table, and the records do not have it; make it optional"
            )
        return pa.nulls(count, kind)

    def fitted(self, column: types.NestedField, kind: pa.DataType, array: pa.ChunkedArray) -> pa.ChunkedArray:
        """Return a column with the members of ``kind``. Raises ValueError if the rows lack a required member without a default."""
        if array.type == kind:
            return array
        if column.name not in self._to_fill:
            return array.cast(kind)
        chunks = [self._fit(column.field_type, kind, chunk, (column.name,)) for chunk in array.chunks]
        return pa.chunked_array(chunks, kind)

    def _prepare(self, column: types.NestedField, kind: pa.DataType, path: Sequence[str]) -> bool:
        """Read the defaults of a column and its members. Return whether a struct in it has a member that is required or has a default."""
        parts = [
            (
                self._prepare(member, part, (*path, member.name)),
                in_struct and (member.required or member.field_id in self._json),
            )
            for member, part, in_struct in _parts(column.field_type, kind)
        ]
        value = self._json.get(column.field_id)
        if value is not None:
            try:
                self._values[column.field_id] = self._one(column.field_type, kind, value, path)[0]
            except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, pa.ArrowException) as error:
                raise ValueError(
                    f"column {'.'.join(path)}: the default {value!r} is not a value of {column.field_type}: {error}; set another write default"
                ) from error
        return any(below or own for below, own in parts)

    def _one(self, kind: types.IcebergType, arrow: pa.DataType, value: Any, path: Sequence[str]) -> pa.Array:
        """Return an array of one value from its JSON."""
        if value is None:
            return pa.nulls(1, arrow)
        match kind:
            case types.StructType():
                members = [
                    self._one(member.field_type, field.type, value[str(member.field_id)], (*path, member.name))
                    if str(member.field_id) in value
                    else self.missing(member, field.type, 1, (*path, member.name))
                    for member, field in zip(kind.fields, arrow, strict=True)
                ]
                return pa.StructArray.from_arrays(members, fields=list(arrow))
            case types.ListType():
                offsets = pa.array([0, len(value)], pa.int32())
                elements = self._several(kind.element_type, arrow.value_type, value, (*path, "element"))
                return pa.ListArray.from_arrays(offsets, elements, type=arrow)
            case types.MapType():
                offsets = pa.array([0, len(value["keys"])], pa.int32())
                keys = self._several(kind.key_type, arrow.key_type, value["keys"], (*path, "key"))
                values = self._several(kind.value_type, arrow.item_type, value["values"], (*path, "value"))
                return pa.MapArray.from_arrays(offsets, keys, values, type=arrow)
            case types.PrimitiveType():
                read: Any = from_json(kind, value)
                return pa.array([read.bytes if isinstance(read, uuid.UUID) else read], arrow)
        raise TypeError(f"{kind} has no defaults")

    def _several(
        self, kind: types.IcebergType, arrow: pa.DataType, values: Sequence[Any], path: Sequence[str]
    ) -> pa.Array:
        return pa.concat_arrays([pa.nulls(0, arrow), *(self._one(kind, arrow, value, path) for value in values)])

    def _fit(self, kind: types.IcebergType, arrow: pa.DataType, array: pa.Array, path: Sequence[str]) -> pa.Array:
        if array.type == arrow:
            return array
        match kind:
            case types.StructType() if pa.types.is_struct(array.type):
                return self._struct(kind, arrow, array, path)
            case types.ListType() if pa.types.is_list(array.type):
                offsets, elements = _items(array, array.values)
                fitted = self._fit(kind.element_type, arrow.value_type, elements, (*path, "element"))
                return pa.ListArray.from_arrays(offsets, fitted, type=arrow, mask=_mask(array))
            case types.MapType() if pa.types.is_map(array.type):
                offsets, keys = _items(array, array.keys)
                _, values = _items(array, array.items)
                fitted = self._fit(kind.value_type, arrow.item_type, values, (*path, "value"))
                return pa.MapArray.from_arrays(offsets, keys.cast(arrow.key_type), fitted, arrow, mask=_mask(array))
        return array.cast(arrow)

    def _struct(
        self, kind: types.StructType, arrow: pa.StructType, array: pa.StructArray, path: Sequence[str]
    ) -> pa.Array:
        members = []
        for member, field in zip(kind.fields, arrow, strict=True):
            place = array.type.get_field_index(member.name)
            if place >= 0:
                values = self._fit(member.field_type, field.type, array.field(place), (*path, member.name))
            elif array.null_count == len(array):
                values = pa.nulls(len(array), field.type)
            else:
                values = self.missing(member, field.type, len(array), (*path, member.name))
            members.append(values)
        return pa.StructArray.from_arrays(members, fields=list(arrow), mask=_mask(array))


def _parts(kind: types.IcebergType, arrow: pa.DataType) -> list[tuple[types.NestedField, pa.DataType, bool]]:
    """Return the fields inside a type, their Arrow types, and whether rows may lack them as members of a struct."""
    match kind:
        case types.StructType():
            return [(member, field.type, True) for member, field in zip(kind.fields, arrow, strict=True)]
        case types.ListType():
            return [(kind.element_field, arrow.value_type, False)]
        case types.MapType():
            return [(kind.value_field, arrow.item_type, False)]
    return []


def _items(array: pa.ListArray | pa.MapArray, items: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the offsets from 0 and the items of a list or map, which may be a slice of a longer array."""
    offsets = np.asarray(array.offsets)
    first, end = int(offsets[0]), int(offsets[-1])
    return pa.array(offsets - first), items.slice(first, end - first)


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None
