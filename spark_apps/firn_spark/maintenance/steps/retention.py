"""Retention of one table: drops old rows, snapshots, metadata files and orphans.

Without ``enforce`` a run computes the same and changes nothing.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import takewhile
from typing import Any

import structlog

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import CommitConflictError, InvalidSpecError
from firn.model.maintenance import Removed, RetentionWork, RowsWork, SnapshotsWork
from firn.model.progress import is_complete
from firn.tables.table_properties import MAIN
from firn_spark.jvm import elements
from firn_spark.maintenance.steps import orphans
from firn_spark.maintenance.steps.changes import NewMetadata
from firn_spark.maintenance.steps.reachable import Places, Reachable
from firn_spark.maintenance.steps.rewriting import planned
from firn_spark.maintenance.steps.subject import SAMPLE, Subject
from firn_spark.tables.branches.landing import branch_of, head
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.swaps import PATIENT, swap

log = structlog.get_logger()

RETAIN = "retain"
"""``firn.kind`` of the snapshots that drop rows."""
PASSES = 3
COMMIT_BYTES = 4 * 1024 * 1024 * 1024
"""Bytes that one commit of dropped rows reads at most. A run that ends early loses the work of one commit."""
CLEAN = "write.metadata.delete-after-commit.enabled"
KEEP = "write.metadata.previous-versions-max"
_METADATA_FILE = re.compile(r"/(\d+)-[^/]*\.metadata\.json(\.gz)?$")


def drop_rows(subject: Subject, work: RetentionWork) -> None:
    """Drop rows past their age. Each commit stands for itself, so that the report of an interrupted run is true.
    Raises FirnError."""
    if work.rows is None:
        return
    try:
        for _ in range(PASSES):
            try:
                _rows(subject, work.rows, work.enforce)
                return
            except CommitConflictError as error:
                log.info(
                    "other commits changed the files that rows were dropped from",
                    table=subject.name,
                    error=str(error)[:300],
                )
                conflict = error
        raise conflict
    except JAVA_ERRORS as error:
        raise translate(error, f"table {subject.name}, rows") from error


def expire_snapshots(subject: Subject, work: RetentionWork) -> None:
    """Expire old snapshots, and delete the files that only they refer to. Raises FirnError."""
    wanted = work.snapshots
    if wanted is not None:
        _clean(subject, "snapshots", lambda: _snapshots(subject, wanted, work.enforce))


def drop_metadata_files(subject: Subject, work: RetentionWork) -> None:
    """Delete old metadata files. Raises FirnError."""
    keep = work.metadata_keep
    if keep is not None:
        _clean(subject, "metadata", lambda: _metadata(subject, keep, work.enforce))


def drop_orphans(subject: Subject, work: RetentionWork) -> None:
    """Delete orphans. Raises FirnError."""
    age = work.orphan_min_age_ms
    if age is not None:
        _clean(subject, "orphans", lambda: orphans.remove(subject, age, work.enforce))


def _clean(subject: Subject, part: str, does: Callable[[], Removed]) -> None:
    try:
        orphans.refuse_kept(subject)
        subject.done.remove(part, does())
    except JAVA_ERRORS as error:
        raise translate(error, f"table {subject.name}, {part}") from error


# Rows


@dataclass(frozen=True, slots=True)
class Cutoff:
    """A condition for rows of ``column`` before a moment, for Iceberg and for Spark. ``field``: the column's id in
    the table's schema."""

    column: str
    field: int
    literal: int
    keep: str
    drop: str


