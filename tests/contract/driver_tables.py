"""A contract suite for Iceberg's tables as the driver uses them: real Java, and the lake in memory of the simulation."""

import json
import time
from dataclasses import replace
from typing import Any

import pytest

from firn.model.errors import CommitConflictError, CommitUnknownError, ConflictError, FencedError, NotReadyError
from firn.model.jobs import IngestJob
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.publishing.following import FollowBranch
from firn_spark.ingestion.publishing.switching import land_on, lands_on
from firn_spark.tables import claims
from firn_spark.tables.branches.landing import on_branch
from firn_spark.tables.commits import Committer, Extras, Landed, newest, read_claim, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS, java_class
from firn_spark.tables.java_tables import Tables
from firn_spark.tables.swaps import in_order, read_back, refused, swap

HOUR_MS = 3_600_000


def committer(tables: Tables, writer: str = "one") -> Committer:
    return Committer(tables, writer, Failpoints())


def commit(tables: Tables, table: Any, base: Landed | None, end: int, epoch: int = 1, writer: str = "one") -> Landed:
    return committer(tables, writer).commit(table, (), base, "topic-1", epoch, {0: end})


def appended(table: Any) -> tuple[Any, Any]:
    """Return the metadata of a table, and it with an empty snapshot."""
    snapshot = table.newAppend().apply()
    return table.operations().current(), snapshot


def commit_ahead(jvm: Any, table: Any, time_ms: int, branch: str = "main") -> None:
    """Commit an empty snapshot with Iceberg's Java, as under a clock that shows ``time_ms``."""
    iceberg = jvm.org.apache.iceberg
    made, base = on_branch(table.newAppend(), branch).apply(), table.operations().current()
    fields = {**json.loads(iceberg.SnapshotParser.toJson(made)), "timestamp-ms": time_ms}
    builder = iceberg.TableMetadata.buildFrom(base)
    # The builder takes the time of the clock, unless the field is set.
    field = builder.getClass().getDeclaredField("lastUpdatedMillis")
    field.setAccessible(True)
    field.set(builder, time_ms)
    snapshot = iceberg.SnapshotParser.fromJson(json.dumps(fields))
    table.operations().commit(base, builder.setBranchSnapshot(snapshot, branch).build())


