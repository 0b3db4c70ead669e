"""Exactly once: the ingestion state that a table records, and commits that are allowed only on top of the state they
were planned from.

An ingestion commit is one change of the table's metadata. It appends data files and sets the offsets in the
snapshot's summary: all of them, or only those that it changed. Table properties hold all offsets, also for the time
after that snapshot expires. The first commit of each `SLOT_MS` has all offsets in its summary, and removes old
snapshots from the metadata (`firn_spark.tables.old_snapshots`).

The commit is built on metadata whose newest *ingestion* commit is the one planned from, and the catalog accepts it
only if nothing came in between. After commits of compaction or other engines it is tried again; after another
ingestion commit it is given up.

In a table that several topics share, each topic has a newest ingestion commit of its own (`View`). The commits of the other
topics count as those of other engines. ``firn.offsets`` has the newest commit of every topic, in each summary.

`firn_spark.tables.swaps` makes the change. The table that is read back decides:

- it has this commit's id: the commit happened;
- it has a newer epoch, or this epoch by another writer, in a commit or in a claim: this writer is fenced
  (FencedError);
- anything else: the commit has not happened so far.
"""

import hashlib
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import CommitConflictError, ConflictError, CorruptDataError, FencedError
from firn.model.jobs import IngestJob
from firn.model.progress import (
    LOOK_MS,
    AuditFrom,
    Filtered,
    FilteredRange,
    Gap,
    LeaderEpochs,
    Look,
    Losses,
    Offsets,
    SharedOffsets,
    TopicCommit,
    View,
    count_changes,
    decode_leader_epochs,
    decode_offsets,
    encode_changes,
    encode_leader_epochs,
    encode_offsets,
    recorded_offsets,
)
from firn.tables.table_properties import MAIN
from firn_spark.failpoints import Failpoints
from firn_spark.jvm import java_map, texts
from firn_spark.tables.branches.landing import branch_of, head, head_of, lineage, on_branch, unpublished
from firn_spark.tables.columns import replaced_column
from firn_spark.tables.java_errors import JAVA_ERRORS
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.old_snapshots import old_snapshots
from firn_spark.tables.swaps import builder_on, certain, short, swap, with_summary

log = structlog.get_logger()

COMMIT_ID = names.SUMMARY_COMMIT_ID
WRITER = names.TABLE_WRITER
"""Summary key: identifies the process that made a commit. Two processes may have taken the same epoch."""
LETTERS_SINCE = "firn.letters-since"
LETTERS_UNTIL = "firn.letters-until"
"""Summary keys of dead-letter tables; `Landed.letters` says what they hold."""
CLAIM = names.TABLE_CLAIM
"""Table property: epoch and writer of the driver that began to work on the table last (`Claim`)."""
INGEST = "ingest"
SLOT_MS = 300_000


@dataclass(frozen=True, slots=True)
class Landed:
    """The newest ingestion commit of a table. ``snapshot_id`` is None if only the table's properties or later
    snapshots record it."""

    topic_id: str
    epoch: int
    offsets: Offsets
    commit_id: str = ""
    writer: str = ""
    snapshot_id: int | None = None
    committed_ms: int | None = None
    letters: tuple[int, int] = (0, 0)
    """Of a dead-letter table, in microseconds since 1970. ``ingested_at`` of every letter of this topic id is at
    least the first value, that of every letter at most the second. Letters of an earlier topic id are older than
    the first."""
    leader_epochs: LeaderEpochs = field(default_factory=dict)
    """Epochs of Kafka's leaders that had every record before ``offsets``, where they are known."""
    landed_ms: int | None = None
    """When records of the topic landed last (milliseconds since 1970); 0 for no record, None if it is not known, as of
    a commit of an earlier version and for dead-letter tables."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The driver that began to work on a table last. It has perhaps not committed yet."""

    epoch: int
    writer: str

    def __str__(self) -> str:
        return f"{self.epoch} {self.writer}"


def view_of(job: IngestJob) -> View | None:
    """Return the topic of a contract whose table is shared; None for a table of one topic."""
    return View(job.topic_id or "", job.table.shared_by) if job.table.shared else None


def read_claim(table: Any, view: View | None = None) -> Claim | None:
    """Return the claim from the metadata that ``table`` has in memory, None if it has no valid one."""
    epoch, _, writer = (table.properties().get(key_of(CLAIM, view)) or "").partition(" ")
    return Claim(int(epoch), writer) if epoch.isdecimal() else None


def read_losses(table: Any, view: View | None = None) -> Losses:
    """Return the losses from the metadata that ``table`` has in memory."""
    return Losses.read(table.properties().get(key_of(names.TABLE_LOST, view)))


