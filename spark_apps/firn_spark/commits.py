"""Exactly once: what a table says of its own ingestion, and the commit that is only allowed on top of what it was planned from.

A commit of ours is one change of the table's metadata: data files appended with the offsets in the snapshot's summary, and the same offsets
as table properties for the day when that snapshot has expired. It is made from metadata in which the newest *ingestion* commit is the one
planned from, and the catalog takes it only if nothing came in between; commits of compaction or other engines make it try again, another
ingestion commit makes it give up.

Iceberg builds the snapshot (``newAppend().apply()``), but does not commit it: its own retries cannot tell a refusal from a commit that did
happen and was not answered, and then delete the manifests of a snapshot that the table has. Here no exception of a commit is believed.
Whatever it says, the table is read back, and what is found there decides:

- our commit id is there: the commit happened;
- a newer epoch, or our epoch in another writer's hand: this writer is fenced (FencedError);
- anything else: the commit did not happen so far. A request still under way can no longer land beside the next one, because both ask the
  catalog to replace the same metadata.
"""

import random
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from firn.model import names
from firn.model.errors import CommitConflictError, CommitUnknownError, CorruptDataError, FencedError
from firn.model.progress import Offsets, decode_offsets, encode_offsets
from firn_spark.failpoints import Failpoints
from firn_spark.tables import JAVA_ERRORS, Tables, java_class, translate

log = structlog.get_logger()

COMMIT_ID = "firn.commit-id"
"""Names one commit, so that it is known again when it is read back."""
WRITER = "firn.writer"
"""Names the process that made a commit: two processes may have taken the same epoch."""
LETTERS_SINCE = "firn.letters-since"
LETTERS_UNTIL = "firn.letters-until"
"""Dead-letter tables: see `Landed.letters`."""
INGEST = "ingest"
_KEYS = (
    names.SUMMARY_TOPIC_ID,
    names.SUMMARY_EPOCH,
    names.SUMMARY_OFFSETS,
    COMMIT_ID,
    WRITER,
    LETTERS_SINCE,
    LETTERS_UNTIL,
)
ATTEMPTS = 12
"""How often a commit is tried while others, that are no ingestion, get in first."""


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
    letters: tuple[int, int] = (0, 0)
    """Of a dead-letter table: ``ingested_at`` (microseconds since 1970) of every letter of this topic id is at least the first, that
    of every letter at all at most the second, and that of every letter of an earlier topic id below the first."""


def read_landed(table: Any) -> Landed | None:
    """The newest ingestion commit in the history of ``table``'s current snapshot, else what the properties carry; None for a table
    that never had one. Refreshes the table. Raises as Java does (`JAVA_ERRORS`), CorruptDataError for a summary that cannot be true."""
    table.refresh()
    return newest(table)


def newest(table: Any) -> Landed | None:
    """The same from the metadata that ``table`` has in memory."""
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
            letters=(int(values[LETTERS_SINCE] or 0), int(values[LETTERS_UNTIL] or 0)),
        )
    except ValueError as error:
        where = f"snapshot {snapshot_id}" if snapshot_id is not None else "the table's properties"
        raise CorruptDataError(
            f"table {table.name()}: {where} does not say what was ingested ({error!r}); roll back to a snapshot that does, or set "
            f"{names.SUMMARY_TOPIC_ID}, {names.SUMMARY_EPOCH} and {names.SUMMARY_OFFSETS} in the table's properties"
        ) from error


def _moved(landed: Landed | None, base: Landed | None) -> bool:
    return (landed.commit_id if landed is not None else None) != (base.commit_id if base is not None else None)


def _refused(error: Exception | None) -> bool:
    """True where the catalog said that the metadata is no longer the one to be replaced."""
    return isinstance(error, CommitConflictError) or (
        isinstance(error, JAVA_ERRORS) and java_class(error).endswith("CommitFailedException")
    )


