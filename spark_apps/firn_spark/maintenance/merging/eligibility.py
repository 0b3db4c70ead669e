"""Decides which rewrites are plain merges that tasks do with Arrow. Spark does all others."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.schema import Schema

from firn_spark.worker.data_files import ParquetSettings, arrow_schema

LARGEST_ROW_GROUPS = 512 * 1024 * 1024
"""Largest ``write.parquet.row-group-size-bytes`` of a table whose files tasks merge."""


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts about a table for the decision. ``schema`` is Iceberg's JSON."""

    format_version: int
    spec_id: int
    sorted: bool
    schema: str
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Facts about a file for the decision."""

    format: str
    spec_id: int
    delete_files: int
    encrypted: bool
    has_row_ids: bool


def obstacle(table: TableFacts, files: Sequence[FileFacts], strategy: str, filtered: bool) -> str:
    """Return why Spark has to rewrite the files; an empty text if tasks can merge them.

    ``strategy`` is that of the policy. ``filtered``: only rows that match a condition stay.
    """
    if strategy != "BinPack" or table.sorted:
        return "rows are sorted"
    if filtered:
        return "rows are dropped"
    return _table_obstacle(table) or next(filter(None, (_file_obstacle(table, file) for file in files)), "")


def _file_obstacle(table: TableFacts, file: FileFacts) -> str:
    if file.format.lower() != "parquet":
        return f"a file has format {file.format}"
    if file.spec_id != table.spec_id:
        return "a file has another partition spec than the table"
    if file.delete_files:
        return "rows of a file were deleted"
    if file.encrypted:
        return "a file is encrypted"
    if table.format_version >= 3 and not file.has_row_ids:
        return "the rows of a file have no row ids"
    return ""


def _table_obstacle(table: TableFacts) -> str:
    properties = table.properties
    if properties.get("write.format.default", "parquet").lower() != "parquet":
        return "the table's files are not Parquet"
    if properties.get("encryption.key-id"):
        return "the table is encrypted"
    if properties.get("write.location-provider.impl"):
        return "the table has its own location provider"
    for key, value in properties.items():
        if key.startswith("write.parquet.bloom-filter-enabled.") and value.lower() == "true":
            return "the table's files have bloom filters"
    try:
        if ParquetSettings.from_properties(properties).row_group_bytes > LARGEST_ROW_GROUPS:
            return "the table's row groups are too large"
    except ValueError as error:
        return str(error)
    return _schema_obstacle(table.schema)


def _schema_obstacle(schema: str) -> str:
    if _has_default(json.loads(schema)):
        return "a column has a default for rows that were written before it"
    try:
        arrow = arrow_schema(Schema.model_validate_json(schema))
    except ValueError as error:
        return f"a type of the table is not supported: {str(error).splitlines()[0]}"
    if any("." in name for name in arrow.names) or len(set(arrow.names)) != len(arrow.names):
        return "a column's name contains a dot"
    return ""


def _has_default(kind: object) -> bool:
    """Return whether a column has an initial default, which files without the column need."""
    if isinstance(kind, dict):
        return kind.get("initial-default") is not None or any(_has_default(value) for value in kind.values())
    return isinstance(kind, list) and any(_has_default(value) for value in kind)
