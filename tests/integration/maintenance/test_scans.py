"""Values of scan tasks that are read with one call."""

from typing import Any

from firn_spark.maintenance.scans import Columns
from tests.integration.maintenance.lake import Lake, Topic


def scanned(topic: Topic) -> tuple[Columns, Any]:
    columns = Columns(topic.lake.spark._jvm)
    return columns, columns.tasks(topic.fresh().newScan())


def partition(spec: Any, values: Any) -> tuple[str, list[bool]]:
    """Return a partition as it differs from others."""
    return str(spec.partitionToPath(values)), [values.get(place) is None for place in range(values.size())]


def test_values_are_those_of_each_task(lake: Lake) -> None:
    topic = lake.topic(format_version=3, properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(3)
    topic.sql("DELETE FROM {t} WHERE id = 13")
    columns, listed = scanned(topic)
    files, tasks = [task.file() for task in listed], columns.files(listed)
    assert columns.values(tasks, "location") == [str(file.location()) for file in files]
    assert columns.numbers(tasks, "fileSizeInBytes") == [file.fileSizeInBytes() for file in files]
    assert columns.numbers(tasks, "recordCount") == [10, 10, 10]
    assert columns.numbers(tasks, "fileSequenceNumber") == [file.fileSequenceNumber() for file in files]
    assert columns.numbers(tasks, "firstRowId") == [file.firstRowId() for file in files]
    assert columns.values(tasks, "format") == ["PARQUET"] * 3
    assert columns.values(tasks, "keyMetadata") == [""] * 3
    assert sorted(columns.delete_counts(listed)) == [0, 0, 1]
    (delete,) = [delete for task in listed for delete in task.deletes()]
    (deleted,) = [str(task.file().location()) for task in listed if task.deletes()]
    deletes = columns.delete_files(listed)
    assert columns.keys(deletes) == [(str(delete.location()), delete.contentOffset())]
    assert columns.targets(deletes) == [deleted]
    assert columns.values(deletes, "content") == ["POSITION_DELETES"]


def test_a_table_without_files_has_no_values(lake: Lake) -> None:
    columns, listed = scanned(lake.topic())
    tasks = columns.files(listed)
    assert columns.values(tasks, "location") == []
    assert columns.numbers(tasks, "specId") == columns.delete_counts(listed) == []


def test_partitions_of_each_spec_are_unique_texts(lake: Lake) -> None:
    """The partition of null differs from that of the text ``null``, and from a text with line breaks."""
    topic = lake.topic(partition_by=("name",))
    topic.ingest(1, count=1)
    for name in ("NULL", "'null'", "'a\\nb'", "NULL"):
        topic.sql(f"INSERT INTO {{t}} SELECT id, {name} AS name, at, _kafka FROM {{t}} LIMIT 1")
    old = int(topic.fresh().spec().specId())
    topic.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    topic.sql("INSERT INTO {t} SELECT * FROM {t} LIMIT 1")
    columns, listed = scanned(topic)
    files, specs = columns.files(listed), dict(topic.fresh().specs())
    assert sorted(columns.numbers(files, "specId")) == [old] * 5 + [old + 1]
    assert columns.numbers(columns.of_spec(files, old + 1), "specId") == [old + 1]
    texts = columns.partitions(files, specs)
    expected = [(file.specId(), *partition(specs[file.specId()], file.partition())) for file in files]
    assert len(set(texts)) == len({repr(each) for each in expected}) == 5
    # A text does not depend on the other files of the list.
    assert columns.partitions(listed_alone(columns, listed), specs) == texts[:1]


def listed_alone(columns: Columns, tasks: Any) -> Any:
    return columns.files(tasks.subList(0, 1))