def cutoff(table: Any, work: RowsWork, now_ms: int) -> Cutoff:
    """Return the condition for the rows to drop. Raises InvalidSpecError if the column is missing or is not a time."""
    field = table.schema().findField(work.column)
    kind = str(field.type()) if field is not None else None
    path = ".".join(f"`{part}`" for part in work.column.split("."))
    ms = now_ms - work.max_age_ms
    micros = ms * 1000
    if field is not None and kind == "date":
        # A day has passed when its last moment has.
        literal = ms // 86_400_000
        day = datetime.fromtimestamp(literal * 86_400, UTC).date()
        spark = f"DATE '{day}'"
    elif field is not None and kind in ("timestamp", "timestamptz"):
        literal = micros
        spark = f"timestamp_micros({micros})"
        if kind == "timestamp":
            spark = f"CAST({spark} AS TIMESTAMP_NTZ)"
    else:
        raise InvalidSpecError(
            f"table {table.name()}: rows.column {work.column} is {kind or 'missing'}; name a timestamp, timestamptz or date column",
            reason=Reason.UNKNOWN_COLUMN,
        )
    keep, drop = f"{path} IS NULL OR {path} >= {spark}", f"{path} < {spark}"
    return Cutoff(work.column, int(field.fieldId()), literal, keep, drop)


@dataclass(frozen=True, slots=True)
class PastFiles:
    """The scan tasks of a snapshot's files with rows before a cutoff."""

    snapshot_id: int
    whole: list[Any]
    """Tasks of files in which every row is before the cutoff."""
    partly: list[list[Any]]
    """Groups of tasks of one partition, whose files may have other rows too."""


def past_files(subject: Subject, limit: Cutoff, target: int) -> PastFiles | None:
    """Plan the files of the current snapshot with rows before ``limit``; return None for a table without a snapshot.

    A group of files is complete when it has ``target`` bytes.
    """
    table = subject.table
    snapshot = head(table)
    if snapshot is None:
        return None
    snapshot_id = int(snapshot.snapshotId())
    before = subject.jvm.org.apache.iceberg.expressions.Expressions.lessThan(limit.column, limit.literal)
    whole: list[Any] = []
    partly: dict[tuple[int, str], list[Any]] = defaultdict(list)
    for task in planned(table.newScan().useSnapshot(snapshot_id).filter(before).includeColumnStats()):
        if str(task.residual().op()) == "TRUE" or _all_before(subject, task.file(), limit):
            whole.append(task)
        else:
            partly[int(task.spec().specId()), str(task.spec().partitionToPath(task.file().partition()))].append(task)
    return PastFiles(snapshot_id, whole, [group for members in partly.values() for group in _chunks(members, target)])


def _all_before(subject: Subject, file: Any, limit: Cutoff) -> bool:
    """Return True if the file's own bounds show that every row is past. Iceberg's StrictMetricsEvaluator ignores
    nested columns."""
    nulls, upper = file.nullValueCounts(), file.upperBounds()
    if nulls is None or upper is None or nulls.get(limit.field) != 0:
        return False
    bound = upper.get(limit.field)
    if bound is None:
        return False
    kind = subject.table.schema().findField(limit.field).type()
    return int(subject.jvm.org.apache.iceberg.types.Conversions.fromByteBuffer(kind, bound)) < limit.literal


def _rows(subject: Subject, work: RowsWork, enforce: bool) -> None:
    subject.guard.check()
    table = subject.table
    table.refresh()
    limit = cutoff(table, work, subject.now_ms())
    target = int(dict(table.properties()).get("write.target-file-size-bytes", 512 * 1024 * 1024))
    past = past_files(subject, limit, target)
    if past is None:
        return
    # Free work first, so that it is done however long the rest takes.
    if past.whole:
        _drop(subject, past, past.whole, [], sum(int(task.file().recordCount()) for task in past.whole), enforce)
    conflict: CommitConflictError | None = None
    for batch in _batches(past.partly):
        subject.guard.check()
        gone: list[Any] = []
        mixed: list[list[Any]] = []
        rows = 0
        for group in batch:
            # Bounds may be missing or wide. Files without a past row stay as they are.
            subject.renew()
            count = subject.rewriter.count(subject.table, group, limit.drop)
            rows += count
            if count and count == sum(int(task.file().recordCount()) for task in group):
                gone += group
            elif count:
                mixed.append(group)
        try:
            if rows:
                _drop(subject, past, gone, mixed, rows, enforce, limit.keep, target)
        except CommitConflictError as error:
            conflict = error
    if conflict is not None:
        raise conflict


