"""Tables as a landing sees them, on the local disk."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg import types as iceberg
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import NestedField

from firn.model.jobs import Column, IngestJob
from firn.tables import rows, types
from firn_spark.worker.data_files import TableSpec


def iceberg_type(kind: types.Type) -> iceberg.IcebergType:
    match kind:
        case types.Decimal(precision, scale):
            return iceberg.DecimalType(precision, scale)
        case types.Fixed(length):
            return iceberg.FixedType(length)
        case types.ListOf(element):
            return iceberg.ListType(0, iceberg_type(element), element_required=False)
        case types.MapOf(key, value):
            return iceberg.MapType(0, iceberg_type(key), 0, iceberg_type(value), value_required=False)
        case types.Struct(fields):
            return iceberg.StructType(
                *(NestedField(0, name, iceberg_type(member), required=False) for name, member in fields)
            )
    names = {"boolean": "Boolean", "int": "Integer", "timestamptz": "Timestamptz", "uuid": "UUID"}
    iceberg_kind: iceberg.IcebergType = getattr(iceberg, names.get(kind.name, kind.name.capitalize()) + "Type")()
    return iceberg_kind


def iceberg_schema(columns: tuple[Column, ...]) -> Schema:
    fields = (
        NestedField(0, column.name, iceberg_type(types.parse(column.type)), required=column.required)
        for column in columns
    )
    return assign_fresh_schema_ids(Schema(*fields))


def table_spec(directory: Path, columns: tuple[Column, ...], **changes: Any) -> TableSpec:
    given = {
        "schema": iceberg_schema(columns).model_dump_json(),
        "partition_spec": PartitionSpec().model_dump_json(),
        "sort_order": UNSORTED_SORT_ORDER.model_dump_json(),
        "location": directory.as_uri(),
    }
    return TableSpec(**(given | changes))


def table_of(job: IngestJob, directory: Path, **changes: Any) -> TableSpec:
    return table_spec(directory, rows.table_columns(job.record_schema, job.table.metadata_columns), **changes)


def dead_letters(directory: Path) -> TableSpec:
    return table_spec(directory, rows.dead_letter_columns())


def results(batches: Any) -> dict[str, dict[str, list[Any]]]:
    """Return the result rows of a landing by topic and kind."""
    by_topic: dict[str, dict[str, list[Any]]] = {}
    for batch in batches:
        for row in batch.to_pylist():
            by_topic.setdefault(row["topic"], {}).setdefault(row["kind"], []).append(json.loads(row["json"]))
    return by_topic


def read(descriptors: list[Any]) -> list[dict[str, Any]]:
    paths = [file["file-path"].removeprefix("file://") for file in descriptors]
    return [row for path in paths for row in pq.read_table(path, partitioning=None).to_pylist()]


def files_in(directory: Path) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file()]
