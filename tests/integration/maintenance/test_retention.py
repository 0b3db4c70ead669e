"""Retention of real tables: which data is deleted, which stays, and that a dry run reports the same and changes
nothing."""

import time
from typing import Any

import pytest
from py4j.protocol import MEMORY_COMMAND_NAME

from firn.model import names
from firn.model.errors import ExitCode
from firn.model.maintenance import CompactionWork, Removed, RetentionWork, RowsWork, SnapshotsWork, TableReport
from firn.model.progress import AuditFrom
from firn_spark.maintenance.steps.changes import NewMetadata
from firn_spark.maintenance.steps.rewriting import Rewriter
from tests.integration.maintenance.lake import DAY, Lake, Topic, ago

EXPIRE = SnapshotsWork(max_age_ms=0, min_keep=1)
COMPACT = CompactionWork(open_grace_ms=0)


def both(lake: Lake, topic: Topic, **work: Any) -> tuple[TableReport, TableReport]:
    """Return the reports of a dry run and of the enforced run. Check that the dry run changes nothing."""
    before = topic.objects(), str(topic.fresh().operations().current().metadataFileLocation())
    dry = lake.run(topic.work(retention=RetentionWork(**work)))
    assert (topic.objects(), str(topic.fresh().operations().current().metadataFileLocation())) == before
    return dry, lake.run(topic.work(retention=RetentionWork(enforce=True, **work)))


def same(removed: Removed | None, other: Removed | None) -> bool:
    """Compare two reports, except for the bytes of files that are named and not read."""
    assert removed is not None
    assert other is not None
    return (removed.files, removed.items, removed.bytes) == (other.files, other.items, other.bytes)


def audit_from(topic: Topic) -> AuditFrom | None:
    """Return from which offsets on a missing record is a fault."""
    properties = topic.fresh().properties()
    found = AuditFrom.read(properties.get(names.TABLE_AUDIT_FROM))
    assert found is None or found.commit == properties.get(names.SUMMARY_COMMIT_ID)
    return found.model_copy(update={"commit": ""}) if found is not None else None


def never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("rows were read")

    monkeypatch.setattr(Rewriter, "rewrite", never)
    monkeypatch.setattr(Rewriter, "count", never)


