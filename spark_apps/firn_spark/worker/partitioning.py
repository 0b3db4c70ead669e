"""Splits rows by the parts of a partitioned table, each sorted in the table's order (Iceberg spec, "Partition
Transforms").

Years, months, days and hours are computed here over the whole 64-bit range; buckets and truncation by PyIceberg.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from urllib.parse import quote_plus
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms, types
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder

_PATH_VALUE_LIMIT = 64
_UNITS: dict[type, str] = {
    transforms.YearTransform: "M8[Y]",
    transforms.MonthTransform: "M8[M]",
    transforms.DayTransform: "M8[D]",
    transforms.HourTransform: "M8[h]",
}


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition.

    ``values`` are the partition's values in Iceberg's JSON single-value serialisation. ``path`` is the usual
    directory of the partition, empty for a table without partitions.
    """

    rows: pa.Table
    values: tuple[Any, ...]
    path: str


class Partitioner:
    """Splits rows by a partition spec and sorts them by a sort order."""

    def __init__(self, schema: Schema, spec: PartitionSpec, order: SortOrder) -> None:
        self._fields = [
            _PartitionField(field.name, _Term(schema, field.source_id, field.transform)) for field in spec.fields
        ]
        self._order = [
            (
                _Term(schema, field.source_id, field.transform),
                "ascending" if field.direction == SortDirection.ASC else "descending",
                "descending" if field.null_order == NullOrder.NULLS_FIRST else "ascending",
            )
            for field in order.fields
        ]

    def parts(self, rows: pa.Table) -> Iterator[Part]:
        """Yield the parts of ``rows``, which have the schema's columns. No rows have no parts."""
        if not rows.num_rows:
            return
        transformed: Sequence[pa.Array] = [field.term.apply(rows) for field in self._fields]
        codes = _codes(transformed, rows.num_rows)
        rows, codes, transformed = self._ordered(rows, codes, transformed)
        starts = (
            [0, *(np.flatnonzero(np.diff(codes)) + 1).tolist(), rows.num_rows]
            if codes is not None
            else [0, rows.num_rows]
        )
        for start, end in itertools.pairwise(starts):
            values = tuple(field.value(column, start) for field, column in zip(self._fields, transformed, strict=True))
            path = "/".join(field.directory(value) for field, value in zip(self._fields, values, strict=True))
            yield Part(rows.slice(start, end - start), values, path)

    def _ordered(
        self, rows: pa.Table, codes: Any, transformed: Sequence[pa.Array]
    ) -> tuple[pa.Table, Any, Sequence[pa.Array]]:
        """Return the rows grouped by part and sorted in each part; unchanged if they already are."""
        if not self._order:
            if codes is None or not np.any(codes[1:] < codes[:-1]):
                return rows, codes, transformed
            indices = pa.array(np.argsort(codes, kind="stable"))
        else:
            columns: dict[str, pa.Array] = {} if codes is None else {"part": pa.array(codes)}
            keys = [(name, "ascending") for name in columns]
            for place, (term, direction, nulls) in enumerate(self._order):
                array = term.apply(rows)
                if array.null_count:
                    columns[f"null{place}"] = array.is_null()
                    keys.append((f"null{place}", nulls))
                columns[f"key{place}"] = array
                keys.append((f"key{place}", direction))
            indices = pc.call_function("sort_indices", [pa.table(columns)], pc.SortOptions(sort_keys=keys))
        return (
            rows.take(indices),
            None if codes is None else codes[indices.to_numpy()],
            [array.take(indices) for array in transformed],
        )


def _codes(arrays: Sequence[pa.Array], count: int) -> Any:
    """Return a number for each row, equal for rows of one part; None if all rows are of one part."""
    codes: Any = None
    for array in arrays:
        if isinstance(array, pa.NullArray) or array.null_count == count:
            continue
        encoded = array.dictionary_encode(null_encoding="encode")
        if len(encoded.dictionary) == 1:
            continue
        own = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        if codes is None:
            codes = own
        else:  # renumber, so that many fields cannot overflow
            codes = np.unique(codes * len(encoded.dictionary) + own, return_inverse=True)[1]
    return codes


