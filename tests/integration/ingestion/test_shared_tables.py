"""Several topics land in one table. Each topic lands exactly once, whatever happens to the others."""

import threading
from collections import Counter
from typing import Any

import pytest

from firn.model import names, progress
from firn.model.jobs import Column, IngestJob, RecordSchema
from firn.model.maintenance import AuditReport
from firn.model.progress import LOOKS
from firn_spark.ingestion import ended_topics
from firn_spark.kafka.admin import Kafka
from firn_spark.maintenance.steps.audit import Source, Tables
from firn_spark.maintenance.steps.audit import audit as run_audit
from firn_spark.tables.commits import shared_offsets
from firn_spark.tables.java_tables import quoted
from tests.integration.ingestion.test_exactly_once import some
from tests.integration.ingestion.world import FIELDS, World, audit_of, maintain, value
from tests.servers.process import await_true


def sharing(world: World, topic: str, **changes: Any) -> IngestJob:
    """Return the contract of a topic whose table other topics share."""
    table = {"name": f"all_{world.suffix}", "shared_by": topic, **changes.pop("table", {})}
    return world.job(topic, version=2, topic_id=world.topic_id(topic), table=table, **changes)


def await_landed(world: World, job: IngestJob, ends: dict[int, int]) -> None:
    world.await_offsets(lambda: world.landed(job) == ends, f"offsets {ends} of {job.topic}", job)


def started(world: World, failpoints: str = "") -> list[IngestJob]:
    """Let a driver land 20 records of each of two topics in one table."""
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    for job in jobs:
        world.produce(job.topic, some(0))
    world.apply(*jobs)
    world.start(failpoints)
    for job in jobs:
        await_landed(world, job, {0: 20})
    return jobs


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


def check(world: World, job: IngestJob, end: int) -> None:
    """Check that each of ``end`` records of a topic is a row or a dead letter, once."""
    own = [row for row in world.rows(job) if row["_kafka"]["topic_id"] == job.topic_id]
    assert {row["_kafka"]["topic"] for row in own} == {job.topic}
    name = quoted(job.table.catalog, job.table.namespace, job.table.dead_letters)
    dead = world.spark.read.format("iceberg").load(name).collect() if letters(world, job) is not None else []
    offsets = [row["_kafka"]["offset"] for row in [*own, *dead]]
    assert Counter(offsets) == Counter(range(end))
    assert reported(world, job) == AuditReport(topic_id=job.topic_id or "", offsets=end)
    found = audit_of(world, job, letters=True)
    assert found.exact
    assert not sum(partition.unproved for partition in found.partitions)


def test_two_topics_with_the_same_offsets_land_exactly_once(world: World) -> None:
    first, second = (world.topic(name) for name in ("eu", "us"))
    more = RecordSchema(format="Json", fields=(*FIELDS, Column(name="state", type="string")))
    layout = {"partition_by": ("_kafka.topic",)}
    jobs = sharing(world, first, table=layout), sharing(world, second, record_schema=more, table=layout)
    for job in jobs:
        world.produce(job.topic, some(0))
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
    assert [world.landed(job) for job in jobs] == [{0: 20}, {0: 20}]
    world.produce(second, [value(n, state="NY") for n in range(20, 25)])
    world.start()
    await_landed(world, jobs[1], {0: 25})
    world.stop()
    check(world, jobs[0], 20)
    check(world, jobs[1], 25)
    assert {row["state"] for row in world.rows(jobs[0])} == {None, "NY"}


@pytest.mark.long
def test_topics_land_once_when_drivers_are_killed_around_commits(world: World) -> None:
    jobs = [sharing(world, world.topic(name)) for name in ("eu", "us")]
    world.apply(*jobs)
    end = 0
    for place in ("after-commit", "after-dlq-commit"):
        for job in jobs:
            world.produce(job.topic, some(end))
        end += 20
        world.run_until_killed(f"{place}=kill:1")
    world.start()
    for job in jobs:
        await_landed(world, job, {0: end})
    world.stop()
    for job in jobs:
        check(world, job, end)