def key_of(key: str, view: View | None) -> str:
    """Return the table property of a topic: ``key``, or in a shared table ``key`` with the topic's id."""
    return names.of_topic(key, view.topic_id) if view is not None else key


def read_landed(table: Any, view: View | None = None) -> Landed | None:
    """Return the newest ingestion commit in the history of the branch on which rows land, else the one in the
    table's properties.

    ``view`` is the topic, if the table is shared. Returns None for a topic without ingestion. Refreshes the table.
    Raises Java's exceptions (`JAVA_ERRORS`), and CorruptDataError for an invalid summary.
    """
    table.refresh()
    return newest(table, view=view)


def newest(table: Any, cached: tuple[int, Landed | None] | None = None, view: View | None = None) -> Landed | None:
    """Return the newest ingestion commit from the metadata that ``table`` has in memory: that of ``view`` in a shared table.

    If the ingestion commit's own snapshot has expired, later snapshots of ours carry its summary (`carried`), else
    the properties do. ``cached`` is a snapshot and the newest ingestion commit in its history, from an earlier call:
    the history behind it is not read again.
    """
    if view is not None:
        return _newest_of(table, view, cached)
    bearer: tuple[Any, Mapping[str, str]] | None = None
    for snapshot in history(table):
        id = snapshot.snapshotId()
        if cached is not None and id == cached[0]:
            return cached[1]
        summary = texts(snapshot.summary())
        if summary.get(names.SUMMARY_KIND) == INGEST:
            return _parse(summary, table, snapshot, id, snapshot.timestampMillis())
        if bearer is None and names.SUMMARY_OFFSETS in summary:
            bearer = snapshot, summary
    if bearer is not None:
        return _parse(bearer[1], table, bearer[0], None, None)
    values = texts(table.properties())
    if names.SUMMARY_OFFSETS not in values:
        return None
    _check_lineage(table, values)
    return _parse(values, table, None, None, None)


def _check_lineage(table: Any, properties: Mapping[str, str]) -> None:
    """Raise CorruptDataError if the commit of the properties is a snapshot that is not in the history, which has no offsets."""
    if any(kept.summary().get(COMMIT_ID) == properties.get(COMMIT_ID, "") for kept in table.snapshots()):
        raise CorruptDataError(
            f"table {table.name()}: the current snapshot has no ingestion offsets, and the newest ingestion commit is not in its"
            " history; roll back to a snapshot of Firn"
        )


def _newest_of(table: Any, view: View, cached: tuple[int, Landed | None] | None) -> Landed | None:
    """Return the newest ingestion commit of a topic of a shared table. It is in each summary of ours."""
    for snapshot in history(table):
        id = snapshot.snapshotId()
        if cached is not None and id == cached[0]:
            return cached[1]
        summary = texts(snapshot.summary())
        if names.SUMMARY_OFFSETS in summary:
            landed = _landed_in(summary[names.SUMMARY_OFFSETS], table, view)
            if (
                landed is None
                or summary.get(names.SUMMARY_KIND) != INGEST
                or summary.get(COMMIT_ID) != landed.commit_id
            ):
                return landed
            return replace(landed, snapshot_id=id, committed_ms=snapshot.timestampMillis())
    properties = texts(table.properties())
    if names.SUMMARY_OFFSETS not in properties:
        return None
    _check_lineage(table, properties)
    return _landed_in(properties[names.SUMMARY_OFFSETS], table, view)


def _landed_in(text: str, table: Any, view: View) -> Landed | None:
    """Return the commit of a topic in a value of ``firn.offsets``."""
    found = _shared(text, table).of(view)
    if found is None:
        return None
    topic_id, commit = found
    leaders = table.properties().get(names.of_topic(names.TABLE_LEADER_EPOCHS, topic_id))
    return Landed(
        topic_id=topic_id,
        epoch=commit.epoch,
        offsets=dict(commit.offsets),
        commit_id=commit.commit,
        writer=commit.writer,
        leader_epochs=decode_leader_epochs(leaders, commit.commit),
        landed_ms=commit.landed_at,
    )


def _shared(text: str, table: Any) -> SharedOffsets:
    try:
        return SharedOffsets.read(text)
    except ValueError as error:
        raise CorruptDataError(
            f"table {table.name()}: {names.SUMMARY_OFFSETS} does not have the offsets of a shared table; roll back to a snapshot that has"
            " them, or create the IcebergTopic again with another table.name"
        ) from error


def shared_offsets(table: Any) -> SharedOffsets | None:
    """Return the offsets of all topics of a shared table, as of its current snapshot; None if one topic has the table.

    Reads the metadata that ``table`` has in memory. Raises CorruptDataError.
    """
    properties = texts(table.properties())
    if not SharedOffsets.is_in(properties.get(names.SUMMARY_OFFSETS)):
        return None
    for snapshot in history(table):
        text = snapshot.summary().get(names.SUMMARY_OFFSETS)
        if text is not None:
            return _shared(str(text), table)
    _check_lineage(table, properties)
    return _shared(properties[names.SUMMARY_OFFSETS], table)


