"""Files that the operator counts as due are those that a run rewrites, also with position deletes, vectors and
equality deletes."""

import asyncio

import pytest

from firn.model.clock import SystemClock
from firn.model.maintenance import CompactionWork
from firn_controllers.ports import TableDebt
from firn_operator.adapters.iceberg.debt import CatalogDebts
from tests.integration.maintenance.equality_deletes import delete_values
from tests.integration.maintenance.lake import Lake, Topic

NOW = CompactionWork(open_grace_ms=0, rewrite_manifests="Never")
MERGE_ON_READ = {"write.delete.mode": "merge-on-read"}


def owed(topic: Topic, work: CompactionWork = NOW) -> TableDebt:
    debts = CatalogDebts(topic.lake.contract.catalogs, SystemClock())
    try:
        debt = asyncio.run(debts.measure(topic.job.table, work))
    finally:
        debts.close()
    assert debt is not None
    assert debt.table_uuid == str(topic.table.operations().current().uuid())
    return debt


def settle(topic: Topic, work: CompactionWork = NOW) -> TableDebt:
    """Run the due work, and check that exactly that was done and that nothing is due afterwards."""
    due = owed(topic, work)
    report = topic.lake.run(topic.work(compaction=work))
    assert report.bytes_rewritten == due.due_bytes
    assert report.files_before == due.data_files
    after = owed(topic, work)
    assert (after.data_files, after.due_files, after.oldest_due) == (report.files_after, 0, None)
    assert after.delete_files == due.delete_files - report.delete_files_removed
    return due


def test_a_run_rewrites_exactly_the_due_small_files(lake: Lake) -> None:
    topic = lake.topic(partition_by=("day(at)",))
    topic.ingest(6, at=["2024-05-01T12:00:00Z", "2024-06-01T12:00:00Z"])
    due = settle(topic)
    assert (due.due_files, due.small_files, due.snapshots, due.delete_files) == (12, 12, 6, 0)
    assert due.manifests == len(topic.metadata("manifests")) or due.manifests == 6
    topic.check()


@pytest.mark.parametrize(
    ("version", "granularity"), [(2, "file"), (2, "partition"), (3, "file")], ids=["files", "partitions", "vectors"]
)
def test_a_run_rewrites_exactly_the_files_due_for_deleted_rows(lake: Lake, version: int, granularity: str) -> None:
    """Each of two files loses half of its rows. The deleted rows of a delete file for the partition are spread over
    its files."""
    properties = {**MERGE_ON_READ, "write.delete.granularity": granularity}
    topic = lake.topic(format_version=version, properties=properties)
    topic.ingest(2, count=100)
    topic.sql("DELETE FROM {t} WHERE id < 50 OR id >= 150")
    due = settle(topic, NOW.model_copy(update={"target_file_bytes": 1000}))  # no file is small
    deletes = (due.delete_files, due.due_files, due.due_for_deletes)
    assert deletes == (2 if granularity == "file" else 1, 2, 2)
    assert topic.ids() == list(range(50, 150))


def test_a_run_rewrites_exactly_the_files_due_for_deleted_values(lake: Lake) -> None:
    """Equality deletes, as streaming upserts of other engines write them. They delete older rows, but no rows of
    their own or later commits."""
    topic = lake.topic()
    topic.ingest(2, count=10)
    for number in range(3):
        delete_values(topic, [number * 3, number * 3 + 1])
    topic.ingest(1, count=10)
    work = NOW.model_copy(update={"target_file_bytes": 1000})
    due = settle(topic, work)
    assert (due.delete_files, due.due_files, due.due_for_deletes) == (3, 2, 2)
    assert topic.ids() == [2, 5, *range(8, 30)]


def test_the_debt_includes_metadata_of_dead_letters(lake: Lake) -> None:
    topic = lake.topic()
    topic.ingest(4)
    alone = owed(topic)
    topic.dead_letters()
    both = owed(topic)
    assert both.metadata_bytes > alone.metadata_bytes
    assert (both.data_files, both.snapshots) == (alone.data_files, alone.snapshots)
