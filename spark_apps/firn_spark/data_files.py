"""Arrow tables to Parquet data files of an Iceberg table, and the descriptors that a commit needs."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TableSpec:
    """A table as a writer sees it: plain data that the driver takes from the Java table.

    ``schema``, ``partition_spec`` and ``sort_order`` are Iceberg's JSON (``SchemaParser.toJson(table.schema())``,
    ``PartitionSpecParser.toJson(table.spec())``, ``SortOrderParser.toJson(table.sortOrder())``), ``io`` is
    ``table.io().properties()``.
    """

    schema: str
    partition_spec: str
    sort_order: str
    location: str
    properties: Mapping[str, str] = field(default_factory=dict)
    io: Mapping[str, str] = field(default_factory=dict)
