"""Columns of a table: their fields, those that another one replaced, and those that Spark cannot read.

Data files name their columns by field id, and a column that comes again has another id.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError
from firn.model.jobs import IngestJob
from firn.schemas import other_clients
from firn.schemas.other_clients import SCHEMA_ID, Followed
from firn.tables import rows
from firn.tables.renames import Fields
from firn_spark.jvm import elements, texts
from firn_spark.tables.java_errors import JAVA_ERRORS


def fields(jvm: Any, schema: Any) -> Fields:
    """Return the fields of a Java schema in the JSON of Iceberg's specification."""
    found: Fields = json.loads(jvm.org.apache.iceberg.SchemaParser.toJson(schema))["fields"]
    return found


def needed_ids(table: Any) -> set[int]:
    """Return the field ids that partitionings, sort orders and the identity of rows need, also earlier ones."""
    layouts = (*table.specs().values(), *table.sortOrders().values())
    sources = {int(field.sourceId()) for each in layouts for field in elements(each.fields().iterator())}
    return sources | {int(number) for number in table.schema().identifierFieldIds()}


def followed(jvm: Any, table: Any, job: IngestJob) -> Followed:
    """Return the names of the table's columns after changes of other clients, from the metadata that ``table`` has in memory.

    Raises ConflictError (SchemaIncompatible) that names the table if they are ambiguous.
    """
    properties, current = texts(table.properties()), int(table.schema().schemaId())
    schemas = {current: fields(jvm, table.schema())}
    known = properties.get(SCHEMA_ID, "")
    if known.isdecimal() and int(known) != current:
        earlier = table.schemas().get(int(known))
        if earlier is not None:
            schemas[int(known)] = fields(jvm, earlier)
    wanted = [column.name for column in rows.schema_columns(job.record_schema)]
    try:
        return other_clients.followed(schemas, current, properties, wanted, job.record_schema.key)
    except InvalidSpecError as error:
        raise ConflictError(f"table {job.table.identifier}: {error}", reason=Reason.SCHEMA_INCOMPATIBLE) from None


def replaced_column(written: str, current: str) -> str | None:
    """Return a column of the schema ``written`` that has another field id in the schema ``current``, else None.

    Both are Iceberg's JSON. A data file with the former id has no values for the column that has the name now. A
    column that was only dropped or renamed is not replaced.
    """
    present = dict(_ids(json.loads(current)))
    return next((name for name, field_id in _ids(json.loads(written)) if present.get(name, field_id) != field_id), None)


def unreadable_column(jvm: Any, table: Any) -> tuple[str, str] | None:
    """Return the name and the type of a column because of which Spark refuses the whole table (Java); None without one."""
    for column in elements(table.schema().columns().iterator()):
        try:
            jvm.org.apache.iceberg.spark.SparkSchemaUtil.convert(column.type())
        except JAVA_ERRORS:
            return str(column.name()), str(column.type())
    return None


def _ids(node: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Yield the full name and the id of each field below a type of Iceberg's JSON."""
    if not isinstance(node, Mapping):
        return
    for field in node.get("fields", ()):
        name = f"{path}.{field['name']}" if path else field["name"]
        yield name, field["id"]
        yield from _ids(field["type"], name)
    for part in ("element", "key", "value"):
        if part in node:
            yield f"{path}.{part}", node[f"{part}-id"]
            yield from _ids(node[part], f"{path}.{part}")
