"""Rows: the records of a partition in the row groups of data files.

Columns are found by Iceberg's ids, because users may rename columns. Only the columns of a record are read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn_broker.history.entries import Entry, Piece
from firn_broker.history.sections import HEADERS, Numbers, Records

KEPT_GROUPS = 4
"""Row groups whose rows a reader keeps in memory. The rows of one take up to 64 MiB as Firn writes them."""
_ID = b"PARQUET:field_id"


class Files(Protocol):
    """Opens data files."""

    def open(self, file: DataFile) -> pq.ParquetFile:
        """Open a file. Raises CorruptDataError if it is not there or is not this file, and UnavailableError."""
        ...


@dataclass(frozen=True, slots=True)
class Group:
    """A row group of a file, and the bounds of the partitions and the offsets in it."""

    file: DataFile
    number: int
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def has(self, partition: int, first: int, last: int) -> bool:
        """Return whether the row group may have rows of the partition with these offsets."""
        return (
            self.partitions[0] <= partition <= self.partitions[1]
            and self.offsets[0] <= last
            and self.offsets[1] >= first
        )


def groups(file: DataFile, opened: pq.ParquetFile, fields: RecordFields) -> list[Group]:
    """Return the row groups of a file. Raises CorruptDataError if it has no bounds of partitions and offsets."""
    metadata, paths = opened.metadata, _paths(opened, file)
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        bounds = []
        for field in (fields.partition, fields.offset):
            place = places.get(_path(paths, field, file))
            statistics = None if place is None else metadata.row_group(number).column(place).statistics
            if statistics is None or not statistics.has_min_max:
                raise CorruptDataError(f"{file.path}: row group {number} has no bounds of the column with id {field}")
            try:
                bounds.append((int(statistics.min), int(statistics.max)))
            except (TypeError, ValueError) as error:
                raise CorruptDataError(f"{file.path}: the column with id {field} has no numbers") from error
        found.append(Group(file, number, bounds[0], bounds[1]))
    return found


class RowReader:
    """Reads the records of entries. It keeps the rows of the last row groups, because readers ask for the next offsets."""

    def __init__(self, files: Files, kept_groups: int = KEPT_GROUPS) -> None:
        self._files = files
        self._kept_groups = kept_groups
        self._kept: dict[tuple[DataFile, int, RecordFields], _Rows] = {}

    def read(self, entry: Entry, first: int, last: int) -> Records:
        """Return the records with these offsets that the data files have. Raises CorruptDataError and UnavailableError."""
        found = [
            self._rows(entry, piece).between(entry.partition.index, first, last)
            for piece in entry.pieces
            if piece.first <= last and piece.last >= first
        ]
        return _ordered(found)

    def _rows(self, entry: Entry, piece: Piece) -> "_Rows":
        slot = entry.files[piece.file], piece.row_group, entry.fields
        rows = self._kept.pop(slot, None)
        if rows is None:
            rows = _Rows.read(self._files.open(slot[0]), *slot)
        self._kept[slot] = rows
        while len(self._kept) > self._kept_groups:
            del self._kept[next(iter(self._kept))]
        return rows


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a row group, of all partitions, in the order of the file."""

    partitions: Numbers
    records: Records
    ordered: bool
    """True if all rows are of one partition, in the order of their offsets."""

    @classmethod
    def read(cls, opened: pq.ParquetFile, file: DataFile, number: int, fields: RecordFields) -> "_Rows":
        """Read a row group. Raises CorruptDataError."""
        found = _paths(opened, file)
        paths = [_path(found, field, file) for field in fields]
        try:
            return cls._of(opened.read_row_group(number, columns=paths, use_threads=False), paths)
        except (pa.ArrowException, OSError, IndexError, ValueError) as error:
            raise CorruptDataError(f"{file.path}: row group {number} cannot be read: {error}") from error

    @classmethod
    def _of(cls, table: pa.Table, paths: Sequence[str]) -> Self:
        partitions, offsets, times, keys, values, headers = (_column(table, path) for path in paths)
        of_rows = partitions.to_numpy(zero_copy_only=False)
        records = Records(
            offsets.to_numpy(zero_copy_only=False),
            times.to_numpy(zero_copy_only=False),
            keys.cast(pa.binary()),
            values.cast(pa.binary()),
            headers.cast(HEADERS),
        )
        one = len(of_rows) > 0 and bool((of_rows == of_rows[0]).all())
        return cls(of_rows, records, one and _ascending(records.offsets))

    def between(self, partition: int, first: int, last: int) -> Records:
        """Return the records of a partition with these offsets, in the order of the file."""
        offsets = self.records.offsets
        if self.ordered:
            start, end = np.searchsorted(offsets, (first, last + 1)) if self.partitions[0] == partition else (0, 0)
            return self.records.slice(int(start), int(end))
        wanted = np.flatnonzero((self.partitions == partition) & (offsets >= first) & (offsets <= last))
        return self.records.select(wanted)


def _ordered(found: Sequence[Records]) -> Records:
    """Return records of several row groups in the order of their offsets."""
    if len(found) == 1 and _ascending(found[0].offsets):
        return found[0]
    records = Records(
        np.concatenate([np.zeros(0, np.int64), *(each.offsets for each in found)]),
        np.concatenate([np.zeros(0, np.int64), *(each.times for each in found)]),
        pa.concat_arrays([pa.array([], pa.binary()), *(each.keys for each in found)]),
        pa.concat_arrays([pa.array([], pa.binary()), *(each.values for each in found)]),
        pa.concat_arrays([pa.array([], HEADERS), *(each.headers for each in found)]),
    )
    if _ascending(records.offsets):
        return records
    return records.select(np.argsort(records.offsets, kind="stable"))


def _ascending(offsets: Numbers) -> bool:
    return bool((offsets[1:] > offsets[:-1]).all())


def _paths(opened: pq.ParquetFile, file: DataFile) -> Mapping[int, str]:
    """Return the paths of all columns and groups of columns of a file by their ids."""
    found = dict(_ids(opened.schema_arrow, ""))
    if not found:
        raise CorruptDataError(f"{file.path}: the columns of the data file have no ids")
    return found


def _path(paths: Mapping[int, str], field: int, file: DataFile) -> str:
    if field not in paths:
        raise CorruptDataError(f"{file.path}: the data file has no column with id {field}")
    return paths[field]


def _ids(fields: Any, prefix: str) -> Iterator[tuple[int, str]]:
    for field in fields:
        path = f"{prefix}{field.name}"
        if field.metadata is not None and _ID in field.metadata:
            yield int(field.metadata[_ID]), path
        if pa.types.is_struct(field.type):
            yield from _ids(field.type, f"{path}.")


def _column(table: pa.Table, path: str) -> pa.Array:
    """Return a column or a member of a struct column. A null struct has null members."""
    if path in table.column_names:
        array = table[path]
    else:
        name, _, rest = path.partition(".")
        array = pc.call_function("struct_field", [table[name]], pc.StructFieldOptions(rest.split(".")))
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array