def _drop(
    subject: Subject,
    past: PastFiles,
    whole: Sequence[Any],
    mixed: Sequence[Sequence[Any]],
    rows: int,
    enforce: bool,
    keep: str = "",
    target: int = 0,
) -> None:
    """Commit once, without the files of ``whole``, and without the ``rows`` in ``mixed`` that do not match ``keep``."""
    files = [task.file() for task in whole]
    removed = Removed(
        files=len(files),
        bytes=sum(int(file.fileSizeInBytes()) for file in files),
        items=rows,
        sample=tuple(str(file.location()) for file in files[:SAMPLE]),
    )
    if enforce:
        subject.drop(RETAIN, past.snapshot_id, whole, mixed, keep, target, drops_rows=True)
    subject.done.remove("rows", removed)


def _chunks(tasks: Sequence[Any], limit: int) -> Iterable[list[Any]]:
    current: list[Any] = []
    total = 0
    for task in tasks:
        current.append(task)
        total += int(task.length())
        if total >= limit:
            yield current
            current, total = [], 0
    if current:
        yield current


def _batches(groups: Sequence[list[Any]]) -> Iterable[list[list[Any]]]:
    """Return groups that are committed together, a few gigabytes each."""
    current: list[list[Any]] = []
    total = 0
    for group in groups:
        current.append(group)
        total += sum(int(task.length()) for task in group)
        if total >= COMMIT_BYTES:
            yield current
            current, total = [], 0
    if current:
        yield current


# Snapshots


@dataclass(frozen=True, slots=True)
class History:
    """A snapshot, reduced to what its expiry depends on."""

    id: int
    parent: int | None
    committed_ms: int
    carries: bool = False
    """True if its summary has the offsets of all partitions."""


def expired(
    snapshots: Sequence[History],
    refs: Mapping[str, int],
    branches: Mapping[str, SnapshotsWork],
    work: SnapshotsWork,
    now_ms: int,
    landing: str = MAIN,
) -> list[int]:
    """Return the ids of the snapshots that may expire.

    ``landing``: the branch on which rows land. Its snapshots that main does not have are kept.

    ``refs``: tag or branch -> its snapshot. ``branches``: the refs that are branches, with their own retention if
    that keeps more than ``work``.

    A snapshot's age counts from the time when it was superseded: until then it was the table, and readers that
    started on it may still read. Snapshots of tags and heads of branches are kept. So are the newest ``min_keep`` of
    each branch, and as many of main and of each tag as are needed to know the ingestion offsets from its history.
    """
    by_id = {snapshot.id: snapshot for snapshot in snapshots}
    keep = set(refs.values())
    for name in refs.keys() - branches.keys():
        lineage = list(_lineage(by_id, refs[name]))
        newest = next((number for number, snapshot in enumerate(lineage) if snapshot.carries), 0)
        keep.update(snapshot.id for snapshot in lineage[: newest + 1])
    ancestors: set[int] = set()
    for branch, own in branches.items():
        cutoff, min_keep = now_ms - max(work.max_age_ms, own.max_age_ms), max(work.min_keep, own.min_keep)
        superseded = now_ms
        count, has_offsets = 0, branch not in (MAIN, landing)
        lineage = list(_lineage(by_id, refs[branch]))
        ancestors.update(snapshot.id for snapshot in lineage)
        # A table without ingestion has no offsets.
        has_offsets = has_offsets or not any(snapshot.carries for snapshot in lineage)
        for snapshot in lineage:
            if count >= min_keep and superseded < cutoff and has_offsets:
                break
            keep.add(snapshot.id)
            has_offsets = has_offsets or snapshot.carries
            count, superseded = count + 1, snapshot.committed_ms
    if landing in branches and landing != MAIN:
        keep.update(
            each.id for each in takewhile(lambda each: each.id != refs.get(MAIN), _lineage(by_id, refs[landing]))
        )
    # In no branch: staged, or rolled back.
    oldest = now_ms - work.max_age_ms
    keep.update(
        snapshot.id for snapshot in snapshots if snapshot.id not in ancestors and snapshot.committed_ms >= oldest
    )
    return [snapshot.id for snapshot in snapshots if snapshot.id not in keep]


