"""Every acknowledged record is in the table or its dead letters exactly once, whatever happens to the driver, the catalog and the table."""

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any, get_args

import pytest

from firn.model import names
from firn.model.jobs import CatalogConnection
from firn_spark import failpoints
from tests.integration.ingestion.proxy import Proxy
from tests.integration.ingestion.world import World, exactly, places, value
from tests.servers.postgres import Postgres
from tests.servers.process import await_true


def audit(world: World, job: Any, ends: dict[int, int]) -> None:
    assert places([*world.rows(job), *world.dead(job)]) == exactly(ends)


def await_all(world: World, job: Any, end: int) -> None:
    world.await_offsets(lambda: world.landed(job) == {0: end}, f"offset {end}", job)


def some(first: int, count: int = 20) -> list[bytes]:
    """Records of which every fifth is bad."""
    return [b"bad %d" % n if n % 5 == 0 else value(n) for n in range(first, first + count)]


@pytest.mark.parametrize("name", get_args(failpoints.Ingestion))
def test_a_failure_at_each_place(world: World, name: str) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, some(0))
    world.apply(job)
    world.start(f"{name}=raise:1")
    await_all(world, job, 20)
    world.produce(topic, some(20))
    await_all(world, job, 40)
    audit(world, job, {0: 40})


def killed(world: World, names_: Sequence[str]) -> None:
    """A driver is killed at each of the places in turn, on the same topic."""
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    end = 0
    for name in names_:
        world.produce(topic, some(end))
        end += 20
        with world.spawn(f"{name}=kill:1") as driver:
            assert driver.process.wait(240) == -9, (world.directory / "driver.log").read_text()[-3000:]
        assert not places([*world.rows(job), *world.dead(job)]) - exactly({0: end})
    world.start()
    await_all(world, job, end)
    audit(world, job, {0: end})


def test_kill_9_between_the_two_tables(world: World) -> None:
    killed(world, ["after-dlq-create", "after-dlq-commit"])


@pytest.mark.long
def test_kill_9_at_each_place(world: World) -> None:
    # before-dlq-create and after-dlq-create are passed once in a topic's life: they come first.
    killed(world, get_args(failpoints.Ingestion)[1:] + get_args(failpoints.Ingestion)[:1])


def test_a_restart_goes_on_where_the_table_is(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    for round_ in range(3):
        world.produce(topic, some(round_ * 20))
        world.start()
        await_all(world, job, (round_ + 1) * 20)
        world.stop()
    audit(world, job, {0: 60})


def test_two_drivers_at_once(world: World) -> None:
    topics = [world.topic(f"t{number}") for number in range(3)]
    jobs = [world.job(topic, freshness_ms=500) for topic in topics]
    world.apply(*jobs)
    drivers = [world.start(), world.start()]
    for round_ in range(6):
        for topic in topics:
            world.produce(topic, some(round_ * 20))
        for job in jobs:
            end = (round_ + 1) * 20
            world.await_offsets(lambda job=job, end=end: world.landed(job) == {0: end}, f"offset {end}", job)  # type: ignore[misc]
    for job in jobs:
        audit(world, job, {0: 120})
        states = {progress.state for driver in drivers if (progress := world.progress(job, driver)) is not None}
        assert "Fenced" in states


def test_a_driver_whose_topics_all_have_another_writer_ends(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    old = world.start()
    world.produce(topic, some(0))
    await_all(world, job, 20)
    state = world.await_state(job, "CaughtUp", old)
    assert state.rows + state.dead_letters == 20
    # A newer driver takes over while the old one is still there.
    _, thread = world.drivers[0]
    world.settings = world.settings.model_copy(update={"group": "test"})
    table = world.table(job)
    table.updateProperties().set("unrelated", "1").commit()
    new = world.start()
    for round_ in range(1, 30):
        world.produce(topic, some(round_ * 20))
        await_all(world, job, (round_ + 1) * 20)
        if not thread.is_alive():
            break
        if not world.drivers[1][1].is_alive():
            thread = world.drivers[1][1]
            break
    assert not thread.is_alive()
    assert new is not old
    audit(world, job, world.landed(job))  # type: ignore[arg-type]


@pytest.fixture
def flaky(world: World, lake: CatalogConnection, database: Postgres) -> Iterator[Proxy]:
    """The catalog ``flaky``: the usual one, behind a proxy."""
    with Proxy(database.port) as proxy:
        connection = lake.model_copy(
            update={"uri": lake.uri.replace(str(database.port), str(proxy.port)) + "?prepareThreshold=0"}
        )
        world.add_catalog(f"flaky_{world.suffix}", connection)
        yield proxy


@pytest.mark.parametrize("after", [0, 1], ids=["dead letters", "table"])
def test_a_catalog_that_commits_and_does_not_answer(world: World, flaky: Proxy, after: int) -> None:
    topic = world.topic()
    job = world.job(topic, table={"catalog": f"flaky_{world.suffix}"})
    world.apply(job)
    world.start()
    end = 0
    for number in range(3):
        if number == 1:
            flaky.lose_answer_to(b"UPDATE iceberg_tables", after)
        world.produce(topic, some(end))
        end += 20
        await_all(world, job, end)
    assert flaky.lost == 1
    audit(world, job, {0: end})


def test_a_topic_that_is_deleted_and_made_again_begins_at_its_beginning(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, some(0))
    world.apply(job)
    world.start()
    await_all(world, job, 20)
    before = world.topic_id(topic)
    world.delete(topic)
    world.await_state(job, "BackingOff")
    world.create(topic)
    world.produce(topic, some(0, 10))
    await_all(world, job, 10)
    assert world.topic_id(topic) != before
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 20}) + exactly({0: 10})


