"""The process of a maintenance run: reads its contract, starts Spark, works on the tables, and reports.

Exit codes (`firn.model.errors.ExitCode`):

- DONE if every table was done, busy, gone, or left at the run's deadline (the report says which);
- CONFIGURATION if only a change of the specification can mend the failures;
- CORRUPT if a table contradicts itself;
- TEMPORARY if another attempt may help, and if the process was stopped.
"""

import os
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from kubernetes import client
from kubernetes import config as kube

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import (
    AccessDeniedError,
    ConflictError,
    CorruptDataError,
    ExitCode,
    FencedError,
    FirnError,
    InvalidSpecError,
    UnavailableError,
)
from firn.model.jobs import TableTarget
from firn.model.maintenance import (
    AuditReport,
    AuditWork,
    CompactionWork,
    MaintenanceRun,
    ReplayReport,
    ReplayWork,
    RetentionWork,
    RunReport,
    TableReport,
    TableWork,
    pack,
)
from firn_spark import documents, failpoints, logs, session
from firn_spark.credentials import without_secrets
from firn_spark.failpoints import Failpoints
from firn_spark.kafka.admin import Kafka
from firn_spark.leases import Files, KubernetesLeases, Lease, Leases
from firn_spark.maintenance.replaying.replay import Replay
from firn_spark.maintenance.steps import audit, compaction, retention
from firn_spark.maintenance.steps.changes import Guard
from firn_spark.maintenance.steps.rewriting import Rewriter
from firn_spark.maintenance.steps.subject import Done, Subject
from firn_spark.maintenance.stopping import Stop, StoppedError
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.columns import unreadable_column
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables, quoted
from firn_spark.tables.swaps import short

log = structlog.get_logger()

MESSAGE_VARIABLE = "FIRN_TERMINATION_LOG"
MESSAGE_PATH = "/dev/termination-log"


