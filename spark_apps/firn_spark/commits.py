"""Exactly once: what a table says of its own ingestion, and the commit that is only allowed on top of what it was planned from.

A commit of ours is one Iceberg transaction: data files appended with the offsets in the snapshot's summary, and the same offsets as
table properties for the day when that snapshot has expired. A validator that Iceberg calls on every attempt, with the ancestry as it
is then, refuses unless the newest *ingestion* commit is the one planned from; commits of compaction or other engines do not matter.

No exception of a commit is believed. Whatever it says, the table is read back, and what is found there decides:

- our commit id is there: the commit happened;
- a newer epoch, or our epoch in another writer's hand: this writer is fenced (FencedError);
- anything else: the commit did not happen so far. A request still under way can no longer land beside a new plan, because the new plan's
  commit and this one exclude each other.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import structlog
from py4j.protocol import Py4JError

from firn.model import names
from firn.model.errors import CommitConflictError, CommitUnknownError, CorruptDataError, FencedError
from firn.model.progress import Offsets, decode_offsets, encode_offsets
from firn_spark.failpoints import Failpoints
from firn_spark.tables import Tables, causes, java_class, translate

log = structlog.get_logger()

COMMIT_ID = "firn.commit-id"
"""Names one commit, so that it is known again when it is read back."""
WRITER = "firn.writer"
"""Names the process that made a commit: two processes may have taken the same epoch."""
INGEST = "ingest"
_KEYS = (names.SUMMARY_TOPIC_ID, names.SUMMARY_EPOCH, names.SUMMARY_OFFSETS, COMMIT_ID, WRITER)
_REFUSALS = ("CommitFailedException", "ValidationException")


@dataclass(frozen=True, slots=True)
class Landed:
    """The newest ingestion commit of a table. ``snapshot_id`` is None where it is only known from the table's properties."""

    topic_id: str
    epoch: int
    offsets: Offsets
    commit_id: str = ""
    writer: str = ""
    snapshot_id: int | None = None
    committed_ms: int | None = None


def read_landed(table: Any) -> Landed | None:
    """The newest ingestion commit in the history of ``table``'s current snapshot, else what the properties carry; None for a table
    that never had one. Refreshes the table. Raises Py4JError as Java does, CorruptDataError for a summary that cannot be true."""
    table.refresh()
    snapshot = table.currentSnapshot()
    while snapshot is not None:
        summary = snapshot.summary()
        if summary.get(names.SUMMARY_KIND) == INGEST:
            return _parse(
                {key: summary.get(key) for key in _KEYS}, table, snapshot.snapshotId(), snapshot.timestampMillis()
            )
        parent = snapshot.parentId()
        snapshot = None if parent is None else table.snapshot(parent)
    properties = table.properties()
    values = {key: properties.get(key) for key in _KEYS}
    return _parse(values, table, None, None) if values[names.SUMMARY_OFFSETS] is not None else None


def _parse(values: Mapping[str, str | None], table: Any, snapshot_id: int | None, committed_ms: int | None) -> Landed:
    try:
        return Landed(
            topic_id=values[names.SUMMARY_TOPIC_ID] or "",
            epoch=int(values[names.SUMMARY_EPOCH] or ""),
            offsets=decode_offsets(values[names.SUMMARY_OFFSETS] or ""),
            commit_id=values[COMMIT_ID] or "",
            writer=values[WRITER] or "",
            snapshot_id=snapshot_id,
            committed_ms=committed_ms,
        )
    except ValueError as error:
        where = f"snapshot {snapshot_id}" if snapshot_id is not None else "the table's properties"
        raise CorruptDataError(
            f"table {table.name()}: {where} does not say what was ingested ({error!r}); roll back to a snapshot that does, or set "
            f"{names.SUMMARY_TOPIC_ID}, {names.SUMMARY_EPOCH} and {names.SUMMARY_OFFSETS} in the table's properties"
        ) from error


class _OnTopOf:
    """``SnapshotAncestryValidator``: true where the newest ingestion commit is the snapshot planned from (None: there is none)."""

    def __init__(self, snapshot_id: int | None) -> None:
        self._expected = snapshot_id
        self._found: int | None = None

    def validate(self, snapshots: Any) -> bool:
        """Iceberg's question, on every attempt; ``snapshots`` are the parent and its ancestors, newest first."""
        self._found = None
        iterator = snapshots.iterator()
        while iterator.hasNext():
            snapshot = iterator.next()
            if snapshot.summary().get(names.SUMMARY_KIND) == INGEST:
                self._found = snapshot.snapshotId()
                break
        return self._found == self._expected

    def errorMessage(self) -> str:
        """What Iceberg puts into its exception."""
        return f"planned from ingestion snapshot {self._expected}, the newest one is {self._found}"

    class Java:
        """py4j's way of naming the interfaces."""

        implements: ClassVar[list[str]] = ["org.apache.iceberg.SnapshotAncestryValidator"]