class Committer:
    """Makes ingestion commits in the name of one process. ``writer`` has to be unique to it."""

    def __init__(self, tables: Tables, writer: str, failpoints: Failpoints) -> None:
        self._tables = tables
        self._failpoints = failpoints
        self.writer = writer

    def commit(
        self,
        table: Any,
        descriptors: Sequence[str],
        base: Landed | None,
        topic_id: str,
        epoch: int,
        offsets: Offsets,
        letters: tuple[int, int] | None = None,
    ) -> Landed:
        """Appends data files (none is allowed) and sets the offsets, and `Landed.letters` where they are given, on top of ``base``.
        Returns what is now the newest ingestion commit.

        Raises CommitConflictError where another commit of an older epoch came first (plan again), FencedError, and
        CommitUnknownError where the outcome could not be read back: then the next thing to do with the table is to read it.
        The files of a commit that certainly did not happen are removed; those of an unknown one never.
        """
        commit_id = uuid.uuid4().hex
        values = {
            names.SUMMARY_TOPIC_ID: topic_id,
            names.SUMMARY_EPOCH: str(epoch),
            names.SUMMARY_OFFSETS: encode_offsets(offsets),
            COMMIT_ID: commit_id,
            WRITER: self.writer,
        }
        if letters is not None:
            values |= {LETTERS_SINCE: str(letters[0]), LETTERS_UNTIL: str(letters[1])}
        self._failpoints.reach("before-commit")
        files = [self._tables.data_file(table, descriptor) for descriptor in descriptors]
        failure: Exception | None = None
        for attempt in range(ATTEMPTS + 1):
            landed = self._read_back(table, failure)
            if landed is not None and landed.commit_id == commit_id:
                if failure is not None:
                    log.warning(
                        "commit reported a failure, but it is in the table",
                        table=str(table.name()),
                        error=_short(failure),
                    )
                self._failpoints.reach("after-readback")
                return landed
            if _moved(landed, base):
                self.check(landed, base, epoch, str(table.name()))
                if self._absent(table, commit_id, base):
                    self.discard(table, descriptors)
                raise CommitConflictError(f"table {table.name()}: another ingestion commit came first") from failure
            if attempt == ATTEMPTS or (attempt and not _refused(failure)):
                break
            if attempt:
                time.sleep(random.uniform(0, 0.05 * 2 ** min(attempt, 5)))
            failure = self._attempt(table, files, landed, values)
        if failure is None:
            raise CommitConflictError(f"table {table.name()}: the commit is no longer in the table's history")
        if _refused(failure):
            raise CommitConflictError(f"table {table.name()}: others were faster {ATTEMPTS} times") from failure
        if isinstance(failure, JAVA_ERRORS):
            raise translate(failure, f"table {table.name()}, commit") from failure
        raise failure

    def _attempt(
        self, table: Any, files: Sequence[Any], landed: Landed | None, values: Mapping[str, str]
    ) -> Exception | None:
        """One request to the catalog, on top of the metadata in which ``landed`` was found. Returns what went wrong, if anything."""
        try:
            operations = table.operations()
            append = table.newAppend()
            for file in files:
                append.appendFile(file)
            for key, value in {**values, names.SUMMARY_KIND: INGEST}.items():
                append.set(key, value)
            snapshot = append.apply()
            base = operations.current()
            # Iceberg read the table anew for the snapshot: what it found there has to be what was looked at.
            parent, seen = snapshot.parentId(), base.currentSnapshot()
            if parent != (seen.snapshotId() if seen is not None else None) or _moved(newest(table), landed):
                return CommitConflictError(f"table {table.name()}: moved while its snapshot was made")
            builder = self._tables.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
            operations.commit(base, builder.setBranchSnapshot(snapshot, "main").setProperties(dict(values)).build())
            self._failpoints.reach("after-commit")
        except Exception as error:
            return error
        return None

    def check(self, landed: Landed | None, base: Landed | None, epoch: int, table: str) -> None:
        """Raises FencedError where ``landed``, read after ``base`` was planned from, is by a writer that wins over ``epoch``."""
        if landed is None or not _moved(landed, base):
            return
        if landed.epoch > epoch or (landed.epoch == epoch and landed.writer != self.writer):
            raise FencedError(
                f"table {table}: writer {landed.writer or '(unknown)'} committed with epoch {landed.epoch}, ours is {epoch}; "
                "another driver serves this topic"
            )

    def _read_back(self, table: Any, failure: Exception | None) -> Landed | None:
        try:
            return read_landed(table)
        except JAVA_ERRORS as error:
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
        except JAVA_ERRORS as error:
            log.warning("files without a commit could not be removed", table=str(table.name()), error=_short(error))


def _short(error: Exception | None) -> str:
    if isinstance(error, JAVA_ERRORS):
        return str(translate(error, java_class(error).rpartition(".")[2] or "py4j"))[:400]
    return f"{type(error).__name__}: {error}"[:400]
