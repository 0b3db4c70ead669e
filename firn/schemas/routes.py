"""The value of a record that decides to which table of its topic the record goes.

All tables of a topic must read the same value. So it has a schema of its own, which the operator makes of the schema of the topic.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any, Literal

from firn import member_paths
from firn.member_paths import Path
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import (
    Column,
    PartialSchema,
    ProjectedColumn,
    Projection,
    RecordSchema,
    SchemaFormat,
    Subject,
    WriterSchema,
)
from firn.schemas import avro, columns, descriptors, json_schema, protobuf
from firn.tables import types
from firn.tables.types import Primitive, Struct, Type
from firn.texts import without_surrogates

PLACE = "spec.routes.by"
MESSAGE = "message"
"""The source of a value that is the full name of the record's message, as the schema of its writer has it."""
_KINDS = ("string", "int", "long", "boolean", "uuid")
"""Types of fields whose values have one form as text. An enum has the type string."""
_SHOWN_KINDS = f"{', '.join(_KINDS[:-1])} or {_KINDS[-1]}"
BINARY = (SchemaFormat.AVRO, SchemaFormat.PROTOBUF)
_NOTES = ("doc", "aliases", "default", "order")
"""Attributes of an Avro schema that do not change the bytes of a value."""


def value_schema(schema: RecordSchema, by: str) -> RecordSchema:
    """Return the schema that decodes the value at ``by`` of records that have ``schema``, and nothing else of them.

    Raises InvalidSpecError (BadRoute).
    """
    if by == MESSAGE:
        if schema.subject is None:
            raise InvalidSpecError(f"{PLACE}: message needs a schema with registry", reason=Reason.BAD_ROUTE)
        return registry_schema(schema.format, schema.subject.registry, schema.subject.id_in)
    path = _path(by)
    projection = _projection(by)
    if not path:
        return RecordSchema(format=SchemaFormat.RAW, projection=projection)
    if schema.format in BINARY and schema.subject is not None:
        return registry_schema(schema.format, schema.subject.registry, schema.subject.id_in, by)
    own = schema.fields if schema.subject is None else ()
    if schema.projection is not None and schema.format in BINARY and (schema.text or schema.descriptors):
        # The columns of the table may read other fields.
        own = columns.columns_of(schema.model_copy(update={"projection": projection}), PLACE)
    kind = _kind(own, path)
    if kind is None and schema.format in BINARY:
        raise InvalidSpecError(
            f"{PLACE}: the schema has no field {by}; set the path of a field, such as $.type", reason=Reason.BAD_ROUTE
        )
    if kind is not None and str(kind) not in _KINDS:
        raise InvalidSpecError(
            f"{PLACE}: {by} has the type {kind}; set a field of type {_SHOWN_KINDS}",
            reason=Reason.BAD_ROUTE,
        )
    if schema.format in BINARY:
        field = next(Column(name=field.name, type=field.type) for field in own if field.name == path[0])
        parts = ("format", "text", "references", "names", "framing", "message", "found_message", "descriptors")
        known = {name: getattr(schema, name) for name in parts}
        return RecordSchema(**known, fields=(field,), projection=projection)
    # JSON values name their fields, so they may have fields that the table does not have. Other members of a struct do not decide.
    field = Column(name=path[0], type=str(_nested(path[1:], kind or Primitive("string"))))
    return RecordSchema(format=SchemaFormat.JSON, fields=(field,), projection=projection)


def registry_schema(
    form: SchemaFormat, registry: str, id_in: Literal["Payload", "Header", "None"], by: str = MESSAGE
) -> RecordSchema:
    """Return the schema that reads the value at ``by`` with the schemas of writers. ``by`` is `MESSAGE` or the path of a field.

    It has no subject of its own: an id of any subject of the registry has the same schema at all times. Raises InvalidSpecError (BadRoute).
    """
    if id_in == "None":
        raise InvalidSpecError(
            f"{PLACE}: {by} needs the id of a schema in each record, and the schema has registry.idIn: None; set idIn: Payload or"
            " Header, or by: header:NAME or key",
            reason=Reason.BAD_ROUTE,
        )
    subject = Subject(registry=registry, name="", id_in=id_in)
    return RecordSchema(format=form, framing="Registry", subject=subject, projection=_projection(by))


def field_schema(writer: RecordSchema) -> RecordSchema | None:
    """Return the schema that decodes the field of a `registry_schema` in values of one writer; None if the writer has no such field.

    ``writer`` is the result of `RecordSchema.of_writer`, in Protobuf with its message. The writer's names count. Raises InvalidSpecError
    (BadSchema) for a schema that cannot be read, and for a field whose values have no single form as text.
    """
    assert writer.projection is not None
    by = writer.projection.columns[0].source
    path = _path(by)
    part = PartialSchema.model_validate(dict(writer))
    fields = columns.columns_of(part, f"schema {writer.schema_id}")
    kind = _kind(fields, path)
    if kind is None:
        return None
    if str(kind) not in _KINDS:
        raise InvalidSpecError(
            f"schema {writer.schema_id}: field {by} has the type {kind}, and routes read fields of type {_SHOWN_KINDS}; let the producer"
            " write another type",
            reason=Reason.BAD_SCHEMA,
        )
    return part.model_copy(update={"fields": tuple(field for field in fields if field.name == path[0])})


