"""Several topics land in one table. Each topic lands exactly once, whatever happens to the others."""

import threading
from collections import Counter
from typing import Any

import pytest
from pyiceberg.io import PY_IO_IMPL

from firn.model.errors import ExitCode
from firn.model.jobs import Column, IngestJob, RecordSchema
from firn.model.maintenance import AuditReport, CompactionWork, MaintenanceRun, RetentionWork, SnapshotsWork, TableWork
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli import audit
from firn_operator.cli.lake import ARROW_IO
from firn_spark.kafka.admin import Kafka
from firn_spark.leases import Files, Leases
from firn_spark.maintenance.application import Run
from firn_spark.maintenance.steps.audit import Source, Tables
from firn_spark.maintenance.steps.audit import audit as run_audit
from firn_spark.tables.commits import read_landed, view_of
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.world import FIELDS, World, value
from tests.servers.process import await_true


def sharing(world: World, topic: str, **changes: Any) -> IngestJob:
    """Return the contract of a topic whose table other topics share."""
    table = {"name": f"all_{world.suffix}", "shared_by": topic, **changes.pop("table", {})}
    return world.job(topic, version=2, topic_id=world.topic_id(topic), table=table, **changes)


def records(first: int, count: int = 20) -> list[bytes]:
    """Return records, every fifth of which is bad."""
    return [b"bad %d" % n if n % 5 == 0 else value(n) for n in range(first, first + count)]


def landed(world: World, job: IngestJob) -> dict[int, int]:
    table = world.table(job)
    state = read_landed(table, view_of(job)) if table is not None else None
    return dict(state.offsets) if state is not None else {}


def await_landed(world: World, job: IngestJob, ends: dict[int, int]) -> None:
    world.await_offsets(lambda: landed(world, job) == ends, f"offsets {ends} of {job.topic}", job)


def letters(world: World, job: IngestJob) -> Any | None:
    return world.tables.load(job.table.catalog, job.table.namespace, job.table.dead_letters)


def reported(world: World, job: IngestJob) -> AuditReport | None:
    """Return the audit of a maintenance run."""
    target, dead = job.table, letters(world, job)

    def source(name: str, table: Any, *, shared_by: str = "") -> Source:
        return Source(
            table, quoted(target.catalog, target.namespace, name), target.metadata_columns == "Flat", shared_by
        )

    rows = source(target.name, world.table(job), shared_by=target.shared_by)
    kafka = Kafka("classic", world.broker.connection)
    found = source(target.dead_letters, dead) if dead is not None else None
    return run_audit(world.spark, [Tables(rows, lambda: found)], kafka, job.topic, lambda: None)


def compared(world: World, job: IngestJob) -> audit.Audit:
    """Return the audit of the command."""
    connection = world.settings.catalogs[job.table.catalog]
    properties = {**connection.properties, PY_IO_IMPL: ARROW_IO, "s3.region": "us-east-1"}
    catalog = open_catalog(job.table.catalog, connection.model_copy(update={"properties": properties}))
    table = catalog.load_table((job.table.namespace, job.table.name))
    dead = (job.table.namespace, job.table.dead_letters)
    found = catalog.load_table(dead) if catalog.table_exists(dead) else None
    return audit.audit_tables({"bootstrap.servers": world.broker.bootstrap}, job.topic, [(table, found)], print)


def check(world: World, job: IngestJob, end: int) -> None:
    """Check that each of ``end`` records of a topic is a row or a dead letter, once."""
    own = [row for row in world.rows(job) if row["_kafka"]["topic_id"] == job.topic_id]
    assert {row["_kafka"]["topic"] for row in own} == {job.topic}
    name = quoted(job.table.catalog, job.table.namespace, job.table.dead_letters)
    dead = world.spark.read.format("iceberg").load(name).collect() if letters(world, job) is not None else []
    offsets = [row["_kafka"]["offset"] for row in [*own, *dead]]
    assert Counter(offsets) == Counter(range(end))
    assert reported(world, job) == AuditReport(topic_id=job.topic_id or "", offsets=end)
    found = compared(world, job)
    assert found.exact
    assert not sum(partition.unproved for partition in found.partitions)


