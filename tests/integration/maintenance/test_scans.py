"""Values of scan tasks that are read with one call."""

from typing import Any

from firn_spark.maintenance.scans import Columns
from tests.integration.maintenance.lake import Lake, Topic


def scanned(topic: Topic) -> tuple[Columns, Any]:
    columns = Columns(topic.lake.spark._jvm)
    return columns, columns.tasks(topic.fresh().newScan())


def test_values_are_those_of_each_task(lake: Lake) -> None:
    topic = lake.topic(format_version=3, properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(3)
    topic.sql("DELETE FROM {t} WHERE id = 13")
    columns, tasks = scanned(topic)
    files = [task.file() for task in tasks]
    assert columns.values(tasks, "location") == [str(file.location()) for file in files]
    assert columns.numbers(tasks, "fileSizeInBytes") == [file.fileSizeInBytes() for file in files]
    assert columns.numbers(tasks, "recordCount") == [10, 10, 10]
    assert columns.numbers(tasks, "fileSequenceNumber") == [file.fileSequenceNumber() for file in files]
    assert columns.numbers(tasks, "firstRowId") == [file.firstRowId() for file in files]
    assert columns.values(tasks, "format") == ["PARQUET"] * 3
    assert columns.values(tasks, "keyMetadata") == [""] * 3
    assert sorted(columns.deletes(tasks)) == [0, 0, 1]


def test_a_table_without_files_has_no_values(lake: Lake) -> None:
    columns, tasks = scanned(lake.topic())
    assert columns.values(tasks, "location") == []
    assert columns.numbers(tasks, "specId") == columns.deletes(tasks) == []


def test_partitions_of_each_spec_are_unique_texts(lake: Lake) -> None:
    """The partition of null differs from that of the text ``null``, and from a text with line breaks."""
    topic = lake.topic(partition_by=("name",))
    topic.ingest(1, count=1)
    for name in ("NULL", "'null'", "'a\\nb'", "NULL"):
        topic.sql(f"INSERT INTO {{t}} SELECT id, {name} AS name, at, _kafka FROM {{t}} LIMIT 1")
    old = int(topic.fresh().spec().specId())
    topic.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    topic.sql("INSERT INTO {t} SELECT * FROM {t} LIMIT 1")
    columns, tasks = scanned(topic)
    assert sorted(columns.numbers(tasks, "specId")) == [old] * 5 + [old + 1]
    assert columns.numbers(columns.of_spec(tasks, old + 1), "specId") == [old + 1]
    texts = columns.partitions(columns.of_spec(tasks, old), topic.fresh().specs()[old])
    assert len(texts) == 5
    assert len(set(texts)) == 4