def _lineage(snapshots: Mapping[int, History], head: int) -> Iterable[History]:
    snapshot = snapshots.get(head)
    while snapshot is not None:
        yield snapshot
        snapshot = snapshots.get(snapshot.parent) if snapshot.parent is not None else None


class Histories:
    """The snapshots of a table's metadata. Each is read from Java once.

    An attempt to commit must not take longer because the table has many snapshots: it fails if ingestion commits
    meanwhile.
    """

    def __init__(self) -> None:
        self._known: dict[int, History] = {}

    def read(self, metadata: Any) -> list[History]:
        """Return the snapshots of ``metadata`` (Java), oldest first."""
        listed = metadata.snapshots()
        size = int(listed.size())
        # Commits append to the list.
        new: list[History] = []
        for place in reversed(range(size)):
            snapshot = listed.get(place)
            if int(snapshot.snapshotId()) in self._known:
                break
            new.append(_history(snapshot))
        self._known.update((snapshot.id, snapshot) for snapshot in reversed(new))
        if len(self._known) != size:
            # Another writer removed snapshots.
            ids = [int(snapshot.snapshotId()) for snapshot in elements(listed.iterator())]
            self._known = {id: self._known.get(id) or _history(metadata.snapshot(id)) for id in ids}
        return list(self._known.values())


def _history(snapshot: Any) -> History:
    parent = snapshot.parentId()
    return History(
        int(snapshot.snapshotId()),
        int(parent) if parent is not None else None,
        int(snapshot.timestampMillis()),
        is_complete(snapshot.summary().get(names.SUMMARY_OFFSETS)),
    )


def _snapshots(subject: Subject, work: SnapshotsWork, enforce: bool) -> Removed:
    subject.guard.check()
    table = subject.table
    table.refresh()
    before = table.operations().current()
    histories = Histories()
    ids, refs = _expired(histories.read(before), before, work, subject.now_ms())
    if not ids and not refs:
        return Removed()
    gone = _snapshot_list(subject.jvm, before, ids)
    if enforce:

        def edit(builder: Any, base: Any) -> None:
            # Snapshots that got a tag since, or are needed for another reason, are kept.
            now_ids, now_refs = _expired(histories.read(base), base, work, subject.now_ms())
            if not set(ids).issubset(now_ids):
                ids[:] = set(ids) & set(now_ids)
                gone.clear()
                gone.addAll(_snapshot_list(subject.jvm, base, ids))
            refs[:] = set(refs) & set(now_refs)
            _remove(builder, gone, refs)

        def done(metadata: Any) -> bool:
            left = {str(name) for name in elements(metadata.refs().keySet().iterator())}
            return all(metadata.snapshot(id) is None for id in ids) and left.isdisjoint(refs)

        change = NewMetadata(subject.guard, edit, done)
        swap(table, change, subject.failpoints, PATIENT)
        subject.done.commits += 1
        before = change.before or before
        after = table.operations().current()
        subject.failpoints.reach("before-deletion")
    else:
        builder = subject.jvm.org.apache.iceberg.TableMetadata.buildFrom(before)
        after = _remove(builder, gone, refs).discardChanges().build()
    old, new = Reachable(subject.spark, table, before), Reachable(subject.spark, table, after)
    content = {
        row["path"]: int(row["bytes"])
        for row in old.content().join(new.content().select("path"), "path", "left_anti").collect()
    }
    kept = new.manifests()
    manifests = {path: size for path, size in old.manifests().items() if path not in kept}
    lists = dict.fromkeys(old.lists() - new.lists(), 0)
    statistics = {path: size for path, size in old.statistics().items() if path not in new.statistics()}
    files = content | manifests | lists | statistics
    if enforce:
        # Data files first, then the files that refer to them. Orphan removal finds what a killed run leaves, in either order.
        orphans.delete(subject, list(files))
    return Removed(
        files=len(files),
        bytes=sum(files.values()),
        items=len(ids) + len(refs),
        sample=tuple([*refs, *map(str, ids)][:SAMPLE]),
    )


