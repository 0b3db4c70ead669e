"""Merges: batch ranges of many small objects move into few large ones.

Each upload of a broker is an object with a few kilobytes of each partition. A topic would keep one row in the coordinator
for each of them, and a reader of history would send one request for each. A merge copies the batches as they are, ordered
by partition and offset, and the coordinator then swaps the batch ranges. A crash anywhere leaves the old ranges or the
new ones.

Objects have levels. A merge reads objects of one level, and writes objects of the next one. With many partitions, an object
of the first level still has little of each. `FAN` merges together make their ranges up to `FAN` times as long. Objects with
long ranges are not read again.

Ranges of different hours stay in different rows of the coordinator. A row expires as a whole, so a longer one would delay
retention."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from uuid import UUID

import structlog

from firn.model.errors import CorruptDataError, FencedError, UnavailableError
from firn.records import record_batch
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.log.blocks import number_batches
from firn_broker.log_types import (
    ROW_BYTES,
    UNMERGEABLE,
    UNMERGED,
    Commit,
    MergeSource,
    NodeLease,
    Rewrite,
    SourceRow,
    Swap,
)
from firn_broker.maintenance.compaction import batch_ranges
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal
from firn_broker.storage.memory import uncleared_pages

log = structlog.get_logger()

FAN = 16
"""Merges of one level whose objects the next level merges."""
LEVELS = 8
SOURCES = 4_000
"""Objects that one selection reads at most."""
MOST_ROWS = 100_000
"""Rows of batch ranges that one selection has at most, unless two objects have more. Each takes about 600 bytes of memory."""
ROWS = 4_000
"""Rows of batch ranges that one request to the coordinator returns."""
LONG_ROW = 24 << 20
"""Average bytes of the rows of an object from which a further merge would not be worth its requests."""
READS = 4
"""Concurrent requests to the object store."""
HOUR_MS = 3_600_000

Group = Sequence[SourceRow]
"""Rows that become one row."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Objects of one level that are due for a merge."""

    level: int
    sources: Sequence[MergeSource]


@dataclass(slots=True)
class Merged:
    """Counts of a merge."""

    sources: int = 0
    objects: int = 0
    """New objects."""
    bytes: int = 0
    rows_before: int = 0
    rows_after: int = 0
    damaged: int = 0
    """Rows that stay where they are, because their batches cannot be read."""

    def report(self) -> dict[str, int]:
        """Return the counts by name."""
        return asdict(self)


def select(
    level: int, sources: Sequence[MergeSource], merged_bytes: int, now_ms: int, wait_ms: int
) -> Selection | None:
    """Select objects of a level for a merge; None if it has too few yet. ``sources`` are its oldest objects.

    Objects of brokers wait up to ``wait_ms`` for others, to fill an object of ``merged_bytes``."""
    if level == UNMERGED:
        taken, size, rows = list[MergeSource](), 0, 0
        for source in sources:
            if len(taken) > 1 and (size + source.size > merged_bytes or rows + source.rows > MOST_ROWS):
                return Selection(level, taken)
            taken.append(source)
            size, rows = size + source.size, rows + source.rows
        waited = len(taken) > 1 and (now_ms - taken[0].made_ms >= wait_ms or len(taken) == SOURCES)
        return Selection(level, taken) if waited else None
    # The objects of one merge have the same time.
    generations = [list(group) for _, group in groupby(sources, key=lambda source: source.made_ms)]
    if len(generations) < FAN and len(sources) < SOURCES:
        return None
    # The last one may be incomplete.
    taken = generations[0]
    for group in generations[1:FAN] if len(generations) >= FAN else generations[1:-1]:
        if len(taken) > len(generations[0]) and sum(source.rows for source in (*taken, *group)) > MOST_ROWS:
            break
        taken = [*taken, *group]
    return Selection(level, taken)


def grouped(rows: Iterable[SourceRow], level: int) -> Sequence[Group]:
    """Group the rows of a partition, in the order of its log, into those that become one row."""
    groups: list[list[SourceRow]] = []
    for row in rows:
        if groups and _joins(groups[-1], row, level):
            groups[-1].append(row)
        else:
            groups.append([row])
    return groups


def _joins(group: Sequence[SourceRow], row: SourceRow, level: int) -> bool:
    last = group[-1]
    return (
        last.ranges[-1].last_offset + 1 == row.ranges[0].base_offset
        and sum(each.size for each in group) + row.size <= ROW_BYTES
        and group[0].made_ms // HOUR_MS == row.made_ms // HOUR_MS
        # An earlier merge had a reason to keep them apart.
        and (level == UNMERGED or last.ranges[-1].place.key != row.ranges[0].place.key)
    )


class _DamagedError(Exception):
    """The batches of some rows cannot be read."""

    def __init__(self, rows: Sequence[SourceRow]) -> None:
        super().__init__(f"{len(rows)} rows")
        self.rows = rows


