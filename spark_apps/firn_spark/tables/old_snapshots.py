"""Old snapshots, which ingestion commits remove from a table's metadata so that its size stays bounded.

A removal deletes no file. Orphan removal finds the files that no snapshot refers to any more. These snapshots stay:

- those that were current within `Window.age_ms`, and the newest `Window.at_least`;
- one of each hour of the last 26 hours: compaction knows the age of a file from its snapshot;
- those that tags and branches need, those with statistics, and the older ones that complete the offsets of a kept one;
- those of other engines, and of runs that dropped rows;
- the last one of an earlier Kafka topic and the first one of the next: ``firn audit`` tells their rows apart.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import structlog

from firn.model import names
from firn.model.progress import SharedOffsets, is_complete
from firn.tables.table_properties import MAIN
from firn_spark.jvm import texts
from firn_spark.tables.branches.landing import branch_of, head_of, lineage, unpublished

log = structlog.get_logger()

REMOVED_KINDS = ("ingest", "compact")
"""``firn.kind`` of the snapshots that may go."""
AT_ONCE = 2_000
"""Largest number of snapshots that a commit removes. The metadata of an old table may have far more."""
SLOT_MS = 3_600_000
SLOTS_MS = 26 * SLOT_MS
"""Age up to which one snapshot of each hour stays: `firn.tables.compaction.QUIET_MS`, and room for ``openGrace``."""
_MAX_AGE = "history.expire.max-snapshot-age-ms"
_AT_LEAST = "history.expire.min-snapshots-to-keep"


@dataclass(frozen=True, slots=True)
class Window:
    """Snapshots that stay. Age counts from the time when a newer snapshot replaced them."""

    age_ms: int
    at_least: int = 1

    @classmethod
    def of(cls, age_ms: int, properties: Mapping[str, str]) -> Self:
        """Return the window of a table: ``age_ms``, or more if Iceberg's own properties of the table ask for more."""
        return cls(max(age_ms, int(properties.get(_MAX_AGE) or 0)), int(properties.get(_AT_LEAST) or 1))


@dataclass(frozen=True, slots=True)
class Entry:
    """The properties of a snapshot that decide its removal."""

    id: int
    committed_ms: int
    kind: str | None
    topic_id: str | None
    complete: bool
    """True if its summary has the offsets of all partitions."""


def removable(entries: Sequence[Entry], needed: frozenset[int], now_ms: int) -> list[int]:
    """Return the ids of the snapshots to remove.

    ``entries``: the snapshots older than the window and the oldest one in it, oldest first. ``needed``: the snapshots
    that tags and branches need.
    """
    stay = set(needed)
    # A rollback to a kept snapshot needs the offsets of its history.
    incomplete = True
    for entry in reversed(entries):
        if incomplete or entry.id in needed or entry.kind not in REMOVED_KINDS:
            stay.add(entry.id)
            incomplete = not entry.complete
    slot, before = -1, None
    for entry in entries:
        hour = entry.committed_ms // SLOT_MS
        if entry.complete and hour != slot and entry.committed_ms >= now_ms - SLOTS_MS:
            stay.add(entry.id)
            slot = hour
        if entry.topic_id is not None:
            if before is not None and before.topic_id != entry.topic_id:
                stay |= {before.id, entry.id}
            before = entry
    return [entry.id for entry in entries if entry.kind in REMOVED_KINDS and entry.id not in stay]


def old_snapshots(metadata: Any, age_ms: int, now_ms: int) -> list[Any]:
    """Return the snapshots (Java) to remove from ``metadata``, whose newest snapshot stays."""
    properties = metadata.properties()
    if (properties.get("gc.enabled") or "true").lower() != "true":
        return []
    try:
        window = Window.of(age_ms, properties)
    except ValueError as error:
        log.warning("old snapshots stay, because a table property has an invalid number", error=str(error))
        return []
    snapshots = metadata.snapshots()
    # Every call of Java is expensive. Only the snapshots that may go are read in full.
    dated = sorted(
        ((int(snapshot.timestampMillis()), number, snapshot) for number, snapshot in enumerate(snapshots)),
        key=lambda item: item[:2],
    )
    # The newest of those committed before the window was current when it began.
    old = sum(moment < now_ms - window.age_ms for moment, _, _ in dated) - 1
    old = min(old, len(dated) - window.at_least, AT_ONCE)
    if old < 1:
        return []
    read = {int(snapshot.snapshotId()): (moment, snapshot) for moment, _, snapshot in dated[: old + 1]}
    entries = [_entry(id, moment, snapshot) for id, (moment, snapshot) in read.items()]
    return [read[id][1] for id in removable(entries, frozenset(_needed(metadata)), now_ms)]


def _entry(id: int, moment: int, snapshot: Any) -> Entry:
    summary = texts(snapshot.summary())
    kind = summary.get(names.SUMMARY_KIND)
    if kind is None:
        return Entry(id, moment, None, None, complete=False)
    offsets, topic_id = summary.get(names.SUMMARY_OFFSETS), summary.get(names.SUMMARY_TOPIC_ID)
    if SharedOffsets.is_in(offsets):
        topic_id = None  # the rows of a shared table name their topic
    return Entry(id, moment, kind, topic_id, is_complete(offsets))


def _needed(metadata: Any) -> Iterator[int]:
    """Yield the current snapshot, those of tags with those that complete their offsets, the whole histories of
    branches, and snapshots with statistics.

    Of the branch on which rows land, only the snapshots that main does not have stay, and the head.
    """
    # After a rollback, newer snapshots are not in its history.
    yield int(metadata.currentSnapshot().snapshotId())
    for file in [*metadata.statisticsFiles(), *metadata.partitionStatisticsFiles()]:
        yield int(file.snapshotId())
    landing = branch_of(metadata)
    waiting = unpublished(metadata) if landing != MAIN else []
    for snapshot in waiting or ():
        yield int(snapshot.snapshotId())
    refs = dict(metadata.refs())
    # Without a snapshot in between, nothing shows that only appends came since the tag, and its files would be compared again.
    logs = {int(ref.snapshotId()) for name, ref in refs.items() if str(name).startswith(names.LOG_TAG)}
    since = list[int]()
    for snapshot in lineage(metadata, head_of(metadata)) if logs else ():
        since.append(int(snapshot.snapshotId()))
        if since[-1] in logs:
            yield from since
            break
    for name, ref in refs.items():
        if name in (MAIN, names.HISTORY_TAG):
            continue
        if name == landing and waiting is not None:
            yield int(ref.snapshotId())
            continue
        for snapshot in lineage(metadata, metadata.snapshot(ref.snapshotId())):
            yield int(snapshot.snapshotId())
            if not ref.isBranch() and is_complete(snapshot.summary().get(names.SUMMARY_OFFSETS)):
                break
