"""Compaction of one table: groups of files, as `firn.tables.compaction` plans them, become few; then its manifests do.

A commit replaces exactly the files that were read, and fails where anybody else replaced or deleted of them meanwhile; appended files are
not touched. Deletes were applied when the rows were read: the new files carry the data sequence number of the snapshot that was read, so
that equality deletes committed since still apply, and delete files that applied to nothing but rewritten files go with the same commit.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from firn.model.errors import CommitConflictError
from firn.model.maintenance import CompactionWork
from firn.tables.compaction import DataFile, Group, manifests_fragmented, plan
from firn.tables.deletes import DeleteFile, applied
from firn_spark.maintenance.steps.changes import NewMetadata
from firn_spark.maintenance.steps.rewriting import Arrangement, elements
from firn_spark.maintenance.steps.rewriting import planned as scan_tasks
from firn_spark.maintenance.steps.subject import Subject
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.swaps import PATIENT, swap

log = structlog.get_logger()

COMPACT = "compact"
"""``firn.kind`` of the snapshots."""
PASSES = 3
"""How often the table is planned anew where others replaced files that were being rewritten."""
ARRANGED = "firn.arranged"
"""Table property: digest of an arrangement and the sequence numbers of the commits that wrote files in it."""
ARRANGED_COMMITS = 2_000
"""So many of them are remembered, the newest, and only of files that are still there: what is forgotten is arranged once more."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The files of one snapshot, and what applies to them."""

    snapshot_id: int
    sequence: int
    files: tuple[DataFile, ...]
    tasks: dict[str, Any]
    """Path -> Java scan task, for files that may be rewritten."""
    users: dict[tuple[str, int], set[str]]
    """Delete file (path and offset in it) -> data files that it may apply to."""
    deletes: dict[tuple[str, int], Any]
    """Delete file -> the Java one."""
    idle: tuple[Any, ...]
    """Delete files (Java) that apply to no data file any more."""


def compact(subject: Subject, work: CompactionWork) -> None:
    """Does what ``work`` wants of the table. Raises FirnError."""
    before = _totals(subject)
    subject.done.files_before += before[0]
    subject.done.manifests_before += before[1]
    try:
        for _ in range(PASSES):
            if not _pass(subject, work):
                break
        if work.rewrite_manifests != "Never":
            rewrite_manifests(subject, always=work.rewrite_manifests == "Always")
    except JAVA_ERRORS as error:
        raise translate(error, f"table {subject.name}, compaction") from error
    finally:
        # Also of what was done before a failure; a table that is gone has no totals.
        with suppress(*JAVA_ERRORS):
            after = _totals(subject)
            subject.done.files_after += after[0]
            subject.done.manifests_after += after[1]


def _pass(subject: Subject, work: CompactionWork) -> bool:
    """Plans and rewrites once. True where others were in the way and another plan may find more to do."""
    subject.guard.check()
    subject.table.refresh()
    arrangement = Arrangement(work.strategy, work.columns)
    planned = read(subject, work, arrangement)
    if planned is None:
        return False
    groups = plan(planned.files, work, subject.now_ms())
    log.info(
        "planned", table=subject.name, groups=len(groups), files=sum(len(one.files) for one in groups),
        bytes=sum(one.bytes for one in groups),
    )  # fmt: skip
    again = bool(planned.idle) and not _forget(subject, planned)
    gone: set[str] = set()
    for batch in batches(groups, work.max_commits):
        again |= not _rewrite(subject, work, arrangement, planned, batch, gone)
    return again