class Committer:
    """Makes ingestion commits in the name of one process. ``writer`` has to be unique to it."""

    def __init__(self, tables: Tables, writer: str, failpoints: Failpoints) -> None:
        self._tables = tables
        self._failpoints = failpoints
        self.writer = writer

    def commit(
        self, table: Any, descriptors: Sequence[str], base: Landed | None, topic_id: str, epoch: int, offsets: Offsets
    ) -> Landed:
        """Appends data files (none is allowed) and sets the offsets, on top of ``base``. Returns what is now the newest ingestion commit.

        Raises CommitConflictError where another commit of an older epoch came first (plan again), FencedError, and
        CommitUnknownError where the outcome could not be read back: then nothing may be done with this table before `settle`.
        The files of a refused commit are removed; those of an unknown one never.
        """
        commit_id = uuid.uuid4().hex
        values = {
            names.SUMMARY_TOPIC_ID: topic_id,
            names.SUMMARY_EPOCH: str(epoch),
            names.SUMMARY_OFFSETS: encode_offsets(offsets),
            COMMIT_ID: commit_id,
            WRITER: self.writer,
        }
        self._failpoints.reach("before-commit")
        failure: Exception | None = None
        try:
            files = [self._tables.data_file(table, descriptor) for descriptor in descriptors]
            transaction = table.newTransaction()
            append = transaction.newAppend().validateWith(_OnTopOf(base.snapshot_id if base else None))
            for file in files:
                append.appendFile(file)
            for key, value in {**values, names.SUMMARY_KIND: INGEST}.items():
                append.set(key, value)
            append.commit()
            properties = transaction.updateProperties()
            for key, value in values.items():
                properties.set(key, value)
            properties.commit()
            transaction.commitTransaction()
            self._failpoints.reach("after-commit")
        except Exception as error:
            failure = error
        landed = self._read_back(table, failure)
        self._failpoints.reach("after-readback")
        if landed is not None and landed.commit_id == commit_id:
            if failure is not None:
                log.warning(
                    "commit reported a failure, but it is in the table", table=str(table.name()), error=_short(failure)
                )
            return landed
        refused = isinstance(failure, Py4JError) and any(name.endswith(_REFUSALS) for name, _ in causes(failure)[:1])
        if refused and self._absent(table, commit_id, base):
            self.discard(table, descriptors)
        self.check(landed, base, epoch, str(table.name()))
        if landed != base and landed is not None and (base is None or landed.commit_id != base.commit_id):
            raise CommitConflictError(f"table {table.name()}: another ingestion commit came first") from failure
        if refused:
            raise CommitConflictError(f"table {table.name()}: {_short(failure)}") from failure
        if isinstance(failure, Py4JError):
            raise translate(failure, f"table {table.name()}, commit") from failure
        if failure is None:
            raise CommitConflictError(
                f"table {table.name()}: the commit is no longer in the table's history (rolled back?)"
            )
        raise failure

    def check(self, landed: Landed | None, base: Landed | None, epoch: int, table: str) -> None:
        """Raises FencedError where ``landed``, read after ``base`` was planned from, is by a writer that wins over ``epoch``."""
        if landed is None or (base is not None and landed.commit_id == base.commit_id):
            return
        if landed.epoch > epoch or (landed.epoch == epoch and landed.writer != self.writer):
            raise FencedError(
                f"table {table}: writer {landed.writer or '(unknown)'} committed with epoch {landed.epoch}, ours is {epoch}; "
                "another driver serves this topic"
            )

    def _read_back(self, table: Any, failure: Exception | None) -> Landed | None:
        try:
            return read_landed(table)
        except Py4JError as error:
            raise CommitUnknownError(
                f"table {table.name()}: the commit's outcome cannot be read back: {_short(error)}",
                reason="CatalogUnreachable",
            ) from failure or error

    def _absent(self, table: Any, commit_id: str, base: Landed | None) -> bool:
        """True where the whole history since ``base`` is known and our commit is not in it. A refusal alone proves nothing: a catalog's client
        may have sent the request twice, and another writer may have gone on from the first."""
        snapshot = table.currentSnapshot()
        while snapshot is not None:
            if base is not None and snapshot.snapshotId() == base.snapshot_id:
                return True
            if snapshot.summary().get(COMMIT_ID) == commit_id:
                return False
            parent = snapshot.parentId()
            if parent is None:
                return base is None
            snapshot = table.snapshot(parent)
        return base is None and table.currentSnapshot() is None

    def discard(self, table: Any, descriptors: Sequence[str]) -> None:
        """Removes data files that no commit was tried with, or whose commit was refused for certain. Best effort: orphan removal finds the rest."""
        try:
            io = table.io()
            for descriptor in descriptors:
                io.deleteFile(self._tables.data_file(table, descriptor).location())
        except Py4JError as error:
            log.warning("files without a commit could not be removed", table=str(table.name()), error=_short(error))


def _short(error: Exception | None) -> str:
    if isinstance(error, Py4JError):
        return str(translate(error, java_class(error).rpartition(".")[2] or "py4j"))[:400]
    return f"{type(error).__name__}: {error}"[:400]
