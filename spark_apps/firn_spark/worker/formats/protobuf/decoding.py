"""Protobuf values to columns: compiled if the fast decoder vouches for its answer, else strictly, record by record."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

from firn.decoders import protobuf_limits as limits
from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.decoders.protobuf import RecordReader
from firn.model.jobs import RecordSchema
from firn.schemas import protobuf
from firn.schemas.protobuf import Enum, Field, Map, Message, Node, Repeated, Scalar
from firn_spark.worker import arrow_types
from firn_spark.worker.fetched import Fetched, Numbers, Places
from firn_spark.worker.formats import arrays
from firn_spark.worker.formats.format import Columns
from firn_spark.worker.formats.framing import BYTES, unframed
from firn_spark.worker.formats.protobuf import kernel
from firn_spark.worker.formats.protobuf.rows import Rows


class ProtobufFormat:
    """Decodes record values by a message of a schema."""

    def __init__(self, schema: RecordSchema) -> None:
        """Set up both decoders. Raises InvalidSpecError for an invalid schema."""
        self._columns = arrow_types.arrow_schema(schema.fields)
        types = {field.name: field.type for field in self._columns}
        message = with_columns(protobuf.message_of(schema), types)
        self._names = [each.name for each in message.fields]
        self._rows = Rows(message.fields, [types[name] for name in self._names], message.others)
        self._framed = schema.framing == "Registry"
        expected = _expected_indexes(schema)
        self._expected = np.array(expected, np.int64)
        self._reader = RecordReader(message, indexed=self._framed, expected=expected)
        self.most_bytes = limits.most_bytes(message)
        self.row_bytes = limits.row_bytes(message)

    def decode(self, records: Fetched) -> Columns:
        """Decode values into one column for each field."""
        values, framed = unframed(records.values) if self._framed else (records.values, None)
        firsts, indexed = self._behind_indexes(values) if self._framed else (values.firsts, None)
        found, vouched = self._rows.read(values.data, firsts, values.ends, values.present)
        made = dict(zip(self._names, found, strict=True))
        columns = [
            made[field.name] if field.name in made else pa.nulls(len(values), field.type) for field in self._columns
        ]
        if framed is not None and indexed is not None:
            vouched &= indexed & (framed | ~values.present)
        doubted = np.flatnonzero(~vouched)
        if not len(doubted):
            return Columns(columns, {})
        strict = self._strict(values.select(doubted), None if framed is None else framed[doubted])
        merged = arrays.replaced(columns, doubted, strict.arrays)
        return Columns(merged, {int(doubted[index]): error for index, error in strict.errors.items()})

    def _behind_indexes(self, values: Places) -> tuple[Numbers, Numbers]:
        firsts, sure = np.empty(len(values), np.int64), np.empty(len(values), bool)
        kernel.skip_indexes(values.data, values.firsts, values.ends, values.present, self._expected, firsts, sure)
        return firsts, sure

    def _strict(self, values: Places, framed: Numbers | None) -> Columns:
        """Decode the values one by one. ``framed`` marks those with a framing. It is None if values need no framing."""
        errors: dict[int, BadRecordError] = {}
        records: list[Mapping[str, Any]] = []
        for index, value in enumerate(values.to_list()):
            try:
                if framed is not None and value is not None and not framed[index]:
                    raise BadRecordError(
                        Code.INVALID_PROTOBUF,
                        Stage.DECODE,
                        "the value does not begin with the five bytes of a schema registry; set framing: None, or let the producer write them",
                    )
                records.append(self._reader.read(value, 0 if framed is None else BYTES))
            except BadRecordError as error:
                errors[index] = error
                records.append({})
        columns = [
            pa.array((record.get(field.name) for record in records), field.type, size=len(records))
            for field in self._columns
        ]
        return Columns(columns, errors)


def _expected_indexes(schema: RecordSchema) -> tuple[int, ...]:
    """Return the message indexes that values must have; none if any indexes are right.

    The indexes in the schema of the writer are known. Without a registry, the text may be another one with the message of the spec.
    """
    return () if schema.message and schema.schema_id is None else protobuf.indexes_of(schema)


def with_columns(message: Message, types: Mapping[str, pa.DataType]) -> Message:
    """Return a message with only those fields that have a column, also inside fields. Decoders skip all others.

    Times have the resolution of their columns. Bytes for a column of texts are texts, which are encoded alike.
    """
    return message.only(_field(each, types[each.name]) for each in message.fields if each.name in types)


def _field(field: Field, type_: pa.DataType) -> Field:
    kind = _with_columns(field.type, type_)
    if kind != Scalar("string") or not isinstance(field.default, bytes):
        return replace(field, type=kind)
    try:
        return replace(field, type=kind, default=field.default.decode())
    except UnicodeDecodeError:
        # The default of proto2 is no text, so a record that lacks the field is a bad record.
        return replace(field, type=kind, default=None, required=True)


def _with_columns(node: Node, type_: pa.DataType) -> Node:
    match node:
        case Repeated(item):
            return Repeated(_item_with_columns(item, type_.value_type))
        case Map(entry):
            key, value = entry.fields
            return Map(replace(entry, fields=(key, _field(value, type_.item_type))))
        case _:
            return _item_with_columns(node, type_)


def _item_with_columns(node: Scalar | Enum | Message, type_: pa.DataType) -> Scalar | Enum | Message:
    match node:
        case Scalar("bytes") if type_ == pa.string():
            return Scalar("string")
        case Message():
            return _message_with_columns(node, type_)
    return node


def _message_with_columns(message: Message, type_: pa.DataType) -> Message:
    if pa.types.is_struct(type_):
        return with_columns(message, {member.name: member.type for member in type_})
    if protobuf.is_timestamp(message):
        # A table may have a column of the other resolution.
        return protobuf.TIMESTAMP_NS if type_.unit == "ns" else protobuf.TIMESTAMP
    wrapped = protobuf.wrapped_field(message)
    if wrapped is not None and wrapped.type == Scalar("bytes") and type_ == pa.string():
        return replace(message, name=protobuf.STRING_VALUE, fields=(_field(wrapped, type_),))
    return message