def test_whole_partitions_are_dropped_from_metadata_alone(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(partition_by=("day(at)",))
    topic.ingest(2, at=[ago(40), ago(35), ago(10), ago(1)], count=8)

    never_read(monkeypatch)
    assert audit_from(topic) == AuditFrom(topic_id="topic-id")
    dry, wet = both(lake, topic, rows=RowsWork(column="at", max_age_ms=30 * DAY))
    assert audit_from(topic) == AuditFrom(topic_id="topic-id", offsets={0: 16})
    assert dry.rows is not None
    assert (dry.rows.files, dry.rows.items) == (4, 8)
    assert dry.rows.bytes > 0
    assert same(dry.rows, wet.rows)
    assert topic.ids() == [n for n in range(16) if n % 4 > 1]
    assert topic.kinds() == ["ingest", "ingest", "retain"]
    assert topic.fresh().currentSnapshot().summary().get("firn.offsets") == '{"0":16}'
    topic.ingest(1)
    assert len(topic.ids()) == 18


@pytest.mark.parametrize("column", ["_kafka.timestamp", "at", "day", "local"])
def test_expired_files_are_dropped_by_their_bounds(lake: Lake, monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    topic = lake.topic()
    if column in ("day", "local"):
        kind = {"day": "date", "local": "timestamp_ntz"}[column]
        topic.sql(f"ALTER TABLE {{t}} ADD COLUMN {column} {kind}")
        for age, number in ((40, 1), (35, 2), (1, 3)):
            moment = f"TIMESTAMP_NTZ '{ago(age)[:19]}'"
            row = f"SELECT CAST({number} AS BIGINT) AS id, CAST({moment} AS {kind}) AS {column}"
            lake.spark.sql(row).writeTo(topic.identifier).append()
    elif column == "at":
        for age in (40, 35, 1):
            topic.ingest(1, count=1, at=ago(age))
    else:
        for age in (40, 35, 1):
            topic.ingest(1, count=1, timestamp_ms=round((time.time() - age * 86_400) * 1000))
    never_read(monkeypatch)
    dry, wet = both(lake, topic, rows=RowsWork(column=column, max_age_ms=30 * DAY))
    assert dry.rows is not None
    assert (dry.rows.files, dry.rows.items) == (2, 2)
    assert same(dry.rows, wet.rows)
    frame = lake.spark.read.format("iceberg").load(topic.identifier)
    assert frame.count() == 1


def test_expired_files_without_bounds_are_not_rewritten(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(properties={"write.metadata.metrics.default": "none"})
    row = f"SELECT 1L AS id, TIMESTAMP '{ago(40)}' AS at"
    lake.spark.sql(row).writeTo(topic.identifier).append()
    monkeypatch.setattr(Rewriter, "rewrite", lambda *_, **__: pytest.fail("rows were written"))
    dry, wet = both(lake, topic, rows=RowsWork(column="at", max_age_ms=30 * DAY))
    assert same(dry.rows, wet.rows)
    assert wet.rows is not None
    assert (wet.rows.files, wet.rows.items) == (1, 1)
    assert topic.ids() == []


def test_rows_dropped_before_an_interruption_stay_dropped(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic()
    topic.ingest(1, at=[ago(40)])
    topic.ingest(1, at=[ago(40), ago(1)])
    rewrite = Rewriter.rewrite

    def ends(*given: Any, **named: Any) -> Any:
        files = rewrite(*given, **named)
        run.stop.set("deadline")
        return files

    monkeypatch.setattr(Rewriter, "rewrite", ends)
    before = topic.objects()
    work = topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY)))
    run = lake.prepare(work)
    assert run.work() == ExitCode.DONE
    (report,) = run.report().tables
    assert (report.outcome, report.commits) == ("Unfinished", 1)
    assert report.rows is not None
    assert (report.rows.files, report.rows.items) == (1, 10)
    assert topic.ids() == list(range(10, 20))
    # Files of the commit that failed are deleted.
    assert {path for path in topic.objects() - before if path.endswith(".parquet")} == set()
    monkeypatch.setattr(Rewriter, "rewrite", rewrite)
    assert lake.run(work).outcome == "Done"
    assert topic.ids() == list(range(11, 20, 2))


def test_expired_rows_are_removed_from_mixed_files(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(1, at=[ago(40), ago(20)])
    topic.ingest(1, at=[ago(40)])
    topic.ingest(1, at=[ago(1)])
    dry, wet = both(lake, topic, rows=RowsWork(column="at", max_age_ms=30 * DAY))
    assert dry.rows is not None
    assert (dry.rows.files, dry.rows.items) == (1, 15)
    assert same(dry.rows, wet.rows)
    assert topic.ids() == [n for n in range(10) if n % 2] + list(range(20, 30))
    again = lake.run(topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY))))
    assert (again.outcome, again.commits) == ("Nothing", 0)


def test_rows_without_a_time_stay(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(1, at=[ago(40)])
    topic.sql("UPDATE {t} SET at = NULL WHERE id IN (2, 7)")
    lake.run(topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY))))
    assert topic.ids() == [2, 7]


@pytest.mark.parametrize(("column", "message"), [("name", "string"), ("nothing", "is missing")])
def test_a_column_without_a_time_type_is_reported(lake: Lake, column: str, message: str) -> None:
    topic = lake.topic()
    topic.ingest(1, at=[ago(40)])
    run = lake.prepare(topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column=column, max_age_ms=1))))
    assert run.work() == 2
    (report,) = run.report().tables
    assert (report.outcome, report.reason) == ("Failed", "UnknownColumn")
    assert message in report.message
    assert len(topic.ids()) == 10


