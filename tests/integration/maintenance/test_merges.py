"""Merges of real tables by tasks with Arrow: the same rows, lineage and metrics as after a rewrite by Spark."""

from collections import Counter

import pyarrow.parquet as pq
import pytest

from firn.model.maintenance import CompactionWork
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