class Run:
    """A run on a running Spark session."""

    def __init__(self, run: MaintenanceRun, spark: Any, leases: Leases, points: Failpoints | None = None) -> None:
        self.run = run
        self._spark = spark
        self._points = points or Failpoints()
        self._leases = leases
        self._catalogs = Catalogs(spark, run)
        self._tables = Tables(self._catalogs)
        self.stop = Stop(spark.sparkContext.cancelAllJobs)
        self._reports: dict[str, TableReport] = {
            work.uid: TableReport(uid=work.uid, begun=False, message="the run did not start on this table")
            for work in run.tables
        }
        self._errors: list[Exception] = []
        self._loaded: set[str] = set()
        """Resources (uid) whose table was loaded, so that the catalog has accepted the credentials."""
        executors = run.executors
        self._tasks = run.cores if executors is None else executors.instances * executors.cores

    def work(self) -> ExitCode:
        """Work on all tables, at most `MaintenanceRun.cores` of them at a time, then close the catalogs."""
        left = self.run.deadline_ms
        if self.run.until_ms is not None:
            # Earlier attempts, and the wait for a node or an image, have used up part of the time.
            left = max(0, min(left, self.run.until_ms - round(time.time() * 1000)))
        deadline = threading.Timer(left / 1000, self.stop.set, args=("deadline",))
        deadline.daemon = True
        deadline.start()
        try:
            # Groups of all tables share these workers. A table's own thread only waits for them.
            with (
                ThreadPoolExecutor(max(1, self._tasks), thread_name_prefix="rewrite") as workers,
                ThreadPoolExecutor(max(1, self.run.cores), thread_name_prefix="table") as tables,
            ):
                list(tables.map(lambda work: self._table(work, workers), self.run.tables))
        finally:
            deadline.cancel()
            self._catalogs.close()
        return self.code()

    def report(self) -> RunReport:
        """Report what was done so far."""
        return RunReport(name=self.run.name, tables=tuple(self._reports.values()))

    def code(self) -> ExitCode:
        """Return the exit code of the process."""
        if self.stop.is_set and self.stop.why != "deadline":
            return ExitCode.TEMPORARY
        if any(isinstance(error, CorruptDataError) for error in self._errors):
            return ExitCode.CORRUPT
        if any(not isinstance(error, (InvalidSpecError, AccessDeniedError, ConflictError)) for error in self._errors):
            return ExitCode.TEMPORARY
        return ExitCode.CONFIGURATION if self._errors else ExitCode.DONE

    # One table

    def _table(self, work: TableWork, workers: ThreadPoolExecutor) -> None:
        if self.stop.is_set:
            self._reports[work.uid] = TableReport(
                uid=work.uid, begun=False, message=f"the run did not start on this table: {self.stop.why}"
            )
            return
        began = time.monotonic()
        done = Done()
        outcome, reason, message = "Unfinished", "", ""
        with structlog.contextvars.bound_contextvars(table=work.table.identifier):
            try:
                outcome, message = self._leased(work, workers, done)
            except StoppedError as error:
                message = str(error)
            except Exception as error:
                if self.stop.is_set:
                    # Cancelled Spark jobs fail with messages of their own.
                    message = f"stopped: {self.stop.why}"
                else:
                    gone = self._gone(work)
                    errors = error.exceptions if isinstance(error, ExceptionGroup) else (error,)
                    outcome, reason, message = ("Gone", "", gone) if gone else ("Failed", *self._failed(work, errors))
            log.info("work on the table ended", outcome=outcome, message=message[:300])
        self._reports[work.uid] = TableReport(
            uid=work.uid,
            outcome=outcome,
            reason=reason,
            message=message[:300],
            seconds=round(time.monotonic() - began, 1),
            commits=done.commits,
            files_before=done.files_before,
            files_after=done.files_after,
            bytes_rewritten=done.bytes_rewritten,
            delete_files_removed=done.delete_files_removed,
            manifests_before=done.manifests_before,
            manifests_after=done.manifests_after,
            audit=done.audit,
            replay=done.replay,
            **done.removed,
        )

    def _gone(self, work: TableWork) -> str:
        """Return a message if the table was dropped or replaced during the work, else an empty text. Such a table
        needs no more work."""
        try:
            return _another(
                self._tables.load(work.table.catalog, work.table.namespace, work.table.name), work.table_uuid
            )
        except FirnError:
            return ""

    def _failed(self, work: TableWork, errors: Sequence[Exception]) -> tuple[str, str]:
        """Return the reason of the first error and the messages of all."""
        reasons, messages = [], []
        expires = work.uid in self._loaded and self.run.catalogs[work.table.catalog].type == "rest"
        for error in errors:
            if isinstance(error, JAVA_ERRORS):
                error = translate(error, f"table {work.table.identifier}")
            if isinstance(error, AccessDeniedError) and expires:
                # The credentials worked before. Those of REST catalogs expire, and the next attempt gets new ones.
                error = UnavailableError(str(error), reason=error.reason)
            self._errors.append(error)
            if isinstance(error, FirnError):
                log.warning("table failed", error=str(error)[:1000])
                reasons.append(error.reason)
                messages.append(without_secrets(str(error)))
            else:
                log.error("table failed with an unexpected error", exc_info=error)
                reasons.append(Reason.RUN_FAILED)
                messages.append(f"{type(error).__name__}: {without_secrets(str(error))}")
        return reasons[0], "; ".join(dict.fromkeys(messages))

    def _leased(self, work: TableWork, workers: ThreadPoolExecutor, done: Done) -> tuple[str, str]:
        self.stop.check()
        lease = self._acquire(names.table_lease(work.table_uuid))
        if lease is None:
            holder = self._leases.holder(names.table_lease(work.table_uuid))
            return "Busy", f"run {holder} holds the table lease" if holder else "another run holds the table lease"

        def may() -> None:
            self.stop.check()
            lease.check()

        try:
            return self._maintain(work, workers, done, may)
        finally:
            lease.release()

    def _acquire(self, name: str) -> Lease | None:
        """Acquire the lease. Wait for the lease of an earlier attempt of this run: it expires by itself."""
        waiting = time.monotonic() + 2 * self.run.lease_seconds
        while (lease := self._leases.acquire(name)) is None and time.monotonic() < waiting:
            if not self._leases.holder(name).startswith(f"{self.run.name}/"):
                break
            self.stop.check()
            time.sleep(min(1.0, self.run.lease_seconds / 10))
        return lease

    def _maintain(
        self, work: TableWork, workers: ThreadPoolExecutor, done: Done, may: Callable[[], None]
    ) -> tuple[str, str]:
        target = work.table
        table = self._tables.load(target.catalog, target.namespace, target.name)
        if gone := _another(table, work.table_uuid):
            return "Gone", gone
        self._loaded.add(work.uid)
        if work.audit is not None:
            assert table is not None
            if (found := unreadable_column(self._spark._jvm, table)) is not None:
                column, kind = found
                return "Nothing", f"column {column} has type {kind}, which Spark cannot read; use firn audit instead"
            done.audit = self._audit(work.audit, target, table, may)
            return ("Done", "") if done.audit is not None else ("Nothing", "no record of the topic has landed yet")
        guard = Guard(self._spark._jvm, table, work.table_uuid, may)
        subject = self._subject(guard, target, target.name, workers, done)
        if work.replay is not None:
            return self._replay(work.replay, subject, workers, may)
        parts = self._parts(subject, work.compaction, work.retention)
        for owner in (target, *(target.model_copy(update={"shared_by": name}) for name in work.sharers)):
            dead = self._dead_letters(owner) if work.dead_letters else None
            if dead is not None:
                guard = Guard(self._spark._jvm, dead, str(dead.operations().current().uuid()), may)
                subject = self._subject(guard, target, owner.dead_letters, workers, done)
                parts += self._parts(subject, *following(work))
        failures: list[FirnError] = []
        for subject, part in parts:
            try:
                # After a failure, the credentials may have expired before their time.
                subject.renew(always=bool(failures))
                part()
            except (StoppedError, FencedError):
                raise
            except FirnError as error:
                # The failure of one part does not stop the others, or the work on the dead letters.
                log.warning("a part of the maintenance of the table failed", error=without_secrets(str(error))[:1000])
                failures.append(error)
        if failures:
            raise ExceptionGroup("parts failed", failures)
        removed = any(part.files or part.items for part in done.removed.values())
        return ("Done" if done.commits or removed else "Nothing"), "; ".join(dict.fromkeys(done.notes))

    def _dead_letters(self, target: TableTarget) -> Any | None:
        dead = self._tables.load(target.catalog, target.namespace, target.dead_letters)
        # Without the owner property Firn did not create the table of that name, and leaves it alone.
        return dead if dead is not None and dead.properties().get(names.TABLE_OWNER) is not None else None

    def _audit(self, work: AuditWork, target: TableTarget, table: Any, may: Callable[[], None]) -> AuditReport | None:
        tables = [self._audited(target, table)]
        for other in work.others:
            found = self._tables.load(other.catalog, other.namespace, other.name)
            if found is None:
                return None  # the driver creates it
            if unreadable_column(self._spark._jvm, found) is not None:
                return None
            tables.append(self._audited(other, found))
        with closing(Kafka(work.profile, self.run.kafka[work.profile])) as kafka:
            return audit.audit(self._spark, tables, kafka, work.topic, may)

    def _audited(self, target: TableTarget, table: Any) -> audit.Tables:
        def dead() -> audit.Source | None:
            letters = self._dead_letters(target)
            name = quoted(target.catalog, target.namespace, target.dead_letters)
            return audit.Source(letters, name) if letters is not None else None

        name = quoted(target.catalog, target.namespace, target.name)
        source = audit.Source(table, name, target.metadata_columns == "Flat", target.shared_by)
        return audit.Tables(source, dead)

    def _replay(
        self, work: ReplayWork, subject: Subject, workers: ThreadPoolExecutor, may: Callable[[], None]
    ) -> tuple[str, str]:
        target, done = work.job.table, subject.done
        if (found := unreadable_column(self._spark._jvm, subject.table)) is not None:
            column, kind = found
            raise InvalidSpecError(
                f"table {target.identifier}: column {column} has type {kind}, which Spark cannot read; produce the records again instead"
            )
        dead = self._dead_letters(target)
        if dead is None:
            done.replay = ReplayReport()
            return "Nothing", (
                f"table {target.identifier} has no dead-letter table, because no record of the topic became a dead letter since the table"
                " was created: there is nothing to replay, and ingestion creates the dead-letter table with the first dead letter"
            )
        guard = Guard(self._spark._jvm, dead, str(dead.operations().current().uuid()), may)
        letters = self._subject(guard, target, target.dead_letters, workers, done)
        replay = Replay(subject, letters, work, self._tables, self._tasks, self.run.registries, self.run.salts)
        done.replay = replay.run()
        return "Done", ""

    def _parts(
        self, subject: Subject, compact: CompactionWork | None, retain: RetentionWork | None
    ) -> list[tuple[Subject, Callable[[], None]]]:
        # Each step leaves less to the next: dropped rows need no rewriting, and expiry drops the files that compaction replaced.
        parts: list[Callable[[], None]] = []
        found = unreadable_column(self._spark._jvm, subject.table)
        if found is not None and (compact is not None or (retain is not None and retain.rows is not None)):
            # Another engine added the column. The policy fits the columns of the topic.
            column, kind = found
            subject.done.notes.append(
                f"column {column} has type {kind}, which Spark cannot read: the run leaves the data files as they are"
            )
        if retain is not None and found is None:
            parts.append(partial(retention.drop_rows, subject, retain))
        if compact is not None and found is None:
            parts.append(partial(compaction.compact, subject, compact))
        if retain is not None:
            parts += [
                partial(retention.expire_snapshots, subject, retain),
                partial(retention.drop_metadata_files, subject, retain),
                partial(retention.drop_orphans, subject, retain),
            ]
        return [(subject, part) for part in parts]

    def _subject(
        self, guard: Guard, target: TableTarget, name: str, workers: ThreadPoolExecutor, done: Done
    ) -> Subject:
        load = partial(self._tables.load, target.catalog, target.namespace, name)
        rewriter = Rewriter(self._spark, self._points)
        own = self.run.catalogs[target.catalog].has_own_references
        return Subject(
            self._spark, load, target.catalog, self.run.name, guard, self._points, rewriter, workers, done, own
        )


