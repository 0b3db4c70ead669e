"""Compaction of one table: rewrites groups of files that `firn.tables.compaction` plans, then its manifests.

A commit replaces exactly the files that were read. It fails if another commit replaced or deleted some of them;
appended files are not touched. Deletes were applied when the rows were read. The new files carry the data sequence
number of the snapshot that was read, so that equality deletes committed since then still apply. Delete files that
applied only to rewritten files are removed in the same commit.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from firn.model.errors import CommitConflictError
from firn.model.maintenance import CompactionWork
from firn.tables.compaction import CommitTimes, DataFile, Group, manifests_fragmented, plan
from firn.tables.deletes import DeleteFile, applied
from firn.tables.table_properties import MAIN
from firn_spark.jvm import elements
from firn_spark.maintenance.scans import Columns
from firn_spark.maintenance.steps.changes import NewMetadata
from firn_spark.maintenance.steps.rewriting import Arrangement
from firn_spark.maintenance.steps.subject import Subject
from firn_spark.tables.branches.landing import branch_of, head
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.swaps import PATIENT, swap

log = structlog.get_logger()

COMPACT = "compact"
"""``firn.kind`` of the snapshots."""
PORTION = 100_000
"""Number of delete files whose values are read at once. A file counts once for each data file that it applies to."""
PASSES = 3
"""Number of times that a table is planned, if other commits replace files that are being rewritten."""
ARRANGED = "firn.arranged"
"""Table property: digest of an arrangement and the sequence numbers of the commits that wrote files in it."""
ARRANGED_COMMITS = 2_000
"""Largest number of commits in the property: the newest whose files exist. Files of other commits are arranged again."""


@dataclass(frozen=True, slots=True)
class Deletes:
    """The delete files of a snapshot that apply to data files, by path and offset in it."""

    users: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    """Data files that the delete file may apply to."""
    described: dict[tuple[str, int], DeleteFile] = field(default_factory=dict)
    listed: dict[tuple[str, int], tuple[Any, int]] = field(default_factory=dict)
    """A Java list with the delete file, and its place there."""

    def java(self, key: tuple[str, int]) -> Any:
        """Return a delete file (Java)."""
        files, place = self.listed[key]
        return files.get(place)


@dataclass(frozen=True, slots=True)
class Planned:
    """The files of one snapshot, and the deletes that apply to them."""

    snapshot_id: int
    sequence: int
    files: tuple[DataFile, ...]
    tasks: Any
    """The scan tasks (Java list) of the files."""
    places: dict[str, int]
    """Path -> place of the file's task in ``tasks``."""
    deletes: Deletes
    idle: tuple[Any, ...]
    """Delete files (Java) that apply to no data file."""

    def task(self, path: str) -> Any:
        """Return the scan task (Java) of a file."""
        return self.tasks.get(self.places[path])


def compact(subject: Subject, work: CompactionWork) -> None:
    """Compact the table as ``work`` says. Raises FirnError."""
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
        # After a failure, too. A dropped table has no totals.
        with suppress(*JAVA_ERRORS):
            after = _totals(subject)
            subject.done.files_after += after[0]
            subject.done.manifests_after += after[1]


def _pass(subject: Subject, work: CompactionWork) -> bool:
    """Plan and rewrite once. Return True if other commits interfered and another plan may find more to do."""
    subject.guard.check()
    subject.table.refresh()
    arrangement = Arrangement(work.strategy, work.columns)
    planned = read(subject, work, arrangement)
    if planned is None:
        return False
    groups = plan(planned.files, work, subject.now_ms())
    log.info(
        "compaction planned", table=subject.name, groups=len(groups), files=sum(len(group.files) for group in groups),
        bytes=sum(group.bytes for group in groups),
    )  # fmt: skip
    again = bool(planned.idle) and not _forget(subject, planned)
    gone: set[str] = set()
    for batch in batches(groups, work.max_commits):
        again |= not _rewrite(subject, work, arrangement, planned, batch, gone)
    return again


