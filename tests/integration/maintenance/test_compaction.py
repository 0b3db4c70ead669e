"""Compaction of real tables: the same rows in fewer files, also beside other writers."""

import itertools
from typing import Any

import pytest

from firn.model.maintenance import CompactionWork
from firn_spark.maintenance.steps.rewriting import Rewriter
from tests.integration.maintenance.equality_deletes import delete_values
from tests.integration.maintenance.lake import CATALOG, Lake, Topic

NOW = CompactionWork(open_grace_ms=0)


def while_rewriting(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Call ``act`` once, after the first group was written and before its commit."""
    plain, acted = Rewriter.rewrite, list[Any]()

    def rewrite(*args: Any, **kwargs: Any) -> Any:
        files = plain(*args, **kwargs)
        if not acted:
            acted.append(True)
            act()
        return files

    monkeypatch.setattr(Rewriter, "rewrite", rewrite)


def test_small_files_are_merged_and_every_row_stays(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(6)
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_before, report.files_after, report.commits) == ("Done", 6, 1, 1)
    assert report.bytes_rewritten > 0
    assert topic.kinds() == ["ingest"] * 6 + ["compact"]
    topic.check()
    again = lake.run(topic.work(compaction=NOW))
    assert (again.outcome, again.commits) == ("Nothing", 0)
    topic.ingest(2)
    topic.check()


def test_files_within_the_grace_are_not_rewritten(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(6)
    assert lake.run(topic.work(compaction=CompactionWork(open_grace_ms=3_600_000))).outcome == "Nothing"
    assert len(topic.data_files()) == 6


def test_a_rewrite_keeps_partitions_apart_and_caps_its_commits(lake: Lake) -> None:
    topic = lake.topic(partition_by=("day(at)",), sort_by=("id desc nulls last",))
    topic.ingest(5, at=[f"2024-05-0{day}T12:00:00Z" for day in range(1, 6)])
    report = lake.run(topic.work(compaction=NOW.model_copy(update={"max_commits": 2})))
    assert (report.files_before, report.files_after, report.commits) == (25, 5, 2)
    assert sorted(str(file["partition"]["at_day"]) for file in topic.data_files()) == [
        f"2024-05-0{day}" for day in range(1, 6)
    ]
    order = int(topic.table.sortOrder().orderId())
    assert {file["sort_order_id"] for file in topic.data_files()} == {order}
    topic.check()


@pytest.mark.parametrize("version", [2, 3])
def test_a_rewrite_applies_deletes_and_removes_delete_files(lake: Lake, version: int) -> None:
    """Position deletes in format 2, and deletion vectors in format 3."""
    topic = lake.topic(format_version=version, properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(4)
    topic.sql("DELETE FROM {t} WHERE id % 3 = 0")
    assert topic.delete_files()
    left = [n for n in range(40) if n % 3]
    ids = dict(lineage(topic)) if version == 3 else {}
    report = lake.run(topic.work(compaction=NOW))
    assert report.outcome == "Done"
    assert report.delete_files_removed > 0
    assert topic.delete_files() == []
    assert topic.ids() == left
    if version == 3:
        # Rows keep their row ids, by which other engines follow changes.
        assert dict(lineage(topic)) == ids
    topic.ingest(1)
    assert topic.ids() == [*left, *range(40, 50)]


def lineage(topic: Topic) -> list[tuple[int, int]]:
    frame = topic.lake.spark.sql(f"SELECT id, _row_id FROM {topic.identifier}")
    return [(row["id"], row["_row_id"]) for row in frame.collect()]


def test_delete_files_without_data_files_are_removed(lake: Lake) -> None:
    topic = lake.topic(properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(4)
    topic.sql("DELETE FROM {t} WHERE id % 3 = 0")
    delete_values(topic, [1])
    # Another engine's compaction removes the data files and leaves delete files that applied to them.
    table = f"{topic.job.table.namespace}.{topic.job.table.name}"
    call = f"CALL {CATALOG}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    lake.spark.sql(call).collect()
    left = len(topic.delete_files())
    assert left > 0
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.delete_files_removed) == ("Done", left)
    assert topic.delete_files() == []
    assert topic.ids() == [n for n in range(40) if n % 3 and n != 1]
    assert lake.run(topic.work(compaction=NOW)).outcome == "Nothing"


def test_one_worn_file_is_rewritten_alone(lake: Lake) -> None:
    topic = lake.topic(properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(1, count=100)
    topic.sql("DELETE FROM {t} WHERE id < 20")
    assert lake.run(topic.work(compaction=NOW)).outcome == "Nothing"
    topic.sql("DELETE FROM {t} WHERE id < 40")
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.files_before, report.files_after) == ("Done", 1, 1)
    assert topic.delete_files() == []
    assert topic.ids() == list(range(40, 100))


def test_a_rewrite_moves_files_to_the_current_partition_spec(lake: Lake) -> None:
    topic = lake.topic(partition_by=("day(at)",))
    topic.ingest(4, at=["2024-05-01T12:00:00Z", "2024-06-01T12:00:00Z"])
    topic.sql("ALTER TABLE {t} REPLACE PARTITION FIELD at_day WITH months(at)")
    topic.sql("ALTER TABLE {t} ADD PARTITION FIELD bucket(2, id)")
    report = lake.run(topic.work(compaction=NOW))
    assert (report.files_before, report.outcome) == (8, "Done")
    assert {file["spec_id"] for file in topic.data_files()} == {int(topic.fresh().spec().specId())}
    topic.check()


def test_ingestion_continues_during_a_rewrite(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic()
    topic.ingest(4)
    while_rewriting(monkeypatch, lambda: topic.ingest(3))
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.commits) == ("Done", 1)
    assert topic.kinds() == ["ingest"] * 7 + ["compact"]
    topic.check()
    topic.ingest(1)
    topic.check()


def test_rows_deleted_during_a_rewrite_stay_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic(properties={"write.delete.mode": "merge-on-read"})
    topic.ingest(4)
    before = topic.objects()
    while_rewriting(monkeypatch, lambda: topic.sql("DELETE FROM {t} WHERE id IN (3, 33)"))
    report = lake.run(topic.work(compaction=NOW))
    assert report.outcome == "Done"
    assert topic.ids() == [n for n in range(40) if n not in (3, 33)]
    # The file of the first attempt is deleted, and the table refers to that of the second.
    (file,) = topic.data_files()
    left = {path for path in topic.objects() - before if path.startswith("data/") and "deletes" not in path}
    assert left == {file["file_path"].removeprefix(f"{topic.table.location()}/")}


def test_values_deleted_during_a_rewrite_stay_deleted(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equality deletes name no files, so nothing conflicts. The new files keep the sequence number of the files that
    they replace."""
    topic = lake.topic()
    topic.ingest(4)
    while_rewriting(monkeypatch, lambda: delete_values(topic, [3, 33]))
    report = lake.run(topic.work(compaction=NOW))
    assert (report.outcome, report.commits) == ("Done", 1)
    assert topic.ids() == [n for n in range(40) if n not in (3, 33)]


def test_values_deleted_in_an_old_partition_during_a_move_stay_deleted(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A delete of the old partition spec does not apply to files of the new one, so the rewrite has to begin again."""
    topic = lake.topic(partition_by=("day(at)",))
    topic.ingest(4, at=["2024-05-01T12:00:00Z"])
    old = int(topic.fresh().spec().specId())
    topic.sql("ALTER TABLE {t} REPLACE PARTITION FIELD at_day WITH months(at)")
    while_rewriting(monkeypatch, lambda: delete_values(topic, [3, 33], old, "at_day=2024-05-01"))
    report = lake.run(topic.work(compaction=NOW))
    assert report.outcome == "Done"
    assert topic.ids() == [n for n in range(40) if n not in (3, 33)]
    assert {file["spec_id"] for file in topic.data_files()} == {int(topic.fresh().spec().specId())}


def test_a_concurrent_foreign_compaction_is_tolerated(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = lake.topic()
    topic.ingest(4)
    table = f"{topic.job.table.namespace}.{topic.job.table.name}"
    catalog = topic.job.table.catalog
    call = f"CALL {catalog}.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
    while_rewriting(monkeypatch, lambda: lake.spark.sql(call).collect())
    report = lake.run(topic.work(compaction=NOW))
    assert report.files_after == 1
    assert "compact" not in topic.kinds()
    topic.check()
    topic.ingest(1)
    topic.check()


def test_rows_are_sorted_across_files(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4, count=500)
    work = CompactionWork(
        strategy="Sort", columns=("name desc nulls last",), open_grace_ms=0, target_file_bytes=8_000, everything=True
    )
    report = lake.run(topic.work(compaction=work))
    assert report.files_after > 1
    for path in (file["file_path"] for file in topic.data_files()):
        names = [row["name"] for row in lake.spark.read.parquet(str(lake.path(path))).select("name").collect()]
        assert names == sorted(names, reverse=True)
    ranges = sorted(
        (file["readable_metrics"]["name"]["lower_bound"], file["readable_metrics"]["name"]["upper_bound"])
        for file in topic.metadata("files")
    )
    assert all(lower[1] <= other[0] for lower, other in itertools.pairwise(ranges))
    assert sorted(topic.ids()) == list(range(2000))
    assert lake.run(topic.work(compaction=work)).outcome == "Nothing"


def test_z_order_lets_filters_on_either_column_skip_files(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4, count=500, at=[f"2024-05-05T{n % 24:02d}:00:00Z" for n in range(97)])
    work = CompactionWork(
        strategy="ZOrder", columns=("id", "at"), open_grace_ms=0, target_file_bytes=4_000, everything=True
    )
    report = lake.run(topic.work(compaction=work))
    assert report.files_after >= 4
    metrics = [file["readable_metrics"] for file in topic.metadata("files")]

    def read(column: str, value: Any) -> int:
        return sum(file[column]["lower_bound"] <= value <= file[column]["upper_bound"] for file in metrics)

    hour = lake.spark.sql("SELECT TIMESTAMP '2024-05-05T03:00:00Z' AS at").first()["at"]
    # A filter on either column skips files.
    assert read("id", 1000) < len(metrics)
    assert read("at", hour) < len(metrics)
    topic.check()
    assert lake.run(topic.work(compaction=work)).outcome == "Nothing"


def test_a_missing_sort_column_is_reported(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    for strategy in ("Sort", "ZOrder"):
        work = CompactionWork(strategy=strategy, columns=("nothing",), open_grace_ms=0)
        run = lake.prepare(topic.work(compaction=work))
        assert run.work() == 2
        (report,) = run.report().tables
        assert (report.outcome, report.reason) == ("Failed", "InvalidSpec")
        assert "nothing" in report.message
    topic.check()


def test_manifests_are_merged(lake: Lake) -> None:
    topic = lake.topic(properties={"commit.manifest-merge.enabled": "false"})
    topic.ingest(13, count=1)
    work = CompactionWork(open_grace_ms=3_600_000)
    report = lake.run(topic.work(compaction=work))
    assert (report.manifests_before, report.manifests_after, report.commits) == (13, 1, 1)
    assert report.files_after == 13
    topic.check()
    assert lake.run(topic.work(compaction=work)).outcome == "Nothing"


def test_many_tables_share_a_run_and_dead_letters_follow(lake: Lake) -> None:
    topics = [lake.topic() for _ in range(3)]
    for topic in topics:
        topic.ingest(4)
    table = topics[0].dead_letters()
    dead = f"{topics[0].identifier}__dlq"
    for n in range(4):
        row = f"SELECT 'code' AS error_code, {n} AS generation, timestamp '2024-01-01' AS ingested_at"
        lake.spark.sql(row).writeTo(dead).append()
    run = lake.prepare(*(topic.work(compaction=NOW) for topic in topics))
    assert run.work() == 0
    assert [table_report.outcome for table_report in run.report().tables] == ["Done"] * 3
    assert [table_report.files_after for table_report in run.report().tables] == [2, 1, 1]
    table.refresh()
    assert table.currentSnapshot().summary().get("firn.kind") == "compact"
    for topic in topics:
        topic.check()