def maintain(world: World, job: IngestJob, *sharers: str) -> None:
    """Compact the table and its dead letters, and expire all snapshots except the newest."""
    work = TableWork(
        uid=job.uid,
        namespace=job.namespace,
        name=job.name,
        table=job.table,
        table_uuid=str(world.table(job).uuid()),
        sharers=sharers,
        compaction=CompactionWork(open_grace_ms=0),
        retention=RetentionWork(enforce=True, snapshots=SnapshotsWork(max_age_ms=0, min_keep=1)),
    )
    contract = MaintenanceRun(name=f"run-{world.suffix}", tables=(work,), catalogs=world.settings.catalogs)
    run = Run(
        contract, world.spark, Leases(Files(str(world.directory / "leases")), contract.name, contract.lease_seconds)
    )
    assert run.work() == ExitCode.DONE, run.report()


def test_two_topics_with_the_same_offsets_land_exactly_once(world: World) -> None:
    first, second = (world.topic(name) for name in ("eu", "us"))
    more = RecordSchema(format="Json", fields=(*FIELDS, Column(name="state", type="string")))
    layout = {"partition_by": ("_kafka.topic",)}
    jobs = sharing(world, first, table=layout), sharing(world, second, record_schema=more, table=layout)
    for job in jobs:
        world.produce(job.topic, records(0))
    world.apply(*jobs)
    world.start()
    for job in jobs:
        await_landed(world, job, {0: 20})
    world.stop()
    for job in jobs:
        check(world, job, 20)
    # Only one snapshot stays, and it is not an ingestion commit of either topic.
    maintain(world, jobs[0], jobs[1].name)
    assert [len(list(each.snapshots())) for job in jobs if (each := letters(world, job)) is not None] == [1, 1]
    assert [landed(world, job) for job in jobs] == [{0: 20}, {0: 20}]
    world.produce(second, [value(n, state="NY") for n in range(20, 25)])
    world.start()
    await_landed(world, jobs[1], {0: 25})
    world.stop()
    check(world, jobs[0], 20)
    check(world, jobs[1], 25)
    assert {row["state"] for row in world.rows(jobs[0])} == {None, "NY"}


PLACES = ("after-dlq-commit", "after-commit")


@pytest.mark.long
def test_topics_land_once_when_drivers_are_killed_around_commits(world: World) -> None:
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    world.apply(*jobs)
    end = 0
    for place in ("after-commit", "after-dlq-commit"):
        for job in jobs:
            world.produce(job.topic, records(end))
        end += 20
        with world.spawn(f"{place}=kill:1") as driver:
            assert driver.process.wait(240) == -9, (world.directory / "driver.log").read_text()[-3000:]
    world.start()
    for job in jobs:
        await_landed(world, job, {0: end})
    world.stop()
    for job in jobs:
        check(world, job, end)


@pytest.mark.parametrize("place", PLACES)
def test_a_failure_around_a_commit_affects_no_other_topic(world: World, place: str) -> None:
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    for job in jobs:
        world.produce(job.topic, records(0))
    world.apply(*jobs)
    world.start(f"{place}=raise:2")
    for job in jobs:
        await_landed(world, job, {0: 20})
    world.stop()
    for job in jobs:
        check(world, job, 20)


def test_drivers_of_two_groups_commit_to_one_table_at_the_same_time(world: World) -> None:
    first, second = world.topic("eu"), world.topic("us")
    jobs = sharing(world, first), sharing(world, second, group="other")
    world.apply(*jobs)
    drivers = world.start(), world.start(group="other")
    done = threading.Event()
    ends = dict.fromkeys((first, second), 0)

    def produce(topic: str) -> None:
        while not done.is_set():
            world.produce(topic, records(ends[topic], 5))
            ends[topic] += 5
            done.wait(0.2)

    producers = [threading.Thread(target=produce, args=(job.topic,)) for job in jobs]
    for each in producers:
        each.start()

    def commits() -> set[str]:
        table = world.table(jobs[0])
        snapshots = table.snapshots() if table is not None else ()
        return {str(snapshot.summary().get("firn.topic-id")) for snapshot in snapshots if len(snapshots) > 12}

    try:
        await_true("commits of both topics", lambda: len(commits() - {"None"}) == 2, 240)
    finally:
        done.set()
        for each in producers:
            each.join()
    for job in jobs:
        await_landed(world, job, {0: ends[job.topic]})
    for job, driver in zip(jobs, drivers, strict=True):
        progress = world.progress(job, driver)
        assert progress is not None
        assert progress.state != "Fenced"
    world.stop()
    for job in jobs:
        check(world, job, ends[job.topic])