@pytest.mark.parametrize("place", [pytest.param("after-dlq-commit", marks=pytest.mark.long), "after-commit"])
def test_a_failure_around_a_commit_affects_no_other_topic(world: World, place: str) -> None:
    jobs = started(world, f"{place}=raise:2")
    world.stop()
    for job in jobs:
        check(world, job, 20)


@pytest.mark.long
def test_drivers_of_two_groups_commit_to_one_table_at_the_same_time(world: World) -> None:
    first, second = world.topic("eu"), world.topic("us")
    jobs = sharing(world, first), sharing(world, second, group="other")
    world.apply(*jobs)
    drivers = world.start(), world.start(group="other")
    done = threading.Event()
    ends = dict.fromkeys((first, second), 0)

    def produce(topic: str) -> None:
        while not done.is_set():
            world.produce(topic, some(ends[topic], 5))
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
    jobs = started(world)
    world.remove(jobs[0])
    for job in jobs:
        world.produce(job.topic, some(20))
    await_landed(world, jobs[1], {0: 40})
    assert world.landed(jobs[0]) == {0: 20}
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
    jobs = started(world)
    world.stop()
    world.delete(jobs[0].topic)
    await_true("the topic is gone", lambda: jobs[0].topic not in world.admin.list_topics(timeout=30).topics, 60)
    world.create(jobs[0].topic)
    await_true("the topic is there", lambda: jobs[0].topic in world.admin.list_topics(timeout=30).topics, 60)
    again = jobs[0].model_copy(update={"topic_id": world.topic_id(jobs[0].topic)})
    world.produce(again.topic, some(0, 10))
    world.apply(again)
    world.start()
    await_landed(world, again, {0: 10})
    world.stop()
    assert reported(world, again) == AuditReport(topic_id=again.topic_id or "", offsets=10)
    assert audit_of(world, again, letters=True).exact
    check(world, jobs[1], 20)
    own = [row["_kafka"]["offset"] for row in world.rows(again) if row["_kafka"]["topic_id"] == again.topic_id]
    assert own == [n for n in range(10) if n % 5]
    assert sum(row["_kafka"]["topic_id"] == jobs[0].topic_id for row in world.rows(again)) == 16


def test_new_topics_end_the_entry_of_a_deleted_topic(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOOK_MS", 0)
    monkeypatch.setattr(progress, "ENDED_MS", 0)
    monkeypatch.setattr(ended_topics, "PAUSE", 0.0)
    gone, kept = started(world)
    world.stop()
    world.delete(gone.topic)
    await_true("the topic is gone", lambda: gone.topic not in world.admin.list_topics(timeout=30).topics, 60)
    world.remove(gone)
    world.remove(kept)
    world.start()
    for number in range(LOOKS):
        assert names.of_topic(names.TABLE_CLAIM, gone.topic_id or "") in world.table(kept).properties()
        job = sharing(world, world.topic(f"new-{number}"))
        world.produce(job.topic, some(0))
        world.apply(job)
        await_landed(world, job, {0: 20})
    world.stop()
    known = shared_offsets(world.table(kept))
    assert known is not None
    assert gone.topic_id not in known.topics
    assert len(known.topics) == 1 + LOOKS
    assert not [key for key in world.table(kept).properties() if str(key).endswith(f".{gone.topic_id}")]
    world.produce(kept.topic, some(20))
    world.apply(kept)
    world.start()
    await_landed(world, kept, {0: 40})
    world.stop()
    check(world, kept, 40)


def test_a_table_of_one_topic_is_not_shared_and_the_other_way_round(world: World) -> None:
    first, second = world.topic("eu"), world.topic("us")
    for topic in (first, second):
        world.produce(topic, some(0))
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
