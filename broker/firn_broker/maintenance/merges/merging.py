"""Merges: batch ranges of many small objects move into few large ones.

Each upload of a broker is an object with a few kilobytes of each partition. A topic would keep one row in the coordinator
for each of them, and a reader of history would send one request for each. A merge copies the batches as they are, ordered
by partition and offset, and the coordinator then swaps the batch ranges. A crash anywhere leaves the old ranges or the
new ones.

Objects have levels. A merge reads objects of one level, and writes objects of the next one. With many partitions, an object
of the first level still has little of each. `FAN` merges together make their ranges up to `FAN` times as long. Objects with
long ranges are not read again.

A merge takes objects of one hour. A row of the coordinator expires as a whole, so a longer one would delay retention. What
is left of an hour at a level is merged some time after its end."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, takewhile
from uuid import UUID

import structlog

from firn.model.errors import CorruptDataError, FencedError, UnavailableError
from firn.records import record_batch
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.log.blocks import Slot, number_batches, slot_of
from firn_broker.log_types import (
    ROW_BYTES,
    UNMERGEABLE,
    UNMERGED,
    BatchRange,
    Commit,
    MergeSource,
    NodeLease,
    Rewrite,
    SourceRow,
    Swap,
)
from firn_broker.maintenance.compaction import batch_ranges, joined
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
MOST_OBJECTS = 32
"""New objects of one selection, after which other selections have their turn."""
RETRY_SECONDS = (0.1, 1.0)
"""Seconds before each repetition of a read that failed."""
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

    @property
    def ends(self) -> bool:
        """Return whether no other merge of their hour is left, so that a merge would change nothing.

        An object of a broker is merged alone too, because a merged object shows offsets, from which a recovery makes a coordinator."""
        return self.level != UNMERGED and len({source.made_ms for source in self.sources}) == 1


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

    All come from one hour, because rows of different hours do not join. What is left of an hour is merged ``wait_ms`` after
    its end. Objects of brokers wait no longer than this for others, to fill an object of ``merged_bytes``."""
    if not sources:
        return None
    hour = sources[0].made_ms // HOUR_MS
    of_hour = list(takewhile(lambda source: source.made_ms // HOUR_MS == hour, sources))
    over = now_ms >= (hour + 1) * HOUR_MS + wait_ms or len(of_hour) == SOURCES
    if level == UNMERGED:
        taken, size, rows = list[MergeSource](), 0, 0
        for source in of_hour:
            if len(taken) > 1 and (size + source.size > merged_bytes or rows + source.rows > MOST_ROWS):
                return Selection(level, taken)
            taken.append(source)
            size, rows = size + source.size, rows + source.rows
        waited = len(taken) > 1 and now_ms - taken[0].made_ms >= wait_ms
        return Selection(level, taken) if over or waited else None
    # The objects of one merge have the same time.
    generations = [list(group) for _, group in groupby(of_hour, key=lambda source: source.made_ms)]
    if len(of_hour) == SOURCES and len(generations) > 1:
        # The last one may be incomplete.
        del generations[-1]
    if len(generations) < FAN and not over:
        return None
    taken = generations[0]
    for group in generations[1:FAN]:
        if len(taken) > len(generations[0]) and sum(source.rows for source in (*taken, *group)) > MOST_ROWS:
            break
        taken = [*taken, *group]
    return Selection(level, taken)


def grouped(rows: Iterable[SourceRow], level: int) -> Sequence[Group]:
    """Group the rows of a partition, in the order of its log, into those that become one row."""
    groups: list[list[SourceRow]] = []
    size = 0
    for row in rows:
        if groups and size + row.size <= ROW_BYTES and _joins(groups[-1], row, level):
            groups[-1].append(row)
            size += row.size
        else:
            groups.append([row])
            size = row.size
    return groups


def _joins(group: Sequence[SourceRow], row: SourceRow, level: int) -> bool:
    last = group[-1]
    return (
        last.ranges[-1].last_offset + 1 == row.ranges[0].base_offset
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
        for key in await self._merges.unfinished(lease, wal.MERGED):
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
                    if merged.objects >= MOST_OBJECTS:
                        # The objects of brokers have their turn. The next selection has the rest.
                        return merged
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
        uuid = self._identifiers.uuid7()
        key = wal.merged_key(uuid)
        await self._log.reserve(lease, [key])
        try:
            while rows:
                try:
                    data, swaps = await self._build(lease, uuid, rows, level)
                    break
                except _DamagedError as error:
                    merged.damaged += len(error.rows)
                    damaged = set(map(id, error.rows))
                    rows = [row for row in rows if id(row) not in damaged]
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
        useless = level != UNMERGED and size >= self._bytes // 2 and 2 * after > before
        return UNMERGEABLE if useless or size >= after * LONG_ROW or level + 1 >= LEVELS else level + 1

    async def _build(
        self, lease: NodeLease, id: UUID, rows: Sequence[SourceRow], level: int
    ) -> tuple[memoryview, list[Swap]]:
        """Read the batches of rows, and return the new object and the swaps. Raises _DamagedError, UnavailableError."""
        partitions = [(partition, list(group)) for partition, group in groupby(rows, key=lambda row: row.partition)]
        body = sum(row.size for row in rows)
        memory = uncleared_pages(body + wal.room(body, len(partitions)))
        places = await self._read(rows, memory)
        key, swaps, index = wal.merged_key(id), list[Swap](), wal.Index()
        for partition, some in partitions:
            index.begin(partition)
            for group in grouped(some, level):
                new: list[BatchRange] = []
                old = [each for row in group for each in row.ranges]
                for each in old:
                    place = places[slot_of(each)]
                    data = memory[place : place + each.place.length]
                    batches = record_batch.split(data)
                    positions = index.add([record_batch.rewritten(batch) for batch in batches])
                    new = joined(new, batch_ranges(key, batches, positions))
                swaps.append(Swap(partition, old, new))
                # Without a process of its own, a merge shares the event loop.
                await asyncio.sleep(0)
        return wal.seal(memory, id, lease.node, lease.epoch, index), swaps

    async def _read(self, rows: Sequence[SourceRow], memory: memoryview) -> dict[Slot, int]:
        """Read the batches of rows into ``memory``, one row after the other, and give them their offsets.

        Return the position of each range."""
        places, position = dict[Slot, int](), wal.HEAD
        by_object: defaultdict[str, list[SourceRow]] = defaultdict(list)
        for row in rows:
            for found in row.ranges:
                places[slot_of(found)] = position
                position += found.place.length
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
        self, key: str, rows: Sequence[SourceRow], places: dict[Slot, int], memory: memoryview
    ) -> list[SourceRow]:
        """Read the rows of one object, and return those that are damaged."""
        spans = _spans(rows)
        try:
            contents = await self._get(key, spans)
        except (KeyError, CorruptDataError) as error:
            log.warning("cannot merge the batches of an object; they stay where they are", key=key, error=repr(error))
            return list(rows)
        damaged, number = [], 0
        for row in sorted(rows, key=_position):
            while spans[number][1] < _position(row) + row.size:
                number += 1
            first = spans[number][0]
            try:
                for found in row.ranges:
                    place, start = places[slot_of(found)], found.place.position - first
                    part = contents[number][start : start + found.place.length]
                    if len(part) != found.place.length:
                        raise CorruptDataError(f"{key} is too short")
                    memory[place : place + len(part)] = part
                    number_batches(found, memory[place : place + len(part)])
            except CorruptDataError as error:
                log.warning("cannot merge damaged batches; they stay where they are", key=key, error=str(error))
                damaged.append(row)
        return damaged

    async def _get(self, key: str, spans: Sequence[tuple[int, int]]) -> Sequence[memoryview]:
        """Read ranges of an object. Raises KeyError if it is missing, CorruptDataError if only this object cannot be read, and
        UnavailableError."""
        for seconds in RETRY_SECONDS:
            try:
                return await self._objects.get_ranges(key, spans)
            except UnavailableError:
                await asyncio.sleep(seconds)
        try:
            return await self._objects.get_ranges(key, spans)
        except UnavailableError as error:
            # The store answers, so the object is damaged or too short, or may not be read.
            await self._objects.size(key)
            raise CorruptDataError(str(error)) from error


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
