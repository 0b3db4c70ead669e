"""Writes Arrow tables as Parquet data files of an Iceberg table, with the descriptors that a commit needs.

A descriptor is the JSON that ``org.apache.iceberg.ContentFileParser`` reads: path, partition, counts and bounds. It
is made when the Parquet writer closes, so that no file is opened again before the first query.
"""

import contextlib
import functools
import json
import logging
import os
import struct
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow.fs import FileSystem
from pyiceberg import types
from pyiceberg.io import S3_RETRY_STRATEGY_IMPL
from pyiceberg.io.pyarrow import PyArrowFileIO, parquet_path_to_id_mapping
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.sorting import SortOrder

from firn.trust import STORE_CA_FILE
from firn_spark.worker import arrow_types, row_groups
from firn_spark.worker.partitioning import Part, Partitioner
from firn_spark.worker.table_types import annotations
from firn_spark.worker.table_types.filling import Filling
from firn_spark.worker.table_types.written import VariantType, written_schema

log = logging.getLogger(__name__)
_CODECS = {
    "uncompressed": "none",
    "zstd": "zstd",
    "gzip": "gzip",
    "snappy": "snappy",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
}
DELTA = "write.parquet.delta-encoding.enabled"
"""Table property. Engines with Iceberg before 1.10 cannot read the encoding in their vectorised reader, so it is off by default."""
_WITH_LEVEL = frozenset({"zstd", "gzip", "brotli"})
_MEBIBYTE = 1024 * 1024
_SMALLEST_ROW_GROUP = 1000
_SAMPLE = 2048
_LONG_TEXT = 1024
"""Mean bytes of a column's texts above which no sample is taken. Such a sample would take much memory."""
_ENOUGH = 256
"""Values that a sample needs to show that floats or texts hardly repeat. A large file may begin with fewer rows."""
_DISTINCT = 0.98
"""Share of distinct values in a sample of floats. Above it, a dictionary takes much time and saves few bytes."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """The parts of a table that its writers need, as plain data that the driver takes from the Java table.

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


class TableFileIO(PyArrowFileIO):
    """PyIceberg's FileIO. On S3, a small file takes one request, not the three of a multipart upload."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        found = super()._initialize_s3_fs(netloc)
        trust = {"tls_ca_file_path": self.properties[STORE_CA_FILE]} if STORE_CA_FILE in self.properties else {}
        if S3_RETRY_STRATEGY_IMPL in self.properties and not trust:
            return found  # `pickle` does not keep this strategy.
        make, (options,) = found.__reduce__()
        return make({**options, "allow_delayed_open": True, **trust})


class _Layout(NamedTuple):
    """The columns of a table: as Iceberg's schema, as Arrow's, and the paths of the leaves in a Parquet file."""

    schema: Schema
    arrow: pa.Schema
    paths: tuple[str, ...]
    filling: Filling


@functools.lru_cache(maxsize=256)
def _layout(schema: str) -> _Layout:
    """Return the layout of a schema in Iceberg's JSON. A worker writes files with few rows for many topics, again and again."""
    found = written_schema(schema)
    arrow = arrow_schema(found.schema)
    filling = Filling(found.schema.fields, arrow, found.defaults)
    return _Layout(found.schema, arrow, parquet_paths(found.schema), filling)


def parquet_paths(schema: Schema) -> tuple[str, ...]:
    """Return the paths of the columns of a table's Parquet files, in their order."""
    return tuple(
        part
        for path, number in parquet_path_to_id_mapping(schema).items()
        for part in (
            (f"{path}.metadata", f"{path}.value") if isinstance(schema.find_type(number), VariantType) else (path,)
        )
    )