def history(table: Any, snapshot: Any | None = None) -> Iterator[Any]:
    """Return ``snapshot``, by default the newest of the branch on which rows land, and those before it, newest first."""
    return lineage(table, snapshot if snapshot is not None else head(table))


def newest_summary(table: Any, key: str) -> str | None:
    """Return the newest value of ``key`` in the summaries of the newest landed snapshot and those before it, without a refresh."""
    summaries = (snapshot.summary() for snapshot in history(table))
    return next((str(summary.get(key)) for summary in summaries if summary.get(key) is not None), None)


def wrote_last(table: Any, key: str) -> bool | None:
    """Return whether the writer that keeps its state under ``key`` committed after ingestion; None if the history has neither."""
    for snapshot in history(table):
        summary = snapshot.summary()
        kind = summary.get(names.SUMMARY_KIND)
        if kind == INGEST or summary.get(key) is not None:
            return bool(kind != INGEST)
    return None


def carried_from(table: Any) -> dict[str, str]:
    """Return the summary that a maintenance snapshot of ``table`` carries: the newest ingestion commit, or in a shared table
    those of all topics."""
    shared = shared_offsets(table)
    return carried(newest(table)) if shared is None else {names.SUMMARY_OFFSETS: shared.encode()}


def carried(landed: Landed | None) -> dict[str, str]:
    """Return the summary that a maintenance snapshot carries, so that ``landed`` survives the expiry of its own
    snapshot.

    This also holds after a rollback, of which the table's properties know nothing.
    """
    if landed is None:
        return {}
    return {
        names.SUMMARY_TOPIC_ID: landed.topic_id,
        names.SUMMARY_EPOCH: str(landed.epoch),
        names.SUMMARY_OFFSETS: encode_offsets(landed.offsets),
        COMMIT_ID: landed.commit_id,
        WRITER: landed.writer,
        **(
            {LETTERS_SINCE: str(landed.letters[0]), LETTERS_UNTIL: str(landed.letters[1])}
            if any(landed.letters)
            else {}
        ),
        **({names.SUMMARY_LANDED_AT: str(landed.landed_ms)} if landed.landed_ms is not None else {}),
    }


def _parse(
    values: Mapping[str, str], table: Any, snapshot: Any | None, snapshot_id: int | None, committed_ms: int | None
) -> Landed:
    """Return the ingestion commit that ``values`` describe: those of ``snapshot``, or of the table's properties."""
    try:
        return Landed(
            topic_id=values.get(names.SUMMARY_TOPIC_ID, ""),
            epoch=int(values.get(names.SUMMARY_EPOCH, "")),
            offsets=_offsets(values, table, snapshot),
            commit_id=values.get(COMMIT_ID, ""),
            writer=values.get(WRITER, ""),
            snapshot_id=snapshot_id,
            committed_ms=committed_ms,
            letters=(int(values.get(LETTERS_SINCE, 0)), int(values.get(LETTERS_UNTIL, 0))),
            leader_epochs=decode_leader_epochs(
                table.properties().get(names.TABLE_LEADER_EPOCHS), values.get(COMMIT_ID, "")
            ),
            landed_ms=int(values[names.SUMMARY_LANDED_AT]) if names.SUMMARY_LANDED_AT in values else None,
        )
    except ValueError as error:
        where = f"snapshot {snapshot_id}" if snapshot_id is not None else "the table's properties"
        raise CorruptDataError(
            f"table {table.name()}: invalid ingestion offsets in {where} ({error!r}); roll back to a snapshot with valid ones, or set "
            f"{names.SUMMARY_TOPIC_ID}, {names.SUMMARY_EPOCH}, {COMMIT_ID} and {names.SUMMARY_OFFSETS} in the table's properties"
        ) from error


def _offsets(values: Mapping[str, str], table: Any, snapshot: Any | None) -> Offsets:
    try:
        return decode_offsets(values.get(names.SUMMARY_OFFSETS, ""))
    except ValueError:
        if snapshot is None:
            raise
    older = (texts(each.summary()) for each in history(table, snapshot))
    return recorded_offsets(older, texts(table.properties())) or {}


def main_moved(table: Any) -> ConflictError:
    """Return the error that main of ``table`` has a snapshot of another writer, which the branch of the rows lacks."""
    metadata = table.operations().current()
    branch, main = branch_of(metadata), metadata.currentSnapshot()
    return ConflictError(
        f"table {table.name()}: another writer changed main, whose snapshot {main.snapshotId()} is not in branch {branch}; make main refer to"
        f" a snapshot of the branch again (rollback_to_snapshot), and make the change on the branch (write to branch_{branch})",
        reason=Reason.MAIN_MOVED,
    )


