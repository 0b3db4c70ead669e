"""Records that the filter of a topic leaves out are neither rows nor dead letters, and audits prove their number."""

from firn.model import names
from firn.model.jobs import IngestJob
from firn.model.progress import Filtered
from tests.integration.ingestion.test_audits import audited
from tests.integration.ingestion.world import World, audit_of, value


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