class DriverTablesContract:
    """Fixtures: ``tables``, and ``job`` with a table that does not exist."""

    def load(self, tables: Tables, job: IngestJob) -> Any:
        return tables.load(job.table.catalog, job.table.namespace, job.table.name)

    def drop(self, tables: Tables, job: IngestJob) -> None:
        """Drop the table as another engine does."""
        raise NotImplementedError

    def commit_ahead(self, tables: Tables, table: Any, time_ms: int, branch: str) -> None:
        """Commit an empty snapshot as an engine does whose clock shows ``time_ms``, which is later than now."""
        raise NotImplementedError

    def ahead(self, tables: Tables, table: Any, branch: str = "main") -> int:
        """Commit an empty snapshot under a clock that is an hour ahead. Return its time."""
        time_ms = int(time.time() * 1000) + HOUR_MS
        self.commit_ahead(tables, table, time_ms, branch)
        table.refresh()
        return time_ms

    def test_a_missing_table_is_none_and_is_created_once(self, tables: Tables, job: IngestJob) -> None:
        assert self.load(tables, job) is None
        first, second = tables.ensure(job), tables.ensure(job)
        assert str(first.uuid()) == str(second.uuid()) == str(self.load(tables, job).uuid())
        assert first.currentSnapshot() is None
        assert newest(first) is None

    def test_a_column_is_added_once(self, tables: Tables, job: IngestJob) -> None:
        tables.ensure(job)
        column = job.record_schema.fields[0].model_copy(update={"name": "more"})
        schema = job.record_schema.model_copy(update={"fields": (*job.record_schema.fields, column)})
        wider = tables.ensure(job.model_copy(update={"record_schema": schema}))
        again = tables.ensure(job.model_copy(update={"record_schema": schema}))
        assert wider.schema().schemaId() == again.schema().schemaId() == 1

    def test_a_commit_is_seen_by_other_processes_after_they_refresh(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        landed = commit(tables, mine, None, 5)
        assert newest(other) is None
        seen = read_landed(other)
        assert seen == landed
        assert (landed.offsets, landed.epoch, landed.writer) == ({0: 5}, 1, "one")
        assert other.currentSnapshot().operation() == "append"
        assert other.currentSnapshot().parentId() is None
        assert dict(other.currentSnapshot().summary())["total-records"] == "0"

    def test_a_commit_on_an_outdated_base_is_refused(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        first = commit(tables, mine, None, 5)
        with pytest.raises(CommitConflictError):
            commit(tables, other, None, 7)
        second = commit(tables, other, first, 7)
        assert read_landed(mine) == second

    def test_metadata_that_another_process_replaced_is_not_replaced_again(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        base, snapshot = appended(mine)
        updated = committer(tables).replaced(base, snapshot, {"a": "1"})
        commit(tables, other, None, 7)
        with pytest.raises(JAVA_ERRORS) as refusal:
            mine.operations().commit(base, updated)
        assert refused(refusal.value)
        assert "a" not in self.load(tables, job).properties()

    def test_a_commit_after_one_of_another_engine_keeps_that_one(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        first = commit(tables, mine, None, 5)
        other.newAppend().set("theirs", "yes").commit()
        second = commit(tables, mine, first, 6)
        snapshots = [dict(each.summary()) for each in self.load(tables, job).snapshots()]
        assert ["theirs" in each for each in snapshots] == [False, True, False]
        assert second.snapshot_id == mine.currentSnapshot().snapshotId()

    def test_rows_land_on_a_branch_and_main_follows(self, tables: Tables, job: IngestJob) -> None:
        table, other = tables.ensure(job), tables.ensure(job)
        first = commit(tables, table, None, 5)
        begun = land_on(committer(tables), table, "staging", first, "topic-1", 1)
        assert begun.offsets == {0: 5}
        second = commit(tables, table, begun, 7)
        assert (table.currentSnapshot().snapshotId(), table.snapshot("staging").snapshotId()) == (
            begun.snapshot_id,
            second.snapshot_id,
        )
        assert read_landed(other) == second
        assert second.snapshot_id is not None
        swap(other, FollowBranch(committer(tables), tables.jvm, "staging", second.snapshot_id, 1), Failpoints())
        table.refresh()
        assert table.currentSnapshot().snapshotId() == second.snapshot_id
        third = commit(tables, table, second, 9)
        ended = land_on(committer(tables), table, "main", third, "topic-1", 1)
        assert lands_on(table, "main")
        assert table.snapshot("staging") is None
        assert (table.currentSnapshot().snapshotId(), read_landed(other)) == (ended.snapshot_id, ended)
        assert ended.offsets == {0: 9}

    def test_a_driver_that_knows_the_old_branch_lands_nothing(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        first = commit(tables, mine, None, 5)
        land_on(committer(tables), other, "staging", first, "topic-1", 1)
        with pytest.raises(CommitConflictError):
            commit(tables, mine, first, 7)

    def test_main_with_another_snapshot_does_not_follow(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        first = commit(tables, table, None, 5)
        begun = land_on(committer(tables), table, "staging", first, "topic-1", 1)
        second = commit(tables, table, begun, 7)
        table.newAppend().commit()
        table.refresh()
        assert second.snapshot_id is not None
        follow = FollowBranch(committer(tables), tables.jvm, "staging", second.snapshot_id, 1)
        with pytest.raises(ConflictError, match="another writer changed main"):
            swap(table, follow, Failpoints())
        with pytest.raises(ConflictError, match="another writer changed main"):
            land_on(committer(tables), table, "main", second, "topic-1", 1)
        assert read_landed(table) == second

    def test_a_removed_snapshot_is_gone_and_its_offsets_stay(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        landed = commit(tables, table, None, 5)
        table.newAppend().commit()
        table.refresh()
        base = table.operations().current()
        builder = tables.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        gone = tables.jvm.java.util.ArrayList()
        gone.add(table.snapshot(landed.snapshot_id))
        table.operations().commit(base, builder.removeSnapshots(gone).build())
        table.refresh()
        assert table.snapshot(landed.snapshot_id) is None
        assert newest(table) == replace(landed, snapshot_id=None, committed_ms=None)

    def test_the_time_of_the_newest_records_outlives_their_snapshot(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        now = [1_700_000_000_000]
        writer = Committer(tables, "one", Failpoints(), now_ms=lambda: now[0])
        landed: Landed | None = None
        for records, end in ((False, 0), (True, 5), (False, 5)):
            now[0] += 1000
            landed = writer.commit(table, (), landed, "topic-1", 1, {0: end}, Extras(records=records))
            assert landed.landed_ms == (1_700_000_002_000 if end else 0)
        assert table.properties()["firn.landed-at"] == "1700000002000"
        again = writer.commit(table, (), landed, "topic-2", 1, {0: 0})
        assert again.landed_ms == 0, "no record of another topic has landed"

    def test_a_claim_fences_the_process_before(self, tables: Tables, job: IngestJob) -> None:
        mine, other = tables.ensure(job), tables.ensure(job)
        work = claims.Work("topic-1", None, lambda: "cluster-1")
        assert claims.take(committer(tables), mine, None, 0, work) == 1
        assert claims.take(committer(tables, "two"), other, None, 0, work) == 2
        with pytest.raises(FencedError):
            commit(tables, mine, None, 5)
        claim = read_claim(self.load(tables, job))
        assert claim is not None
        assert (claim.epoch, claim.writer) == (2, "two")

    def test_a_dropped_table_no_longer_exists_for_who_has_it(self, tables: Tables, job: IngestJob) -> None:
        tables.ensure(job)
        table = self.load(tables, job)
        self.drop(tables, job)
        with pytest.raises(NotReadyError):
            read_back(table)
        assert self.load(tables, job) is None

    def test_a_replaced_table_is_another_table(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        commit(tables, table, None, 5)
        self.drop(tables, job)
        tables.ensure(job)
        with pytest.raises(CommitUnknownError) as unknown:
            read_back(table)
        cause = unknown.value.__cause__
        assert isinstance(cause, Exception)
        assert java_class(cause) == "java.lang.IllegalStateException"

    def test_a_change_that_is_older_than_the_newest_snapshot_is_refused(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        self.ahead(tables, table)
        base, snapshot = appended(table)
        builder = tables.jvm.org.apache.iceberg.TableMetadata.buildFrom(base)
        with pytest.raises(JAVA_ERRORS, match="snapshot log"):
            builder.setBranchSnapshot(snapshot, "main").build()
        properties = tables.jvm.org.apache.iceberg.TableMetadata.buildFrom(base).setProperties({"a": "1"})
        with pytest.raises(JAVA_ERRORS, match="before last snapshot log entry"):
            properties.build()

    def test_a_driver_continues_after_a_snapshot_from_a_clock_that_is_ahead(
        self, tables: Tables, job: IngestJob
    ) -> None:
        table = tables.ensure(job)
        first = commit(tables, table, None, 5)
        ahead = self.ahead(tables, table)
        work = claims.Work("topic-1", first, lambda: "cluster-1")
        assert claims.take(committer(tables, "two"), table, None, 1, work) == 2
        assert read_landed(table) == first, "the claim is no ingestion commit"
        second = commit(tables, table, first, 6, epoch=2, writer="two")
        assert second.offsets == {0: 6}
        assert second.committed_ms == ahead
        third = commit(tables, self.load(tables, job), second, 7, epoch=2, writer="two")
        assert (third.offsets, third.committed_ms) == ({0: 7}, ahead)
        times = [int(each.timestampMillis()) for each in self.load(tables, job).snapshots()]
        assert times == sorted(times)

    def test_main_follows_a_branch_whose_commits_are_ahead(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        begun = land_on(committer(tables), table, "staging", commit(tables, table, None, 5), "topic-1", 1)
        ahead = self.ahead(tables, table, "staging")
        second = commit(tables, table, begun, 7)
        assert second.committed_ms == ahead
        assert second.snapshot_id is not None
        swap(table, FollowBranch(committer(tables), tables.jvm, "staging", second.snapshot_id, 1), Failpoints())
        assert table.currentSnapshot().snapshotId() == second.snapshot_id

    def test_a_snapshot_keeps_its_time_if_the_clocks_agree(self, tables: Tables, job: IngestJob) -> None:
        table = tables.ensure(job)
        base, snapshot = appended(table)
        assert in_order(tables.jvm, base, snapshot) is snapshot