class DataFileWriter:
    """Writes the data files of one table in one task, and can delete them until the task has handed them over."""

    def __init__(self, table: TableSpec) -> None:
        """Prepare to write. Raises ValueError for a table that cannot be written, such as a codec that Parquet lacks."""
        layout = _layout(table.schema)
        self._schema, self._arrow, self._paths = layout.schema, layout.arrow, layout.paths
        self._filling = layout.filling
        self._spec = PartitionSpec.model_validate_json(table.partition_spec)
        self._order = SortOrder.model_validate_json(table.sort_order)
        self._partitioner = Partitioner(self._schema, self._spec, self._order)
        parquet = ParquetSettings.from_properties(table.properties)
        # Rows in an order of the table keep it.
        self._parquet = replace(parquet, by_partition=parquet.by_partition and not self._order.fields)
        self._metrics = Metrics(self._schema, table.properties)
        self._locations = Locations(table)
        self._io = TableFileIO(arrow_io_properties(table.io))
        self._written: list[str] = []
        self._open: _OpenFile | None = None
        self.appends = not self._spec.fields and not self._order.fields
        """True if rows may come in parts: a file stays open, because it holds the rows in the order in which they come."""

    def write(self, rows: pa.Table) -> list[str]:
        """Write ``rows`` and return a descriptor for each complete file. Columns are matched by name.

        Raises ValueError if the rows do not fit the table, OSError if the store fails.
        """
        fitting = self._fitted(rows)
        if not self.appends:
            return [
                self._write_file(part, piece, size)
                for part in self._partitioner.parts(fitting)
                for piece, size in self._pieces(part.rows)
            ]
        files = []
        for piece, size in self._pieces(fitting):
            self._open = self._open or self._new_file("", (), piece, size)
            self._open.add(piece, size)
            if self._open.bytes >= self._parquet.file_bytes:
                files += self.finish()
        return files

    def finish(self) -> list[str]:
        """Complete the open file, if there is one, and return its descriptor. Raises OSError if the store fails."""
        if self._open is None:
            return []
        file, self._open = self._open, None
        return [self._complete(file)]

    def discard(self) -> None:
        """Delete the files written so far, as far as possible. Call it only before their descriptors are handed over."""
        if self._open is not None:
            with contextlib.suppress(Exception):
                self._open.close()
            self._open = None
        for path in self._written:
            with contextlib.suppress(OSError):
                self._io.delete(path)
        self._written.clear()

    def _fitted(self, rows: pa.Table) -> pa.Table:
        columns = []
        for wanted, column in zip(self._schema.fields, self._arrow, strict=True):
            if column.name not in rows.column_names:
                columns.append(self._filling.missing(wanted, column.type, rows.num_rows, (column.name,)))
                continue
            array = rows[column.name]
            if not column.nullable and array.null_count:
                raise ValueError(
                    f"column {column.name} is required in the table, and {array.null_count} rows have no value"
                )
            columns.append(self._filling.fitted(wanted, column.type, array))
        surplus = set(rows.column_names) - set(self._arrow.names)
        if surplus:
            raise ValueError(f"the table has no column {', '.join(sorted(surplus))}")
        return pa.table(columns, schema=self._arrow)

    def _pieces(self, rows: pa.Table) -> Iterator[tuple[pa.Table, int]]:
        """Cut rows into slices for files of the target size, and yield each with its bytes.

        The size is measured in memory, so files are smaller rather than larger."""
        size = rows.nbytes  # takes milliseconds
        files = max(1, -(-size // self._parquet.file_bytes))
        length = -(-rows.num_rows // files)
        for start in range(0, rows.num_rows, length):
            piece = rows.slice(start, length)
            yield piece, size if files == 1 else piece.nbytes

    def _write_file(self, part: Part, rows: pa.Table, size: int) -> str:
        file = self._new_file(part.path, part.values, rows, size)
        try:
            file.add(rows, size)
        except BaseException:
            with contextlib.suppress(Exception):
                file.close()
            raise
        return self._complete(file)

    def _new_file(self, directory: str, values: Sequence[Any], first: pa.Table, size: int) -> "_OpenFile":
        """Open a file whose ``first`` rows have ``size`` bytes."""
        path = self._locations.new_path(directory, self._parquet.suffix)
        self._written.append(path)
        options = encodings(self._paths, first, size, self._parquet) | self._parquet.options
        return _OpenFile(
            path,
            values,
            annotations.opened(self._io.new_output(path).create(overwrite=True), self._schema),
            self._arrow,
            self._parquet,
            options,
        )

    def _complete(self, file: "_OpenFile") -> str:
        size, metadata = file.close()
        metrics = self._metrics.collect(metadata, file.nans)
        order = self._order.order_id if self._order.fields else None
        return descriptor(self._spec.spec_id, file.path, file.partition, size, metrics, order)


class _OpenFile:
    """A Parquet file that is being written. ``partition`` is as in `Part.values`."""

    def __init__(
        self, path: str, partition: Sequence[Any], sink: Any, schema: pa.Schema, parquet: "ParquetSettings",
        options: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self.path = path
        self.partition = partition
        self.bytes = 0
        """Bytes of the rows in memory. The file has fewer."""
        self.nans: Counter[int] = Counter()
        """Numbers of NaN values by field id."""
        self._sink = sink
        self._parquet = parquet
        self._writer = pq.ParquetWriter(sink, schema, **options)

    def add(self, rows: pa.Table, size: int) -> None:
        """Write rows of ``size`` bytes as one or more row groups. Raises OSError."""
        most = self._parquet.row_group_rows(rows.num_rows, size)
        for part in row_groups.by_partition(rows) if self._parquet.by_partition else [rows]:
            self._writer.write_table(part, row_group_size=most)
        self.bytes += size
        self.nans.update(nans(rows))

    def close(self) -> tuple[int, pq.FileMetaData]:
        """Complete the file, and return its size in bytes and its metadata. Raises OSError."""
        with self._sink:
            annotations.complete(self._writer, self._sink)
            size = self._sink.tell()
        return size, self._writer.writer.metadata


def descriptor(
    spec_id: int, path: str, partition: Sequence[Any], size: int, metrics: Mapping[str, Any], order: int | None = None
) -> str:
    """Return the descriptor of a file of ``size`` bytes. ``partition`` is as in `Part.values`, ``metrics`` as `Metrics`
    returns them."""
    content: dict[str, Any] = {
        "spec-id": spec_id,
        "content": "data",
        "file-path": path,
        "file-format": "parquet",
        "partition": list(partition),
        "file-size-in-bytes": size,
        **metrics,
    }
    if order is not None:
        content["sort-order-id"] = order
    return json.dumps(content, separators=(",", ":"))


class Locations:
    """Names the new data files of a table."""

    def __init__(self, table: TableSpec) -> None:
        self._provider = load_location_provider(table.location, dict(table.properties))
        self._partitioned = table.properties.get("write.object-storage.partitioned-paths", "true") == "true"

    def new_path(self, partition: str, suffix: str) -> str:
        """Return the location of a new file. ``partition`` is as in `Part.path`."""
        name = f"{uuid.uuid4()}.{suffix}"
        return self._provider.new_data_location(f"{partition}/{name}" if partition and self._partitioned else name)


def encodings(paths: Sequence[str], rows: pa.Table, size: int, parquet: "ParquetSettings") -> dict[str, Any]:
    """Return pyarrow's options for the encodings of the columns at ``paths``, chosen by a sample of ``rows``.

    ``size`` is the size of ``rows`` in bytes.

    A dictionary does not pay off for values that hardly repeat: pyarrow fills it up to its limit, and then writes the
    plain form. Integers and times that hardly repeat are smaller as differences.
    """
    distinct, plain = set(), set()
    group_rows = min(rows.num_rows, parquet.row_group_rows(rows.num_rows, size))
    for name, array in sample(rows):
        present = array.drop_null()
        values, unlike = len(present), len(present.unique())
        if pa.types.is_floating(array.type):
            # A float of a few digits repeats less in a sample than in a file, and its plain form hardly compresses.
            if values >= _ENOUGH and unlike > _DISTINCT * values:
                plain.add(name)
        elif _is_text(array.type):
            group = group_rows * values // max(1, len(array))
            if values >= _ENOUGH and _dictionary_bytes(present, unlike, group) > parquet.dictionary_bytes:
                plain.add(name)
        elif unlike * 2 > values:
            distinct.add(name)
    options: dict[str, Any] = {"use_dictionary": [path for path in paths if path not in distinct | plain]}
    if parquet.delta and distinct:
        options["column_encoding"] = dict.fromkeys(distinct, "DELTA_BINARY_PACKED")
    return options


@dataclass(frozen=True, slots=True)
class ParquetSettings:
    """Table properties such as ``write.parquet.*``, as pyarrow takes them."""

    options: dict[str, Any]
    suffix: str
    file_bytes: int
    row_group_bytes: int
    dictionary_bytes: int
    """Largest size of a dictionary. pyarrow writes later values in plain form."""
    by_partition: bool
    """True if large Kafka partitions get row groups of their own."""
    delta: bool
    """True to store integers and times that hardly repeat as differences."""

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> "ParquetSettings":
        """Read the settings. Raises ValueError for one that Parquet or pyarrow does not have."""

        def number(key: str, default: int) -> int:
            try:
                return max(1, int(properties.get(key, default)))
            except ValueError:
                raise ValueError(
                    f"table property {key}: {properties[key]!r} is not a whole number; set one, or remove the property"
                ) from None

        codec = properties.get("write.parquet.compression-codec", "zstd").lower()
        if codec not in _CODECS:
            raise ValueError(
                f"table property write.parquet.compression-codec: {codec!r} is not one of {', '.join(_CODECS)}"
            )
        level = "write.parquet.compression-level"
        return cls(
            options={
                "compression": _CODECS[codec],
                "compression_level": number(level, 0) if level in properties and codec in _WITH_LEVEL else None,
                "data_page_size": number("write.parquet.page-size-bytes", _MEBIBYTE),
                "max_rows_per_page": number("write.parquet.page-row-limit", 20_000),
                "dictionary_pagesize_limit": number("write.parquet.dict-size-bytes", 2 * _MEBIBYTE),
                "store_schema": False,
                "write_page_index": True,
                "store_decimal_as_integer": True,
            },
            suffix="parquet" if codec == "uncompressed" else f"{codec}.parquet",
            file_bytes=number("write.target-file-size-bytes", 512 * _MEBIBYTE),
            row_group_bytes=number("write.parquet.row-group-size-bytes", 128 * _MEBIBYTE),
            dictionary_bytes=number("write.parquet.dict-size-bytes", 2 * _MEBIBYTE),
            by_partition=row_groups.are_by_partition(properties),
            delta=properties.get(DELTA, "false").lower() == "true",
        )

    def row_group_rows(self, rows: int, size: int) -> int:
        """Return the number of rows of a row group, if ``rows`` of them have ``size`` bytes."""
        return max(_SMALLEST_ROW_GROUP, self.row_group_bytes * rows // max(1, size))


def arrow_io_properties(java: Mapping[str, str]) -> dict[str, str]:
    """Rename properties of a Java FileIO to those of pyiceberg's Arrow FileIO. Properties with the same name are
    passed on."""
    properties = dict(java)
    if "client.region" in java:
        properties.setdefault("s3.region", java["client.region"])
    elif "s3.endpoint" in java:  # otherwise Arrow asks Amazon for the bucket's region
        properties.setdefault("s3.region", os.environ.get("AWS_REGION", "us-east-1"))
    if "s3.path-style-access" in java:
        properties["s3.force-virtual-addressing"] = "false" if java["s3.path-style-access"] == "true" else "true"
    return properties


def _dictionary_bytes(texts: pa.ChunkedArray, distinct: int, count: int) -> int:
    """Estimate the bytes of the dictionary of ``count`` texts from a random sample with ``distinct`` distinct texts.

    The fewer distinct texts there are, the more of them repeat in the sample (the birthday problem)."""
    repeated = len(texts) - distinct
    entries = min(count, len(texts) ** 2 // (2 * repeated)) if repeated else count
    return int(entries * (texts.nbytes // len(texts)))


def sample(rows: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yield the full name and up to `_SAMPLE` values of each column of numbers, times or short texts.

    The values are from random rows, the same ones for the same table: ids and times often repeat in adjacent rows, and
    some at regular distances."""
    columns = {
        name: column
        for name, column in _members(rows)
        if _is_number(column.type) or (_is_text(column.type) and column.nbytes <= _LONG_TEXT * len(column))
    }
    if not columns or not rows.num_rows:
        return
    every = rows.num_rows <= _SAMPLE
    chosen = np.arange(rows.num_rows) if every else np.random.default_rng(0).integers(0, rows.num_rows, _SAMPLE)
    chosen = np.unique(chosen)
    taken, start = [], 0
    # Take from each batch, because pyarrow joins all chunks of a column before it takes values from the table.
    for batch in pa.table(columns).to_batches():
        inside = chosen[np.searchsorted(chosen, start) : np.searchsorted(chosen, start + len(batch))]
        if len(inside):
            taken.append(batch.take(pa.array(inside - start)))
        start += len(batch)
    # Each function takes longer for many short chunks than for their values.
    values = pa.Table.from_batches(taken).combine_chunks()
    yield from zip(values.column_names, values.columns, strict=True)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _members(rows: pa.Table) -> Iterator[tuple[str, pa.Array]]:
    """Yield the columns with their full names; structs are replaced by their members."""
    while any(pa.types.is_struct(column.type) for column in rows.schema):
        rows = rows.flatten()
    yield from zip(rows.column_names, rows.columns, strict=True)


FIELD_ID = b"PARQUET:field_id"


def field_id(field: pa.Field) -> int | None:
    """Return the field id in a file's schema."""
    text = (field.metadata or {}).get(FIELD_ID)
    return int(text) if text is not None else None


def nans(rows: pa.Table) -> Counter[int]:
    """Return the numbers of NaN values by field id. Elements of lists and maps do not count."""
    counts: Counter[int] = Counter()
    for each, column in _leaf_columns(zip(rows.schema, rows.columns, strict=True)):
        number = field_id(each)
        if number is not None and pa.types.is_floating(each.type):
            counts[number] = pc.call_function("sum", [pc.call_function("is_nan", [column])]).as_py() or 0
    return counts


def _leaf_columns(columns: Iterable[tuple[pa.Field, pa.ChunkedArray]]) -> Iterator[tuple[pa.Field, pa.ChunkedArray]]:
    for each, column in columns:
        if pa.types.is_struct(each.type):
            yield from _leaf_columns(zip(each.type, column.flatten(), strict=True))
        else:
            yield each, column


_ARROW: dict[type, pa.DataType] = {
    types.BooleanType: pa.bool_(),
    types.IntegerType: pa.int32(),
    types.LongType: pa.int64(),
    types.FloatType: pa.float32(),
    types.DoubleType: pa.float64(),
    types.DateType: pa.date32(),
    types.TimeType: pa.time64("us"),
    types.TimestampType: pa.timestamp("us"),
    types.TimestamptzType: pa.timestamp("us", tz="UTC"),
    types.TimestampNanoType: pa.timestamp("ns"),
    types.TimestamptzNanoType: pa.timestamp("ns", tz="UTC"),
    VariantType: arrow_types.VARIANT,
    types.StringType: pa.string(),
    types.UUIDType: pa.uuid(),
    types.BinaryType: pa.binary(),
}


def arrow_schema(schema: Schema) -> pa.Schema:
    """Return the schema of the files of a table. Raises ValueError for types that cannot be written."""
    return pa.schema([_arrow_field(column) for column in schema.fields])


def _arrow_field(column: types.NestedField, *, nested: bool = False) -> pa.Field:
    """Return the file's field. Members are optional in the file whatever the table says; no reader depends on it."""
    return pa.field(
        column.name,
        _arrow_type(column.field_type),
        nullable=nested or column.optional,
        metadata={FIELD_ID: str(column.field_id)},
    )


def _arrow_type(kind: types.IcebergType) -> pa.DataType:
    match kind:
        case types.StructType():
            return pa.struct([_arrow_field(member, nested=True) for member in kind.fields])
        case types.ListType():
            return pa.list_(_arrow_field(kind.element_field, nested=True))
        case types.MapType():
            return pa.map_(_arrow_field(kind.key_field), _arrow_field(kind.value_field, nested=True))
        case types.DecimalType():
            return pa.decimal128(kind.precision, kind.scale)
        case types.FixedType():
            return pa.binary(len(kind))
    try:
        return _ARROW[type(kind)]
    except KeyError:
        raise ValueError(f"columns of type {kind} cannot be written") from None


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of the Parquet file. ``keep`` is ``none``, ``counts``, ``full``, or the number of characters of its
    bounds."""

    field_id: int
    kind: types.IcebergType
    repeated: bool
    keep: str | int
    place: int
    """Place of its first column in the Parquet file."""
    columns: int
    """Number of its columns there: a variant has two."""


class Metrics:
    """Counts and bounds of a file's columns, kept as ``write.metadata.metrics.*`` says.

    Elements of lists and maps have sizes only, as with Iceberg's own writer. Uuids have no bounds, because engines
    order them differently.
    """

    def __init__(self, schema: Schema, properties: Mapping[str, str]) -> None:
        """Read the metrics modes. An invalid mode counts as missing."""
        leaves = [leaf for column in schema.fields for leaf in _leaves(column, column.name, False)]
        default = _mode(properties, "write.metadata.metrics.default")
        limit = int(properties.get("write.metadata.metrics.max-inferred-column-defaults", "100"))
        self._leaves: list[_Leaf] = []
        place = 0
        for number, (name, column, repeated) in enumerate(leaves):
            inferred = 16 if number < limit else "none"
            mode = _mode(properties, f"write.metadata.metrics.column.{name}") or default or inferred
            columns = 2 if isinstance(column.field_type, VariantType) else 1
            self._leaves.append(_Leaf(column.field_id, column.field_type, repeated, mode, place, columns))
            place += columns

    def collect(self, file: pq.FileMetaData, nans: Mapping[int, int] = MappingProxyType({})) -> dict[str, Any]:
        """Return a file's metrics in the form of its descriptor. ``nans``: number of NaN values by field id, if there
        are any."""
        groups = [file.row_group(place) for place in range(file.num_row_groups)]
        sizes: dict[int, int] = {}
        counts: dict[int, int] = {}
        nulls: dict[int, int] = {}
        not_numbers: dict[int, int] = {}
        lower: dict[int, str] = {}
        upper: dict[int, str] = {}
        for leaf in self._leaves:
            if leaf.keep == "none":
                continue
            columns = [group.column(leaf.place) for group in groups]
            sizes[leaf.field_id] = sum(
                group.column(place).total_compressed_size
                for group in groups
                for place in range(leaf.place, leaf.place + leaf.columns)
            )
            if leaf.repeated:
                continue
            counts[leaf.field_id] = sum(column.num_values for column in columns)
            statistics = [column.statistics for column in columns]
            if all(group is not None and group.has_null_count for group in statistics):
                nulls[leaf.field_id] = sum(group.null_count for group in statistics)
            if isinstance(leaf.kind, types.FloatType | types.DoubleType):
                not_numbers[leaf.field_id] = nans.get(leaf.field_id, 0)
            bounds = None if leaf.keep == "counts" else _bounds(leaf, columns)
            if bounds is not None:
                low, high = bounds
                lower[leaf.field_id] = low.hex().upper()
                if high is not None:
                    upper[leaf.field_id] = high.hex().upper()
        return {
            "record-count": file.num_rows,
            "column-sizes": _map_json(sizes),
            "value-counts": _map_json(counts),
            "null-value-counts": _map_json(nulls),
            "nan-value-counts": _map_json(not_numbers),
            "lower-bounds": _map_json(lower),
            "upper-bounds": _map_json(upper),
            "split-offsets": [_start(group) for group in groups],
        }


def _leaves(column: types.NestedField, name: str, repeated: bool) -> Iterator[tuple[str, types.NestedField, bool]]:
    """Yield the primitive fields under ``column`` in the order of Parquet's columns, with their full names."""
    match column.field_type:
        case types.StructType() as kind:
            for member in kind.fields:
                yield from _leaves(member, f"{name}.{member.name}", repeated)
        case types.ListType() as kind:
            yield from _leaves(kind.element_field, f"{name}.element", True)
        case types.MapType() as kind:
            yield from _leaves(kind.key_field, f"{name}.key", True)
            yield from _leaves(kind.value_field, f"{name}.value", True)
        case _:
            yield name, column, repeated


def _mode(properties: Mapping[str, str], key: str) -> str | int | None:
    """Return the metrics mode of a property; None if it is missing or invalid."""
    text = properties.get(key, "")
    mode = text.strip().lower()
    if mode in ("none", "counts", "full"):
        return mode
    if mode.startswith("truncate(") and mode.endswith(")") and mode[9:-1].isdigit() and int(mode[9:-1]):
        return int(mode[9:-1])
    if text:
        log.warning(
            "table property %s: %r is not one of none, counts, truncate(N), full; the default applies", key, text
        )
    return None


def _start(group: pq.RowGroupMetaData) -> int:
    column = group.column(0)
    return int(column.dictionary_page_offset if column.has_dictionary_page else column.data_page_offset)


def _map_json(values: Mapping[int, Any]) -> dict[str, list[Any]]:
    return {"keys": list(values), "values": list(values.values())}


def _bounds(leaf: _Leaf, columns: list[pq.ColumnChunkMetaData]) -> tuple[bytes, bytes | None] | None:
    """Return the lower bound and, if it exists, the upper bound; None if a row group has no bounds, or all values are
    null."""
    pack = _packing(leaf.kind)
    if pack is None:
        return None
    lows, highs = [], []
    for column in columns:
        statistics = column.statistics
        if statistics is None or not statistics.has_null_count:
            return None
        if statistics.null_count == column.num_values:
            continue
        if not statistics.has_min_max:  # pyarrow keeps no bounds for values beyond 4 KiB
            return None
        lows.append(_comparable(leaf.kind, statistics.min_raw))
        highs.append(_comparable(leaf.kind, statistics.max_raw))
    if not lows:
        return None
    low, high = min(lows), max(highs)
    if isinstance(leaf.keep, int):
        if isinstance(leaf.kind, types.StringType):
            return low.decode()[: leaf.keep].encode(), _text_above(high.decode(), leaf.keep)
        if isinstance(leaf.kind, types.BinaryType | types.FixedType):
            return low[: leaf.keep], _bytes_above(high, leaf.keep)
    return pack(low), pack(high)


def _comparable(kind: types.IcebergType, raw: Any) -> Any:
    if isinstance(kind, types.DecimalType) and isinstance(raw, bytes):
        return int.from_bytes(raw, "big", signed=True)
    return raw


def _packing(kind: types.IcebergType) -> Any:
    """Return a function from Parquet's statistics to Iceberg's binary single-value serialisation."""
    match kind:
        case types.BooleanType():
            return lambda value: b"\x01" if value else b"\x00"
        case types.IntegerType() | types.DateType():
            return struct.Struct("<i").pack
        case (
            types.LongType()
            | types.TimeType()
            | types.TimestampType()
            | types.TimestamptzType()
            | types.TimestampNanoType()
            | types.TimestamptzNanoType()
        ):
            return struct.Struct("<q").pack
        case types.FloatType():
            return struct.Struct("<f").pack
        case types.DoubleType():
            return struct.Struct("<d").pack
        case types.StringType() | types.BinaryType() | types.FixedType():
            return bytes
        case types.DecimalType():
            return lambda value: value.to_bytes((value + (value < 0)).bit_length() // 8 + 1, "big", signed=True)
        case _:
            return None


def _text_above(text: str, length: int) -> bytes | None:
    """Return the smallest text of at most ``length`` characters that is not below ``text``; None if there is none."""
    if len(text) <= length:
        return text.encode()
    for end in range(length, 0, -1):
        following = ord(text[end - 1]) + 1
        if 0xD800 <= following <= 0xDFFF:
            following = 0xE000
        if following <= 0x10FFFF:
            return (text[: end - 1] + chr(following)).encode()
    return None


def _bytes_above(data: bytes, length: int) -> bytes | None:
    """Return the smallest bytes, at most ``length`` of them, that are not below ``data``; None if there are none."""
    if len(data) <= length:
        return data
    kept = data[:length].rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else None
