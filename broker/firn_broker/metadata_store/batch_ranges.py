"""Batch ranges as rows of the table ``run``: columns and their conversion, which both stores use.

A row has one batch range, or several that lie next to each other in one object (``parts``). Merged objects have rows of
up to `ROW_BYTES`, so that the coordinator has few rows. Readers get the ranges, so that they read no more than they
need. A version of the program that does not know ``parts`` takes such a row for one large range.

A row with ``entry_len`` has table ranges next to each other in one entry, however many. Its position and ``entry_len`` are
those of the entry, its length is the sum of their stored bytes, and ``parts`` has all else. A version of the program that
does not know ``entry_len`` would take the entry for batches, so it may not use a coordinator with such a row."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from firn_broker.log_types import MAX_TIMESTAMP, ROW_BYTES, BatchRange, Lookup, TableRange, WalRange

RANGE_COLUMNS = (
    "run.base_offset, run.last_offset, wal.key, run.pos, run.len, run.max_ts, run.append_ms, run.parts, run.entry_len"
)
"""Columns of ``run`` joined with ``wal``, in the order of `ranges_of_row`."""
_PART = struct.Struct(">QIq")
"""A batch range of a row: its last offset minus the first one of the row, its bytes, its greatest timestamp."""
_FIRST = struct.Struct(">Q")
"""The position of the first table range of a row, in front of its parts. A row may begin in the middle of an entry."""
_TABLE_PART = struct.Struct(">QIIq")
"""A table range of a row: its last offset minus the first one of the row, its length, its stored bytes, its greatest
timestamp."""

RangeRow = tuple[int, int, int, int, int, int, bytes | None, int | None]
"""Last offset, first offset, position, length, greatest timestamp, append time, parts, and length of the entry of a
row."""


def ranges_of_row(row: Sequence[Any]) -> list[BatchRange]:
    """Convert a row of `RANGE_COLUMNS`."""
    return list(_ranges_from(row, 0))


def _ranges_from(row: Sequence[Any], offset: int) -> Iterator[BatchRange]:
    """Yield the ranges of a row that end at ``offset`` or later."""
    base, last, key, position, length, newest, append_ms, parts, entry_length = row
    if entry_length is not None:
        yield from _table_ranges_from(row, offset)
        return
    if parts is None:
        if last >= offset:
            yield BatchRange(base, last, WalRange(key, position, length), newest, append_ms)
        return
    start = base
    for delta, size, timestamp in _PART.iter_unpack(parts):
        if base + delta >= offset:
            yield BatchRange(start, base + delta, WalRange(key, position, size), timestamp, append_ms)
        start, position = base + delta + 1, position + size


def _table_ranges_from(row: Sequence[Any], offset: int) -> Iterator[BatchRange]:
    """Yield the table ranges of a row that end at ``offset`` or later."""
    base, _, key, entry, _, _, append_ms, parts, entry_length = row
    start, (position,) = base, _FIRST.unpack_from(parts)
    for delta, size, stored, timestamp in _TABLE_PART.iter_unpack(parts[_FIRST.size :]):
        if base + delta >= offset:
            place = TableRange(key, position, size, entry, entry_length, stored)
            yield BatchRange(start, base + delta, place, timestamp, append_ms)
        start, position = base + delta + 1, position + size


def wanted_ranges(rows: Iterable[Sequence[Any]], lookup: Lookup, limit: int) -> list[BatchRange]:
    """Return the ranges of rows that a lookup wants, at most ``limit``. The rows follow one another in the log."""
    ranges: list[BatchRange] = []
    budget = lookup.max_bytes
    for row in rows:
        for found in _ranges_from(row, lookup.offset):
            ranges.append(found)
            budget -= found.place.length
            if budget <= 0 or len(ranges) >= limit:
                return ranges
    return ranges


def range_at(row: Sequence[Any], timestamp: int, start: int) -> BatchRange | None:
    """Return the first range of a row that ends at offset ``start`` or later and has a record of ``timestamp`` or later.
    With `MAX_TIMESTAMP`, return the one with the greatest timestamp. Return None if there is none."""
    ranges = list(_ranges_from(row, start))
    if timestamp == MAX_TIMESTAMP:
        return max(ranges, key=lambda found: found.max_timestamp, default=None)
    return next((found for found in ranges if found.max_timestamp >= timestamp), None)


def rows_of_ranges(ranges: Sequence[BatchRange]) -> list[RangeRow]:
    """Return as few rows as possible for the ranges of a rewritten object."""
    groups: list[list[BatchRange]] = []
    for found in ranges:
        if groups and _join(groups[-1], found):
            groups[-1].append(found)
        else:
            groups.append([found])
    return [_row(group) for group in groups]


def _join(group: Sequence[BatchRange], found: BatchRange) -> bool:
    first, last, place = group[0].place, group[-1].place, found.place
    if last.key != place.key or last.position + last.length != place.position or group[-1].append_ms != found.append_ms:
        return False
    if isinstance(place, TableRange):
        return isinstance(last, TableRange) and (last.entry, last.entry_length) == (place.entry, place.entry_length)
    in_objects = not isinstance(last, TableRange)
    return in_objects and found.append_ms == -1 and place.position + place.length - first.position <= ROW_BYTES


def _row(group: Sequence[BatchRange]) -> RangeRow:
    first, last, place = group[0], group[-1], group[0].place
    length = sum(found.stored for found in group)
    ends = [(found.last_offset - first.base_offset, found.place.length) for found in group]
    parts: bytes | None = None
    if isinstance(place, TableRange):
        parts = _FIRST.pack(place.position) + b"".join(
            _TABLE_PART.pack(*end, found.stored, found.max_timestamp) for end, found in zip(ends, group, strict=True)
        )
        position, entry_length = place.entry, place.entry_length
    else:
        if len(group) > 1:
            parts = b"".join(_PART.pack(*end, found.max_timestamp) for end, found in zip(ends, group, strict=True))
        position, entry_length = place.position, None
    return (
        last.last_offset, first.base_offset, position, length, max(found.max_timestamp for found in group),
        first.append_ms, parts, entry_length,
    )  # fmt: skip


def has_table_ranges(rows: Iterable[RangeRow]) -> bool:
    """Return whether a row has table ranges."""
    return any(entry_length is not None for *_, entry_length in rows)


def rows_left(rows: Sequence[Sequence[Any]], old: Sequence[BatchRange]) -> list[tuple[int, RangeRow]] | None:
    """Return what is left of rows without the ranges ``old``: row ids of objects, and new rows. ``rows`` have the row id
    of the object in front of `RANGE_COLUMNS`, and are all that have one of these offsets.

    A row may have ranges before ``old`` or behind them. Return None if the rows do not have exactly these ranges there."""
    found, left = list[BatchRange](), list[tuple[int, RangeRow]]()
    for wal, *row in rows:
        others: tuple[list[BatchRange], list[BatchRange]] = [], []
        for one in ranges_of_row(row):
            if one.last_offset < old[0].base_offset:
                others[0].append(one)
            elif one.base_offset > old[-1].last_offset:
                others[1].append(one)
            else:
                found.append(one)
        left += [(wal, rest) for other in others for rest in rows_of_ranges(other)]
    return left if found == list(old) else None