def batches(groups: Sequence[Group], commits: int) -> Iterator[Sequence[Group]]:
    """Yield the groups in at most ``commits`` parts of about as many files."""
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
    """Rewrite and commit one batch. Return False if other commits interfered; the new files are deleted then."""
    subject.guard.check()
    added = subject.rewrite(
        [([planned.task(file.path) for file in group.files], group.outputs) for group in batch],
        work.target_file_bytes,
        arrangement,
    )
    paths = {file.path for group in batch for file in group.files}
    dangling = [
        planned.deletes.java(key)
        for key, users in planned.deletes.users.items()
        if users & paths and not users - paths - gone
    ]

    specs = {int(file.specId()) for file in added}
    # An equality delete applies to files of its own partition and spec only (Iceberg specification, scan planning). The
    # files of another spec would lose deletes that other writers commit during the rewrite. Without the old sequence
    # number, Iceberg rejects the rewrite after such a delete.
    before = subject.table.specs()
    moved = bool(specs) and any(
        spec_id not in specs and before[spec_id].isPartitioned() for spec_id in {group.spec_id for group in batch}
    )

    def produce(table: Any) -> Any:
        rewrite = table.newRewrite().validateFromSnapshot(planned.snapshot_id)
        if table.operations().current().formatVersion() > 1 and not moved:
            rewrite.dataSequenceNumber(planned.sequence)
        for path in paths:
            rewrite.deleteFile(planned.task(path).file())
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
        subject.done.notes.append(
            "other commits changed files that the run was rewriting; these files stay as they are"
        )
        return False
    gone |= paths
    subject.done.bytes_rewritten += sum(group.bytes for group in batch)
    subject.done.delete_files_removed += int(snapshot.summary().get("removed-delete-files") or 0)
    if work.everything:
        alive = frozenset(file.written for file in planned.files)
        _mark(subject, arrangement, alive, int(snapshot.sequenceNumber()))
    return True


def _forget(subject: Subject, planned: Planned) -> bool:
    """Remove delete files that apply to nothing. Return False if other commits interfered."""

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
    """Return the table's files as planning needs them; None for a table without a snapshot."""
    table = subject.table
    snapshot = head(table)
    if snapshot is None:
        return None
    times = CommitTimes({int(commit.sequenceNumber()): int(commit.timestampMillis()) for commit in table.snapshots()})
    marked = arranged_sequences(dict(table.properties()), arrangement)
    columns, specs = Columns(subject.jvm), dict(table.specs())
    tasks = columns.tasks(table.newScan().useSnapshot(snapshot.snapshotId()))
    files = [
        replace(file, added_ms=times.of(file.written), arranged=file.written in marked)
        for file in _data_files(columns, columns.files(tasks), specs)
    ]
    total_deletes = int(snapshot.summary().get("total-delete-files") or -1)
    found = _deletes(columns, tasks, specs, files) if total_deletes else Deletes()
    return Planned(
        int(snapshot.snapshotId()),
        int(snapshot.sequenceNumber()),
        tuple(applied(files, found.described.values())),
        tasks,
        {file.path: place for place, file in enumerate(files)},
        found,
        # All delete files of the table are in use, so none can be idle.
        () if total_deletes == len(found.users) else tuple(_idle(subject, snapshot, specs, found.users)),
    )


def _data_files(columns: Columns, listed: Any, specs: Mapping[int, Any]) -> Iterator[DataFile]:
    """Yield data files (Java list) as planning needs them, without times."""
    for path, size, records, spec_id, partition, sequence, written in zip(
        columns.values(listed, "location"),
        columns.numbers(listed, "fileSizeInBytes"),
        columns.numbers(listed, "recordCount"),
        columns.numbers(listed, "specId"),
        columns.partitions(listed, specs),
        columns.numbers(listed, "dataSequenceNumber"),
        columns.numbers(listed, "fileSequenceNumber"),
        strict=True,
    ):
        yield DataFile(
            path=path,
            bytes=size,
            records=records,
            partition=partition,
            spec_id=spec_id,
            added_ms=0,
            sequence=sequence,
            written=written,
        )


def _deletes(columns: Columns, tasks: Any, specs: Mapping[int, Any], files: Sequence[DataFile]) -> Deletes:
    """Return the delete files of scan tasks, whose data files are ``files``."""
    found = Deletes()
    counts = columns.delete_counts(tasks)
    for start, end in portions(counts, PORTION):
        listed = columns.delete_files(tasks.subList(start, end))
        keys = columns.keys(listed)
        users = (files[place].path for place in range(start, end) for _ in range(counts[place]))
        for key, user in zip(keys, users, strict=True):
            found.users[key].add(user)
        for place, delete in enumerate(_delete_files(columns, listed, specs)):
            if keys[place] not in found.described:
                found.described[keys[place]] = delete
                found.listed[keys[place]] = (listed, place)
    return found


