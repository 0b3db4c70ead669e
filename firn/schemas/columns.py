"""The columns of a schema, whatever its format."""

import functools

from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, PartialSchema, RecordSchema, Rename, SchemaFormat
from firn.schemas import avro, json_schema, protobuf
from firn.tables import rows, types
from firn.tables.renames import renamed_columns

MOST_KEPT = 256
"""Avro schemas whose columns a process keeps. A driver compares all schemas of a topic each time that it prepares the topic."""
SMALL_TEXT = 8192
"""Most characters of a schema that is kept, so that a process keeps some megabytes at most."""


def columns_of(
    schema: RecordSchema, place: str, *, keep: bool = True, of_key: bool = False, any_names: bool = False
) -> tuple[Column, ...]:
    """Return the columns of a schema's text, and ``keep`` those of small Avro schemas in memory.

    ``of_key``: the schema is that of keys. ``any_names``: members of JSON can have names that no column can have.
    With a projection that drops other fields, only the fields that it reads have columns, and only they have to be valid.
    Raises InvalidSpecError (BadSchema) that names ``place``, cause and field.
    """
    try:
        if schema.format is SchemaFormat.JSON:
            found = _of_json(schema, of_key=of_key, any_names=any_names)
        else:
            found = _found(schema, keep=keep)
        every = schema.projection is None or schema.projection.keeps_others
        for column in found if every else ():
            if column.name.startswith("_kafka"):
                problem = (
                    "names that start with _kafka are reserved for Kafka's columns; let producers rename the field"
                )
                raise _bad_schema(f"field {column.name}: {problem}")
            if column.name.lower() == schema.unknown_column.lower():
                problem = "spec.schema.unknownFieldsColumn has this name, for all other members; let producers rename the field"
                raise _bad_schema(f"field {column.name}: {problem}")
        if every and len(found) > types.MOST_COLUMNS:
            raise _bad_schema(
                f"the schema has {len(found)} columns; a topic has at most {types.MOST_COLUMNS}; remove fields"
            )
    except InvalidSpecError as error:
        raise InvalidSpecError(f"{place}: {error}", reason=error.reason) from None
    except ValueError as error:
        # Any producer may register any text. Its topic decides what happens, and no other topic waits.
        raise InvalidSpecError(
            f"{place}: the schema cannot be read: {error}; correct the schema", reason=Reason.BAD_SCHEMA
        ) from error
    return found


def _found(schema: RecordSchema, *, keep: bool) -> tuple[Column, ...]:
    if schema.format is SchemaFormat.PROTOBUF:
        return protobuf.columns(protobuf.message_of(schema))
    if not keep or not _is_small(schema):
        return avro.columns(_record(schema, keep=keep), rows.read_fields(schema))
    return _kept_columns(schema.text, schema.references, schema.nanoseconds, schema.renames, rows.read_fields(schema))


def _of_json(schema: RecordSchema, *, of_key: bool, any_names: bool) -> tuple[Column, ...]:
    references = dict(zip(schema.names, schema.references, strict=True))
    wanted = json_schema.Wanted(
        read=rows.read_fields(schema),
        paths=rows.read_paths(schema),
        variants=schema.variants,
        any_names=any_names,
        keeps_others=bool(schema.unknown_column),
        of_key=of_key,
    )
    return renamed_columns(json_schema.columns(schema.text, references, wanted), schema.renames)


@functools.lru_cache(MOST_KEPT)
def _kept_columns(
    text: str, references: tuple[str, ...], nanoseconds: bool, renames: tuple[Rename, ...], read: frozenset[str] | None
) -> tuple[Column, ...]:
    return avro.columns(avro.renamed(_kept_record(text, references, nanoseconds, read), renames), read)


@functools.lru_cache(MOST_KEPT)
def _kept_record(text: str, references: tuple[str, ...], nanoseconds: bool, read: frozenset[str] | None) -> avro.Record:
    return avro.parse(text, references, nanoseconds=nanoseconds, read=read)


def _record(schema: RecordSchema, *, keep: bool = True) -> avro.Record:
    if keep and _is_small(schema):
        record = _kept_record(schema.text, schema.references, schema.nanoseconds, rows.read_fields(schema))
    else:
        read = rows.read_fields(schema)
        record = avro.parse(
            schema.text,
            schema.references,
            nanoseconds=schema.nanoseconds,
            read=read,
            paths=rows.read_members(schema),
        )
    return avro.renamed(record, schema.renames)


def _is_small(schema: RecordSchema) -> bool:
    """Return whether the columns of a schema are kept in memory."""
    return not isinstance(schema, PartialSchema) and len(schema.text) + sum(map(len, schema.references)) <= SMALL_TEXT


def aliases(schema: RecordSchema) -> tuple[Rename, ...]:
    """Return the renames that the aliases of an Avro text name, after those of the schema. Raises InvalidSpecError (BadSchema)."""
    if schema.format is not SchemaFormat.AVRO or all(
        '"aliases"' not in text for text in (schema.text, *schema.references)
    ):
        return ()
    return avro.aliases(_record(schema))


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(problem, reason=Reason.BAD_SCHEMA)