def _remove(builder: Any, gone: Any, refs: Iterable[str]) -> Any:
    """Remove snapshots (a Java list), tags and branches from a builder of table metadata, and return the builder."""
    for name in refs:
        builder.removeRef(name)
    return builder.removeSnapshots(gone)


def _expired(
    snapshots: Sequence[History], metadata: Any, work: SnapshotsWork, now_ms: int
) -> tuple[list[int], list[str]]:
    """Return the snapshots that may expire, and the tags and branches whose own age (``max-ref-age-ms``) has passed."""
    refs = {str(entry.getKey()): entry.getValue() for entry in elements(metadata.refs().entrySet().iterator())}
    landing = branch_of(metadata)
    # Firn's own tag keeps no snapshot.
    history = refs.pop(names.HISTORY_TAG, None)
    committed = {snapshot.id: snapshot.committed_ms for snapshot in snapshots}
    outdated = [
        name
        for name, ref in refs.items()
        if name not in (MAIN, landing)
        and ref.maxRefAgeMs() is not None
        and now_ms - committed.get(int(ref.snapshotId()), now_ms) > int(ref.maxRefAgeMs())
    ]
    kept = {name: ref for name, ref in refs.items() if name not in outdated}
    ids = expired(
        snapshots,
        {name: int(ref.snapshotId()) for name, ref in kept.items()},
        {name: _own(ref) for name, ref in kept.items() if ref.isBranch()},
        work,
        now_ms,
        landing,
    )
    if history is not None and int(history.snapshotId()) in ids:
        outdated.append(names.HISTORY_TAG)
    return ids, outdated


def _own(branch: Any) -> SnapshotsWork:
    """Return the retention that a branch (Java's ``SnapshotRef``) was created with."""
    age, count = branch.maxSnapshotAgeMs(), branch.minSnapshotsToKeep()
    return SnapshotsWork(max_age_ms=int(age or 0), min_keep=int(count or 0))


def _snapshot_list(jvm: Any, metadata: Any, ids: Iterable[int]) -> Any:
    snapshots = jvm.java.util.ArrayList()
    for id in ids:
        snapshots.add(metadata.snapshot(id))
    return snapshots


# Metadata files


def _metadata(subject: Subject, keep: int, enforce: bool) -> Removed:
    """Delete old versions of the table's metadata.

    The table's properties let it delete them itself from here on. Versions that it no longer refers to are deleted
    now.
    """
    subject.guard.check()
    table = subject.table
    wanted = {CLEAN: "true", KEEP: str(keep)}
    listed = [
        info
        for info in orphans.listed(subject, f"{orphans.location(table)}/metadata/")
        if _METADATA_FILE.search(info.path)
    ]
    orphans.refuse_shared(subject, {info.path: info.changed_ms for info in listed})
    # Reloaded after the listing.
    table.refresh()
    metadata = table.operations().current()
    version = _version(str(metadata.metadataFileLocation()))
    logged = [str(entry.file()) for entry in metadata.previousFiles()]
    kept = Places({*logged[len(logged) - min(keep, len(logged)) :], str(metadata.metadataFileLocation())})
    old = {
        info.path: info.bytes
        for info in listed
        # A version below the newest can no longer become current: its writer would replace metadata that has been replaced.
        if info.path not in kept and version is not None and (_version(info.path) or 0) < version
    }
    removed = Removed(files=len(old), bytes=sum(old.values()), items=len(old), sample=tuple(sorted(old)[:SAMPLE]))
    if enforce:
        if any(metadata.properties().get(key) != value for key, value in wanted.items()):
            change = NewMetadata(
                subject.guard,
                lambda builder, _: builder.setProperties(wanted),
                lambda metadata: all(metadata.properties().get(key) == value for key, value in wanted.items()),
            )
            # This commit shortens the log, and the catalog's client deletes the files that it drops from the log.
            swap(table, change, subject.failpoints, PATIENT)
            subject.done.commits += 1
            metadata = table.operations().current()
        still = Places(Reachable(subject.spark, table, metadata).metadata_files())
        orphans.delete(subject, [path for path in old if path not in still])
    return removed


def _version(path: str) -> int | None:
    match = _METADATA_FILE.search(path)
    return int(match.group(1)) if match else None
