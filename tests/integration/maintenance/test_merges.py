"""Merges of real tables by tasks with Arrow: the same rows, lineage and metrics as after a rewrite by Spark."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from firn.model.maintenance import CompactionWork
from firn_spark.worker.merging.merge import merge
from tests.integration.maintenance.lake import Lake, Topic

NOW = CompactionWork(open_grace_ms=0)
ARROW, SPARK = "parquet-cpp-arrow", "parquet-mr"


def writers(topic: Topic) -> set[str]:
    """Return the programs that wrote the table's data files."""
    paths = (str(topic.lake.path(file["file_path"])) for file in topic.data_files())
    return {pq.read_metadata(path).created_by.split()[0] for path in paths}


def content(topic: Topic, *more: str) -> Counter[str]:
    """Return the rows, and how often each exists."""
    columns = ", ".join(("*", *more))
    rows = topic.lake.spark.sql(f"SELECT to_json(struct({columns})) AS row FROM {topic.identifier}").collect()
    return Counter(row["row"] for row in rows)


def insert(topic: Topic, commits: int = 4) -> None:
    """Append files that Spark writes."""
    for _ in range(commits):
        topic.sql("INSERT INTO {t} SELECT * FROM {t} LIMIT 20")


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_spark_are_merged_without_spark(lake: Lake, version: int) -> None:
    topic = lake.topic(format_version=version)
    topic.ingest(1)
    insert(topic)
    lineage = ("_row_id", "_last_updated_sequence_number") if version == 3 else ()
    before = content(topic, *lineage)
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_after) == ("Done", 1)
    assert writers(topic) == {ARROW}
    assert content(topic, *lineage) == before
    # Another merge reads the row ids that the first one stored.
    insert(topic)
    before = content(topic, *lineage)
    lake.run(topic.work(compaction=NOW))
    assert content(topic, *lineage) == before


def test_partitions_stay_apart_and_files_know_them(lake: Lake) -> None:
    topic = lake.topic(partition_by=("day(at)", "name"))
    topic.ingest(4, at=["2024-05-01T12:00:00Z", "2024-06-01T12:00:00Z"])
    topic.sql("INSERT INTO {t} SELECT id, CAST(NULL AS STRING) AS name, at, _kafka FROM {t} LIMIT 5")
    for _ in range(4):
        topic.sql("INSERT INTO {t} SELECT * FROM {t} WHERE id % 10 < 2 LIMIT 5")
    before = content(topic, "_partition")
    lake.run(topic.work(compaction=NOW))
    assert ARROW in writers(topic)
    assert content(topic, "_partition") == before
    days = topic.lake.spark.sql(f"SELECT DISTINCT name, at FROM {topic.identifier} WHERE name = 'n1'").collect()
    assert [row["name"] for row in days] == ["n1"]


