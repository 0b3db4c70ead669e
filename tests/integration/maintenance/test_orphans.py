"""Orphan removal on a bucket with all kinds of files that must stay."""

import os
import time
from pathlib import Path

import pytest

from firn.model.maintenance import CompactionWork, RetentionWork, SnapshotsWork
from firn_spark.maintenance.steps import orphans as module
from tests.integration.maintenance.lake import DAY, Lake, Topic

OLD = time.time() - 10 * 86_400


def age(topic: Topic) -> None:
    """Make every file at the table's location ten days old."""
    for path in topic.lake.path(str(topic.table.location())).rglob("*"):
        os.utime(path, (OLD, OLD))


def put(topic: Topic, name: str, old: bool = True) -> str:
    path: Path = topic.lake.path(str(topic.table.location())) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("x" * 10)
    if old:
        os.utime(path, (OLD, OLD))
    return name


def orphans(lake: Lake, topic: Topic, enforce: bool = True, age_ms: int = 3 * DAY) -> set[str]:
    """Run orphan removal and return the removed files."""
    before = topic.objects()
    report = lake.run(topic.work(retention=RetentionWork(enforce=enforce, orphan_min_age_ms=age_ms)))
    assert report.orphans is not None
    gone = before - topic.objects()
    if enforce:
        assert report.orphans.files == len(gone)
    return gone


ODD = (
    "data/with space.parquet",
    "data/100%.parquet",
    "data/a%20b.parquet",
    "data/plus+and&=.parquet",
    "data/ünï/cødé-日本.parquet",
    "data/quo'te\"s.parquet",
    "data/tab\there.parquet",
    "data/deep/er/and/deeper/f.parquet",
    "metadata/snap-1-1-dead.avro",
    "metadata/dead-m0.avro",
    "metadata/00000-dead.metadata.json.tmp",
)


def test_no_live_file_is_removed(lake: Lake) -> None:
    topic = lake.topic(partition_by=("name",))
    topic.ingest(3, count=2)
    # Partition values, and so live paths, with all kinds of characters.
    topic.sql(
        "INSERT INTO {t} (id, name) VALUES (6, 'a b'), (7, '50%'), (8, 'a/b+c=d&e'), (9, 'ü日'), (10, ''), (11, '%20'), (12, '_x'), (13, '.y')"
    )
    topic.end = 14
    topic.sql("ALTER TABLE {t} CREATE TAG keep")
    lake.run(topic.work(compaction=CompactionWork(open_grace_ms=0)))
    lake.spark.sql(
        f"CALL {topic.job.table.catalog}.system.compute_table_stats('{topic.job.table.namespace}.{topic.job.table.name}')"
    )
    live = topic.objects()
    age(topic)
    other = lake.topic()
    other.ingest(2)
    age(other)
    others = other.objects()
    nested = put(topic, "nested/metadata/00003-abc.metadata.json")
    inside = put(topic, "nested/data/f.parquet")
    hidden = {put(topic, "data/_temporary/0/f.parquet"), put(topic, ".hidden/f"), put(topic, "_log/1.json")}
    young = {put(topic, "data/young.parquet", old=False), put(topic, "metadata/young-m0.avro", old=False)}
    # S3FileIO would delete every key that begins with this name, for example a live file.
    file = next(name for name in sorted(live) if name.startswith("data/"))
    cut = {put(topic, f"{file}?version=2"), put(topic, f"{file}#2")}
    neighbour = put(topic, "../" + lake.path(str(topic.table.location())).name + "-2/data/f.parquet")
    dead = {put(topic, name) for name in ODD}

    assert orphans(lake, topic, enforce=False) == set()
    assert orphans(lake, topic) == dead
    assert topic.objects() == live | {nested, inside} | hidden | young | cut
    assert other.objects() == others
    assert (lake.path(str(topic.table.location())) / neighbour).exists()
    assert sorted(topic.ids()) == list(range(14))
    frame = lake.spark.read.option("versionAsOf", "keep").format("iceberg").load(topic.identifier)
    assert frame.count() == 14
    assert orphans(lake, topic) == set()


def test_files_of_failed_commits_and_killed_runs_are_removed(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    run = lake.prepare(topic.work(compaction=CompactionWork(open_grace_ms=0)), failpoints="in-commit=raise:1")
    assert run.work() != 0
    live = topic.objects()
    topic.check()
    lake.run(topic.work(compaction=CompactionWork(open_grace_ms=0)))
    age(topic)
    gone = orphans(lake, topic)
    assert gone
    assert gone < live
    topic.check()


def test_files_committed_after_the_listing_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that look old stay as well, because a writer may be slow, or its clock wrong."""
    topic = lake.topic()
    topic.ingest(2)
    age(topic)
    listed = module.listed

    def list_then_commit(*args: object) -> object:
        before = list(listed(*args))  # type: ignore[arg-type]
        topic.ingest(1)
        age(topic)
        return [*before, *listed(*args)]  # type: ignore[arg-type]

    monkeypatch.setattr(module, "listed", list_then_commit)
    assert orphans(lake, topic) == set()
    topic.check()


def test_a_location_shared_by_two_tables_is_not_cleaned(lake: Lake) -> None:
    topic, other = lake.topic(), lake.topic()
    topic.ingest(2)
    other.ingest(3)
    catalog = topic.job.table.catalog
    # Another table at the same location: re-created while the files of the first still exist.
    shared = f"{catalog}.{topic.job.table.namespace}.shared_{lake.suffix}"
    lake.spark.sql(f"CREATE TABLE {shared} (id BIGINT) USING iceberg LOCATION '{topic.table.location()}'")
    lake.spark.sql(f"INSERT INTO {shared} VALUES (1)")
    age(topic)
    before = topic.objects()
    run = lake.prepare(
        topic.work(retention=RetentionWork(enforce=True, orphan_min_age_ms=0)),
        other.work(retention=RetentionWork(enforce=True, orphan_min_age_ms=0)),
    )
    assert run.work() == 2
    first, second = run.report().tables
    assert (first.outcome, first.reason, second.outcome) == ("Failed", "ResourceConflict", "Nothing")
    assert "another table" in first.message
    assert topic.objects() == before
    assert lake.spark.table(shared).count() == 1
    topic.check()


def test_orphan_removal_finishes_an_interrupted_expiry(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    lake.run(topic.work(compaction=CompactionWork(open_grace_ms=0)))
    work = RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1))
    run = lake.prepare(topic.work(retention=work), failpoints="before-deletion=raise:1")
    assert run.work() != 0
    assert topic.kinds() == ["compact"]
    topic.check()
    age(topic)
    gone = orphans(lake, topic)
    assert sum(name.startswith("data/") for name in gone) == 4
    topic.check()