def _another(table: Any | None, uuid: str) -> str:
    """Return a message if ``table`` is missing or has another uuid, else an empty text."""
    if table is None:
        return "the table does not exist"
    current_uuid = str(table.operations().current().uuid())
    return "" if current_uuid == uuid else f"the table was replaced: the table of this name now has uuid {current_uuid}"


def following(work: TableWork) -> tuple[CompactionWork | None, RetentionWork | None]:
    """Return the work on the dead-letter table: the same, with columns that it has."""
    compact, retain = work.compaction, work.retention
    if compact is not None:
        compact = compact.model_copy(update={"strategy": "BinPack", "columns": (), "everything": False})
    if retain is not None and retain.rows is not None:
        retain = retain.model_copy(update={"rows": retain.rows.model_copy(update={"column": "ingested_at"})})
    return compact, retain


def leases_of(run: MaintenanceRun) -> Leases:
    """Return the leases that the contract names. Each attempt of a run is a holder of its own. Raises
    InvalidSpecError if it names none."""
    holder = f"{run.name}/{secrets.token_hex(4)}"
    if run.leases_directory is not None:
        return Leases(Files(run.leases_directory), holder, run.lease_seconds)
    if not run.namespace:
        raise InvalidSpecError(f"run {run.name}: set namespace or leases_directory, where the run finds leases")
    kube.load_incluster_config()
    store = KubernetesLeases(client.CoordinationV1Api(), run.namespace, {names.LABEL_MANAGED_BY: names.MANAGED_BY})
    return Leases(store, holder, run.lease_seconds)


