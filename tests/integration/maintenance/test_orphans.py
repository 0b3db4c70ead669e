"""Orphan removal on a bucket with everything in it that must not go."""

import os
import time
from pathlib import Path

import pytest

from firn.model.maintenance import CompactionWork, RetentionWork, SnapshotsWork
from firn_spark.maintenance.steps import orphans as module
from tests.integration.maintenance.lake import DAY, Lake, Topic

OLD = time.time() - 10 * 86_400


def age(topic: Topic) -> None:
    """Everything at the table's location becomes ten days old."""
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


def test_not_one_live_file_goes(lake: Lake) -> None:
    topic = lake.topic(partition_by=("name",))
    topic.ingest(3, count=2)
    # Partition values, and with them live paths, of every kind.
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
    # S3FileIO would delete what such a name begins with: a live file, for one.
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


def test_what_refused_commits_and_killed_runs_left_is_found(lake: Lake) -> None:
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


def test_files_of_a_commit_that_comes_after_the_listing_stay(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """However old they look: a writer may have been slow, or its clock wrong."""
    topic = lake.topic()
    topic.ingest(2)
    age(topic)
    listed = module.listed

    def list_then_commit(*args: object) -> object:
        found = list(listed(*args))  # type: ignore[arg-type]
        topic.ingest(1)
        age(topic)
        return [*found, *listed(*args)]  # type: ignore[arg-type]

    monkeypatch.setattr(module, "listed", list_then_commit)
    assert orphans(lake, topic) == set()
    topic.check()


def test_a_location_that_two_tables_share_is_left_alone(lake: Lake) -> None:
    one, other = lake.topic(), lake.topic()
    one.ingest(2)
    other.ingest(3)
    catalog = one.job.table.catalog
    # Another table at the same place: re-created with the files of the first still there.
    shared = f"{catalog}.{one.job.table.namespace}.shared_{lake.suffix}"
    lake.spark.sql(f"CREATE TABLE {shared} (id BIGINT) USING iceberg LOCATION '{one.table.location()}'")
    lake.spark.sql(f"INSERT INTO {shared} VALUES (1)")
    age(one)
    before = one.objects()
    run = lake.prepare(
        one.work(retention=RetentionWork(enforce=True, orphan_min_age_ms=0)),
        other.work(retention=RetentionWork(enforce=True, orphan_min_age_ms=0)),
    )
    assert run.work() == 2
    first, second = run.report().tables
    assert (first.outcome, first.reason, second.outcome) == ("Failed", "ResourceConflict", "Nothing")
    assert "another table" in first.message
    assert one.objects() == before
    assert lake.spark.table(shared).count() == 1
    one.check()


def test_expiry_that_ended_early_is_finished_by_orphan_removal(lake: Lake) -> None:
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
