"""Publishing of a topic: when its checks are due, what they find, and what main does then.

The age of the oldest commit that main lacks decides when checks are due. So a driver that restarts needs no state.
Rows land on the branch whatever the checks find.
"""

import time
from collections.abc import Callable
from typing import Any

import structlog

from firn.model.conditions import Reason
from firn.model.errors import ConflictError, InvalidSpecError, NotReadyError
from firn.model.jobs import Publish
from firn.model.progress import CheckResult, PublishProgress
from firn.tables.renames import read_former_names
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.publishing.checks import Checks
from firn_spark.ingestion.publishing.following import FollowBranch
from firn_spark.ingestion.topics.state import LookedAt
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.jvm import texts
from firn_spark.tables.branches.landing import branch_of, unpublished
from firn_spark.tables.branches.statistics import Figures, added
from firn_spark.tables.commits import Committer, main_moved
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.swaps import read_back, short, swap

log = structlog.get_logger()

NO_RESULT = "the check has no result"

AGAIN_SECONDS = 60.0
"""Longest time between two looks at a table whose main another writer has changed, or whose waiting rows could not be read."""
QUIET_SECONDS = 300.0
"""Longest time between two looks at a table whose main lacks nothing. Maintenance and replays commit to the branch, too."""


class Publisher:
    """Lets main of tables follow the branches on which rows land."""

    def __init__(
        self,
        spark: Any,
        tables: Tables,
        committer: Committer,
        failpoints: Failpoints,
        begin: Callable[[Topic], None],
    ) -> None:
        """``begin`` claims a topic's table before a change, unless this process has claimed it. It raises FirnError."""
        self._spark = spark
        self._tables = tables
        self._committer = committer
        self._failpoints = failpoints
        self._begin = begin

    def publish(self, topic: Topic) -> None:
        """Look at the rows that main lacks, check them if they are due, and plan the next look. Raises FirnError."""
        publish = topic.job.publish
        if publish is None or topic.table.java is None:
            return
        try:
            self._publish(topic, publish)
        except JAVA_ERRORS as error:
            raise translate(error, f"table {topic.job.table.identifier}, publishing") from error

    def _publish(self, topic: Topic, publish: Publish) -> None:
        table, state = topic.table.java, topic.publishing
        read_back(table)
        metadata = table.operations().current()
        if branch_of(metadata) != publish.branch:
            raise NotReadyError(
                f"table {topic.job.table.identifier}: rows land on branch {branch_of(metadata)} instead of {publish.branch}; the driver reloads"
                " the table"
            )
        waiting = unpublished(metadata)
        if waiting is None:
            self._report_moved(topic, publish, main_moved(table))
            return
        ids = [int(snapshot.snapshotId()) for snapshot in waiting]
        if publish.approved in ids:
            self._follow(topic, publish, publish.approved)
            waiting = waiting[ids.index(publish.approved) + 1 :]
            log.info("rows were published by an approval", topic=topic.job.topic, snapshot=publish.approved)
        if not waiting:
            self._report_published(topic, publish)
            return
        since = int(waiting[0].timestampMillis())
        due_ms = since + publish.every_ms - self._committer.now_ms()
        # A driver with a wrong clock may have dated the commit hours ahead. Rows do not wait until then.
        if 0 < due_ms <= 2 * publish.every_ms:
            state.next_at = time.monotonic() + due_ms / 1000
            rows = sum(map(_rows, waiting))
            state.report = self._report(topic, publish, "Waiting", since, rows)
            return
        self._check(topic, publish, waiting, since)

    def _check(self, topic: Topic, publish: Publish, waiting: list[Any], since: int) -> None:
        state, last = topic.publishing, int(waiting[-1].snapshotId())
        rows = sum(map(_rows, waiting))
        try:
            results = self._judge(topic, publish, waiting) if rows else ()
        except _UndecidedError as error:
            # Only a check that is false may publish, also with onFail: Publish. An outage says nothing about the rows.
            state.next_at = time.monotonic() + min(AGAIN_SECONDS, publish.every_ms / 1000)
            held = self._report(topic, publish, "Held", since, rows, last, _without_result(publish))
            state.report = held.model_copy(update={"message": str(error)})
            log.warning("checks have no result: main of the table stays", topic=topic.job.topic, error=str(error))
            return
        failed = [result.name for result in results if not result.passed]
        state.count(failed)
        if failed and publish.on_fail == "Hold":
            state.next_at = time.monotonic() + publish.every_ms / 1000
            state.report = self._report(topic, publish, "Held", since, rows, last, results)
            log.warning("checks failed: main of the table stays", topic=topic.job.topic, checks=failed, snapshot=last)
            return
        try:
            self._follow(topic, publish, last)
        except ConflictError as error:
            if error.reason != Reason.MAIN_MOVED:
                raise
            self._report_moved(topic, publish, error)
            return
        self._report_published(topic, publish, results)

    def _judge(self, topic: Topic, publish: Publish, waiting: list[Any]) -> tuple[CheckResult, ...]:
        """Return the result of each check. Raises _UndecidedError if there is none."""
        table = topic.table.java
        try:
            former = read_former_names(texts(table.properties()))
            checks = Checks(publish.checks, self._committer.schema(table), former)
        except InvalidSpecError as error:
            raise _UndecidedError(f"a check does not fit the table: {error}; correct the check") from error
        values = checks.values(self._figures(topic, checks, waiting))
        assert values is not None, "the rows have the figures that the metrics lack"
        return checks.judge(values)

    def _figures(self, topic: Topic, checks: Checks, waiting: list[Any]) -> Figures:
        """Return the figures of the waiting rows. Only the files of snapshots that came since the last look are read."""
        table, before = topic.table.java, topic.publishing.looked_at
        main, ids = waiting[0].parentId(), [int(snapshot.snapshotId()) for snapshot in waiting]
        total, after = Figures(), main
        if before is not None and (before.main, before.key) == (main, checks.key) and before.until in ids:
            total, after = before.figures, before.until
            waiting = waiting[ids.index(before.until) + 1 :]
        new = Figures()
        for snapshot in waiting:
            new = new.plus(added(self._tables.jvm, table, snapshot, checks.fields))
        if checks.values(new) is None:
            try:
                new = checks.read(self._spark, table, after, ids[-1])
            except JAVA_ERRORS as error:
                raise _UndecidedError(
                    f"the rows that main lacks cannot be read: {short(error)}; the driver reads them again within a minute"
                ) from error
        total = total.plus(new)
        topic.publishing.looked_at = LookedAt(main, ids[-1], checks.key, total)
        return total

    def _follow(self, topic: Topic, publish: Publish, snapshot_id: int) -> None:
        """Let main follow the branch up to a snapshot."""
        self._begin(topic)
        assert topic.epoch is not None
        self._failpoints.reach("before-publish")
        change = FollowBranch(self._committer, self._tables.jvm, publish.branch, snapshot_id, topic.epoch)
        swap(topic.table.java, change, self._failpoints)
        topic.publishing.looked_at = None
        self._failpoints.reach("after-publish")

    def _report_published(self, topic: Topic, publish: Publish, checks: tuple[CheckResult, ...] = ()) -> None:
        state, before = topic.publishing, topic.publishing.report
        if not checks and before is not None and before.state == "Published":
            checks = before.checks  # the verdict on the rows before counts until the next one
        state.next_at = time.monotonic() + min(QUIET_SECONDS, max(AGAIN_SECONDS, publish.every_ms / 1000))
        state.report = self._report(topic, publish, "Published", None, checks=checks)

    def _report_moved(self, topic: Topic, publish: Publish, error: ConflictError) -> None:
        state = topic.publishing
        state.next_at = time.monotonic() + min(AGAIN_SECONDS, publish.every_ms / 1000)
        report = self._report(topic, publish, "MainMoved", None)
        state.report = report.model_copy(update={"message": str(error)})

    def _report(
        self,
        topic: Topic,
        publish: Publish,
        state: str,
        since: int | None,
        rows: int = 0,
        snapshot: int | None = None,
        checks: tuple[CheckResult, ...] = (),
    ) -> PublishProgress:
        before = topic.publishing.report
        if state == "Waiting" and before is not None:
            # The verdict on the rows before counts until the next one.
            checks = before.checks
        return PublishProgress(
            branch=publish.branch,
            state=state,
            rows=rows,
            since=None if since is None else since / 1000,
            snapshot=snapshot,
            checks=checks,
            failures={check.name: topic.publishing.failures.get(check.name, 0) for check in publish.checks},
        )


class _UndecidedError(Exception):
    """Checks have no result: they do not fit the table, or the rows cannot be read."""


def _without_result(publish: Publish) -> tuple[CheckResult, ...]:
    return tuple(CheckResult(name=check.name, passed=False, values=NO_RESULT) for check in publish.checks)


def _rows(snapshot: Any) -> int:
    """Return the number of rows that a snapshot appends."""
    return int(snapshot.summary().get("added-records") or 0) if snapshot.operation() == "append" else 0
