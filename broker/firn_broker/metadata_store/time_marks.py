"""Time marks: a search for a timestamp reads few batch ranges of a long log.

A mark is an offset of a partition with the greatest timestamp of all records below it. A search begins at the last mark
with an earlier timestamp. Maintenance adds a mark for each `SPACING` batch ranges. The records behind the last mark are
searched one range after the other. A mark stays true: retention and compaction only delete records. So a store without
marks, or with old ones, finds the same ranges.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple
from uuid import UUID

from firn_broker.log_types import MAX_TIMESTAMP, BatchRange

SPACING = 256
"""Batch ranges from one mark to the next."""
EXAMINED = 100
"""Partitions of which one step of `RetentionStore.mark_times` looks for new ranges, which takes a few milliseconds."""
OBSOLETE = 64
"""Marks below the log start that one step deletes of each partition."""
LATEST = (1 << 63) - 1


class Mark(NamedTuple):
    """No record of a partition below ``offset`` has a timestamp above ``timestamp``."""

    timestamp: int
    offset: int


class Range(NamedTuple):
    """A batch range behind the last mark of its partition."""

    log: int
    topic: UUID
    partition: int
    marked: int | None
    """The timestamp of that mark."""
    last_offset: int
    timestamp: int


def new_marks(ranges: Iterable[Range]) -> list[tuple[UUID, int, int, int]]:
    """Return (topic, partition, timestamp, offset) of a mark for each `SPACING` ranges of a partition.

    The ranges of a partition follow one another."""
    marks = []
    log, count, greatest = -1, 0, 0
    for found in ranges:
        if found.log != log:
            log, count, greatest = found.log, 0, found.timestamp if found.marked is None else found.marked
        count += 1
        greatest = max(greatest, found.timestamp)
        if count % SPACING == 0:
            marks.append((found.topic, found.partition, greatest, found.last_offset + 1))
    return marks


LastMark = Callable[[int], Awaitable[Mark | None]]
"""Returns a partition's last mark with a timestamp below the given one."""
Walk = Callable[[int, int], Awaitable[BatchRange | None]]
"""Finds the range for (timestamp, first offset), as `LogStore.find_by_time`, in time that grows with the ranges in
between."""


async def search(last_mark: LastMark, walk: Walk, timestamp: int, since: int) -> BatchRange | None:
    """Do as `LogStore.find_by_time`, with the marks of the partition."""
    mark = await last_mark(LATEST if timestamp == MAX_TIMESTAMP else timestamp)
    if mark is None:
        return await walk(timestamp, since)
    found = await walk(timestamp, max(since, mark.offset))
    if timestamp != MAX_TIMESTAMP or (found is not None and found.max_timestamp > mark.timestamp):
        return found
    # The greatest timestamp lies below the last mark, unless retention has deleted its record.
    return await search(last_mark, walk, mark.timestamp, since) or await walk(timestamp, since)