class Merging:
    """Merges objects. Its caller has the lease for it, so that no other broker does the same."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, identifiers: Identifiers, merged_bytes: int) -> None:
        self._log = store.log
        self._merges = store.merges
        self._objects = objects
        self._identifiers = identifiers
        self._bytes = merged_bytes

    async def merge(self, lease: NodeLease, selection: Selection) -> Merged:
        """Move all batch ranges of the sources into new objects. Raises UnavailableError and FencedError."""
        for key in await self._merges.unfinished(lease):
            # A process that merged for this broker was killed.
            await self._log.commit(Commit(lease, key, 0, ()))
        merged = Merged(len(selection.sources))
        keys = [source.key for source in selection.sources]
        made_ms = max(source.made_ms for source in selection.sources)
        waiting, size = list[SourceRow](), 0
        last: SourceRow | None = None
        while rows := await self._merges.rows(keys, last, ROWS):
            last = rows[-1]
            for row in rows:
                if waiting and size + row.size > self._bytes:
                    await self._move(lease, waiting, selection.level, made_ms, merged)
                    waiting, size = [], 0
                waiting.append(row)
                size += row.size
        if waiting:
            await self._move(lease, waiting, selection.level, made_ms, merged)
        await self._merges.finish(keys)
        return merged

    async def _move(
        self, lease: NodeLease, rows: Sequence[SourceRow], level: int, made_ms: int, merged: Merged
    ) -> None:
        """Move rows into one new object."""
        id = self._identifiers.uuid7()
        key = wal.merged_key(id)
        await self._log.reserve(lease, [key])
        try:
            while rows:
                try:
                    data, swaps = await self._build(lease, id, rows, level)
                    break
                except _DamagedError as error:
                    merged.damaged += len(error.rows)
                    rows = [row for row in rows if row not in error.rows]
            else:
                await self._log.commit(Commit(lease, key, 0, ()))
                return
            await self._objects.put(key, data)
        except (UnavailableError, FencedError):
            # An empty commit gives the key up. If that fails too, the next merge does it.
            await self._log.commit(Commit(lease, key, 0, ()))
            raise
        new_level = self._level(level, len(data), len(rows), len(swaps))
        swapped = await self._log.rewrite(Rewrite(lease, key, len(data), swaps, new_level, made_ms))
        merged.objects += any(swapped)
        merged.bytes += len(data)
        merged.rows_before += len(rows)
        merged.rows_after += sum(swapped)

    def _level(self, level: int, size: int, before: int, after: int) -> int:
        """Return the level of a new object with ``after`` rows in place of ``before``."""
        useless = size >= self._bytes // 2 and 2 * after > before
        return UNMERGEABLE if useless or size >= after * LONG_ROW or level + 1 >= LEVELS else level + 1

    async def _build(
        self, lease: NodeLease, id: UUID, rows: Sequence[SourceRow], level: int
    ) -> tuple[memoryview, list[Swap]]:
        """Read the batches of rows, and return the new object and the swaps. Raises _DamagedError, UnavailableError."""
        partitions = [(partition, list(group)) for partition, group in groupby(rows, key=lambda row: row.partition)]
        body = sum(row.size for row in rows)
        memory = uncleared_pages(body + wal.room(body, len(partitions)))
        places = await self._read(rows, memory)
        key, swaps, segments = wal.merged_key(id), list[Swap](), []
        for partition, some in partitions:
            batches = []
            for group in grouped(some, level):
                start = places[id_of(group[0])]
                data = memory[start : start + sum(row.size for row in group)]
                found = [(place, data[place : place + size]) for place, size, _ in record_batch.walk(data)]
                new = batch_ranges(key, [batch for _, batch in found], [start + place for place, _ in found])
                swaps.append(Swap(partition, [old for row in group for old in row.ranges], new))
                batches += [record_batch.rewritten(batch) for _, batch in found]
            segments.append((partition, batches))
        return wal.seal(memory, id, lease.node, lease.epoch, segments), swaps

    async def _read(self, rows: Sequence[SourceRow], memory: memoryview) -> dict[str, int]:
        """Read the batches of rows into ``memory``, one row after the other, and give them their offsets.

        Return the position of each row by `id_of`."""
        places, position = dict[str, int](), wal.HEAD
        by_object: defaultdict[str, list[SourceRow]] = defaultdict(list)
        for row in rows:
            places[id_of(row)] = position
            position += row.size
            by_object[row.ranges[0].place.key].append(row)
        reads = asyncio.Semaphore(READS)

        async def read(key: str, some: Sequence[SourceRow]) -> list[SourceRow]:
            async with reads:
                return await self._read_one(key, some, places, memory)

        damaged = await asyncio.gather(*(read(key, some) for key, some in by_object.items()))
        if any(damaged):
            raise _DamagedError([row for some in damaged for row in some])
        return places

    async def _read_one(
        self, key: str, rows: Sequence[SourceRow], places: dict[str, int], memory: memoryview
    ) -> list[SourceRow]:
        """Read the rows of one object, and return those that are damaged."""
        spans = _spans(rows)
        try:
            contents = await self._objects.get_ranges(key, spans)
        except KeyError:
            log.warning("an object is missing; its records stay where they are", key=key)
            return list(rows)
        damaged, number = [], 0
        for row in sorted(rows, key=_position):
            start, end = _position(row), _position(row) + row.size
            while spans[number][1] < end:
                number += 1
            first, place = spans[number][0], places[id_of(row)]
            part = contents[number][start - first : end - first]
            try:
                if len(part) != row.size:
                    raise CorruptDataError(f"{key} ends before {end}")
                memory[place : place + row.size] = part
                for found in row.ranges:
                    number_batches(found, memory[place : place + found.place.length])
                    place += found.place.length
            except CorruptDataError as error:
                log.warning("cannot merge damaged batches; they stay where they are", key=key, error=str(error))
                damaged.append(row)
        return damaged


def id_of(row: SourceRow) -> str:
    """Return a text that no other row of a merge has."""
    place = row.ranges[0].place
    return f"{place.key} {place.position}"


def _position(row: SourceRow) -> int:
    return row.ranges[0].place.position


def _spans(rows: Sequence[SourceRow]) -> list[tuple[int, int]]:
    """Return the byte ranges of rows of one object, in order. Rows next to each other are one."""
    spans: list[tuple[int, int]] = []
    for start, end in sorted((_position(row), _position(row) + row.size) for row in rows):
        if spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans
