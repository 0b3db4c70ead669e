"""Rows land on a branch, and main follows it after checks. Maintenance works on the branch."""

import time
from typing import Any

import pytest

from firn.model.errors import ConflictError, FirnError
from firn.model.jobs import Publish, PublishCheck
from firn.model.maintenance import CompactionWork, RetentionWork, RowsWork, SnapshotsWork
from firn.model.progress import PublishProgress
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.publishing.checks import Checks
from firn_spark.ingestion.publishing.publisher import Publisher
from firn_spark.ingestion.publishing.switching import land_on, lands_on
from firn_spark.ingestion.topics.state import Publishing
from firn_spark.ingestion.topics.topic import Topic as DriverTopic
from firn_spark.tables.branches.statistics import Figures
from firn_spark.tables.commits import newest
from tests.integration.maintenance.lake import DAY, NOON, Lake, Topic, ago

COMPACT = CompactionWork(target_file_bytes=2**27, open_grace_ms=0)
HOUR = 3_600_000


class Branched:
    """A table whose rows land on a branch, and the publisher of its driver."""

    def __init__(self, lake: Lake, *checks: str, every_ms: int = 0, on_fail: Any = "Hold", **table: Any) -> None:
        self.topic = Topic(lake, **table)
        named = tuple(PublishCheck(name=f"c{n}", check=check) for n, check in enumerate(checks))
        self.publish = Publish(branch="staging", every_ms=every_ms, checks=named, on_fail=on_fail)
        self.driver = DriverTopic(self.topic.job.model_copy(update={"publish": self.publish}), epoch=1)
        self.begun = 0
        self.publisher = Publisher(lake.spark, lake.tables, self.topic.committer, Failpoints(), self._begin)

    def _begin(self, _: DriverTopic) -> None:
        self.begun += 1

    def switch(self, branch: str) -> None:
        topic = self.topic
        topic.landed = land_on(topic.committer, topic.table, branch, topic.landed, "topic-id", 1)

    def follow(self, **changes: Any) -> PublishProgress:
        """Let main follow, and return the report."""
        publish = self.publish.model_copy(update=changes)
        self.driver.job = self.driver.job.model_copy(update={"publish": publish})
        self.driver.table.java = self.topic.table
        self.publisher.publish(self.driver)
        assert self.driver.publishing.report is not None
        return self.driver.publishing.report

    @property
    def main(self) -> int:
        """Return the number of rows that a reader of the table sees."""
        return len(self.topic.rows())

    def check_all(self) -> None:
        """Check that main has each landed row once."""
        self.topic.check()


def test_readers_see_rows_after_the_checks(lake: Lake) -> None:
    table = Branched(lake, "count(*) >= 15 and null_share(name) = 0", "max(at) < timestamp '2030-01-01 00:00:00Z'")
    table.topic.ingest(1)
    table.switch("staging")
    assert table.main == 10
    table.topic.ingest(1)
    held = table.follow()
    assert (table.main, held.state, held.rows) == (10, "Held", 10)
    assert [(check.passed, check.values) for check in held.checks] == [
        (False, "count(*) = 10, null_share(name) = 0"),
        (True, "max(at) = 2024-05-05 12:00:00+00:00"),
    ]
    assert held.failures == {"c0": 1, "c1": 0}
    table.topic.ingest(1)
    assert (table.follow().state, table.begun) == ("Published", 1)
    # Maintenance and replays commit to the branch of an idle topic, too.
    assert time.monotonic() + 50 < table.driver.publishing.next_at < time.monotonic() + 300
    table.check_all()
    again = table.follow()
    assert (again.rows, [check.passed for check in again.checks]) == (0, [True, True])


def test_a_rest_catalog_moves_main_and_the_branch(fixture_lake: Lake) -> None:
    table = Branched(fixture_lake, "count(*) > 15")
    table.topic.ingest(6)
    table.switch("staging")
    table.topic.ingest(1)
    assert (table.follow().state, table.main) == ("Held", 60)
    report = fixture_lake.run(table.topic.work(compaction=COMPACT))
    assert (report.files_after, table.main) == (1, 60)
    table.topic.ingest(1)
    assert (table.follow().state, table.main) == ("Published", 80)
    table.topic.ingest(1)
    table.switch("main")
    table.check_all()


def test_rows_wait_for_their_interval(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 0", every_ms=HOUR)
    table.switch("staging")
    table.topic.ingest(2)
    assert (table.follow().state, table.main) == ("Waiting", 0)
    assert table.driver.publishing.report is not None
    assert table.driver.publishing.report.rows == 20
    assert time.monotonic() + 3500 < table.driver.publishing.next_at < time.monotonic() + 3600
    assert (table.follow(every_ms=0).state, table.main) == ("Published", 20)


def test_an_approval_publishes_the_rows_that_were_judged_and_no_others(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 1000")
    table.switch("staging")
    table.topic.ingest(1)
    held = table.follow()
    table.topic.ingest(1)
    after = table.follow(approved=held.snapshot)
    assert (after.state, after.rows, table.main) == ("Held", 10, 10)
    assert table.follow(approved=held.snapshot).state == "Held"
    assert (table.follow(on_fail="Publish").state, table.main) == ("Published", 20)
    assert table.driver.publishing.failures == {"c0": 4}


@pytest.mark.parametrize("version", [2, 3])
def test_main_gets_everything_when_rows_land_on_it_again(lake: Lake, version: int) -> None:
    table = Branched(lake, "count(*) > 1000", format_version=version)
    table.topic.ingest(1)
    table.switch("staging")
    table.topic.ingest(2)
    assert table.follow().state == "Held"
    table.switch("audit")
    assert table.main == 10
    table.topic.ingest(1)
    table.switch("main")
    table.check_all()
    table.topic.ingest(1)
    table.check_all()
    assert {str(name) for name in table.topic.fresh().refs().keySet()} == {"main"}
    assert "firn.branch" not in dict(table.topic.fresh().properties())


@pytest.mark.parametrize("version", [2, 3])
def test_compaction_works_on_the_branch_and_reaches_main_with_the_next_publishing(lake: Lake, version: int) -> None:
    table = Branched(lake, "count(*) > 0", format_version=version)
    table.topic.ingest(6)
    table.switch("staging")
    table.topic.ingest(6)
    report = lake.run(table.topic.work(compaction=COMPACT))
    assert report.files_after == 1, report
    assert table.main == 60
    assert len(table.topic.data_files()) == 6
    table.topic.ingest(1)
    assert table.follow().checks[0].values == "count(*) = 70"
    table.check_all()
    assert len(table.topic.data_files()) == 2


def test_expiry_and_old_rows_keep_what_the_branch_needs(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 1000")
    table.topic.ingest(2)
    table.switch("staging")
    table.topic.ingest(2)
    work = RetentionWork(
        enforce=True,
        rows=RowsWork(column="at", max_age_ms=50 * 365 * DAY),
        snapshots=SnapshotsWork(max_age_ms=0, min_keep=1),
    )
    lake.run(table.topic.work(retention=work))
    assert (table.main, table.follow().rows) == (20, 20)
    table.topic.committer.now_ms = lambda: int(time.time() * 1000) + 2 * DAY
    table.topic.ingest(2, keep_ms=HOUR)
    assert (table.main, table.follow().rows) == (20, 40)
    assert table.follow(on_fail="Publish").state == "Published"
    table.topic.ingest(1, keep_ms=HOUR)
    # The chain of snapshots before main may go now.
    assert len(list(table.topic.fresh().snapshots())) < 8
    table.follow(on_fail="Publish")
    table.check_all()


def test_retention_removes_rows_of_the_branch_and_later_of_main(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 0")
    table.topic.ingest(1)
    table.switch("staging")
    table.topic.ingest(1, at=[NOON, ago(1)])
    lake.run(table.topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY))))
    assert table.main == 10
    assert table.follow().state == "Published"
    assert table.main == 5


def test_a_catalog_that_ignores_branches_is_refused(nessie_lake: Lake) -> None:
    table = Branched(nessie_lake)
    table.topic.ingest(1)
    with pytest.raises(ConflictError, match="it ignores branches of tables"):
        table.switch("staging")
    table.topic.table = table.topic.fresh()
    assert lands_on(table.topic.table, "main")
    assert newest(table.topic.table) is not None


def test_main_that_another_writer_changed_stays(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 0")
    table.topic.ingest(1)
    table.switch("staging")
    before = table.topic.fresh().currentSnapshot().snapshotId()
    table.topic.ingest(1)
    table.topic.sql("DELETE FROM {t} WHERE id = 3")
    moved = table.follow()
    assert (moved.state, table.main) == ("MainMoved", 9)
    assert "another writer changed main" in moved.message
    with pytest.raises(ConflictError, match="another writer changed main"):
        table.switch("main")
    table.topic.sql(f"CALL {lake.reader}.system.rollback_to_snapshot('{table.topic.identifier}', {before})")
    assert table.follow().state == "Published"
    table.check_all()


def test_a_branch_of_another_writer_is_refused(lake: Lake) -> None:
    table = Branched(lake)
    table.topic.ingest(1)
    table.topic.sql("ALTER TABLE {t} CREATE BRANCH staging")
    with pytest.raises(ConflictError, match="branch staging exists"):
        table.switch("staging")
    table.switch("other")
    assert newest(table.topic.fresh()) is not None


def test_a_dropped_branch_begins_again_at_main(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 0")
    table.topic.ingest(1)
    table.switch("staging")
    table.topic.ingest(1)
    table.topic.sql("ALTER TABLE {t} DROP BRANCH staging")
    landed = newest(table.topic.fresh())
    assert landed is not None
    assert landed.offsets == {0: 10}
    table.topic.landed, table.topic.end = landed, 10
    table.topic.table = table.topic.fresh()
    assert not lands_on(table.topic.table, "staging")
    table.switch("staging")
    assert lands_on(table.topic.table, "staging")
    table.topic.ingest(1)
    assert table.follow().state == "Published"
    table.check_all()


def test_figures_without_metrics_come_from_the_rows(lake: Lake) -> None:
    properties = {"write.metadata.metrics.default": "none"}
    check = "count(name) = 10 and null_share(id) = 0 and min(at) = timestamp '2024-05-05 12:00:00Z' and max(id) = 19"
    table = Branched(lake, check, properties=properties)
    table.topic.ingest(1)
    table.switch("staging")
    table.topic.ingest(1)
    assert table.follow().checks[0].passed
    table.check_all()


def test_a_check_reads_the_rows_of_new_commits_only(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[tuple[int | None, int]] = []
    read = Checks.read

    def counted(self: Checks, spark: Any, table: Any, after: int | None, until: int) -> Figures:
        reads.append((after, until))
        return read(self, spark, table, after, until)

    monkeypatch.setattr(Checks, "read", counted)
    check = "count(name) = 50 and min(id) = 10 and max(id) = 59 and null_share(at) = 0"
    table = Branched(lake, check, properties={"write.metadata.metrics.default": "none"})
    table.topic.ingest(1)
    table.switch("staging")
    table.topic.ingest(2)
    assert table.follow().checks[0].values.startswith("count(name) = 20, min(id) = 10, max(id) = 29")
    assert table.follow().checks[0].values.startswith("count(name) = 20, min(id) = 10, max(id) = 29")
    assert len(reads) == 1
    # A compaction adds no rows.
    lake.run(table.topic.work(compaction=COMPACT))
    table.topic.ingest(1)
    assert table.follow().checks[0].values.startswith("count(name) = 30, min(id) = 10, max(id) = 39")
    assert len(reads) == 2
    assert reads[1][0] == reads[0][1]
    table.driver.publishing = Publishing()  # as after a restart
    table.topic.ingest(1)
    assert table.follow().checks[0].values.startswith("count(name) = 40, min(id) = 10, max(id) = 49")
    assert reads[2][0] == reads[0][0]
    table.topic.ingest(1)
    assert (table.follow().state, table.main) == ("Published", 60)
    assert table.driver.publishing.looked_at is None


@pytest.mark.parametrize("on_fail", ["Hold", "Publish"])
def test_a_check_that_no_longer_fits_the_table_holds_the_rows(lake: Lake, on_fail: str) -> None:
    table = Branched(lake, "count(gone) > 0", on_fail=on_fail)
    table.switch("staging")
    table.topic.ingest(1)
    held = table.follow()
    assert (held.state, table.main, held.failures) == ("Held", 0, {"c0": 0})
    assert "'gone' is not a column of the table" in held.message


def test_rows_that_cannot_be_read_wait_although_failures_are_published(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Branched(lake, "max(id) > 1000", on_fail="Publish", properties={"write.metadata.metrics.default": "none"})
    table.switch("staging")
    table.topic.ingest(1)
    with monkeypatch.context() as outage:
        outage.setattr(Checks, "sql", lambda _: ["assert_true(false, 'the store does not answer')"])
        held = table.follow()
    assert (held.state, held.rows, table.main) == ("Held", 10, 0)
    assert "the rows that main lacks cannot be read" in held.message
    assert "the store does not answer" in held.message
    assert held.failures == {"c0": 0}
    after = table.follow()
    assert (after.state, table.main, after.failures, after.message) == ("Published", 10, {"c0": 1}, "")


def test_a_fenced_driver_publishes_nothing(lake: Lake) -> None:
    table = Branched(lake, "count(*) > 0")
    table.switch("staging")
    table.topic.ingest(1)
    table.topic.table.updateProperties().set("firn.claim", "2 other").commit()
    with pytest.raises(FirnError, match="claimed epoch 2"):
        table.follow()
    assert table.main == 0
