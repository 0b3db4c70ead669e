"""Names the columns of a table that have the parts of records, so that brokers can rebuild the records."""

from collections.abc import Iterator
from typing import Any

from firn.driver_requests.landed_offsets import RECORD, MemberField, RecordFields
from firn.model.errors import NotReadyError
from firn.model.jobs import IngestJob, SchemaFormat
from firn.tables import renames, rows
from firn.tables.renames import Fields, FormerNames
from firn_spark.tables.java_tables import Tables

MOST_MEMBER_BYTES = 400_000
"""Bytes of the members in a request."""
_MEMBER_BYTES = 30
"""Bytes of a member in a request without its name."""


def record_fields(table: Any, metadata_columns: str, format: SchemaFormat) -> RecordFields:
    """Return the ids of the columns with the parts of a record. Raises NotReadyError if the table lacks one."""
    if format not in (SchemaFormat.RAW, SchemaFormat.JSON):
        raise NotReadyError(f"table {table.name()}: brokers cannot rebuild values in {format}")
    has_values = format is SchemaFormat.RAW
    schema, ids = table.schema(), list[int]()
    for name in rows.record_columns(metadata_columns):
        if name == rows.VALUE_COLUMN and not has_values:
            continue
        found = schema.findField(name)
        if found is None:
            raise NotReadyError(
                f"table {table.name()}: brokers need column {name} to rebuild records; add it to the schema"
            )
        ids.append(int(found.fieldId()))
    if has_values:
        return RecordFields(*ids)
    partition, offset, time, key, headers = ids
    return RecordFields(partition, offset, time, key, None, headers)


def member_fields(tables: Tables, table: Any, job: IngestJob) -> tuple[MemberField, ...]:
    """Return the columns of the members of JSON values, under all names that they had. Raises NotReadyError for too many names."""
    fields, former = tables.names(table)
    others = (
        *rows.key_columns(job.record_schema.key),
        *rows.metadata_columns(job.table.metadata_columns, schema_ids=True),
    )
    names = {column.name for column in others}
    found = tuple(_named(RECORD, [field for field in fields if field["name"] not in names], former))
    size = sum(len(each.name.encode()) + _MEMBER_BYTES for each in found)
    if size > MOST_MEMBER_BYTES:
        raise NotReadyError(
            f"table {table.name()}: the names of {len(found)} members do not fit into a request to brokers ({size} bytes, at most"
            f" {MOST_MEMBER_BYTES}); set spec.storage.history to Copy"
        )
    return found


def _named(parent: int, fields: Fields, former: FormerNames) -> Iterator[MemberField]:
    for field in fields:
        for name in (field["name"], *former.get(field["id"], ())):
            yield MemberField(parent, name, field["id"])
        yield from _inside(field, former)


def _inside(field: dict[str, Any], former: FormerNames) -> Iterator[MemberField]:
    """Yield the members of objects inside a column."""
    inner = renames.parts(field["type"])
    if isinstance(field["type"], dict) and field["type"]["type"] == "struct":
        yield from _named(field["id"], inner, former)
        return
    for each in inner:
        yield from _inside(each, former)
