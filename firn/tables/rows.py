"""Columns of tables: those of Kafka beside those of the schema, and those of dead-letter tables."""

from firn.model.jobs import Column, KeySchema, RecordSchema, SchemaFormat
from firn.tables import types
from firn.tables.types import ListOf, Primitive, Struct

HEADERS = ListOf(Struct((("key", Primitive("string")), ("value", Primitive("binary")))))
METADATA: tuple[tuple[str, types.Type], ...] = (
    ("partition", Primitive("int")),
    ("offset", Primitive("long")),
    ("timestamp", Primitive("timestamptz")),
    ("timestamp_ms", Primitive("long")),
    ("timestamp_type", Primitive("int")),
    ("key", Primitive("binary")),
    ("headers", HEADERS),
)
SCHEMA_ID = ("schema_id", Primitive("int"))
"""The id of the schema in a schema registry that a value was written with. Null without one."""
METADATA_COLUMN = "_kafka"
KEY_COLUMN = "key"
"""The column of the key, and the prefix of its columns."""


def metadata_columns(shape: str, *, schema_ids: bool = False) -> tuple[Column, ...]:
    """Return Kafka's columns: one struct (``Struct``), or columns named ``_kafka_...`` (``Flat``).

    ``schema_ids``: with `SCHEMA_ID`, which only tables of topics with a schema registry have.
    """
    members = (*METADATA, SCHEMA_ID) if schema_ids else METADATA
    if shape == "Struct":
        return (Column(name=METADATA_COLUMN, type=str(Struct(members))),)
    return tuple(Column(name=f"{METADATA_COLUMN}_{name}", type=str(kind)) for name, kind in members)


def schema_columns(schema: RecordSchema) -> tuple[Column, ...]:
    """Return the columns for record values."""
    if schema.format is SchemaFormat.RAW:
        kind = "string" if schema.raw_as == "String" else "binary"
        return (Column(name="key", type=kind), Column(name="value", type=kind))
    return schema.fields


def key_columns(key: KeySchema | None) -> tuple[Column, ...]:
    """Return the columns for record keys."""
    if key is None:
        return ()
    if key.columns == "Flat":
        return tuple(field.model_copy(update={"name": f"{KEY_COLUMN}_{field.name}"}) for field in key.fields)
    kind = "binary"
    if key.columns == "Struct":
        kind = str(Struct(tuple((field.name, types.parse(field.type)) for field in key.fields)))
    return (Column(name=KEY_COLUMN, type=kind),)


def table_columns(schema: RecordSchema, shape: str) -> tuple[Column, ...]:
    """Return all columns of a topic's table, in order: those of the schema, of the key, then Kafka's."""
    return (
        schema_columns(schema)
        + key_columns(schema.key)
        + metadata_columns(shape, schema_ids=schema.subject is not None)
    )


def dead_letter_columns() -> tuple[Column, ...]:
    """Return all columns of a dead-letter table, in order."""
    text = ("error_code", "error_stage", "error_path", "error_detail")
    return (
        *(Column(name=name, type="string") for name in text),
        Column(name="key", type="binary"),
        Column(name="value", type="binary"),
        Column(name="generation", type="long"),
        Column(name="ingested_at", type="timestamptz"),
        *metadata_columns("Struct"),
    )


DEAD_LETTER_PARTITION = "day(ingested_at)"
