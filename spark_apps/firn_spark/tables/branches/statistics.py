"""Figures of the rows that a snapshot adds, from the metrics of its data files. No row is read."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.conversions import from_bytes
from pyiceberg.types import IcebergType, PrimitiveType

from firn_spark.jvm import elements


@dataclass(frozen=True, slots=True)
class ColumnFigures:
    """Figures of a column. A value that the metrics do not have is not known."""

    nulls: int | None = 0
    """None: not known."""
    low: Any = None
    high: Any = None
    """None: no value, unless ``bounded`` is False."""
    bounded: bool = True
    """False if ``low`` and ``high`` are not known."""

    def plus(self, other: "ColumnFigures") -> "ColumnFigures":
        """Return the figures of the rows of both."""
        nulls = None if self.nulls is None or other.nulls is None else self.nulls + other.nulls
        lows = [low for low in (self.low, other.low) if low is not None]
        highs = [high for high in (self.high, other.high) if high is not None]
        return ColumnFigures(nulls, min(lows, default=None), max(highs, default=None), self.bounded and other.bounded)


@dataclass(frozen=True, slots=True)
class Figures:
    """Figures of rows: their number, and those of columns by field id."""

    rows: int = 0
    columns: Mapping[int, ColumnFigures] = field(default_factory=dict)

    def plus(self, other: "Figures") -> "Figures":
        """Return the figures of the rows of both."""
        none = ColumnFigures()
        ids = self.columns.keys() | other.columns.keys()
        columns = {id: self.columns.get(id, none).plus(other.columns.get(id, none)) for id in ids}
        return Figures(self.rows + other.rows, columns)


def added(jvm: Any, table: Any, snapshot: Any, fields: Mapping[int, IcebergType | None]) -> Figures:
    """Return the figures of the rows that a snapshot (Java) appends, for these columns by field id.

    A snapshot that replaces or removes files adds no rows. Raises `JAVA_ERRORS`.
    """
    if snapshot.operation() != "append":
        return Figures()
    iceberg = jvm.org.apache.iceberg
    files = iceberg.SnapshotChanges.builderFor(table).snapshot(snapshot).build().addedDataFiles()
    specs = table.specs()
    texts = (
        str(iceberg.ContentFileParser.toJson(file, specs.get(file.specId()))) for file in elements(files.iterator())
    )
    return of_files(map(json.loads, texts), fields)


def of_files(files: Iterable[Mapping[str, Any]], fields: Mapping[int, IcebergType | None]) -> Figures:
    """Return the figures of data files in Iceberg's JSON (ContentFileParser). A column without a type has no bounds."""
    total = Figures()
    for file in files:
        rows = int(file["record-count"])
        nulls, lows, highs = (_by_id(file.get(key)) for key in ("null-value-counts", "lower-bounds", "upper-bounds"))
        columns = {id: _column(rows, id, kind, nulls, lows, highs) for id, kind in fields.items()}
        total = total.plus(Figures(rows, columns))
    return total


def _column(
    rows: int,
    id: int,
    kind: IcebergType | None,
    nulls: Mapping[int, Any],
    lows: Mapping[int, Any],
    highs: Mapping[int, Any],
) -> ColumnFigures:
    count = nulls.get(id)
    if count == rows:
        return ColumnFigures(rows)
    low, high = _value(kind, lows.get(id)), _value(kind, highs.get(id))
    return ColumnFigures(count, low, high, low is not None and high is not None)


def _by_id(pairs: Mapping[str, Any] | None) -> dict[int, Any]:
    return dict(zip(pairs["keys"], pairs["values"], strict=True)) if pairs else {}


def _value(kind: IcebergType | None, text: str | None) -> Any:
    """Return a bound: a number, or days or microseconds since 1970."""
    return from_bytes(kind, bytes.fromhex(text)) if text is not None and isinstance(kind, PrimitiveType) else None
