"""Columns of tables: those of Kafka beside those of the schema, and those of dead-letter tables."""

from collections.abc import Mapping, Sequence

from firn.member_paths import Path
from firn.model.jobs import Column, KeySchema, PartialSchema, RecordSchema, Rename, SchemaFormat, TableTarget
from firn.tables import renames, types
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
OF_SHARED = (("topic", Primitive("string")), ("topic_id", Primitive("string")))
"""Name and id of the topic of a row. Only tables that several topics share have them."""
METADATA_COLUMN = "_kafka"
VALUE_COLUMN = "value"
"""The column of raw values."""
KEY_COLUMN = "key"
"""The column of the key, and the prefix of its columns."""


def metadata_columns(shape: str, *, schema_ids: bool = False, shared: bool = False) -> tuple[Column, ...]:
    """Return Kafka's columns: one struct (``Struct``), or columns named ``_kafka_...`` (``Flat``).

    ``schema_ids``: with `SCHEMA_ID`, which only tables of topics with a schema registry have. ``shared``: with it and `OF_SHARED`,
    so that all topics of a shared table have the same columns here.
    """
    members = (*METADATA, SCHEMA_ID, *OF_SHARED) if shared else (*METADATA, SCHEMA_ID) if schema_ids else METADATA
    if shape == "Struct":
        return (Column(name=METADATA_COLUMN, type=str(Struct(members))),)
    return tuple(Column(name=f"{METADATA_COLUMN}_{name}", type=str(kind)) for name, kind in members)


def record_columns(shape: str) -> tuple[str, ...]:
    """Return the columns of raw records from which brokers make records: partition, offset, time, key, value and headers."""
    names = [
        f"{METADATA_COLUMN}{'.' if shape == 'Struct' else '_'}{name}"
        for name in ("partition", "offset", "timestamp_ms", "key", "headers")
    ]
    return (*names[:4], VALUE_COLUMN, names[4])


def decoded_columns(schema: RecordSchema) -> tuple[Column, ...]:
    """Return the columns into which the format decodes records."""
    if schema.format is SchemaFormat.RAW:
        kind = "string" if schema.raw_as == "String" else "binary"
        return (Column(name="key", type=kind), Column(name="value", type=kind))
    if schema.unknown_column:
        return (*schema.fields, Column(name=schema.unknown_column, type=types.VARIANT))
    return schema.fields


def other_columns(schema: RecordSchema) -> tuple[Column, ...]:
    """Return the decoded columns that a table has beside those of the projection: the ones that it does not read."""
    projection = schema.projection
    if projection is None or not projection.keeps_others:
        return ()
    raw = schema.format is SchemaFormat.RAW
    read = {column.source if raw else column.field for column in projection.columns}
    read |= {renames.moved((name,), schema.renames)[0] for name in read}
    return tuple(column for column in decoded_columns(schema) if column.name not in read)


def read_fields(schema: RecordSchema) -> frozenset[str] | None:
    """Return the earlier and later names of the fields that columns read. None if each field is a column, or if no column reads a field.

    Other fields need not be able to become columns, and decoders pass over their values.
    """
    if schema.projection is None or schema.projection.keeps_others:
        return None
    return frozenset(path[0] for path in read_paths(schema)) or None


def read_paths(schema: RecordSchema) -> frozenset[Path]:
    """Return the earlier and later paths of the fields, and of their members, that columns read."""
    columns = schema.projection.columns if schema.projection is not None else ()
    paths = {column.path for column in columns if column.path}
    paths |= {renames.moved(path, schema.renames) for path in paths}
    return frozenset(earlier for path in paths for earlier in renames.origins(path, schema.renames))


def read_members(schema: RecordSchema) -> frozenset[Path] | None:
    """Return the paths of `read_paths` if only these members of a field have to be able to become columns, else None."""
    return read_paths(schema) if isinstance(schema, PartialSchema) else None


def column_renames(schema: RecordSchema, wanted: Sequence[Rename]) -> tuple[Rename, ...]:
    """Return those renames of fields that rename a column of the table. A computed column keeps its name."""
    if schema.projection is None:
        return tuple(wanted)
    names = {column.name for column in other_columns(schema)}
    return tuple(each for each in wanted if not names.isdisjoint((each.old_path[0], each.new_path[0])))


def schema_columns(schema: RecordSchema) -> tuple[Column, ...]:
    """Return the columns for records: those of the projection if there is one, else the decoded ones.

    A projected column whose type is not known yet is left out.
    """
    if schema.projection is None:
        return decoded_columns(schema)
    listed = (
        Column(name=column.name, type=column.type, required=column.required, doc=column.doc)
        for column in schema.projection.columns
        if column.type
    )
    return (*listed, *other_columns(schema))


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


def fields_of_key(key: KeySchema, present: Mapping[str, str], of_values: Sequence[Column]) -> Mapping[str, str]:
    """Return the types that the columns of a table, ``present``, have for the fields of keys.

    ``of_values`` are the columns of values, which may begin like those of the key.
    """
    if key.columns == "Struct":
        kind = types.parse(present[KEY_COLUMN]) if KEY_COLUMN in present else Struct(())
        return {name: str(member) for name, member in kind.fields} if isinstance(kind, Struct) else {}
    prefix, taken = f"{KEY_COLUMN}_", {column.name for column in of_values}
    names = [name for name in present if name.startswith(prefix) and name not in taken]
    return {name.removeprefix(prefix): present[name] for name in names}


def table_columns(schema: RecordSchema, shape: str, *, shared: bool = False) -> tuple[Column, ...]:
    """Return all columns of a topic's table, in order: those of the schema, of the key, then Kafka's."""
    return (
        schema_columns(schema)
        + key_columns(schema.key)
        + metadata_columns(shape, schema_ids=schema.subject is not None, shared=shared)
    )


def columns_of_table(schema: RecordSchema, target: TableTarget) -> tuple[Column, ...]:
    """Return `table_columns` of a topic and its table."""
    return table_columns(schema, target.metadata_columns, shared=target.shared)


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
