"""Finds out which batches of a partition can be rebuilt from data files, and makes entries for them.

Each batch is rebuilt from the rows as the files have them, and compared with the batch of its producer. So an entry never names rows
that give other bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np

from firn.driver_requests.landed_offsets import RecordFields
from firn.model.errors import CorruptDataError
from firn_broker.history import heads
from firn_broker.history.entries import Entry, Piece
from firn_broker.history.heads import NO_SHAPES, Heads
from firn_broker.history.indexing.fitting import fit
from firn_broker.history.rows import Group, RowReader
from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.choosing import Chooser
from firn_broker.history.shapes.rendering import NO_SHAPE
from firn_broker.history.shapes.shape import Object
from firn_broker.log_types import Partition

ENTRY_BYTES = 64 << 20
"""Bytes of the batches of an entry, unless one batch has more. A reader of an entry reads whole row groups, so a small entry
would waste reads."""
LARGE_BYTES = 4 << 20
"""Bytes of a batch beyond which it stays as it came if its producer has compressed it. Clients get rebuilt batches without compression, and
limit the bytes of an answer."""
MOST_PIECES = 64
"""Row groups of an entry. A reader at its start may have to read all of them."""
MOST_OFFSETS = 1 << 24
"""Offsets of an entry with shapes. Each has a byte in memory."""
READ_BYTES = 6 * ENTRY_BYTES
"""Bytes of these row groups without compression. Rows of other partitions, and offsets far apart in a row group, make them many."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Batches that cannot be rebuilt. They stay as they came."""

    batches: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class Known:
    """The heads of batches, for rebuilt ones with the codecs of their producers, and the shapes of their values."""

    heads: Heads
    shapes: Sequence[Object] = ()


@dataclass(frozen=True, slots=True)
class Table:
    """The row groups of the data files of a table that may have rows of a topic, and the ids of its columns."""

    groups: Sequence[Group]
    fields: RecordFields
    chooser: Chooser | None = None
    """Chooses the shapes of values, if the table has no column of values."""


def build(
    partition: Partition, batches: Sequence[memoryview], table: Table, reader: RowReader, known: Known | None = None
) -> list[Entry | Kept]:
    """Return the entries and kept batches that replace consecutive batches, in their order.

    The batches have their offsets and append times, as clients get them. ``known`` is for batches that were rebuilt.
    Raises UnavailableError if data files cannot be read now."""
    if known is not None:
        return _parts(partition, known, batches, table, reader)
    parts: list[Entry | Kept] = []
    for some in _portions(batches):
        first = 0
        while first < len(some):
            found = heads.read(some[first:])
            end = first + len(found)
            parts += _parts(partition, Known(found), some[first:end], table, reader)
            if end < len(some):
                # No client can decode this batch. Clients get it as it is.
                parts.append(_kept(some[end : end + 1]))
            first = end + 1
    return parts


def _parts(
    partition: Partition, whole: Known, batches: Sequence[memoryview], table: Table, reader: RowReader
) -> list[Entry | Kept]:
    """Return what `build` returns for batches with these heads."""
    parts: list[Entry | Kept] = []
    for start, stop in whole.heads.portions(ENTRY_BYTES):
        found, some, first = whole.heads.select(start, stop), batches[start:stop], 0
        entry, matches = _compared(_entry(partition, found, table, whole.shapes), some, table, reader)
        for matched, numbers in groupby(matches):
            end = first + len(list(numbers))
            if matched:
                parts.append(_entry(partition, entry.heads.select(first, end), table, entry.shapes))
            else:
                parts.append(_kept(some[first:end]))
            first = end
    return parts


def _kept(batches: Sequence[memoryview]) -> Kept:
    """Return a copy of batches: a view would keep the whole range in memory."""
    return Kept([memoryview(bytes(batch)) for batch in batches])


def _portions(batches: Sequence[memoryview]) -> list[Sequence[memoryview]]:
    portions, first, size = list[Sequence[memoryview]](), 0, 0
    for number, batch in enumerate(batches):
        if size + len(batch) > ENTRY_BYTES and number > first:
            portions.append(batches[first:number])
            first, size = number, 0
        size += len(batch)
    return [*portions, batches[first:]] if batches else []


def _compared(entry: Entry, batches: Sequence[memoryview], table: Table, reader: RowReader) -> tuple[Entry, list[bool]]:
    """Return an entry with the shapes of its values, and for each batch whether its rows give it back."""
    nothing = [False] * len(entry.heads)
    groups = _groups(entry.partition, entry.heads, table)
    if len(groups) > MOST_PIECES or sum(group.size for group in groups) > READ_BYTES:
        return entry, nothing
    chooser = table.chooser
    if chooser is None or len(entry.heads.shapes):
        return entry, _matches(entry, batches, reader)
    if entry.heads.spans.sum() > MOST_OFFSETS:
        return entry, nothing
    matches = nothing
    if chooser.shapes:
        # Most records of a topic have the same shape.
        entry = _shaped(entry, chooser.shapes[:1], np.zeros(int(entry.heads.spans.sum()), np.uint8))
        matches = _matches(entry, batches, reader)
    if all(matches):
        return entry, matches
    try:
        numbers = fit(chooser, entry, batches, matches, reader)
    except CorruptDataError:
        return entry, nothing
    entry = _shaped(entry, chooser.shapes, numbers)
    matches = _matches(entry, batches, reader)
    chooser.order(numbers)
    return entry, matches


def _matches(entry: Entry, batches: Sequence[memoryview], reader: RowReader) -> list[bool]:
    """Return for each batch whether its rows give it back."""
    found = entry.heads
    try:
        records = reader.read(entry, found.base_offset, found.last_offset)
    except CorruptDataError:
        return [False] * len(found)
    small = (found.sizes <= LARGE_BYTES) | (found.sizes <= found.stored)
    return [
        section is not None and fits and heads.is_section(section, batch)
        for section, fits, batch in zip(heads.sections(found, records), small.tolist(), batches, strict=True)
    ]


def _shaped(entry: Entry, shapes: Sequence[Object], numbers: Numbers) -> Entry:
    return replace(entry, heads=replace(entry.heads, shapes=numbers), shapes=tuple(shapes))


def _groups(partition: Partition, found: Heads, table: Table) -> list[Group]:
    return [group for group in table.groups if group.has(partition.index, found.base_offset, found.last_offset)]


def _entry(partition: Partition, found: Heads, table: Table, shapes: Sequence[Object]) -> Entry:
    """Return the entry of batches, with those of the shapes that their records have."""
    groups = _groups(partition, found, table)
    files = list(dict.fromkeys(group.file for group in groups))
    pieces = [Piece(files.index(group.file), group.number, *group.offsets) for group in groups]
    if table.chooser is None:
        return Entry(partition, replace(found, shapes=NO_SHAPES), files, pieces, table.fields)
    used = [number for number in np.unique(found.shapes).tolist() if number < len(shapes)]
    places = np.full(256, NO_SHAPE, np.uint8)
    places[used] = np.arange(len(used))
    found = replace(found, shapes=places[found.shapes])
    return Entry(partition, found, files, pieces, table.fields, tuple(shapes[number] for number in used))
