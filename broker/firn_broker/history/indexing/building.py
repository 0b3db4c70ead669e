"""Finds out which batches of a partition can be rebuilt from data files, and makes entries for them.

Each batch is rebuilt from the rows as the files have them, and compared with the batch of its producer. So an entry never names rows
that give other bytes."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from firn.driver_requests.landed_offsets import RecordFields
from firn.model.errors import CorruptDataError
from firn_broker.history import heads
from firn_broker.history.entries import Entry, Piece
from firn_broker.history.heads import Heads
from firn_broker.history.rows import Group, RowReader
from firn_broker.log_types import Partition

ENTRY_BYTES = 64 << 20
"""Bytes of the batches of an entry, unless one batch has more. A reader of an entry reads whole row groups, so a small entry
would waste reads."""
LARGE_BYTES = 4 << 20
"""Bytes of a batch beyond which it stays as it came if its producer has compressed it. Clients get rebuilt batches without compression, and
limit the bytes of an answer."""
MOST_PIECES = 64
"""Row groups of an entry. A reader at its start may have to read all of them."""
READ_BYTES = 6 * ENTRY_BYTES
"""Bytes of these row groups without compression. Rows of other partitions, and offsets far apart in a row group, make them many."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Batches that cannot be rebuilt. They stay as they came."""

    batches: Sequence[memoryview]


@dataclass(frozen=True, slots=True)
class Table:
    """The row groups of the data files of a table that may have rows of a topic, and the ids of its columns."""

    groups: Sequence[Group]
    fields: RecordFields


def build(
    partition: Partition, batches: Sequence[memoryview], table: Table, reader: RowReader, known: Heads | None = None
) -> list[Entry | Kept]:
    """Return the entries and kept batches that replace consecutive batches, in their order.

    The batches have their offsets and append times, as clients get them. ``known`` are the heads of rebuilt batches, with the codecs of
    their producers. Raises UnavailableError if data files cannot be read now."""
    if known is not None:
        return _parts(partition, known, batches, table, reader)
    parts: list[Entry | Kept] = []
    for some in _portions(batches):
        first = 0
        while first < len(some):
            found = heads.read(some[first:])
            end = first + len(found)
            parts += _parts(partition, found, some[first:end], table, reader)
            if end < len(some):
                # No client can decode this batch. Clients get it as it is.
                parts.append(_kept(some[end : end + 1]))
            first = end + 1
    return parts


def _parts(
    partition: Partition, whole: Heads, batches: Sequence[memoryview], table: Table, reader: RowReader
) -> list[Entry | Kept]:
    """Return what `build` returns for batches with these heads."""
    parts: list[Entry | Kept] = []
    for start, stop in whole.portions(ENTRY_BYTES):
        found, first = whole.select(start, stop), 0
        for matched, numbers in groupby(_matches(partition, found, batches[start:stop], table, reader)):
            end = first + len(list(numbers))
            if matched:
                parts.append(_entry(partition, found.select(first, end), table))
            else:
                parts.append(_kept(batches[start + first : start + end]))
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


def _matches(
    partition: Partition, found: Heads, batches: Sequence[memoryview], table: Table, reader: RowReader
) -> list[bool]:
    """Return for each batch whether its rows give it back."""
    groups = _groups(partition, found, table)
    if len(groups) > MOST_PIECES or sum(group.size for group in groups) > READ_BYTES:
        return [False] * len(found)
    try:
        records = reader.read(_entry(partition, found, table), found.base_offset, found.last_offset)
    except CorruptDataError:
        return [False] * len(found)
    small = (found.sizes <= LARGE_BYTES) | (found.sizes <= found.stored)
    return [
        section is not None and fits and heads.is_section(section, batch)
        for section, fits, batch in zip(heads.sections(found, records), small.tolist(), batches, strict=True)
    ]


def _groups(partition: Partition, found: Heads, table: Table) -> list[Group]:
    return [group for group in table.groups if group.has(partition.index, found.base_offset, found.last_offset)]


def _entry(partition: Partition, found: Heads, table: Table) -> Entry:
    groups = _groups(partition, found, table)
    files = list(dict.fromkeys(group.file for group in groups))
    pieces = [Piece(files.index(group.file), group.number, *group.offsets) for group in groups]
    return Entry(partition, found, files, pieces, table.fields)
