"""Rows: the records of a partition in the row groups of data files.

Columns are found by Iceberg's ids, because users may rename columns. Only the columns of a record are read."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn_broker.history.entries import Entry, Piece
from firn_broker.history.sections import HEADERS, Numbers, Records
from firn_broker.history.shapes.rendering import ID, UnrenderableError, render, struct_of
from firn_broker.history.shapes.shape import fields_of

GROUP_BYTES = 192 << 20
"""Bytes of the columns of a record in a row group, without compression. A reader decodes whole row groups, so it needs this much
memory for a moment."""
KEPT_BYTES = 128 << 20
"""Bytes of rows that a reader keeps in memory, unless one entry has more."""


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
    size: int
    """Bytes of the columns of a record, without compression."""
    partitions: tuple[int, int]
    offsets: tuple[int, int]

    def has(self, partition: int, first: int, last: int) -> bool:
        """Return whether the row group may have rows of the partition with these offsets."""
        return (
            self.partitions[0] <= partition <= self.partitions[1]
            and self.offsets[0] <= last
            and self.offsets[1] >= first
        )


def has_fields(opened: pq.ParquetFile, fields: RecordFields) -> bool:
    """Return whether a data file has the columns of partitions and offsets. Files of other writers may lack them."""
    return {fields.partition, fields.offset} <= dict(_ids(opened.schema_arrow, "")).keys()


def groups(file: DataFile, opened: pq.ParquetFile, fields: RecordFields, members: Iterable[int] = ()) -> list[Group]:
    """Return the row groups of a file. Raises CorruptDataError if it has no bounds of partitions and offsets, or large row groups.

    ``members`` are the ids of the columns that values are made of, if ``fields`` has no column of values."""
    metadata, paths = opened.metadata, _paths(opened, file)
    places = {metadata.schema.column(place).path: place for place in range(metadata.num_columns)}
    wanted = [_path(paths, field, file) for field in fields if field is not None]
    wanted += [paths[field] for field in members if field in paths]
    inside = tuple(f"{path}." for path in wanted)
    of_records = [place for path, place in places.items() if path in wanted or path.startswith(inside)]
    found = []
    for number in range(metadata.num_row_groups):
        row_group = metadata.row_group(number)
        size = sum(row_group.column(place).total_uncompressed_size for place in of_records)
        if size > GROUP_BYTES:
            raise CorruptDataError(
                f"{file.path}: row group {number} has {size} bytes of records, more than {GROUP_BYTES}: lower"
                " write.parquet.row-group-size-bytes of the table, and rewrite this file"
            )
        bounds = []
        for field in (fields.partition, fields.offset):
            place = places.get(_path(paths, field, file))
            statistics = None if place is None else row_group.column(place).statistics
            if statistics is not None and statistics.null_count == row_group.num_rows:
                # All rows are of another writer.
                break
            if statistics is None or not statistics.has_min_max:
                raise CorruptDataError(f"{file.path}: row group {number} has no bounds of the column with id {field}")
            try:
                bounds.append((int(statistics.min), int(statistics.max)))
            except (TypeError, ValueError) as error:
                raise CorruptDataError(f"{file.path}: the column with id {field} has no numbers") from error
        else:
            found.append(Group(file, number, size, bounds[0], bounds[1]))
    return found


class RowReader:
    """Reads the records of entries. It keeps the rows that it read last, because readers ask for the next offsets."""

    def __init__(self, files: Files, kept_bytes: int = KEPT_BYTES) -> None:
        self._files = files
        self._kept_bytes = kept_bytes
        self._kept: dict[_Slot, Records] = {}
        self._size = 0

    def read(self, entry: Entry, first: int, last: int) -> Records:
        """Return the records with these offsets that the data files have. Raises CorruptDataError and UnavailableError."""
        found = self.read_members(entry, fields_of(entry.shapes), first, last)
        if entry.fields.value is not None:
            return ordered(found)
        base, numbers = entry.heads.base_offset, entry.heads.shapes
        try:
            texts = [render(entry.shapes, numbers[each.offsets - base], each.values) for each in found]
        except UnrenderableError as error:
            raise CorruptDataError(f"topic {entry.partition.topic}, offsets {first} to {last}: {error}") from error
        return ordered([replace(each, values=values) for each, values in zip(found, texts, strict=True)])

    def read_members(self, entry: Entry, members: Sequence[int], first: int, last: int) -> list[Records]:
        """Return the records with these offsets, with the columns ``members`` instead of values, of one row group after the other.

        Raises CorruptDataError and UnavailableError."""
        slots = _slots(entry, members, (piece for piece in entry.pieces if piece.first <= last and piece.last >= first))
        found = [_between(self._rows(slot), first, last) for slot in slots]
        self._forget(set(slots))
        return found

    def _rows(self, slot: "_Slot") -> Records:
        rows = self._kept.pop(slot, None)
        if rows is None:
            rows = _read(self._files.open(slot.file), slot)
            self._size += rows.nbytes
        self._kept[slot] = rows
        return rows

    def _forget(self, used: Set["_Slot"]) -> None:
        """Forget the oldest rows beyond the most bytes. Those of the last request stay: the next one reads on in them."""
        for slot in [slot for slot in self._kept if slot not in used]:
            if self._size <= self._kept_bytes:
                break
            self._size -= self._kept.pop(slot).nbytes


class _Slot(NamedTuple):
    """The rows of a partition in a row group."""

    file: DataFile
    row_group: int
    partition: int
    fields: RecordFields
    members: tuple[int, ...]


def _slots(entry: Entry, members: Sequence[int], pieces: Iterable[Piece]) -> list[_Slot]:
    index, wanted = entry.partition.index, tuple(members)
    return [_Slot(entry.files[piece.file], piece.row_group, index, entry.fields, wanted) for piece in pieces]


def _read(opened: pq.ParquetFile, slot: _Slot) -> Records:
    """Read the rows of a partition in a row group, in the order of their offsets. Raises CorruptDataError."""
    of_rows, records = read_group(opened, slot.file, slot.row_group, slot.fields, slot.members)
    wanted = of_rows == slot.partition
    if not wanted.all():
        records = records.select(np.flatnonzero(wanted))
    return records if _ascending(records.offsets) else records.select(np.argsort(records.offsets, kind="stable"))


def read_group(
    opened: pq.ParquetFile, file: DataFile, number: int, fields: RecordFields, members: Sequence[int] = ()
) -> tuple[Numbers, Records]:
    """Return the partition of each row of a row group, and the records. Rows without an offset are left out. Raises CorruptDataError.

    Without a column of values, the values of the records have the columns ``members``, as `struct_of` returns them."""
    found = _paths(opened, file)
    paths = {field: _path(found, field, file) for field in fields if field is not None}
    # A file from before a column was added does not have it.
    paths |= {field: found[field] for field in members if field in found}
    try:
        table = opened.read_row_group(number, columns=list(paths.values()), use_threads=False)
        columns = {field: _column(table, path) for field, path in paths.items()}
        partitions, offsets = columns[fields.partition], columns[fields.offset]
        if partitions.null_count or offsets.null_count:
            # Rows of another writer.
            ours = pc.call_function("and", [partitions.is_valid(), offsets.is_valid()])
            columns = {field: column.filter(ours) for field, column in columns.items()}
            partitions, offsets = columns[fields.partition], columns[fields.offset]
        if fields.value is None:
            values = struct_of({field: columns[field] for field in members if field in columns}, len(offsets))
        else:
            values = columns[fields.value].cast(pa.binary())
        records = Records(
            offsets.to_numpy(zero_copy_only=False),
            columns[fields.time].to_numpy(zero_copy_only=False),
            columns[fields.key].cast(pa.binary()),
            values,
            columns[fields.headers].cast(HEADERS),
        )
        return partitions.to_numpy(zero_copy_only=False), records
    except (pa.ArrowException, OSError, IndexError, ValueError) as error:
        raise CorruptDataError(f"{file.path}: row group {number} cannot be read: {error}") from error


def _between(records: Records, first: int, last: int) -> Records:
    start, end = np.searchsorted(records.offsets, (first, last + 1)).tolist()
    return records.slice(start, end)


def ordered(found: Sequence[Records]) -> Records:
    """Return records of several row groups as one, in the order of their offsets."""
    if len(found) == 1:
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
        if field.metadata is not None and ID in field.metadata:
            yield int(field.metadata[ID]), path
        if pa.types.is_struct(field.type):
            yield from _ids(field.type, f"{path}.")


def _column(table: pa.Table, path: str) -> pa.Array:
    """Return a column or a member of a struct column. A null struct has null members."""
    if path in table.column_names:
        array = table[path]
    else:
        name, _, rest = path.partition(".")
        array = pc.call_function("struct_field", [table[name]], pc.StructFieldOptions(rest.split(".")))
    if not isinstance(array, pa.ChunkedArray):
        return array
    # The other call copies even a single chunk.
    return array.chunk(0) if array.num_chunks == 1 else array.combine_chunks()