def message_names(form: SchemaFormat, writer: WriterSchema) -> Mapping[tuple[int, ...], str]:
    """Return the full names of the messages of a schema by their message indexes, and in an Avro union by their branches.

    Other schemas of Avro and JSON have one name, at (). A name is empty for a type without a name, as for a text that is no
    schema. An id never gets another schema, so its names stay.
    """
    match form:
        case SchemaFormat.PROTOBUF:
            try:
                declared = descriptors.read(base64.b64decode(writer.descriptors))
            except (ValueError, InvalidSpecError):
                return {}
            return {indexes: name for name, indexes in declared.indexes.items() if indexes}
        case SchemaFormat.AVRO:
            return {branch: without_surrogates(name) for branch, name in avro.full_names(writer.text).items()}
    return {(): without_surrogates(json_schema.title(writer.text))}


def _projection(by: str) -> Projection:
    source = member_paths.shown(path) if (path := _path(by)) else by
    return Projection(columns=(ProjectedColumn(name="route", type="string", source=source, cast="string"),))


def check_unchanged(before: RecordSchema, after: RecordSchema, by: str) -> None:
    """Check that two results of `value_schema` read the same value of each record. Raises InvalidSpecError (BadRoute).

    The contracts of a topic's tables change one after the other, and at different offsets. A value that only one of them can read
    would send its record to two tables, or to none.
    """
    if before == after:
        return  # the usual case, without parsing schemas
    if before.subject is not None or after.subject is not None:
        raise InvalidSpecError(
            f"{PLACE}: the routes read {by} with the registry, format and idIn of the contract in force, and these cannot change: a"
            " record could go to two tables, or to none; restore the schema, or create the IcebergTopic again with other table names",
            reason=Reason.BAD_ROUTE,
        )
    if SchemaFormat.JSON in (before.format, after.format):
        if before.fields != after.fields:
            old, new = _kind(before.fields, _path(by)), _kind(after.fields, _path(by))
            raise InvalidSpecError(
                f"{PLACE}: the routes read {by} as {old}, so that field cannot become {new}: a record could go to two tables, or to none; give the"
                f" field the type {old}, or create the IcebergTopic again with other table names",
                reason=Reason.BAD_ROUTE,
            )
    elif _encoding(before) != _encoding(after) or _changes(before, after):
        raise InvalidSpecError(
            f"{PLACE}: the routes read {by} with the schema of the contract in force, so its encoding cannot change: a record could go to two"
            " tables, or to none; restore spec.schema, or create the IcebergTopic again with other table names and by: header:NAME or key",
            reason=Reason.BAD_ROUTE,
        )


def _encoding(schema: RecordSchema) -> tuple[object, ...]:
    """Return what decides about the bytes of a value. In Protobuf, `protobuf.changes` compares the rest."""
    avro = schema.format is SchemaFormat.AVRO
    layout = [_without_notes(json.loads(text)) for text in (*schema.references, schema.text)] if avro else []
    return schema.format, schema.framing, schema.message, layout, _indexes(schema)


def _indexes(schema: RecordSchema) -> tuple[int, ...]:
    """Return the message indexes that a value must have before it; none if it may have any."""
    framed = schema.format is SchemaFormat.PROTOBUF and schema.framing == "Registry"
    return protobuf.indexes_of(schema) if framed and not schema.message else ()


def _without_notes(value: Any) -> Any:
    """Return an Avro schema as JSON without the parts that do not change the bytes of a value."""
    if isinstance(value, dict):
        return {key: _without_notes(each) for key, each in value.items() if key not in _NOTES}
    return [_without_notes(each) for each in value] if isinstance(value, list) else value


def _changes(before: RecordSchema, after: RecordSchema) -> list[str]:
    if after.format is not SchemaFormat.PROTOBUF:
        return []
    return protobuf.changes(protobuf.message_of(before), protobuf.message_of(after))


def _path(by: str) -> Path:
    """Return the path of a field; an empty one if the value is no field. Raises InvalidSpecError (BadRoute)."""
    try:
        return member_paths.parse(by) if by.startswith("$") else ()
    except member_paths.BadPathError as error:
        raise InvalidSpecError(f"{PLACE}: {error}", reason=Reason.BAD_ROUTE) from None


def _kind(fields: tuple[Column, ...], path: Path) -> Type | None:
    """Return the type at a path; None if the schema does not name it."""
    return types.at({field.name: types.parse(field.type) for field in fields}, path)


def _nested(members: Path, kind: Type) -> Type:
    for name in reversed(members):
        kind = Struct(((name, kind),))
    return kind