def main(path: str, message: str) -> int:
    """Run the process from start to end and return its exit code. The report goes to the file ``message``."""
    logs.configure(os.environ.get("FIRN_LOG_LEVEL", "INFO").upper())
    try:
        contract = documents.load(MaintenanceRun, path)
        points = failpoints.from_environment()
        leases = leases_of(contract)
        spark = session.start(contract, daemon=session.MERGE_DAEMON)
        run = Run(contract, spark, leases, points)
    except InvalidSpecError as error:
        log.error("cannot start", error=str(error))
        return ExitCode.CONFIGURATION
    signal.signal(signal.SIGTERM, lambda *_: run.stop.set("received SIGTERM"))
    signal.signal(signal.SIGINT, lambda *_: run.stop.set("received SIGINT"))
    log.info("run started", run=contract.name, tables=len(contract.tables))
    code = ExitCode.BUG
    try:
        code = run.work()
    except Exception:
        log.exception("ended with an unexpected error")
    report = run.report()
    for table in report.tables:
        log.info("report on the table", **table.model_dump(exclude_defaults=True))
    try:
        Path(message).write_text(pack(report))
    except OSError as error:
        log.error("the report could not be written", path=message, error=short(error))
    log.info("run ended", code=code.name)
    # A call that hangs in a dead connection must not keep the pod from ending.
    sys.stderr.flush()
    os._exit(code)
