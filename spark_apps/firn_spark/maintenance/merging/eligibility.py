"""Decides which rewrites are plain merges that tasks do with Arrow. All other rewrites use Spark."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from firn_spark.worker.data_files import ParquetSettings, arrow_schema
from firn_spark.worker.table_types.written import written_schema

JAVA_FILE_SETTINGS = (
    "s3.sse.", "s3.acl", "s3.write.", "s3.delete.", "s3.remote-signing", "gcs.encryption", "gcs.decryption",
    "adls.encryption",
)  # fmt: skip
"""Beginnings of properties for new objects that Iceberg's FileIO follows, and pyarrow does not."""
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
    file_settings: frozenset[str] = frozenset()
    """Names of the properties of the table's FileIO."""
    void_partition: bool = False
    """True if all fields of the partition spec were dropped, and stay as ``void``."""


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
        return "the strategy or the table sorts rows"
    if filtered:
        return "the rewrite filters rows"
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
    if table.void_partition:
        return "all fields of the partition spec were dropped"
    if setting := next((name for name in sorted(table.file_settings) if name.startswith(JAVA_FILE_SETTINGS)), ""):
        return f"tasks cannot follow {setting} of the catalog"
    if properties.get("write.format.default", "parquet").lower() != "parquet":
        return "the table's files are not Parquet"
    if properties.get("encryption.key-id"):
        return "the table is encrypted"
    if properties.get("write.location-provider.impl"):
        return "write.location-provider.impl is set"
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
        found = written_schema(schema)
        arrow = arrow_schema(found.schema)
    except ValueError as error:
        return f"a type of the table is not supported: {str(error).splitlines()[0]}"
    if found.left_out:
        return (
            f"a type of the table is not supported: column {found.left_out[0][0]} has the type {found.left_out[0][1]}"
        )
    if any("." in name for name in arrow.names) or len(set(arrow.names)) != len(arrow.names):
        return "column names contain a dot or occur twice"
    return ""


def _has_default(kind: object) -> bool:
    """Return whether a column has an initial default, which files without the column need."""
    if isinstance(kind, dict):
        return kind.get("initial-default") is not None or any(_has_default(value) for value in kind.values())
    return isinstance(kind, list) and any(_has_default(value) for value in kind)
