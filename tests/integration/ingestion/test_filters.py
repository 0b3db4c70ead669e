"""Records that the filter of a topic leaves out are neither rows nor dead letters, and audits prove their number."""

import pytest

from firn.model import names
from firn.model.jobs import IngestJob, StartFrom
from firn.model.progress import Filtered
from tests.integration.ingestion.test_audits import audited
from tests.integration.ingestion.world import Record, World, audit_of, value


def filtered(world: World, job: IngestJob) -> Filtered:
    return Filtered.read(world.table(job).properties().get(names.TABLE_FILTERED))


def test_each_commit_has_the_number_of_its_filtered_records_across_failures_and_rollbacks(world: World) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic, filter="id >= 100 and id < 200")
    world.produce(topic, [value(number) for number in range(300)])
    world.apply(job)
    world.start("before-commit=raise:1")
    world.await_offsets(lambda: sum(world.landed(job).values()) == 300, "all offsets", job)
    assert sorted(row["id"] for row in world.rows(job)) == [*range(100, 200)]
    assert filtered(world, job).records == 200
    snapshot = world.table(job).currentSnapshot().snapshotId()
    world.produce(topic, [value(number) for number in range(150, 250)])
    world.await_offsets(lambda: sum(world.landed(job).values()) == 400, "later offsets", job)
    world.table(job).manageSnapshots().rollbackTo(snapshot).commit()
    world.produce(topic, [value(0)])
    world.await_offsets(lambda: sum(world.landed(job).values()) == 401, "offsets after a rollback", job)
    progress = world.progress(job)
    assert progress is not None
    assert progress.filtered > 0
    world.stop()
    assert filtered(world, job).records == 251
    found = audit_of(world, job)
    assert found.exact
    assert sum(part.filtered for part in found.partitions) == 251
    assert "the filter of the topic left out 251 records (firn.filtered)" in found.notes
    report = audited(world, job)
    assert report is not None
    assert (report.missing, report.filtered, report.unproved, report.wrong) == (0, 251, 0, 0)
    world.spark.sql(f"delete from {job.table.identifier} where id = 150")
    lost = audit_of(world, job)
    assert not lost.exact
    assert sum(part.missing for part in lost.partitions) == 2
    report = audited(world, job)
    assert report is not None
    assert report.missing == 2


@pytest.mark.parametrize(
    "start", [StartFrom(kind="Latest"), StartFrom(kind="Timestamp", timestamp_ms=1_700_000_000_040)]
)
def test_records_before_the_start_are_not_filtered_and_not_lost(world: World, start: StartFrom) -> None:
    topic = world.topic(partitions=2)
    job = world.job(topic, filter="id >= 50", start_from=start)
    # Half of them are before the time.
    world.produce(topic, [Record(value(n), partition=n % 2, timestamp=1_700_000_000_000 + n) for n in range(80)])
    world.apply(job)
    world.start()
    world.await_offsets(lambda: sum(world.landed(job).values()) == 80, "the first offsets", job)
    later = [Record(value(n), partition=n % 2, timestamp=1_700_000_001_000 + n) for n in (*range(10), *range(80, 90))]
    world.produce(topic, later)
    world.await_offsets(lambda: sum(world.landed(job).values()) == 100, "all offsets", job)
    world.stop()
    before = 80 if start.kind == "Latest" else 40
    rows = sorted(row["id"] for row in world.rows(job))
    assert rows == [*range(max(before, 50), 90)]
    assert filtered(world, job).records == 100 - before - len(rows)
    found = audit_of(world, job)
    assert found.exact, found
    report = audited(world, job)
    assert report is not None
    # Nothing shows why a record before the start has no row.
    expected = (0, 100 - before - len(rows), before, 0)
    assert (report.missing, report.filtered, report.unproved, report.wrong) == expected


def test_an_audit_decides_about_a_first_commit_that_only_has_filtered_records(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, filter="id >= 50")
    world.produce(topic, [value(n) for n in range(20)])
    world.apply(job)
    world.start()
    world.await_offsets(lambda: world.landed(job) == {0: 20}, "the first commit", job)
    world.produce(topic, [value(n) for n in range(50, 60)])
    world.await_rows(job, 10)
    world.stop()
    report = audited(world, job)
    assert report is not None
    assert (report.missing, report.filtered, report.unproved, report.wrong) == (0, 20, 0, 0)
