"""Rebuilds the batches of table ranges from the rows of data files."""

from collections.abc import Sequence

import numpy as np

from firn.model.errors import CorruptDataError
from firn_broker.history import entries, heads
from firn_broker.history.entries import Entry
from firn_broker.history.heads import Heads
from firn_broker.history.rows import Files, RowReader
from firn_broker.log_types import BatchRange, TableRange
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal

KEPT_ENTRIES = 32
"""Entries that stay in memory. Each has some 100 bytes for each of its batches."""


class Rebuilder:
    """`History` that reads the entries and the data files itself. Its reads of data files block the event loop."""

    def __init__(self, objects: ObjectStore, files: Files) -> None:
        self._objects = objects
        self._reader = RowReader(files)
        self._kept: dict[tuple[str, int], Entry] = {}

    async def start(self) -> None:
        """Do nothing: there are no processes."""

    async def rebuild(self, ranges: Sequence[BatchRange]) -> list[memoryview]:
        """Return the batches of each range."""
        found = []
        for each in ranges:
            place = each.place
            assert isinstance(place, TableRange)
            found.append(rebuild(await self.entry(place), place.position, place.length, self._reader))
        return found

    async def heads(self, place: TableRange) -> Heads:
        """Return the heads of the batches of a range. Raises CorruptDataError and UnavailableError."""
        entry = await self.entry(place)
        return entry.heads.select(*_numbers(entry, place.position, place.length))

    def close(self) -> None:
        """Do nothing: there are no processes."""

    async def entry(self, place: TableRange) -> Entry:
        """Return the entry of a range. Raises CorruptDataError and UnavailableError."""
        slot = place.key, place.entry
        entry = self._kept.pop(slot, None)
        if entry is None:
            entry = await self._read(place)
        self._kept[slot] = entry
        while len(self._kept) > KEPT_ENTRIES:
            del self._kept[next(iter(self._kept))]
        return entry

    async def _read(self, place: TableRange) -> Entry:
        try:
            (data,) = await self._objects.get_ranges(place.key, [(place.entry, place.entry + place.entry_length)])
        except KeyError as error:
            raise CorruptDataError(f"object {place.key} does not exist") from error
        found = wal.contents(data)
        if len(found) != 1:
            raise CorruptDataError(f"object {place.key} has no entry at byte {place.entry}")
        return entries.decode(found[0][1])


def rebuild(entry: Entry, position: int, length: int, reader: RowReader) -> memoryview:
    """Return ``length`` bytes from ``position`` on of the batches of an entry, which are whole batches.

    Raises CorruptDataError if rows are missing or have changed, so that wrong bytes never leave, and UnavailableError."""
    wanted = entry.heads.select(*_numbers(entry, position, length))
    records = reader.read(entry, wanted.base_offset, wanted.last_offset)
    found = heads.sections(wanted, records)
    parts = [section for section in found if section is not None]
    if len(parts) < len(found):
        base = int(wanted.bases[found.index(None)])
        last = base + int(wanted.spans[found.index(None)]) - 1
        raise CorruptDataError(
            f"{_name(entry)}: the data files do not give back the batch of offsets {base} to {last}: rows are missing, or have changed"
        )
    return heads.assemble(wanted, parts)


def _numbers(entry: Entry, position: int, length: int) -> tuple[int, int]:
    """Return the number of the batch at ``position``, and of the one behind ``length`` bytes. Raises CorruptDataError."""
    places = entry.heads.places
    first, end = np.searchsorted(places, (position, position + length)).tolist()
    if end >= len(places) or (places[first], places[end]) != (position, position + length):
        raise CorruptDataError(f"{_name(entry)}: an entry has no batches at {position} of {length} bytes")
    return first, end


def _name(entry: Entry) -> str:
    return f"topic {entry.partition.topic}, partition {entry.partition.index}"
