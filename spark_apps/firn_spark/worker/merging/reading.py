"""Reads the files of a merge as a stream of Arrow tables in the current schema of the table.

Memory holds a batch of rows. It also holds the compressed bytes of one row group, or of a few small files that are read
ahead.
"""

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import IdentityTransform

from firn_spark.worker.data_files import TableFileIO, arrow_io_properties, arrow_schema, field_id
from firn_spark.worker.merging.columns import (
    LAST_UPDATED,
    LINEAGE,
    ROW_ID,
    fitted,
    identified,
    mapped_names,
    merged_schema,
)
from firn_spark.worker.merging.plan import MergePlan, SourceFile, UnfitError

BATCH_ROWS = 65_536
NESTED_BATCH_ROWS = 1024
"""Rows of a batch with texts in structs, lists or maps. These are read without their dictionaries, so their size in the
file says little."""
BATCH_BYTES = 32 * 1024 * 1024
"""Bytes of a batch, by the size of its row group."""
GROUP_BYTES = 1024 * 1024 * 1024
"""Largest row group, decompressed, that a task reads."""
WHOLE_BYTES = 8 * 1024 * 1024
"""Files up to this size are read with one request, and ahead of their turn."""
AHEAD = 4
"""Number of small files that are read ahead."""
BUFFERED_BYTES = 64 * 1024 * 1024
"""Row groups with more compressed bytes are read through buffers, the others at once."""
BUFFER = 8 * 1024 * 1024


