"""Ingestion removes old snapshots from a table's metadata, and deletes no file. Orphan removal finds their files."""

import os
import time
from typing import Any

import pytest

from firn.model.errors import CorruptDataError
from firn.model.maintenance import CompactionWork, RetentionWork, SnapshotsWork
from firn.model.progress import Offsets
from firn_spark.tables.commits import SLOT_MS, Landed, read_landed
from tests.integration.maintenance.lake import DAY, Lake, Topic

HOUR = 3_600_000
COMPACT = CompactionWork(target_file_bytes=2**27, open_grace_ms=0)


def later(topic: Topic, ms: int) -> None:
    """Move the clock of the topic's driver forward."""
    topic.committer.now_ms = lambda: int(time.time() * 1000) + ms


def snapshots(topic: Topic) -> list[int]:
    return [int(snapshot.snapshotId()) for snapshot in topic.fresh().snapshots()]


def test_old_snapshots_go_and_every_file_stays(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(2)
    topic.sql("ALTER TABLE {t} CREATE TAG first")
    topic.ingest(4)
    lake.run(topic.work(compaction=COMPACT))
    topic.ingest(1)
    before, files = snapshots(topic), topic.objects()
    later(topic, 2 * DAY)
    topic.ingest(1, keep_ms=2 * DAY + HOUR)
    assert snapshots(topic)[:-1] == before
    topic.ingest(1, keep_ms=HOUR)
    # The tag, and the snapshot that was current an hour ago.
    assert snapshots(topic)[:-1] == [before[1], snapshots(topic)[-2]]
    assert files <= topic.objects()
    topic.check()
    assert lake.spark.sql(f"SELECT * FROM {topic.identifier} VERSION AS OF 'first'").count() == 20


def test_orphan_removal_finds_the_files_of_removed_snapshots(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(6)
    lake.run(topic.work(compaction=COMPACT))
    later(topic, 2 * DAY)
    topic.ingest(2, keep_ms=HOUR)
    old = time.time() - 10 * 86_400
    for path in lake.path(str(topic.table.location())).rglob("*"):
        os.utime(path, (old, old))
    objects = topic.objects()
    for enforce in (False, True):
        report = lake.run(topic.work(retention=RetentionWork(enforce=enforce, orphan_min_age_ms=3 * DAY)))
        assert report.orphans is not None
        # The data files that compaction replaced, and the lists of their snapshots.
        assert report.orphans.files >= 12, report
        gone = objects - topic.objects()
        assert sum(name.endswith(".parquet") for name in gone) == (6 if enforce else 0)
    topic.check()


def references(topic: Topic) -> set[str]:
    return {str(name) for name in topic.fresh().refs().keySet()}


def test_a_history_with_gaps_has_a_second_reference_until_it_expires(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    assert references(topic) == {"main"}
    later(topic, 2 * DAY)
    topic.ingest(2, keep_ms=HOUR)
    assert references(topic) == {"main", "firn-history"}
    work = RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1))
    lake.run(topic.work(retention=work))
    assert references(topic) == {"main"}
    assert len(snapshots(topic)) == 1
    topic.check()


def commit(topic: Topic, offsets: Offsets) -> Landed:
    topic.landed = topic.committer.commit(topic.table, (), topic.landed, "topic-id", 1, offsets)
    return topic.landed


def text(topic: Topic) -> Any:
    return topic.fresh().currentSnapshot().summary().get("firn.offsets")


def test_changed_offsets_follow_rollbacks_and_expiry_by_other_engines(lake: Lake) -> None:
    topic = lake.topic()
    now = int(time.time() * 1000) // SLOT_MS * SLOT_MS
    topic.committer.now_ms = lambda: now
    first = dict.fromkeys(range(8), 10)
    commit(topic, first)
    # The commits fall into one slot of time, whenever the test runs.
    topic.committer.now_ms = lambda: topic.landed.committed_ms if topic.landed and topic.landed.committed_ms else 0
    second = {**first, 3: 20}
    snapshot = commit(topic, second).snapshot_id
    assert text(topic).startswith('{"since":')
    assert '"3":20' in text(topic)
    topic.sql("ALTER TABLE {t} CREATE TAG second")
    third = {**second, 5: 30}
    commit(topic, third)
    for expected, step in (
        (third, "SELECT 1"),
        (second, f"CALL {lake_catalog(topic)}.system.rollback_to_snapshot('{topic.identifier}', {snapshot})"),
    ):
        lake.spark.sql(step)
        landed = read_landed(topic.fresh())
        assert landed is not None
        assert landed.offsets == expected
    topic.landed = read_landed(topic.table)
    fork = {**second, 7: 40}
    commit(topic, fork)
    assert text(topic).startswith('{"since":')
    lake.run(topic.work(compaction=COMPACT))
    expire = "CALL {c}.system.expire_snapshots(table => '{t}', older_than => TIMESTAMP '2100-01-01 00:00:00', retain_last => 1)"
    lake.spark.sql(expire.format(c=lake_catalog(topic), t=topic.identifier))
    # The newest snapshot has only changed offsets, and the properties are of its commit.
    assert [landed.offsets for landed in [read_landed(topic.fresh())] if landed] == [fork]
    # After this rollback, no snapshot has the other offsets: the driver must not guess.
    lake.spark.sql(
        f"CALL {lake_catalog(topic)}.system.set_current_snapshot(table => '{topic.identifier}', ref => 'second')"
    )
    with pytest.raises(CorruptDataError, match="which has the offsets of the other partitions"):
        read_landed(topic.fresh())
    lake.spark.sql(
        f"ALTER TABLE {topic.identifier} SET TBLPROPERTIES ('firn.commit-id' = '{commit_id(topic)}', 'firn.offsets' = '{{\"0\":1}}')"
    )
    assert [landed.offsets for landed in [read_landed(topic.fresh())] if landed] == [{0: 1}]


def commit_id(topic: Topic) -> str:
    return str(topic.fresh().currentSnapshot().summary().get("firn.commit-id"))


def lake_catalog(topic: Topic) -> str:
    return topic.job.table.catalog