def test_a_topic_that_leaves_and_returns_continues_where_it_was(world: World) -> None:
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    for job in jobs:
        world.produce(job.topic, records(0))
    world.apply(*jobs)
    world.start()
    for job in jobs:
        await_landed(world, job, {0: 20})
    world.remove(jobs[0])
    for job in jobs:
        world.produce(job.topic, records(20))
    await_landed(world, jobs[1], {0: 40})
    assert landed(world, jobs[0]) == {0: 20}
    # Another resource continues the topic under a name of its own.
    renamed = jobs[0].table.model_copy(update={"shared_by": "another"})
    other = jobs[0].model_copy(update={"uid": "another", "name": "another", "table": renamed})
    world.apply(other)
    await_landed(world, other, {0: 40})
    world.stop()
    check(world, jobs[1], 40)
    own = [row["_kafka"]["offset"] for row in world.rows(other) if row["_kafka"]["topic_id"] == other.topic_id]
    assert sorted(own) == [n for n in range(40) if n % 5]


def test_a_topic_that_was_created_again_begins_at_its_start(world: World) -> None:
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    for job in jobs:
        world.produce(job.topic, records(0))
    world.apply(*jobs)
    world.start()
    for job in jobs:
        await_landed(world, job, {0: 20})
    world.stop()
    world.delete(jobs[0].topic)
    await_true("the topic is gone", lambda: jobs[0].topic not in world.admin.list_topics(timeout=30).topics, 60)
    world.create(jobs[0].topic)
    await_true("the topic is there", lambda: jobs[0].topic in world.admin.list_topics(timeout=30).topics, 60)
    again = jobs[0].model_copy(update={"topic_id": world.topic_id(jobs[0].topic)})
    world.produce(again.topic, records(0, 10))
    world.apply(again)
    world.start()
    await_landed(world, again, {0: 10})
    world.stop()
    assert reported(world, again) == AuditReport(topic_id=again.topic_id or "", offsets=10)
    assert compared(world, again).exact
    check(world, jobs[1], 20)
    own = [row["_kafka"]["offset"] for row in world.rows(again) if row["_kafka"]["topic_id"] == again.topic_id]
    assert own == [n for n in range(10) if n % 5]
    assert sum(row["_kafka"]["topic_id"] == jobs[0].topic_id for row in world.rows(again)) == 16


def test_a_table_of_one_topic_is_not_shared_and_the_other_way_round(world: World) -> None:
    first, second = world.topic("eu"), world.topic("us")
    for topic in (first, second):
        world.produce(topic, records(0))
    alone = world.job(first, topic_id=world.topic_id(first), table={"name": f"all_{world.suffix}"})
    shared = sharing(world, second)
    world.apply(alone)
    world.start()
    await_landed(world, alone, {0: 20})
    world.apply(shared)
    world.await_state(shared, "BackingOff", reason="ResourceConflict")
    world.stop()
    assert world.size(alone) == 16
    other = sharing(world, second, table={"name": f"more_{world.suffix}"})
    refused = world.job(first, topic_id=world.topic_id(first), uid="refused", table={"name": f"more_{world.suffix}"})
    world.apply(other)
    world.start()
    await_landed(world, other, {0: 20})
    world.remove(alone)
    world.apply(refused)
    world.await_state(refused, "BackingOff", reason="ResourceConflict")
    world.stop()
    assert world.size(other) == 16