class _Term:
    """A transform of a column, applied to rows."""

    def __init__(self, schema: Schema, source_id: int, transform: transforms.Transform[Any, Any]) -> None:
        name = schema.find_column_name(source_id)
        if name is None:
            raise ValueError(f"the schema has no field with id {source_id}, the source of {transform}")
        self._path = name.split(".")
        source = schema.find_type(source_id)
        if not isinstance(source, types.PrimitiveType):
            raise ValueError(f"{transform}({name}): {source} columns cannot be partitioned or sorted by")
        self.source = source
        self.transform = transform
        self.result = transform.result_type(source)
        unit = _UNITS.get(type(transform))
        if unit is not None:
            self._apply: Callable[[pa.Array], pa.Array] = lambda array: _calendar(array, unit)
        elif isinstance(transform, transforms.IdentityTransform):
            self._apply = lambda array: array
        elif isinstance(transform, transforms.VoidTransform):
            self._apply = lambda array: pa.nulls(len(array), array.type)
        else:
            self._apply = transform.pyarrow_transform(source)

    def apply(self, rows: pa.Table) -> pa.Array:
        column = rows[self._path[0]]
        array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):  # too large for one array's offsets
            raise ValueError(f"column {self._path[0]}: more than 2 GiB of values in one write")
        for member in self._path[1:]:
            array = pc.call_function("struct_field", [array], pc.StructFieldOptions([member]))
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        return self._apply(array)


def _calendar(array: pa.Array, unit: str) -> pa.Array:
    """Return whole units since 1970, rounded down, in 32 bits as Iceberg's Java library stores them."""
    days = pa.types.is_date32(array.type)
    numbers = array.cast(pa.int32() if days else pa.int64()).fill_null(0).to_numpy(zero_copy_only=False)
    resolution = "M8[D]" if days else f"M8[{array.type.unit}]"
    counts = numbers.astype(np.int64).astype(resolution).astype(unit).astype(np.int64).astype(np.int32)
    return pa.array(counts, mask=array.is_null().to_numpy(zero_copy_only=False) if array.null_count else None)


class _PartitionField:
    """A field of a partition spec: its value in descriptors and in paths."""

    def __init__(self, name: str, term: _Term) -> None:
        self._name = name
        self.term = term
        # The Java library represents days as dates, although the specification does not ask for it.
        self._type = types.DateType() if isinstance(term.transform, transforms.DayTransform) else term.result

    def value(self, array: pa.Array, place: int) -> Any:
        """Return the JSON single value of ``array[place]``."""
        return json_value(self._type, _plain(array, place))

    def directory(self, value: Any) -> str:
        """Return ``name=value``, for people; the descriptor has the exact value."""
        if value is None:
            text = "null"
        elif isinstance(value, bool):
            text = str(value).lower()
        else:
            text = _calendar_text(self.term.transform, value)
        text = text[:_PATH_VALUE_LIMIT]
        while len(quote_plus(text)) > _PATH_VALUE_LIMIT:  # object stores limit the length of keys
            text = text[:-1]
        return f"{quote_plus(self._name)}={quote_plus(text)}"


def _plain(array: pa.Array, place: int) -> Any:
    """Return ``array[place]``, with integers for dates and times, because they can be beyond Python's range."""
    scalar = array[place]
    if not scalar.is_valid:
        return None
    if pa.types.is_temporal(array.type):
        return scalar.value
    return scalar.as_py()


def _calendar_text(transform: transforms.Transform[Any, Any], value: Any) -> str:
    if isinstance(transform, transforms.YearTransform):
        return _year(value + 1970)
    if isinstance(transform, transforms.MonthTransform):
        return f"{_year(value // 12 + 1970)}-{value % 12 + 1:02d}"
    if isinstance(transform, transforms.HourTransform):
        return f"{_iso_date(value // 24)}-{value % 24:02d}"
    return str(value)


def json_value(kind: types.IcebergType, value: Any) -> Any:
    """Return a value in Iceberg's JSON single-value serialisation. Dates and times are given as integers."""
    if value is None:
        return None
    match kind:
        case types.DateType():
            return _iso_date(value)
        case types.TimeType():
            return _iso_time(value)
        case types.TimestampType():
            return _iso_timestamp(value)
        case types.TimestamptzType():
            return _iso_timestamp(value) + "+00:00"
        case types.TimestampNanoType():
            return _iso_timestamp(value, 9)
        case types.TimestamptzNanoType():
            return _iso_timestamp(value, 9) + "+00:00"
        case types.UUIDType():
            return str(UUID(bytes=value))
        case types.BinaryType() | types.FixedType():
            return value.hex().upper()
        case types.DecimalType():
            return format(Decimal(value), "f")
        case _:
            return value


def _year(year: int) -> str:
    return f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"


def _iso_date(days: int) -> str:
    date = np.datetime64(days, "D")
    month = date.astype("M8[M]")
    months = int(month.astype(np.int64))
    return f"{_year(months // 12 + 1970)}-{months % 12 + 1:02d}-{int((date - month.astype('M8[D]')).astype(np.int64)) + 1:02d}"


def _iso_time(time: int, digits: int = 6) -> str:
    seconds, fraction = divmod(time, 10**digits)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}.{fraction:0{digits}d}"


def _iso_timestamp(moment: int, digits: int = 6) -> str:
    """Return a time with ``digits`` below the second."""
    days, rest = divmod(moment, 86_400 * 10**digits)
    return f"{_iso_date(days)}T{_iso_time(rest, digits)}"