def _moved(landed: Landed | None, base: Landed | None) -> bool:
    return (landed.commit_id if landed is not None else None) != (base.commit_id if base is not None else None)


@dataclass(frozen=True, slots=True)
class OtherWriter:
    """The state that another writer keeps under ``key`` in the summaries of its snapshots. The commit continues from it."""

    key: str
    expected: str | None
    """Its newest value. With another one, the commit fails."""
    value: str
    """Its value in this commit, so that the writer takes everything before as done."""
    place: str = ""
    """The place of the writer's consumer group, for the table property `firn.model.names.TABLE_CONNECTOR`."""


@dataclass(frozen=True, slots=True)
class Extras:
    """The parts of a commit besides files and offsets."""

    letters: tuple[int, int] | None = None
    """`Landed.letters`, for a dead-letter table."""
    keep_ms: int | None = None
    """Age from which the commit removes snapshots from the metadata, from time to time."""
    gaps: Sequence[Gap] = ()
    """Offsets that the commit passes without landing them. The table's properties record them."""
    cluster: str = ""
    """Kafka cluster that the table belongs to from this commit on; empty: unchanged."""
    schema: str = ""
    """Schema with which the files were written, as Iceberg's JSON; empty: not compared."""
    leader_epochs: Mapping[int, int] = field(default_factory=dict)
    """`Landed.leader_epochs`. The table's properties record them."""
    skipped: Mapping[int, int] = field(default_factory=dict)
    """Partition -> offset before which the commit skips records, because of ``onBadRecord: Skip``."""
    filtered: Mapping[int, FilteredRange] = field(default_factory=dict)
    """Partition -> the offsets that the commit passes, and the records of them that the filter left out."""
    log_starts: Mapping[int, int] = field(default_factory=dict)
    """Start of the log by partition, as far as it is known. Audits need no numbers of filtered records before it."""
    begins: bool = False
    """True if ingestion of the topic begins at the offsets of the commit, and not at the start of the log."""
    records: bool = False
    """True if records land with the commit, as rows or as dead letters."""
    other: OtherWriter | None = None
    """The writer whose table the commit takes over."""
    other_key: str = ""
    """Key of another writer, from which the topic took the table over. A commit of this writer since then fails the commit."""
    branch: str = ""
    """Branch on which rows land after this commit; empty: unchanged. If it is main, everything is published."""
    shared_by: str = ""
    """Name of the resource, if the table is shared; empty for a table of one topic."""
    topic: str = ""
    """Name of the Kafka topic."""
    group: str = ""
    """Ingestion group of the driver."""
    look: Look | None = None
    """Which other topics of a shared table the Kafka cluster has. The commit removes those that ended long ago."""

    @classmethod
    def of(cls, job: IngestJob, **more: Any) -> "Extras":
        """Return the parts with those that the contract of the topic has."""
        return cls(shared_by=job.table.shared_by, topic=job.topic, group=job.group, **more)


NO_EXTRAS = Extras()