def batches(groups: Sequence[Group], commits: int) -> Iterator[Sequence[Group]]:
    """The groups, in at most ``commits`` parts of about as many files."""
    total = sum(len(group.files) for group in groups)
    share = -(-total // max(1, commits)) if total else 1
    start, count = 0, 0
    for end, group in enumerate(groups, 1):
        count += len(group.files)
        if count >= share or end == len(groups):
            yield groups[start:end]
            start, count = end, 0


def _rewrite(
    subject: Subject,
    work: CompactionWork,
    arrangement: Arrangement,
    planned: Planned,
    batch: Sequence[Group],
    gone: set[str],
) -> bool:
    """One batch, committed. False where others were in the way; its new files are gone then."""
    subject.guard.check()
    added = subject.rewrite(
        [([planned.tasks[file.path] for file in group.files], group.outputs) for group in batch],
        work.target_file_bytes,
        arrangement,
    )
    paths = {file.path for group in batch for file in group.files}
    dangling = [
        planned.deletes[key] for key, users in planned.users.items() if users & paths and not users - paths - gone
    ]

    def produce(table: Any) -> Any:
        rewrite = table.newRewrite().validateFromSnapshot(planned.snapshot_id)
        if table.operations().current().formatVersion() > 1:
            rewrite.dataSequenceNumber(planned.sequence)
        for path in paths:
            rewrite.deleteFile(planned.tasks[path].file())
        for file in added:
            rewrite.addFile(file)
        for delete in dangling:
            rewrite.deleteFile(delete)
        return rewrite

    expect = {"deleted-data-files": str(len(paths)), "added-data-files": str(len(added))}
    try:
        snapshot = subject.snapshot(COMPACT, produce, added, expect=expect)
    except CommitConflictError as error:
        log.info("other commits changed the files that were rewritten", table=subject.name, error=str(error)[:300])
        subject.done.notes.append("other commits changed files that were being rewritten")
        return False
    gone |= paths
    subject.done.bytes_rewritten += sum(group.bytes for group in batch)
    subject.done.delete_files_removed += int(snapshot.summary().get("removed-delete-files") or 0)
    if work.everything:
        alive = frozenset(file.written for file in planned.files)
        _mark(subject, arrangement, alive, int(snapshot.sequenceNumber()))
    return True


def _forget(subject: Subject, planned: Planned) -> bool:
    """Takes delete files out of the table that apply to nothing. False where others were in the way."""

    def produce(table: Any) -> Any:
        rewrite = table.newRewrite().validateFromSnapshot(planned.snapshot_id)
        for delete in planned.idle:
            rewrite.deleteFile(delete)
        return rewrite

    try:
        snapshot = subject.snapshot(COMPACT, produce)
    except CommitConflictError as error:
        log.info("other commits changed the delete files", table=subject.name, error=str(error)[:300])
        return False
    subject.done.delete_files_removed += int(snapshot.summary().get("removed-delete-files") or 0)
    return True


def read(subject: Subject, work: CompactionWork, arrangement: Arrangement) -> Planned | None:
    """The table's files as planning needs them; None for a table without a snapshot."""
    table = subject.table
    snapshot = table.currentSnapshot()
    if snapshot is None:
        return None
    times = {int(one.sequenceNumber()): int(one.timestampMillis()) for one in table.snapshots()}
    oldest = min(times.values())
    marked = arranged_sequences(dict(table.properties()), arrangement)
    files: list[DataFile] = []
    tasks: dict[str, Any] = {}
    users: dict[tuple[str, int], set[str]] = defaultdict(set)
    deletes: dict[tuple[str, int], Any] = {}
    described: dict[tuple[str, int], DeleteFile] = {}
    # Every question to Java costs: none is asked twice, or in vain.
    specs = dict(table.specs())
    partitioned = {number for number, spec in specs.items() if not spec.isUnpartitioned()}
    total_deletes = int(snapshot.summary().get("total-delete-files") or -1)
    for task in scan_tasks(table.newScan().useSnapshot(snapshot.snapshotId())):
        file = task.file()
        path, spec_id, written = str(file.location()), int(file.specId()), int(file.fileSequenceNumber() or 0)
        files.append(
            DataFile(
                path=path,
                bytes=int(file.fileSizeInBytes()),
                records=int(file.recordCount()),
                partition=_partition(specs[spec_id], file.partition()) if spec_id in partitioned else "",
                spec_id=spec_id,
                added_ms=times.get(written, oldest),
                sequence=int(file.dataSequenceNumber() or 0),
                arranged=written in marked,
                written=written,
            )
        )
        tasks[path] = task
        for delete in task.deletes() if total_deletes else ():
            key = _key(delete)
            users[key].add(path)
            if key not in deletes:
                deletes[key] = delete
                described[key] = _delete(subject, delete)
    return Planned(
        int(snapshot.snapshotId()),
        int(snapshot.sequenceNumber()),
        tuple(applied(files, described.values())),
        tasks,
        dict(users),
        deletes,
        # As many as the table says it has are in use: there is nothing to look for.
        () if total_deletes == len(deletes) else tuple(_idle(subject, snapshot, specs, deletes)),
    )


def _partition(spec: Any, values: Any) -> str:
    """A partition as text, unlike that of every other partition of the spec: Iceberg's own says the same of no value and of the text ``null``."""
    text = str(spec.partitionToPath(values))
    if "null" not in text:
        return text
    return f"{text} {[values.get(place) is None for place in range(int(values.size()))]}"


def _key(delete: Any) -> tuple[str, int]:
    return str(delete.location()), int(delete.contentOffset() or 0)


def _idle(subject: Subject, snapshot: Any, specs: Any, used: Container[tuple[str, int]]) -> Iterator[Any]:
    """Delete files of the snapshot that no scan of it would read, and none of a later one will: a data file that is added later is newer than
    they are, and one that takes the place of others has what applied to those."""
    io = subject.table.io()
    for manifest in elements(snapshot.deleteManifests(io).iterator()):
        reader = subject.jvm.org.apache.iceberg.ManifestFiles.readDeleteManifest(manifest, io, specs)
        try:
            # The reader's own file is the same one at each step.
            yield from (file.copy() for file in elements(reader.iterator()) if _key(file) not in used)
        finally:
            reader.close()


def _delete(subject: Subject, delete: Any) -> DeleteFile:
    equality = str(delete.content()) == "EQUALITY_DELETES"
    spec = subject.table.specs()[delete.specId()]
    target = (
        None if equality else subject.jvm.org.apache.iceberg.util.ContentFileUtil.referencedDataFileLocation(delete)
    )
    return DeleteFile(
        records=int(delete.recordCount()),
        sequence=int(delete.dataSequenceNumber() or 0),
        spec_id=int(delete.specId()),
        partition=_partition(spec, delete.partition()),
        equality=equality,
        everywhere=equality and bool(spec.isUnpartitioned()),
        target=str(target) if target is not None else None,
    )


def rewrite_manifests(subject: Subject, *, always: bool = False) -> None:
    """Merges the data manifests into as few as their size allows, where there are many more. Raises FirnError."""
    table = subject.table
    subject.guard.check()
    table.refresh()
    snapshot = table.currentSnapshot()
    if snapshot is None:
        return
    lengths = [int(manifest.length()) for manifest in snapshot.dataManifests(table.io())]
    # What is written is about as long as what is read, so one manifest is as good as it gets.
    if not (manifests_fragmented(lengths) or (always and len(lengths) > 1)):
        return
    together = _constant(subject.jvm)
    subject.snapshot(COMPACT, lambda fresh: fresh.rewriteManifests().clusterBy(together))


def digest(arrangement: Arrangement) -> str:
    """Names an arrangement in `ARRANGED`."""
    return hashlib.sha256(json.dumps([arrangement.strategy, *arrangement.columns]).encode()).hexdigest()[:12]


def arranged_sequences(properties: dict[str, str], arrangement: Arrangement) -> frozenset[int]:
    """Sequence numbers of the commits that wrote files in this arrangement, as far as the table knows."""
    name, *numbers = properties.get(ARRANGED, "").split() or [""]
    return frozenset(int(one) for one in numbers if one.isdigit()) if name == digest(arrangement) else frozenset()


def _mark(subject: Subject, arrangement: Arrangement, alive: frozenset[int], sequence: int) -> None:
    """Remembers that this commit's files are arranged, so that the next run leaves them alone. Losing it costs a rewrite, no row. ``alive``:
    commits that files were of when the run planned."""
    before = arranged_sequences(dict(subject.table.properties()), arrangement)
    known = sorted({one for one in before if one in alive or one > max(alive)} | {sequence})[-ARRANGED_COMMITS:]
    text = " ".join([digest(arrangement), *map(str, known)])
    change = NewMetadata(
        subject.guard,
        lambda builder, _: builder.setProperties({ARRANGED: text}),
        lambda metadata: metadata.properties().get(ARRANGED) == text,
    )
    swap(subject.table, change, subject.failpoints, PATIENT)


def _totals(subject: Subject) -> tuple[int, int]:
    """Data files and manifests of the newest snapshot that is known."""
    snapshot = subject.table.currentSnapshot()
    if snapshot is None:
        return 0, 0
    return (
        int(snapshot.summary().get("total-data-files") or 0),
        int(snapshot.allManifests(subject.table.io()).size()),
    )


def _constant(jvm: Any) -> Any:
    """A ``java.util.function.Function`` that says the same of every file: manifests are cut by size alone."""
    invoke, anything = jvm.java.lang.invoke, jvm.java.lang.Class.forName("java.lang.Object")
    one = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.Class"), 1)
    one[0] = anything
    handle = invoke.MethodHandles.dropArguments(invoke.MethodHandles.constant(anything, ""), 0, one)
    return invoke.MethodHandleProxies.asInterfaceInstance(
        jvm.java.lang.Class.forName("java.util.function.Function"), handle
    )
