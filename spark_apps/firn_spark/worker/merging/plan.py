"""The contract between the driver and a task that merges data files."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from firn_spark.worker.data_files import TableSpec


class Kind(StrEnum):
    """The meaning of a result row's text."""

    FILE = "file"
    """A data file, for ``org.apache.iceberg.ContentFileParser.fromJson``."""
    UNFIT = "unfit"
    """The reason why the task cannot merge the files. The task has deleted the files that it wrote."""


class UnfitError(Exception):
    """A file that Spark has to rewrite, because the task would not preserve its content. The text is the reason."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A Parquet file to merge."""

    path: str
    bytes: int
    records: int
    sequence: int
    """Data sequence number."""
    first_row_id: int | None = None
    """Id of the first row, for rows without a stored one."""


@dataclass(frozen=True, slots=True)
class MergePlan:
    """Files of one partition that become ``outputs`` files; picklable."""

    table: TableSpec
    files: tuple[SourceFile, ...]
    outputs: int
    partition: tuple[Any, ...]
    """The partition's values, as in `firn_spark.worker.partitioning.Part`."""
    partition_path: str
    lineage: bool
    """True for tables of format 3: the new files store row ids and the sequence numbers of the last updates."""