class Committer:
    """Makes ingestion commits for one process. ``writer`` has to be unique to it."""

    def __init__(
        self,
        tables: Tables,
        writer: str,
        failpoints: Failpoints,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._tables = tables
        self._failpoints = failpoints
        self.writer = writer
        self.now_ms = now_ms

    def commit(
        self,
        table: Any,
        descriptors: Sequence[str],
        base: Landed | None,
        topic_id: str,
        epoch: int,
        offsets: Offsets,
        extras: Extras = NO_EXTRAS,
    ) -> Landed:
        """Append data files (possibly none) and set the offsets on top of ``base``.

        Returns the new newest ingestion commit. Raises CommitConflictError if a commit of an older epoch came first
        (plan again), FencedError, and CommitUnknownError if the outcome could not be read back (read the table before
        anything else). The files of a commit are deleted only if it certainly did not happen: another commit came
        first, every request was refused as outdated, or none was made.
        """
        commit_id = uuid.uuid4().hex
        values = {
            names.SUMMARY_TOPIC_ID: topic_id,
            names.SUMMARY_EPOCH: str(epoch),
            names.SUMMARY_OFFSETS: encode_offsets(offsets),
            COMMIT_ID: commit_id,
            WRITER: self.writer,
        }
        landed_at = self._landed_at(base, topic_id, extras)
        if landed_at is not None:
            values[names.SUMMARY_LANDED_AT] = str(landed_at)
        if extras.letters is not None:
            values |= {LETTERS_SINCE: str(extras.letters[0]), LETTERS_UNTIL: str(extras.letters[1])}
        slot = self._begins_slot(table, base, extras)
        whole = slot or extras.letters is not None or bool(extras.shared_by)
        summary = values if whole else {**values, **_changes(base, topic_id, offsets)}
        if not slot:
            extras = replace(extras, keep_ms=None)
        self._failpoints.reach("before-commit")
        append = _Append(self, table, descriptors, base, epoch, values, summary, extras)
        try:
            swap(table, append, self._failpoints)
        except CommitConflictError as error:
            if certain(error):
                append.discard(table)
            raise
        assert append.landed is not None
        return append.landed

    def _begins_slot(self, table: Any, base: Landed | None, extras: Extras) -> bool:
        committed_ms = base.committed_ms if base is not None else None
        if extras.shared_by and (current := head(table)) is not None:
            # The commits of all topics count, so that one of them in each slot removes old snapshots.
            committed_ms = int(current.timestampMillis())
        return committed_ms is None or committed_ms // SLOT_MS != self.now_ms() // SLOT_MS

    def _landed_at(self, base: Landed | None, topic_id: str, extras: Extras) -> int | None:
        """Return `Landed.landed_ms` after a commit on ``base``."""
        if extras.letters is not None:
            return None
        if extras.records:
            return self.now_ms()
        if base is None or base.topic_id != topic_id:
            return 0
        # An earlier version of Firn committed ``base`` if it does not say when records landed.
        return base.landed_ms if base.landed_ms is not None else base.committed_ms

    def schema(self, table: Any) -> str:
        """Return the current schema as Iceberg's JSON."""
        return str(self._tables.jvm.org.apache.iceberg.SchemaParser.toJson(table.schema()))

    def data_file(self, table: Any, descriptor: str) -> Any:
        """Return the Java data file of a writer's descriptor."""
        return self._tables.data_file(table, descriptor)

    def summarised(self, snapshot: Any, values: Mapping[str, str], not_before_ms: int) -> Any:
        """Return ``snapshot`` as `with_summary` does."""
        return with_summary(self._tables.jvm, snapshot, values, not_before_ms)

    def replaced(
        self,
        base: Any,
        snapshot: Any | None,
        values: Mapping[str, str],
        keep_ms: int | None = None,
        branch: str = "",
        gone: Collection[str] = (),
    ) -> Any:
        """Return ``base`` with ``values`` as properties, and ``snapshot``, if any, as the newest of the branch on which rows land.

        ``snapshot`` has its final time and summary (`with_summary`). With ``keep_ms``, without old snapshots. With ``branch``,
        rows land on that branch from here on. The properties ``gone`` are removed.
        """
        builder = builder_on(self._tables.jvm, base, self.now_ms())
        builder.setProperties(java_map(base, values))
        if gone:
            builder.removeProperties(self._java_set(gone))
        if snapshot is not None:
            present = branch_of(base)
            builder.setBranchSnapshot(snapshot, present)
            if branch not in ("", present):
                self._move(builder, base, int(snapshot.snapshotId()), present, branch)
        old = old_snapshots(base, keep_ms, self.now_ms()) if keep_ms is not None else []
        if old:
            removed = self._tables.jvm.java.util.ArrayList()
            for each in old:
                removed.add(each)
            builder.removeSnapshots(removed)
            # Iceberg's expiry in other engines takes the snapshots behind a gap for rolled back, and deletes files that
            # newer ones still need. It compares the files of all snapshots if the table has a second reference.
            newest_before = head_of(base)
            assert newest_before is not None
            tag = self._tables.jvm.org.apache.iceberg.SnapshotRef.tagBuilder(newest_before.snapshotId()).build()
            builder.setRef(names.HISTORY_TAG, tag)
        return builder.build()

    def _move(self, builder: Any, base: Any, snapshot_id: int, present: str, branch: str) -> None:
        """Let rows land on ``branch`` instead of ``present``. Both, as far as they stay, have the snapshot then."""
        builder.setBranchSnapshot(snapshot_id, branch)
        if present != MAIN:
            # A REST catalog checks that the old branch has not moved, because the same request moves it.
            builder.removeRef(present)
        if branch == MAIN:
            builder.removeProperties(self._java_set([names.TABLE_BRANCH]))
        else:
            builder.setProperties(java_map(base, {names.TABLE_BRANCH: branch}))

    def _java_set(self, texts: Collection[str]) -> Any:
        found = self._tables.jvm.java.util.HashSet()
        for text in texts:
            found.add(text)
        return found

    def check(self, landed: Landed | None, base: Landed | None, epoch: int, table: str) -> None:
        """Raise FencedError if the writer of ``landed``, read after ``base``, takes precedence over ``epoch``."""
        if landed is None or not _moved(landed, base):
            return
        if landed.epoch > epoch or (landed.epoch == epoch and landed.writer != self.writer):
            raise FencedError(
                f"table {table}: writer {landed.writer or '(unknown)'} committed with epoch {landed.epoch}, and this driver has "
                f"epoch {epoch}; make sure that only one installation of Firn serves this topic"
            )

    def check_claim(self, table: Any, epoch: int, view: View | None = None) -> None:
        """Raise FencedError if another writer claimed ``table``, as read last, with ``epoch`` or a newer one."""
        claim = read_claim(table, view)
        if claim is not None and claim.epoch >= epoch and claim != Claim(epoch, self.writer):
            raise FencedError(
                f"table {table.name()}: writer {claim.writer} claimed epoch {claim.epoch}, and this driver has epoch {epoch}; "
                "make sure that only one installation of Firn serves this topic"
            )

    def absent(self, table: Any, commit_id: str, base: Landed | None, view: View | None = None) -> bool:
        """Return True if the whole history since ``base`` is known and this commit is not in it.

        A refusal alone proves nothing: a catalog's client may have sent the request twice, and another writer may
        have continued from the first.
        """
        # A tag or branch may keep a snapshot that is no longer in the history of main.
        if any(kept.summary().get(COMMIT_ID) == commit_id for kept in table.snapshots()):
            return False
        snapshot = head(table)
        while snapshot is not None:
            if base is not None and snapshot.snapshotId() == base.snapshot_id:
                return True
            if view is not None and _is_before(snapshot, view, base):
                return True
            parent = snapshot.parentId()
            if parent is None:
                return base is None
            snapshot = table.snapshot(parent)
        return base is None and head(table) is None

    def discard(self, table: Any, descriptors: Sequence[str]) -> None:
        """Delete data files whose commit was never tried, or was certainly refused. Best effort: orphan removal finds
        the rest."""
        try:
            io = table.io()
            for descriptor in descriptors:
                io.deleteFile(self._tables.data_file(table, descriptor).location())
        except JAVA_ERRORS as error:
            log.warning("files of a failed commit could not be deleted", table=str(table.name()), error=short(error))


def _changes(base: Landed | None, topic_id: str, offsets: Offsets) -> dict[str, str]:
    """Return the summary's offsets if few of them changed since ``base``, whose snapshot has to be in the history."""
    if base is None or base.snapshot_id is None or base.topic_id != topic_id or base.offsets.keys() - offsets.keys():
        return {}
    if 2 * count_changes(offsets, base.offsets) > len(offsets):
        return {}
    return {names.SUMMARY_OFFSETS: encode_changes(offsets, base.offsets, base.commit_id)}


def _is_before(snapshot: Any, view: View, base: Landed | None) -> bool:
    """Return True if a snapshot of a shared table shows ``base`` as the newest commit of the topic, so that a later one is absent."""
    text = snapshot.summary().get(names.SUMMARY_OFFSETS)
    if text is None:
        return False
    try:
        known = SharedOffsets.read(str(text)).topics.get(view.topic_id)
    except ValueError:
        return False
    expected = base.commit_id if base is not None and base.topic_id == view.topic_id else None
    return (known.commit if known is not None else None) == expected


class _Append:
    """Appends data files with offsets, if ``base`` is still the newest ingestion commit."""

    def __init__(
        self,
        committer: Committer,
        table: Any,
        descriptors: Sequence[str],
        base: Landed | None,
        epoch: int,
        properties: Mapping[str, str],
        summary: Mapping[str, str],
        extras: Extras,
    ) -> None:
        self._extras = extras
        self._topic_id = properties[names.SUMMARY_TOPIC_ID]
        self._view = View(self._topic_id, extras.shared_by) if extras.shared_by else None
        self._cluster = {key_of(names.TABLE_KAFKA_CLUSTER, self._view): extras.cluster} if extras.cluster else {}
        leaders = key_of(names.TABLE_LEADER_EPOCHS, self._view)
        self._leaders = (
            {leaders: encode_leader_epochs(extras.leader_epochs, properties[COMMIT_ID])} if extras.leader_epochs else {}
        )
        self._place = {names.TABLE_CONNECTOR: extras.other.place} if extras.other and extras.other.place else {}
        self._committer = committer
        self._descriptors = descriptors
        self._files = [committer.data_file(table, descriptor) for descriptor in descriptors]
        self._base = base
        self._epoch = epoch
        self._values = properties
        self._summary = summary
        self._append: Any | None = None
        self._ended: Set[str] = frozenset()
        """Ids of the topics whose entries the commit removes from a shared table."""
        # The snapshot of ``base`` is usually still the current one. Then the driver does not read it again.
        self._cached: tuple[int, Landed | None] | None = (
            (base.snapshot_id, base) if base is not None and base.snapshot_id is not None else None
        )
        self.landed: Landed | None = None

    def _read_newest(self, table: Any) -> Landed | None:
        current = head(table)
        id = current.snapshotId() if current is not None else None
        if id is None or self._cached is None or id != self._cached[0]:
            landed = newest(table, self._cached, self._view)
            self._cached = (id, landed) if id is not None else None
            return landed
        return self._cached[1]

    def done(self, table: Any) -> bool:
        """Implement `Change.done`: look for this commit's id. Another ingestion commit raises CommitConflictError
        or FencedError."""
        self.landed = self._read_newest(table)
        if self.landed is not None and self.landed.commit_id == self._values[COMMIT_ID]:
            return True
        if _moved(self.landed, self._base):
            # A request of this commit cannot succeed any more, because it needs the base.
            self.discard(table)
            self._committer.check(self.landed, self._base, self._epoch, str(table.name()))
            raise CommitConflictError(
                f"table {table.name()}: another ingestion commit changed the table first; the driver reloads the offsets"
            )
        self._check_claim(table)
        self._check_branch(table)
        self._of_other_writer(table)
        self._check_other_writer(table)
        column = replaced_column(self._extras.schema, self._committer.schema(table)) if self._extras.schema else None
        if column is not None:
            # Not `discard`: a REST catalog can still complete a request, because the branch has not moved.
            raise CommitConflictError(
                f"table {table.name()}: column {column} was dropped and added again while the round wrote its files; the "
                "driver reads the records again"
            )
        return False

    def _check_claim(self, table: Any) -> None:
        try:
            self._committer.check_claim(table, self._epoch, self._view)
        except FencedError:
            # A REST catalog can still complete a request: the claim has not moved the branch.
            if self._append is None:
                self.discard(table)
            raise

    def _check_branch(self, table: Any) -> None:
        """Raise ConflictError if rows cannot land on the branch that the commit chooses."""
        metadata, branch = table.operations().current(), self._extras.branch
        if not branch:
            return
        present = branch_of(metadata)
        if branch not in (MAIN, present) and metadata.ref(branch) is not None:
            raise ConflictError(
                f"table {table.name()}: branch {branch} exists, and another writer made it; drop it, or name another branch in"
                " spec.quality.publish.branch",
                reason=Reason.BRANCH_REFUSED,
            )
        if branch == MAIN and unpublished(metadata) is None:
            raise main_moved(table)

    def discard(self, table: Any) -> None:
        """Delete the files, once, if no snapshot of the table as last read is of this commit."""
        if self._descriptors and self._committer.absent(table, self._values[COMMIT_ID], self._base, self._view):
            self._committer.discard(table, self._descriptors)
            self._descriptors = ()

    def build(self, table: Any) -> tuple[Any, Any]:
        """Implement `Change.build`.

        The manifest of the new files is written once. Later attempts only write the manifest list again, because a
        writer that commits without a pause would otherwise always come first.
        """
        if self._append is None:
            self._append = on_branch(table.newAppend(), branch_of(table))
            for file in self._files:
                self._append.appendFile(file)
        snapshot = self._append.apply()
        base = table.operations().current()
        # Iceberg reloaded the table for the snapshot. It has to be the metadata that `done` read.
        parent, seen = snapshot.parentId(), head_of(base)
        if parent != (seen.snapshotId() if seen is not None else None) or _moved(self._read_newest(table), self.landed):
            raise CommitConflictError(f"table {table.name()}: other commits changed it while the snapshot was built")
        # These are two requests in all, and `append.set` needs some for each value.
        properties = texts(table.properties())
        shared = self._shared(table, properties)
        summary = {**self._summary, **shared, **self._of_other_writer(table), names.SUMMARY_KIND: INGEST}
        snapshot = self._committer.summarised(snapshot, summary, seen.timestampMillis() if seen is not None else 0)
        values = {
            **self._values,
            **shared,
            **self._lost(table, properties),
            **self._audited(properties, has_rows=seen is not None),
            **self._cluster,
            **self._leaders,
            **self._place,
        }
        gone = [key for key in properties if names.topic_of(key) in self._ended] if self._ended else []
        return base, self._committer.replaced(base, snapshot, values, self._extras.keep_ms, self._extras.branch, gone)

    def _of_other_writer(self, table: Any) -> dict[str, str]:
        """Return the other writer's part of the summary. Raises CommitConflictError if it committed in between."""
        other = self._extras.other
        if other is None:
            return {}
        if newest_summary(table, other.key) != other.expected:
            raise CommitConflictError(
                f"table {table.name()}: the connector committed again while the driver took the table over; the driver reads its state again"
            )
        return {other.key: other.value}

    def _check_other_writer(self, table: Any) -> None:
        """Raise CommitConflictError if the writer of `Extras.other_key` has committed after ingestion."""
        key, current = self._extras.other_key, head(table)
        if not key or current is None or (self._base is not None and current.snapshotId() == self._base.snapshot_id):
            return
        if wrote_last(table, key):
            self.discard(table)
            raise CommitConflictError(
                f"table {table.name()}: the connector committed again after the topic took the table over; the driver reads its state again"
            )

    def _shared(self, table: Any, properties: Mapping[str, str]) -> dict[str, str]:
        """Return the offsets of all topics after this commit to a shared table, on top of what ``table`` has in memory."""
        stored = properties.get(names.SUMMARY_OFFSETS)
        if stored is not None and SharedOffsets.is_in(stored) != (self._view is not None):
            how = "of several topics" if self._view is None else "of one topic"
            raise CommitConflictError(f"table {table.name()}: it has the offsets {how}; the driver reloads the table")
        if self._view is None:
            return {}
        values = self._values
        landed_at = values.get(names.SUMMARY_LANDED_AT)
        commit = TopicCommit(
            resource=self._view.resource,
            epoch=self._epoch,
            commit=values[COMMIT_ID],
            writer=values[WRITER],
            landed_at=int(landed_at) if landed_at is not None else None,
            offsets=decode_offsets(values[names.SUMMARY_OFFSETS]),
            topic=self._extras.topic,
            group=self._extras.group,
        )
        known, look = shared_offsets(table) or SharedOffsets.none(), self._extras.look
        # A driver can have had a look for days, because it had no round, while another one got newer answers.
        is_new = look is not None and self._committer.now_ms() - look.at_ms < LOOK_MS
        later = known.after(look) if look is not None and is_new else known
        self._ended = known.topics.keys() - later.topics.keys() - {self._topic_id}
        return {names.SUMMARY_OFFSETS: later.plus(self._topic_id, commit).encode()}

    def _lost(self, table: Any, properties: Mapping[str, str]) -> dict[str, str]:
        topic_id, key = self._topic_id, key_of(names.TABLE_LOST, self._view)
        known = Losses.read(properties.get(key))
        gaps = known.missing(self._extras.gaps, topic_id)
        if not gaps:
            return {}
        uuid = str(table.uuid())
        if self._view is not None:
            # Each topic of a shared table counts its losses from 1, and their names have to differ.
            uuid = hashlib.sha256(f"{uuid} {topic_id}".encode()).hexdigest()
        return {key: known.plus(gaps, topic_id, uuid, time.time()).model_dump_json()}

    def _audited(self, properties: Mapping[str, str], *, has_rows: bool) -> dict[str, str]:
        """Return the properties for audits after this commit. Dead-letter tables have one only after retention."""
        if self._extras.letters is not None:
            return {}
        topic_id, key = self._topic_id, key_of(names.TABLE_AUDIT_FROM, self._view)
        known = AuditFrom.read(properties.get(key))
        landed = self._base.offsets if self._base is not None and self._base.topic_id == topic_id else None
        if known is not None and known.topic_id == topic_id:
            # No earlier version of Firn commits to a shared table.
            new = known if self._view is not None else known.as_of(properties.get(COMMIT_ID), landed or {})
        else:
            new = AuditFrom.first(
                topic_id,
                landed,
                decode_offsets(self._values[names.SUMMARY_OFFSETS]),
                begins=self._extras.begins,
                # Rows of another writer have no offsets. Those of an earlier topic have. In a shared table, each row names its topic.
                has_rows=has_rows and self._view is None and (self._extras.other is None or self._base is not None),
            )
        filtered, unknown = self._filtered(properties, landed or {})
        new = new.raised(unknown).raised(dict(self._extras.skipped))
        new = new.model_copy(update={"commit": self._values[COMMIT_ID]})
        return {key: new.model_dump_json(), **filtered}

    def _filtered(self, properties: Mapping[str, str], landed: Offsets) -> tuple[dict[str, str], Offsets]:
        """Return the property with the numbers of filtered records, if the table has one or needs one.

        The second part has the offsets before which these numbers are not known, because the table was rolled back.
        """
        key = key_of(names.TABLE_FILTERED, self._view)
        text = properties.get(key)
        if text is None and not any(each.records for each in self._extras.filtered.values()):
            return {}, {}
        known = Filtered.read(text)
        # No earlier version of Firn commits to a shared table.
        known = known.as_of(known.commit if self._view is not None else properties.get(COMMIT_ID), self._topic_id)
        before, unknown = known.before(landed)
        new = before.plus(self._extras.filtered, dict(self._extras.log_starts))
        new = new.model_copy(update={"commit": self._values[COMMIT_ID]})
        return {key: new.model_dump_json()}, unknown