def test_the_contract_of_another_topic_id_waits(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    world.produce(topic, some(0))
    world.apply(job)
    world.start()
    world.await_state(job, "BackingOff")
    assert world.rows(job) == []
    world.apply(job.model_copy(update={"topic_id": world.topic_id(topic)}))
    await_all(world, job, 20)


def test_commits_of_others_do_not_matter(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, some(0))
    world.apply(job)
    world.start()
    await_all(world, job, 20)
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            world.spark.sql(f"delete from {job.table.identifier} where id = -1")
            world.table(job).newAppend().set(names.SUMMARY_KIND, "compact").commit()

    thread = threading.Thread(target=others)
    thread.start()
    try:
        for number in range(1, 5):
            world.produce(topic, some(number * 20))
            await_all(world, job, (number + 1) * 20)
    finally:
        stop.set()
        thread.join()
    audit(world, job, {0: 100})


def test_offsets_outlive_the_snapshots_that_brought_them(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, some(0))
    world.apply(job)
    world.start()
    await_all(world, job, 20)
    world.table(job).newAppend().set(names.SUMMARY_KIND, "compact").commit()
    world.table(job).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    world.produce(topic, some(20))
    await_all(world, job, 40)
    world.table(job).expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
    world.stop()
    world.produce(topic, some(40))
    world.start()
    await_all(world, job, 60)
    audit(world, job, {0: 60})


def test_after_a_rollback_the_records_land_again(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    world.start()
    await_all(world, job, 10)
    snapshot = world.table(job).currentSnapshot().snapshotId()
    world.produce(topic, [value(number) for number in range(10, 20)])
    await_all(world, job, 20)
    world.table(job).manageSnapshots().rollbackTo(snapshot).commit()
    world.produce(topic, [value(20)])
    await_all(world, job, 21)
    audit(world, job, {0: 21})


def test_a_dropped_table_is_made_again_with_every_record(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    world.start()
    await_all(world, job, 10)
    world.spark.sql(f"drop table {job.table.identifier}")
    world.produce(topic, [value(10)])
    world.await_offsets(lambda: world.table(job) is not None and world.landed(job) == {0: 11}, "offset 11", job)
    audit(world, job, {0: 11})


def test_records_that_retention_deleted_are_said(world: World) -> None:
    from confluent_kafka import TopicPartition

    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, [value(number) for number in range(10)])
    world.apply(job)
    world.start()
    await_all(world, job, 10)
    world.stop()
    world.produce(topic, [value(number) for number in range(10, 20)])
    place = TopicPartition(topic, 0, 15)
    world.admin.delete_records([place])[place].result(30)
    world.start()
    await_all(world, job, 20)
    assert [row["id"] for row in world.rows(job)] == [*range(10), *range(15, 20)]
    assert "no longer had 5 offsets" in world.await_state(job, "CaughtUp").message


@pytest.mark.parametrize(
    ("seed", "kills"), [(0, 1), pytest.param(1, 8, marks=pytest.mark.long), pytest.param(2, 8, marks=pytest.mark.long)]
)
def test_kill_9_at_random_moments(world: World, seed: int, kills: int) -> None:
    choose = random.Random(seed)
    topic = world.topic(partitions=1)
    job = world.job(topic, freshness_ms=500)
    world.apply(job)
    end, stop = 0, threading.Event()

    def write() -> None:
        nonlocal end
        while not stop.is_set():
            world.produce(topic, some(end))
            end += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(kills):
            with world.spawn() as driver:
                landed = world.landed(job)
                await_true("a commit", lambda landed=landed: world.landed(job) != landed, 120)  # type: ignore[misc]
                # The moment is the point here: anywhere in the rounds that follow.
                threading.Event().wait(choose.uniform(0, 4))
                driver.process.kill()
    finally:
        stop.set()
        writer.join()
    world.start()
    await_all(world, job, end)
    audit(world, job, {0: end})