def test_metrics_of_merged_files_let_filters_skip_them(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    lake.run(topic.work(compaction=NOW))
    (file,) = topic.metadata("files")
    found = file["readable_metrics"]
    assert (found["id"]["lower_bound"], found["id"]["upper_bound"]) == (0, 39)
    assert (found["name"]["lower_bound"], found["name"]["upper_bound"]) == ("n0", "n9")
    assert (found["name"]["value_count"], found["name"]["null_value_count"]) == (40, 0)
    assert (file["record_count"], file["sort_order_id"] or 0) == (40, 0)
    assert file["file_size_in_bytes"] == lake.path(file["file_path"]).stat().st_size
    count = f"SELECT count(*) AS n FROM {topic.identifier} WHERE id > 39"
    assert lake.spark.sql(count).first()["n"] == 0


def test_files_of_earlier_schemas_are_merged_with_later_ones(lake: Lake) -> None:
    topic = lake.topic(format_version=3)
    topic.sql("ALTER TABLE {t} ADD COLUMNS (a int, b float, c string, d decimal(9, 2))")
    topic.ingest(1)
    values = "id, name, at, _kafka, CAST(id AS int) AS a, CAST(id / 3 AS float) AS b, name AS c, CAST(id AS decimal(9, 2)) AS d"
    for _ in range(2):
        topic.sql(f"INSERT INTO {{t}} SELECT {values} FROM {{t}} LIMIT 10")
    for change in (
        "ALTER COLUMN a TYPE bigint",
        "ALTER COLUMN b TYPE double",
        "ALTER COLUMN d TYPE decimal(12, 2)",
        "RENAME COLUMN name TO title",
        "DROP COLUMN c",
        "ADD COLUMN e string AFTER id",
    ):
        topic.sql(f"ALTER TABLE {{t}} {change}")
    topic.sql("INSERT INTO {t} SELECT * FROM {t} LIMIT 10")
    before = content(topic, "_row_id", "_last_updated_sequence_number")
    report = lake.run(topic.work(compaction=NOW))
    assert (report.files_before, report.files_after) == (4, 1)
    assert writers(topic) == {ARROW}
    assert content(topic, "_row_id", "_last_updated_sequence_number") == before


def test_rewrites_that_are_no_plain_merges_stay_with_spark(lake: Lake) -> None:
    ordered = lake.topic(sort_by=("id desc nulls last",))
    deleted = lake.topic(properties={"write.delete.mode": "merge-on-read"})
    for topic in (ordered, deleted):
        topic.ingest(4)
    deleted.sql("DELETE FROM {t} WHERE id % 3 = 0")
    for topic in (ordered, deleted):
        lake.run(topic.work(compaction=NOW))
        assert writers(topic) == {SPARK}


def test_a_table_whose_partition_fields_were_dropped_is_compacted(lake: Lake) -> None:
    topic = lake.topic()
    topic.sql("DROP TABLE {t}")
    topic.sql(
        "CREATE TABLE {t} (id bigint, name string) USING iceberg PARTITIONED BY (name)"
        " TBLPROPERTIES ('format-version' = '1')"
    )
    topic.sql("INSERT INTO {t} VALUES (1, 'a'), (2, 'b')")
    # Format 1 keeps a dropped field as `void`, and the upgrade keeps it too.
    topic.sql("ALTER TABLE {t} DROP PARTITION FIELD name")
    topic.sql("ALTER TABLE {t} SET TBLPROPERTIES ('format-version' = '2')")
    insert(topic)
    topic.table = topic.fresh()
    before = content(topic)
    report = lake.run(topic.work(compaction=NOW))
    assert report.outcome == "Done"
    assert (content(topic), writers(topic)) == (before, {SPARK})


def test_files_that_a_task_cannot_merge_are_rewritten_by_spark(lake: Lake) -> None:
    topic = lake.topic()
    topic.sql("ALTER TABLE {t} ADD COLUMN point struct<x: int, y: int>")
    topic.ingest(1)
    for _ in range(3):
        topic.sql("INSERT INTO {t} SELECT id, name, at, _kafka, struct(1 AS x, 2 AS y) AS point FROM {t} LIMIT 5")
    topic.sql("ALTER TABLE {t} RENAME COLUMN point.x TO z")
    before, objects = content(topic), topic.objects()
    lake.run(topic.work(compaction=NOW))
    assert writers(topic) == {SPARK}
    assert content(topic) == before
    # The task that gave up left no file.
    assert len([path for path in topic.objects() - objects if path.startswith("data/")]) == 1


def kill_first_task(monkeypatch: pytest.MonkeyPatch, mark: Path, times: int) -> None:
    """Let the first tasks die after they wrote their files."""

    def dying(plans: Any) -> Any:
        results = list(merge(plans))
        with mark.open("a") as file:
            file.write("x")
        if mark.stat().st_size <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return results

    monkeypatch.setattr("firn_spark.maintenance.merging.job.merge", dying)


def test_a_killed_task_is_retried_and_commits_its_rows_once(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = lake.topic()
    topic.ingest(4)
    kill_first_task(monkeypatch, tmp_path / "tasks", 1)
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.commits) == ("Done", 1)
    assert (tmp_path / "tasks").stat().st_size == 2
    topic.check()


def test_tasks_that_die_again_and_again_commit_nothing(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    topic = lake.topic()
    topic.ingest(4)
    kill_first_task(monkeypatch, tmp_path / "tasks", 100)
    run = lake.prepare(topic.work(compaction=NOW))
    assert run.work() != 0
    assert topic.kinds() == ["ingest"] * 4
    assert len(topic.data_files()) == 4
    topic.check()