class Sources:
    """The files of a plan. ``dictionary`` names the columns that are read with their dictionaries. The caller may
    remove names from it."""

    def __init__(self, plan: MergePlan) -> None:
        self._plan = plan
        self._schema = merged_schema(plan.table.schema)
        self._table = arrow_schema(self._schema)
        self._ids = {column.field_id: field for column, field in zip(self._schema.fields, self._table, strict=True)}
        self._names = mapped_names(plan.table.properties)
        spec = PartitionSpec.model_validate_json(plan.table.partition_spec)
        self._constants = {part.source_id for part in spec.fields if isinstance(part.transform, IdentityTransform)}
        self._io = TableFileIO(arrow_io_properties(plan.table.io))
        self.dictionary = {
            field.name for field in self._table if pa.types.is_string(field.type) or pa.types.is_binary(field.type)
        }
        self.schema = pa.schema([*self._table, *LINEAGE]) if plan.lineage else self._table

    def tables(self) -> Iterator[pa.Table]:
        """Yield the rows of all files in order. Raises UnfitError for a file that Spark has to rewrite, OSError if
        the store fails."""
        for source, content in self._opened():
            position = 0
            for batch in self._batches(content, source):
                rows = pa.Table.from_batches([batch])
                yield self._fitted(rows, source, position)
                position += len(batch)

    def _opened(self) -> Iterator[tuple[SourceFile, pa.NativeFile]]:
        waiting = deque(self._plan.files)
        reading: deque[tuple[SourceFile, Future[pa.NativeFile]]] = deque()
        with ThreadPoolExecutor(AHEAD) as threads:
            try:
                while waiting or reading:
                    while waiting and len(reading) < AHEAD:
                        source = waiting.popleft()
                        reading.append((source, threads.submit(self._open, source)))
                    source, opened = reading.popleft()
                    with opened.result() as content:
                        yield source, content
            finally:
                for _, future in reading:
                    future.cancel()

    def _open(self, source: SourceFile) -> pa.NativeFile:
        content = self._io.new_input(source.path).open()
        if source.bytes > WHOLE_BYTES:
            return content
        with content:
            return pa.BufferReader(content.read())

    def _batches(self, content: pa.NativeFile, source: SourceFile) -> Iterator[pa.RecordBatch]:
        # The schema decides which columns are read with dictionaries, so the metadata is parsed first and reused.
        metadata = pq.read_metadata(content)
        if metadata.num_rows != source.records:
            raise UnfitError(
                f"file {source.path}: it has {metadata.num_rows} rows, and the metadata of its table says {source.records}"
            )
        schema = metadata.schema.to_arrow_schema()
        columns = self._columns(schema, source)
        dictionary = [name for name in columns if name in self._dictionary_names(schema)]
        most = NESTED_BATCH_ROWS if any(_has_nested_text(schema.field(name).type) for name in columns) else BATCH_ROWS
        for place in range(metadata.num_row_groups):
            group = metadata.row_group(place)
            if group.total_byte_size > GROUP_BYTES:
                raise UnfitError(
                    f"file {source.path}: a row group has {group.total_byte_size} bytes, more than {GROUP_BYTES}"
                )
            compressed = sum(group.column(column).total_compressed_size for column in range(group.num_columns))
            file = pq.ParquetFile(
                content,
                metadata=metadata,
                read_dictionary=dictionary,
                pre_buffer=compressed <= BUFFERED_BYTES,
                buffer_size=0 if compressed <= BUFFERED_BYTES else BUFFER,
            )
            rows = max(1, min(most, BATCH_BYTES * group.num_rows // max(1, group.total_byte_size)))
            yield from file.iter_batches(rows, row_groups=[place], columns=columns, use_threads=False)

    def _dictionary_names(self, schema: pa.Schema) -> set[str]:
        """Return the names in the file of the columns to read with dictionaries."""
        places = identified(schema, self._names)
        wanted = {number for number, field in self._ids.items() if field.name in self.dictionary}
        return {
            schema.field(place).name
            for number, place in places.items()
            if number in wanted
            and (pa.types.is_string(schema.field(place).type) or pa.types.is_binary(schema.field(place).type))
        }

    def _columns(self, schema: pa.Schema, source: SourceFile) -> list[str]:
        """Return the names in the file of the columns to read. Raises UnfitError if a name is ambiguous."""
        places = identified(schema, self._names)
        wanted = [places[number] for number in map(field_id, self.schema) if number in places]
        names = [schema.field(place).name for place in wanted]
        if any("." in name for name in schema.names) or len(set(schema.names)) != len(schema.names):
            raise UnfitError(f"file {source.path}: names of columns are ambiguous")
        return names

    def _fitted(self, rows: pa.Table, source: SourceFile, position: int) -> pa.Table:
        """Return the rows in the table's schema. ``position`` is that of the first row in its file."""
        places = identified(rows.schema, self._names)
        columns, fields = [], []
        for number, field in self._ids.items():
            place = places.get(number)
            if place is not None:
                columns.append(fitted(field, rows.column(place), rows.schema.field(place)))
            elif field.nullable and number not in self._constants:
                columns.append(_nulls(field, rows.num_rows, field.name in self.dictionary))
            else:
                raise UnfitError(f"file {source.path}: it has no column {field.name}")
            fields.append(field.with_type(columns[-1].type))
        if self._plan.lineage:
            stored = [places.get(number) for number in (ROW_ID, LAST_UPDATED)]
            ids, updated = (None if place is None else rows.column(place) for place in stored)
            columns += lineage(ids, updated, source, position, rows.num_rows)
            fields += LINEAGE
        return pa.table(columns, schema=pa.schema(fields))


def lineage(
    ids: pa.ChunkedArray | None, updated: pa.ChunkedArray | None, source: SourceFile, position: int, count: int
) -> tuple[pa.ChunkedArray | pa.Array, pa.ChunkedArray | pa.Array]:
    """Return the row ids and the sequence numbers of the last updates of ``count`` rows.

    Rows without stored values inherit those of their file (Iceberg specification, Row Lineage).
    """
    if source.first_row_id is None:
        raise UnfitError(f"file {source.path}: its rows have no row ids")
    first = source.first_row_id + position
    inherited = pa.array(np.arange(first, first + count, dtype=np.int64))
    sequence = pa.array(np.full(count, source.sequence, dtype=np.int64))
    return _coalesced(ids, inherited), _coalesced(updated, sequence)


def _coalesced(stored: pa.ChunkedArray | None, inherited: pa.Array) -> pa.ChunkedArray | pa.Array:
    if stored is None:
        return inherited
    if not stored.null_count:
        return stored
    mask = stored.is_valid().combine_chunks()
    return pa.array(np.where(mask, stored.fill_null(0).to_numpy(), inherited.to_numpy()), pa.int64())


def _has_nested_text(kind: pa.DataType, *, nested: bool = False) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_nested_text(kind.field(place).type, nested=True) for place in range(kind.num_fields))
    return nested and (pa.types.is_string(kind) or pa.types.is_binary(kind))


def _nulls(field: pa.Field, count: int, dictionary: bool) -> pa.ChunkedArray:
    """Return a column of nulls. Its type fits that of the same column of other files."""
    if dictionary:
        none = pa.DictionaryArray.from_arrays(pa.nulls(count, pa.int32()), pa.array([], field.type))
        return pa.chunked_array([none])
    return pa.chunked_array([pa.nulls(count, field.type)])