def portions(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of ``counts`` whose sum is at most ``most``, or that have one element."""
    start = total = 0
    for end, count in enumerate(counts):
        if total + count > most and end > start:
            yield start, end
            start, total = end, 0
        total += count
    if total:
        yield start, len(counts)


def _delete_files(columns: Columns, listed: Any, specs: Mapping[int, Any]) -> Iterator[DeleteFile]:
    """Yield delete files (Java list) as planning needs them."""
    for content, records, sequence, spec_id, partition, target in zip(
        columns.values(listed, "content"),
        columns.numbers(listed, "recordCount"),
        columns.numbers(listed, "dataSequenceNumber"),
        columns.numbers(listed, "specId"),
        columns.partitions(listed, specs),
        columns.targets(listed),
        strict=True,
    ):
        equality = content == "EQUALITY_DELETES"
        yield DeleteFile(
            records=records,
            sequence=sequence,
            spec_id=spec_id,
            partition=partition,
            equality=equality,
            everywhere=equality and bool(specs[spec_id].isUnpartitioned()),
            target=None if equality else target,
        )


def _key(delete: Any) -> tuple[str, int]:
    return str(delete.location()), int(delete.contentOffset() or 0)


def _idle(subject: Subject, snapshot: Any, specs: Any, used: Container[tuple[str, int]]) -> Iterator[Any]:
    """Yield delete files that no scan of this or a later snapshot reads.

    Data files that are added later are newer than these deletes. Files that replace others had the deletes applied.
    """
    io = subject.table.io()
    for manifest in elements(snapshot.deleteManifests(io).iterator()):
        reader = subject.jvm.org.apache.iceberg.ManifestFiles.readDeleteManifest(manifest, io, specs)
        try:
            # The reader returns the same object at each step.
            yield from (file.copy() for file in elements(reader.iterator()) if _key(file) not in used)
        finally:
            reader.close()


def rewrite_manifests(subject: Subject, *, always: bool = False) -> None:
    """Merge the data manifests into as few as their size allows, if they are fragmented. Raises FirnError."""
    table = subject.table
    subject.guard.check()
    table.refresh()
    snapshot = head(table)
    if snapshot is None or branch_of(table) != MAIN:
        # Iceberg rewrites the manifests of main only. The appends of ingestion merge them too.
        return
    lengths = [int(manifest.length()) for manifest in snapshot.dataManifests(table.io())]
    # The new manifests are about as long as the old ones, so a single manifest cannot be improved.
    if not (manifests_fragmented(lengths) or (always and len(lengths) > 1)):
        return
    together = _constant(subject.jvm)
    subject.snapshot(COMPACT, lambda fresh: fresh.rewriteManifests().clusterBy(together))


def digest(arrangement: Arrangement) -> str:
    """Return the name of an arrangement in `ARRANGED`."""
    return hashlib.sha256(json.dumps([arrangement.strategy, *arrangement.columns]).encode()).hexdigest()[:12]


def arranged_sequences(properties: dict[str, str], arrangement: Arrangement) -> frozenset[int]:
    """Return the sequence numbers of the commits that wrote files in this arrangement, as far as the table records
    them."""
    name, *numbers = properties.get(ARRANGED, "").split() or [""]
    return (
        frozenset(int(number) for number in numbers if number.isdigit()) if name == digest(arrangement) else frozenset()
    )


def _mark(subject: Subject, arrangement: Arrangement, alive: frozenset[int], sequence: int) -> None:
    """Record that this commit's files are arranged, so that the next run skips them.

    A lost record costs a rewrite, but no row. ``alive``: the commits whose files existed when the run planned.
    """
    before = arranged_sequences(dict(subject.table.properties()), arrangement)
    remembered = sorted({commit for commit in before if commit in alive or commit > max(alive)} | {sequence})[
        -ARRANGED_COMMITS:
    ]
    text = " ".join([digest(arrangement), *map(str, remembered)])
    change = NewMetadata(
        subject.guard,
        lambda builder, _: builder.setProperties({ARRANGED: text}),
        lambda metadata: metadata.properties().get(ARRANGED) == text,
    )
    swap(subject.table, change, subject.failpoints, PATIENT)


def _totals(subject: Subject) -> tuple[int, int]:
    """Return the numbers of data files and manifests of the newest loaded snapshot."""
    snapshot = head(subject.table)
    if snapshot is None:
        return 0, 0
    return (
        int(snapshot.summary().get("total-data-files") or 0),
        int(snapshot.allManifests(subject.table.io()).size()),
    )


def _constant(jvm: Any) -> Any:
    """Return a ``java.util.function.Function`` with the same result for every file, so that manifests are cut by size
    alone."""
    invoke, anything = jvm.java.lang.invoke, jvm.java.lang.Class.forName("java.lang.Object")
    dropped = jvm.java.lang.reflect.Array.newInstance(jvm.java.lang.Class.forName("java.lang.Class"), 1)
    dropped[0] = anything
    handle = invoke.MethodHandles.dropArguments(invoke.MethodHandles.constant(anything, ""), 0, dropped)
    return invoke.MethodHandleProxies.asInterfaceInstance(
        jvm.java.lang.Class.forName("java.util.function.Function"), handle
    )
