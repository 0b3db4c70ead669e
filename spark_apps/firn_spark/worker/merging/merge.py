"""Merges data files inside a Spark task: rows stream from Parquet to Parquet through Arrow, and never become objects.

The result is a few small rows for the driver, which alone commits. No table refers to the files of a failed task.
"""

import contextlib
from collections import Counter
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from firn_spark.worker import row_groups
from firn_spark.worker.data_files import (
    Locations,
    Metrics,
    ParquetSettings,
    TableFileIO,
    arrow_io_properties,
    descriptor,
    encodings,
    nans,
    parquet_paths,
)
from firn_spark.worker.merging.columns import merged_schema
from firn_spark.worker.merging.plan import Kind, MergePlan, UnfitError
from firn_spark.worker.merging.reading import Sources
from firn_spark.worker.table_types import annotations

HELD_BYTES = 64 * 1024 * 1024
"""Most bytes of rows in memory for a row group."""
_MESSAGE_LIMIT = 500
FOLDED = 1024
"""Number of batches after which the held dictionaries are unified. Otherwise memory would hold one for each batch."""


def merge(plans: Iterator[MergePlan]) -> Iterator[tuple[str, str]]:
    """Merge the files of each plan and yield pairs of a `Kind` and its text.

    After a failure, the task deletes the files that it wrote, and the driver rewrites the files with Spark. Spark reads
    what Arrow cannot read, and reports the cause if the store fails.
    """
    for plan in plans:
        yield from _results(plan)


def _results(plan: MergePlan) -> list[tuple[str, str]]:
    merger: _Merger | None = None
    try:
        merger = _Merger(plan)
        return [(Kind.FILE, text) for text in merger.run()]
    except BaseException as error:
        if merger is not None:
            merger.discard()
        if not isinstance(error, Exception):
            raise
        text = str(error) if isinstance(error, UnfitError) else f"{type(error).__name__}: {error}"
        return [(Kind.UNFIT, text[:_MESSAGE_LIMIT])]


class _Merger:
    """The merge of one plan: held rows, and the file that is being written."""

    def __init__(self, plan: MergePlan) -> None:
        self._plan = plan
        self._sources = Sources(plan)
        self._parquet = ParquetSettings.from_properties(plan.table.properties)
        self._locations = Locations(plan.table)
        self._io = TableFileIO(arrow_io_properties(plan.table.io))
        self._spec_id = PartitionSpec.model_validate_json(plan.table.partition_spec).spec_id
        self._schema = merged_schema(plan.table.schema)
        self._written: list[str] = []
        self._held: list[pa.Table] = []
        self._held_bytes = 0
        self._file: _NewFile | None = None

    def run(self) -> list[str]:
        """Write the files and return their descriptors."""
        share = max(1, -(-sum(file.records for file in self._plan.files) // self._plan.outputs))
        left, descriptors = share, []
        with contextlib.ExitStack() as open_file:
            open_file.callback(self._abandon)
            for rows in self._sources.tables():
                while rows.num_rows:
                    piece, rows = rows.slice(0, left), rows.slice(left)
                    left -= piece.num_rows
                    self._hold(piece)
                    if not left:
                        descriptors.append(self._finish())
                        left = share
            if self._held or self._file is not None:
                descriptors.append(self._finish())
        return descriptors

    def discard(self) -> None:
        """Delete the files written so far, as far as possible."""
        for path in self._written:
            with contextlib.suppress(OSError):
                self._io.delete(path)

    def _hold(self, rows: pa.Table) -> None:
        self._held.append(rows)
        self._held_bytes += rows.nbytes
        if len(self._held) >= FOLDED:
            self._held = [_concatenated(self._held).unify_dictionaries().combine_chunks()]
            self._held_bytes = self._held[0].nbytes
        if self._held_bytes >= min(HELD_BYTES, self._parquet.row_group_bytes):
            self._flush()

    def _flush(self) -> None:
        """Write the held rows as a row group."""
        if not self._held:
            return
        rows = _concatenated(self._held).unify_dictionaries()
        self._held, self._held_bytes = [], 0
        if self._file is None:
            self._sources.dictionary &= self._repeating(rows)
            rows = self._decoded(rows)
            path = self._locations.new_path(self._plan.partition_path, self._parquet.suffix)
            self._written.append(path)
            self._file = _NewFile(path, self._io, rows, self._schema, self._parquet)
        rows = self._decoded(rows)
        for part in row_groups.by_partition(rows) if self._parquet.by_partition else [rows]:
            self._file.write(part)

    def _finish(self) -> str:
        """Close the file and return its descriptor."""
        self._flush()
        assert self._file is not None
        size, metadata, nans = self._file.close()
        path, self._file = self._file.path, None
        metrics = Metrics(self._schema, self._plan.table.properties).collect(metadata, nans)
        return descriptor(self._spec_id, path, self._plan.partition, size, metrics)

    def _abandon(self) -> None:
        if self._file is not None:
            with contextlib.suppress(Exception):
                self._file.close()

    def _repeating(self, rows: pa.Table) -> set[str]:
        """Return the columns whose dictionaries pay off in a file."""
        limit = self._parquet.options["dictionary_pagesize_limit"]
        repeating = set()
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if pa.types.is_dictionary(column.type) and column.num_chunks:
                values = column.chunk(0).dictionary
                if len(values) * 2 <= rows.num_rows and values.nbytes <= limit:
                    repeating.add(name)
        return repeating

    def _decoded(self, rows: pa.Table) -> pa.Table:
        return _without_dictionaries(rows, set(rows.column_names) - self._sources.dictionary)


class _NewFile:
    """A Parquet file that is being written. ``rows`` show the types of its columns."""

    def __init__(self, path: str, io: PyArrowFileIO, rows: pa.Table, schema: Schema, parquet: ParquetSettings) -> None:
        self.path = path
        self._nans: Counter[int] = Counter()
        paths = [*parquet_paths(schema), *rows.column_names[len(schema.fields) :]]
        self._arrow = rows.schema
        self._sink = annotations.opened(io.new_output(path).create(overwrite=True), schema)
        options = encodings(paths, rows, rows.nbytes, parquet) | parquet.options
        self._writer = pq.ParquetWriter(self._sink, self._arrow, **options)

    def write(self, rows: pa.Table) -> None:
        """Write the rows as a row group. A column keeps the encoding of the first row group."""
        columns = [
            column if column.type == field.type else column.cast(field.type)
            for column, field in zip(rows.columns, self._arrow, strict=True)
        ]
        rows = pa.table(columns, schema=self._arrow)
        self._nans.update(nans(rows))
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))

    def close(self) -> tuple[int, pq.FileMetaData, Counter[int]]:
        """Write the footer and return size, metadata, and numbers of NaN values by field id."""
        with self._sink:
            annotations.complete(self._writer, self._sink)
            size = self._sink.tell()
        return int(size), self._writer.writer.metadata, self._nans


def _concatenated(tables: list[pa.Table]) -> pa.Table:
    """Concatenate tables, of which some may have columns with dictionaries that others have without."""
    if len({tuple(table.schema.types) for table in tables}) > 1:
        tables = [_without_dictionaries(table, set(table.column_names)) for table in tables]
    return pa.concat_tables(tables)


def _without_dictionaries(rows: pa.Table, names: set[str]) -> pa.Table:
    """Return the rows with plain values in these columns."""
    for place, field in enumerate(rows.schema):
        if field.name in names and pa.types.is_dictionary(field.type):
            column = rows.column(place).cast(field.type.value_type)
            rows = rows.set_column(place, field.with_type(column.type), column)
    return rows