def test_retention_applies_to_dead_letters(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(1, at=[ago(1)])
    topic.dead_letters()
    dead = f"{topic.identifier}__dlq"
    for age in (40, 1):
        lake.spark.sql(f"SELECT 'c' AS error_code, timestamp '{ago(age)}' AS ingested_at").writeTo(dead).append()
    report = lake.run(
        topic.work(retention=RetentionWork(enforce=True, rows=RowsWork(column="at", max_age_ms=30 * DAY)))
    )
    assert report.rows is not None
    assert (report.rows.files, report.rows.items) == (1, 1)
    assert lake.spark.table(dead).count() == 1
    assert len(topic.ids()) == 10


def test_expired_snapshots_delete_their_unshared_files(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(5)
    lake.run(topic.work(compaction=COMPACT))
    small = {path for path in topic.objects() if path.startswith("data/")}
    dry, wet = both(lake, topic, snapshots=EXPIRE)
    assert dry.snapshots is not None
    assert (dry.snapshots.items, wet.snapshots.items if wet.snapshots else None) == (5, 5)
    assert same(dry.snapshots, wet.snapshots)
    # Five small data files, five manifest lists, and the manifests that only these refer to.
    assert dry.snapshots.files >= 15
    left = {path for path in topic.objects() if path.startswith("data/")}
    assert len(small - left) == 5
    topic.check()
    topic.ingest(2)
    topic.check()
    assert topic.kinds()[-2:] == ["ingest", "ingest"]


def test_tags_branches_and_the_newest_snapshot_stay(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(2)
    topic.sql("ALTER TABLE {t} CREATE TAG audited")
    topic.ingest(2)
    topic.sql("ALTER TABLE {t} CREATE BRANCH side")
    topic.ingest(2)
    report = lake.run(
        topic.work(retention=RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=2)))
    )
    assert report.snapshots is not None
    # Of six snapshots: the newest two, that of the tag, and the newest two of the branch.
    assert report.snapshots.items == 1
    for version, count in (("audited", 20), ("side", 40)):
        frame = lake.spark.read.option("versionAsOf", version).format("iceberg").load(topic.identifier)
        assert frame.count() == count
    topic.check()


def test_tags_and_branches_expire_at_their_own_age(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(2)
    first = int(topic.fresh().currentSnapshot().snapshotId())
    topic.fresh().manageSnapshots().createTag("short", first).setMaxRefAgeMs("short", 1).commit()
    topic.fresh().manageSnapshots().createBranch("brief", first).setMaxRefAgeMs("brief", 1).commit()
    topic.fresh().manageSnapshots().createTag("long", first).setMaxRefAgeMs("long", 10**12).commit()
    topic.ingest(2)
    dry, wet = both(lake, topic, snapshots=EXPIRE)
    assert same(dry.snapshots, wet.snapshots)
    assert wet.snapshots is not None
    assert {"short", "brief"} <= set(wet.snapshots.sample)
    assert {str(name) for name in topic.fresh().refs()} == {"main", "long"}
    topic.check()


def test_a_branch_keeps_snapshots_by_its_own_setting(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(5)
    topic.sql("ALTER TABLE {t} CREATE BRANCH side WITH SNAPSHOT RETENTION 3 SNAPSHOTS")
    topic.sql("ALTER TABLE {t} CREATE BRANCH old AS OF VERSION " + str(topic.metadata("snapshots")[1]["snapshot_id"]))
    dry, wet = both(lake, topic, snapshots=EXPIRE)
    assert same(dry.snapshots, wet.snapshots)
    assert wet.snapshots is not None
    # Of five snapshots: the newest three for the first branch, and the second one for the other.
    assert wet.snapshots.items == 1
    topic.check()


def test_another_attempt_to_expire_reads_only_new_snapshots(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """An attempt that reads each snapshot from Java again takes longer than ingestion takes between two commits."""
    topic = lake.topic()
    topic.ingest(40)
    requests: list[int] = []
    client = lake.spark.sparkContext._gateway._gateway_client
    send, build = client.send_command, NewMetadata.build

    def counted(command: str, *arguments: Any, **options: Any) -> Any:
        # Python may release objects of earlier work at any moment.
        requests[-1] += not command.startswith(MEMORY_COMMAND_NAME)
        return send(command, *arguments, **options)

    def refused_once(self: NewMetadata, table: Any) -> Any:
        requests.append(0)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(client, "send_command", counted)
            built = build(self, table)
        if len(requests) == 1:
            topic.ingest(1)
        return built

    monkeypatch.setattr(NewMetadata, "build", refused_once)
    removed = lake.run(topic.work(retention=RetentionWork(enforce=True, snapshots=EXPIRE))).snapshots
    assert removed is not None
    assert removed.items == 39
    assert topic.kinds() == ["ingest"] * 2
    assert len(requests) == 2
    assert max(requests) < 40


def test_another_table_of_the_dead_letter_name_is_not_changed(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    foreign = f"{topic.identifier}__dlq"
    lake.spark.sql(f"CREATE TABLE {foreign} (id bigint) USING iceberg")
    for _ in range(5):
        lake.spark.sql(f"INSERT INTO {foreign} VALUES (1)")
    lake.run(topic.work(compaction=COMPACT, retention=RetentionWork(enforce=True, snapshots=EXPIRE)))
    assert lake.spark.table(f"{foreign}.snapshots").count() == 5
    assert lake.spark.table(f"{foreign}.data_files").count() == 5


def test_offsets_survive_the_expiry_of_all_ingestion_commits(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(5)
    lake.run(topic.work(compaction=COMPACT, retention=RetentionWork(enforce=True, snapshots=EXPIRE)))
    assert topic.kinds() == ["compact"]
    topic.check()
    # Offsets come from the snapshots, too, and not from properties alone.
    topic.sql(
        "ALTER TABLE {t} UNSET TBLPROPERTIES ('firn.offsets', 'firn.epoch', 'firn.topic-id', 'firn.commit-id', 'firn.writer')"
    )
    topic.check()
    topic.ingest(1)
    topic.check()


def test_a_long_read_completes_while_snapshots_expire(lake: Lake) -> None:
    """The reader uses a snapshot of any age. Its age counts from the time when it was superseded."""
    topic = lake.topic()
    topic.ingest(5)
    began = topic.fresh().currentSnapshot().snapshotId()
    reading = lake.spark.read.option("versionAsOf", str(began)).format("iceberg").load(topic.identifier)
    start = time.monotonic()
    lake.run(topic.work(compaction=COMPACT))
    age = int((time.monotonic() - start) * 1000) + 60_000
    report = lake.run(
        topic.work(retention=RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=age, min_keep=1)))
    )
    assert report.snapshots is None or report.snapshots.items == 0
    assert [row["id"] for row in reading.orderBy("id").collect()] == list(range(50))
    # After this age the read fails, and the table is unaffected.
    lake.run(topic.work(retention=RetentionWork(enforce=True, snapshots=EXPIRE)))
    with pytest.raises(Exception, match="(?i)not (find|exist)|no such|cannot find|404"):
        reading.collect()
    topic.check()


def test_old_metadata_files_are_deleted_then_and_at_later_commits(lake: Lake) -> None:
    kept = {"write.metadata.delete-after-commit.enabled": "false", "write.metadata.previous-versions-max": "4"}
    topic = lake.topic(properties=kept)
    topic.ingest(9, count=1)

    def metadata() -> int:
        return sum(path.endswith(".metadata.json") for path in topic.objects())

    assert metadata() == 10
    dry, wet = both(lake, topic, metadata_keep=2)
    assert dry.metadata is not None
    assert wet.metadata is not None
    # Two in the log and the newest stay. The run's own commit, which sets the number to two, adds one version.
    assert (dry.metadata.items, wet.metadata.items) == (7, 7)
    assert metadata() == 3
    topic.ingest(3, count=1)
    assert metadata() == 3
    topic.check()


def test_a_table_without_garbage_collection_keeps_its_files(lake: Lake) -> None:
    topic = lake.topic(properties={"gc.enabled": "false"})
    topic.ingest(3)
    before = topic.objects()
    run = lake.prepare(topic.work(retention=RetentionWork(enforce=True, snapshots=EXPIRE, orphan_min_age_ms=0)))
    assert run.work() == 2
    assert run.report().tables[0].reason == "NotAllowed"
    assert topic.objects() == before
