"""Checks of values by a schema, for the gate at produce: the strict decoders decide, as they do in tasks.

A value passes if it becomes columns of its own schema. Values of a table's other schemas, computed columns, keys and quality
rules are not checked.
"""

import base64
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from firn.decoders import avro as avro_values
from firn.decoders import json as json_values
from firn.decoders import protobuf as protobuf_values
from firn.decoders.bad_records import BadRecordError, Code, Stage
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, SchemaFormat
from firn.schemas import avro, columns, protobuf
from firn.schemas.protobuf import Field, Map, Message, Node, Repeated
from firn.tables.renames import former_names

FRAMING = 5
"""Bytes of the framing: a byte 0 and the id of the schema."""
MOST_PACKED = 32_000
"""Most characters of a packed schema. Older versions of Kafka's protocol have 32,767 for the value of a topic config."""
MOST_UNPACKED = 1 << 20
_OF_CHECK = {
    "format",
    "fields",
    "unknown_fields",
    "unknown_column",
    "text",
    "framing",
    "message",
    "found_message",
    "renames",
    "nanoseconds",
    "truncate_times",
    "variants",
}
Check = Callable[[bytes | None], object]
"""Raises BadRecordError for a value that does not fit."""


def packed(schema: RecordSchema) -> str:
    """Return the parts of a schema that a check needs, as the value of a topic config: compressed JSON in base64."""
    fields = tuple(field.model_copy(update={"doc": None}) for field in schema.fields)
    bare = schema.model_copy(update={"fields": fields})
    content = bare.model_dump_json(include=_OF_CHECK, exclude_defaults=True)
    return base64.b64encode(zlib.compress(content.encode(), 9)).decode()


def unpacked(text: str) -> RecordSchema:
    """Return a packed schema. Raises ValueError."""
    try:
        unpacking = zlib.decompressobj()
        content = unpacking.decompress(base64.b64decode(text, validate=True), MOST_UNPACKED)
        if not unpacking.eof:
            raise ValueError(f"it has more than {MOST_UNPACKED >> 20} MiB, or is cut off")
        return RecordSchema.model_validate_json(content)
    except zlib.error as error:
        raise ValueError(str(error)) from error


def check_of(schema: RecordSchema) -> Check:
    """Return the check of values by a schema: one with ``fields``, or one with the text and the descriptors of a writer.

    With ``schema_id``, the schema is that of a writer in a schema registry. Raises InvalidSpecError for a schema that cannot
    become columns.
    """
    if schema.format is SchemaFormat.JSON:
        return _json(schema)
    place = "the schema" if schema.schema_id is None else f"schema {schema.schema_id}"
    # The process that decodes values has little memory, and it keeps the checks themselves.
    if not columns.columns_of(schema, place, keep=False):
        raise InvalidSpecError(f"{place} has no columns; add a field")
    return _avro(schema) if schema.format is SchemaFormat.AVRO else _protobuf(schema)


def _json(schema: RecordSchema) -> Check:
    fields = json_fields(schema)
    reader = json_values.RecordReader.for_schema(
        fields,
        refuse_unknown=schema.unknown_fields == "DeadLetter",
        keep_unknown=bool(schema.unknown_column),
        truncate_times=schema.truncate_times,
        former=former_names(fields, schema.renames),
    )

    def check(value: bytes | None) -> None:
        # No JSON begins with a byte 0.
        reader.read(value[FRAMING:] if value is not None and _is_framed(value) else value)

    return check


def json_fields(schema: RecordSchema) -> Sequence[Column]:
    """Return the fields of values in JSON. Raises InvalidSpecError.

    A column may read a member whose name no column can have, and a check does not know which ones.
    """
    return schema.fields or columns.columns_of(schema, f"schema {schema.schema_id}", any_names=True)


def _avro(schema: RecordSchema) -> Check:
    reader = avro_values.RecordReader(avro.parse(schema.text, schema.references))
    if schema.framing == "None":
        return reader.read

    def check(value: bytes | None) -> None:
        # An empty value has a code of its own.
        reader.read(_unframed(value, Code.INVALID_AVRO) if value else value, FRAMING)

    return check


def _protobuf(schema: RecordSchema) -> Check:
    message, framed = message_with_columns(schema), schema.framing == "Registry"
    reader = protobuf_values.RecordReader(message, indexed=framed, expected=expected_indexes(schema))
    if not framed:
        return reader.read

    def check(value: bytes | None) -> None:
        reader.read(None if value is None else _unframed(value, Code.INVALID_PROTOBUF), FRAMING)

    return check


def message_with_columns(schema: RecordSchema) -> Message:
    """Return the message of values in Protobuf, without the fields that have no column. Decoders skip these."""
    return _with_columns(protobuf.message_of(schema.model_copy(update={"renames": ()})))


def expected_indexes(schema: RecordSchema) -> Sequence[int]:
    """Return the message indexes that follow the id of a schema; none if they may be any."""
    return () if schema.message and schema.schema_id is None else protobuf.indexes_of(schema)


def _is_framed(value: bytes) -> bool:
    return len(value) >= FRAMING and not value[0]


def _unframed(value: bytes, code: Code) -> bytes:
    if not _is_framed(value):
        raise BadRecordError(
            code, Stage.DECODE, "the value does not begin with the five bytes of a schema registry; use its serializer"
        )
    return value[FRAMING:]


def _with_columns(message: Message) -> Message:
    kept = (each for each in message.fields if protobuf.column_type(each.type) is not None)
    return message.only(replace(each, type=_inner(each.type)) for each in kept)


def _inner(node: Node) -> Node:
    match node:
        case Message():
            return _with_columns(node)
        case Repeated(Message() as item):
            return Repeated(_with_columns(item))
        case Map(entry):
            key, value = entry.fields
            return Map(replace(entry, fields=(key, _value(value))))
    return node


def _value(field: Field) -> Field:
    return replace(field, type=_inner(field.type))
