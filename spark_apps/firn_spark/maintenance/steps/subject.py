"""An Iceberg table under maintenance: the Java table, the conditions for changing it, and the work done so far."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from firn.model.errors import FirnError, NotReadyError
from firn.model.maintenance import AuditReport, Removed, ReplayReport
from firn_spark.failpoints import Failpoints
from firn_spark.maintenance.steps.changes import Guard, Marks, NewSnapshot
from firn_spark.maintenance.steps.rewriting import Arrangement, Rewriter
from firn_spark.tables.swaps import PATIENT, certain, invalid, swap
from firn_spark.tables.vended import io_properties, needs_renewal

SAMPLE = 3
"""Number of names of removed items in a report."""


@dataclass(slots=True)
class Done:
    """The work done on a table so far; names as in `firn.model.maintenance.TableReport`."""

    commits: int = 0
    files_before: int = 0
    files_after: int = 0
    bytes_rewritten: int = 0
    delete_files_removed: int = 0
    manifests_before: int = 0
    manifests_after: int = 0
    removed: dict[str, Removed] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    audit: AuditReport | None = None
    replay: ReplayReport | None = None

    def remove(self, part: str, removed: Removed) -> None:
        """Add what one part of retention removed, or would remove."""
        before = self.removed.get(part, Removed())
        self.removed[part] = Removed(
            files=before.files + removed.files,
            bytes=before.bytes + removed.bytes,
            items=before.items + removed.items,
            sample=(before.sample + removed.sample)[:SAMPLE],
        )


@dataclass(slots=True)
class Subject:
    """A table under maintenance. ``run`` is the run's name."""

    spark: Any
    load: Callable[[], Any | None]
    """Loads the table from its catalog, which hands out new credentials for its files."""
    catalog: str
    run: str
    guard: Guard
    failpoints: Failpoints
    rewriter: Rewriter
    workers: Executor
    """Rewrites groups of files in parallel."""
    done: Done
    own_references: bool = False
    """True if the catalog may need files that the table's metadata no longer refers to."""
    now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
    _renewing: threading.Lock = field(default_factory=threading.Lock)

    @property
    def table(self) -> Any:
        """The Java table. `renew` replaces it."""
        return self.guard.table

    def renew(self, *, always: bool = False) -> None:
        """Load the table again if the catalog's credentials for its files expire soon, or ``always``.

        Raises NotReadyError if the table no longer exists, and the errors of `Tables.load`.
        """
        with self._renewing:
            io = io_properties(self.jvm, self.table.io(), str(self.table.location()))
            if not always and not needs_renewal(io, self.now_ms()):
                return
            table = self.load()
            if table is None:
                raise NotReadyError(f"table {self.name}: it no longer exists")
            self.guard.table = table
        self.guard.check()

    @property
    def jvm(self) -> Any:
        """The session's JVM."""
        return self.spark._jvm

    @property
    def name(self) -> str:
        """The table's name, for messages."""
        return self.guard.name

    def rewrite(
        self,
        groups: Sequence[tuple[Sequence[Any], int]],
        target_bytes: int,
        arrangement: Arrangement | None = None,
        keep: str | None = None,
    ) -> list[Any]:
        """Rewrite groups (scan tasks, and the number of files they become) in parallel, and return the new data
        files.

        If a group fails, the files of all groups are deleted. Raises the errors of `Guard.check` and
        `Rewriter.rewrite`.
        """

        def rewrite_group(tasks: Sequence[Any], outputs: int) -> list[Any]:
            self.guard.check()
            self.renew()
            return self.rewriter.rewrite(self.table, self.catalog, tasks, outputs, target_bytes, arrangement, keep)

        futures = [self.workers.submit(rewrite_group, *group) for group in groups]
        added: list[Any] = []
        failures: list[Exception] = []
        for future in futures:
            try:
                added += future.result()
            except Exception as error:
                failures.append(error)
        if failures:
            self.rewriter.discard(self.table, added)
            self.guard.check()
            raise failures[0]
        return added

    def snapshot(
        self,
        kind: str,
        produce: Callable[[Any], Any],
        files: Sequence[Any] = (),
        *,
        expect: Mapping[str, str] | None = None,
        drops_rows: bool = False,
        marks: Marks | None = None,
    ) -> Any:
        """Commit a snapshot (`NewSnapshot`) and return it (Java).

        Raises the errors of `swap`. ``files``, which were written for the snapshot, are deleted then, unless the
        commit may still happen.
        """
        change = NewSnapshot(self.guard, kind, self.run, produce, expect=expect, drops_rows=drops_rows, marks=marks)
        try:
            self.guard.check()
            self.renew()
            swap(self.table, change, self.failpoints, PATIENT)
        except FirnError as error:
            # A check that fails after a request without an answer proves nothing about the request.
            if certain(error) or invalid(error.__cause__):
                self.rewriter.discard(self.table, files)
            raise
        self.done.commits += 1
        return change.snapshot

    def drop(
        self,
        kind: str,
        snapshot_id: int,
        whole: Sequence[Any],
        mixed: Sequence[Sequence[Any]],
        keep: str = "",
        target_bytes: int = 0,
        *,
        drops_rows: bool = False,
        marks: Marks | None = None,
    ) -> None:
        """Commit once, without the files of the tasks ``whole``, and without the rows in ``mixed`` that do not match ``keep``.

        The tasks were planned on the snapshot ``snapshot_id``. Raises the errors of `rewrite` and `snapshot`.
        """
        added = self.rewrite([(group, 1) for group in mixed], target_bytes, keep=keep) if mixed else []
        gone = [task.file() for group in (whole, *mixed) for task in group]

        def produce(fresh: Any) -> Any:
            overwrite = fresh.newOverwrite().validateFromSnapshot(snapshot_id)
            if added:
                # Deletes of rows in a file that is dropped as a whole do not conflict.
                overwrite.validateNoConflictingDeletes()
            for file in gone:
                overwrite.deleteFile(file)
            for file in added:
                overwrite.addFile(file)
            return overwrite

        expect = {"deleted-data-files": str(len(gone))}
        self.snapshot(kind, produce, added, expect=expect, drops_rows=drops_rows, marks=marks)
