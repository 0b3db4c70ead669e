"""Every acknowledged record is in the table or its dead letters exactly once, whatever fails: driver, catalog or
table."""

import random
import threading
from collections.abc import Sequence
from typing import Any, get_args

import pytest
from confluent_kafka import TopicPartition

from firn.model import names
from firn.model.jobs import CatalogConnection, IngestJob
from firn_spark import failpoints
from tests.integration.ingestion.world import WAIT, World, exactly, maintain, places, value
from tests.servers.process import PATIENCE, await_true
from tests.servers.proxies.tcp import Proxy


def audit(world: World, job: IngestJob, ends: dict[int, int]) -> None:
    assert places([*world.rows(job), *world.dead(job)]) == exactly(ends)


def await_all(world: World, job: IngestJob, end: int) -> None:
    world.await_offsets(lambda: world.landed(job) == {0: end}, f"offset {end}", job)


def some(first: int, count: int = 20) -> list[bytes]:
    """Return records, every fifth of which is bad."""
    return [b"bad %d" % n if n % 5 == 0 else value(n) for n in range(first, first + count)]


def good(first: int, count: int = 10) -> list[bytes]:
    """Return valid records."""
    return [value(n) for n in range(first, first + count)]


TABLE_PLACES = ("after-data-files", "before-commit", "after-commit", "after-readback")
"""Places that a commit of the table passes first if no record is bad. Dead letters cause commits without rows before
it."""
LANDED_PLACES = ("after-commit", "after-readback")
IN_EACH_RUN = ("after-data-files", "in-commit", "after-commit")
"""The places of `make test`. `make test-long` fails at all of them."""


def passing(name: str, first: int) -> list[bytes]:
    """Return records whose rows or dead letters are under way at the first passage of this place."""
    return good(first, 20) if name in TABLE_PLACES else some(first)


def topic_with(world: World, records: Sequence[bytes], **changes: Any) -> tuple[str, IngestJob]:
    """Return a topic with these records, all landed, and its contract. The driver continues to run."""
    topic = world.topic()
    job = world.job(topic, **changes)
    world.produce(topic, records)
    world.apply(job)
    world.start()
    await_all(world, job, len(records))
    return topic, job


def failed(world: World, name: str) -> None:
    """Let the driver fail once at this place."""
    topic = world.topic()
    job = world.job(topic)
    world.produce(topic, passing(name, 0))
    world.apply(job)
    world.start(f"{name}=raise:1")
    await_all(world, job, 20)
    world.produce(topic, some(20))
    await_all(world, job, 40)
    audit(world, job, {0: 40})


@pytest.mark.parametrize(
    "name",
    [
        name if name in IN_EACH_RUN else pytest.param(name, marks=pytest.mark.long)
        for name in get_args(failpoints.Ingestion)
    ],
)
def test_a_failure_at_each_place_lands_each_record_once(world: World, name: str) -> None:
    failed(world, name)


def test_dead_letters_are_read_back_under_any_catalog_and_namespace(world: World, lake: CatalogConnection) -> None:
    catalog, namespace = f"eu-{world.suffix}", str(int(world.suffix, 16))
    world.add_catalog(catalog, lake)
    topic = world.topic()
    job = world.job(topic, table={"catalog": catalog, "namespace": namespace})
    world.produce(topic, some(0))
    world.apply(job)
    world.start("after-dlq-commit=raise:1")
    await_all(world, job, 20)
    audit(world, job, {0: 20})


def killed(world: World, names_: Sequence[str]) -> None:
    """Kill a driver at each of the places in turn, on the same topic."""
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    end = 0
    for name in names_:
        world.produce(topic, passing(name, end))
        before = len(world.rows(job)) if end else 0
        end += 20
        world.run_until_killed(f"{name}=kill:1")
        rows = world.rows(job)
        if name in LANDED_PLACES:
            assert len(rows) == end
        else:
            assert len(rows) == before
        assert not places([*rows, *world.dead(job)]) - exactly({0: end})
    world.start()
    await_all(world, job, end)
    audit(world, job, {0: end})


def test_kill_9_around_commits_lands_each_record_once(world: World) -> None:
    # The third driver reads the dead letters of the second one back.
    killed(world, ["after-commit", "after-dlq-commit", "after-dlq-commit"])


def test_dead_letters_of_a_killed_round_are_found_after_maintenance(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    world.start()
    for number in range(4):
        world.produce(topic, some(number * 20))
        await_all(world, job, (number + 1) * 20)
    world.stop()
    world.produce(topic, some(80))
    world.run_until_killed("after-dlq-commit=kill:1")
    dead = len(world.dead(job))
    assert dead == 20
    assert maintain(world, job).commits == 4
    world.start()
    await_all(world, job, 100)
    audit(world, job, {0: 100})
    assert len(world.dead(job)) == dead


# With a dead-letter table, the first commit of a new driver claims it, without rows. Its creation happens once for a
# topic.
EACH_PLACE = (*TABLE_PLACES, *(name for name in get_args(failpoints.Ingestion) if name not in TABLE_PLACES))


@pytest.mark.long
def test_kill_9_at_each_place_lands_each_record_once(world: World) -> None:
    killed(world, EACH_PLACE)


def test_a_restart_continues_at_the_offsets_of_the_table(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    for round_ in range(3):
        world.produce(topic, some(round_ * 20))
        world.start()
        await_all(world, job, (round_ + 1) * 20)
        world.stop()
    audit(world, job, {0: 60})


def fenced(world: World) -> None:
    """Let two drivers ingest the same three topics."""
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


def test_of_two_drivers_one_is_fenced_and_records_land_once(world: World) -> None:
    fenced(world)


def test_a_fenced_driver_takes_its_topic_back_after_the_other_driver_stops(world: World) -> None:
    topic = world.topic()
    job = world.job(topic)
    world.apply(job)
    old = world.start()
    world.produce(topic, some(0))
    await_all(world, job, 20)
    state = world.await_state(job, "CaughtUp", old)
    assert state.rows + state.dead_letters == 20
    new = world.start()
    world.await_state(job, "CaughtUp", new)
    # Both drivers see these records. The later claim counts, and one of the two is fenced.
    world.produce(topic, some(20))
    await_all(world, job, 40)
    end, states = 40, {}
    while "Fenced" not in states:
        world.produce(topic, some(end))
        end += 20
        await_all(world, job, end)
        states = {
            progress.state: driver for driver in (old, new) if (progress := world.progress(job, driver)) is not None
        }
    fenced, other = states["Fenced"], old if states["Fenced"] is new else new
    other.loop.stop()
    world.produce(topic, some(end))
    await_all(world, job, end + 20)
    assert world.await_state(job, "CaughtUp", fenced)
    audit(world, job, {0: end + 20})


def unanswered(world: World, flaky: Proxy, after: int) -> None:
    """Lose the answer to a commit after ``after`` other commits of a round."""
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


@pytest.mark.parametrize(
    "after", [pytest.param(0, marks=pytest.mark.long, id="dead letters"), pytest.param(1, id="table")]
)
def test_a_commit_without_an_answer_lands_each_record_once(world: World, flaky: Proxy, after: int) -> None:
    unanswered(world, flaky, after)


def test_a_recreated_topic_is_read_from_its_beginning(world: World) -> None:
    topic, job = topic_with(world, some(0))
    before = world.topic_id(topic)
    world.delete(topic)
    world.await_state(job, "BackingOff")
    world.create(topic)
    world.produce(topic, some(0, 10))
    await_all(world, job, 10)
    assert world.topic_id(topic) != before
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 20}) + exactly({0: 10})


@pytest.mark.parametrize(
    "history",
    [pytest.param("kept", marks=pytest.mark.long), "expired", pytest.param("compacted", marks=pytest.mark.long)],
)
def test_dead_letters_of_an_earlier_topic_hide_no_record(
    world: World, monkeypatch: pytest.MonkeyPatch, history: str
) -> None:
    """The driver ends between the commits of the two tables of a re-created topic, and the dead-letter table has
    lost its commit data."""
    between = threading.Event()

    def fail(_: failpoints.Failpoints, name: str) -> None:
        if name == "after-dlq-commit":
            between.set()
        # No retry commits anything more.
        if between.is_set():
            raise failpoints.FailpointError(name)

    topic, job = topic_with(world, some(0))
    world.stop()
    world.delete(topic)
    world.create(topic)
    world.produce(topic, [*(value(number) for number in range(6)), b"bad", *some(10)])
    with monkeypatch.context() as patch:
        patch.setattr(failpoints.Failpoints, "reach", fail)
        world.start()
        assert between.wait(WAIT * PATIENCE)
        world.stop()
    letters = world.table(job, "__dlq")
    assert (len(world.rows(job)), len(world.dead(job))) == (16, 4 + 5)
    if history == "compacted":
        table = f"{job.table.namespace}.{job.table.name}__dlq"
        world.spark.sql(
            f"call lake.system.rewrite_data_files(table => '{table}', options => map('rewrite-all', 'true'))"
        )
        letters.refresh()
    if history != "kept":
        letters.newAppend().set(names.SUMMARY_KIND, "compact").commit()
        letters.expireSnapshots().expireOlderThan(2**62).retainLast(1).commit()
        assert len(world.snapshots(job, "__dlq")) == 1
    world.start()
    await_all(world, job, 27)
    assert places([*world.rows(job), *world.dead(job)]) == exactly({0: 20}) + exactly({0: 27})


def test_a_contract_of_another_topic_id_waits(world: World) -> None:
    topic = world.topic()
    job = world.job(topic, topic_id="AAAAAAAAAAAAAAAAAAAAAA")
    world.produce(topic, some(0))
    world.apply(job)
    world.start()
    world.await_state(job, "BackingOff")
    assert world.rows(job) == []
    world.apply(job.model_copy(update={"topic_id": world.topic_id(topic)}))
    await_all(world, job, 20)


def test_commits_of_other_writers_do_not_stop_rounds(world: World) -> None:
    topic, job = topic_with(world, some(0))
    stop = threading.Event()

    def others() -> None:
        while not stop.is_set():
            world.spark.sql(f"delete from {job.table.identifier} where id = -1")
            world.table(job).newAppend().set(names.SUMMARY_KIND, "compact").commit()
            # A writer without pauses may win every race on a slow machine. Optimistic commits promise no progress
            # against it.
            stop.wait(0.1)

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


def test_offsets_survive_the_expiry_of_their_snapshots(world: World) -> None:
    topic, job = topic_with(world, some(0))
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


def test_records_land_again_after_a_rollback(world: World) -> None:
    topic, job = topic_with(world, good(0))
    snapshot = world.table(job).currentSnapshot().snapshotId()
    world.produce(topic, good(10))
    await_all(world, job, 20)
    world.table(job).manageSnapshots().rollbackTo(snapshot).commit()
    world.produce(topic, [value(20)])
    await_all(world, job, 21)
    audit(world, job, {0: 21})


def test_a_dropped_table_is_recreated_with_every_record(world: World) -> None:
    topic, job = topic_with(world, good(0))
    world.spark.sql(f"drop table {job.table.identifier}")
    world.produce(topic, [value(10)])
    world.await_offsets(lambda: world.table(job) is not None and world.landed(job) == {0: 11}, "offset 11", job)
    audit(world, job, {0: 11})


def test_records_deleted_by_retention_are_reported(world: World) -> None:
    topic, job = topic_with(world, good(0))
    world.stop()
    world.produce(topic, good(10))
    place = TopicPartition(topic, 0, 15)
    world.admin.delete_records([place])[place].result(30)
    world.start()
    await_all(world, job, 20)
    assert [row["id"] for row in world.rows(job)] == [*range(10), *range(15, 20)]
    losses = world.await_state(job, "CaughtUp").losses
    assert losses is not None
    assert [(gap.partition, gap.start, gap.end) for gap in losses.ranges] == [(0, 10, 15)]


def killed_at_random(world: World, seed: int, kills: int) -> None:
    """Kill drivers at random moments while a producer writes."""
    choose = random.Random(seed)
    topic = world.topic(partitions=1)
    job = world.job(topic, freshness_ms=500)
    world.apply(job)
    end, stop = 0, threading.Event()

    def write() -> None:
        nonlocal end
        # Not at full speed, because the test counts every record at the end.
        while not stop.wait(0.05):
            world.produce(topic, some(end))
            end += 20

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(kills):
            with world.spawn() as driver:
                landed = world.landed(job)
                await_true("a commit", lambda landed=landed: world.landed(job) != landed, 120)  # type: ignore[misc]
                # The time of the kill is the input: any time in the following rounds.
                threading.Event().wait(choose.uniform(0, 4))
                driver.process.kill()
    finally:
        stop.set()
        writer.join()
    world.start()
    await_all(world, job, end)
    audit(world, job, {0: end})


@pytest.mark.long
@pytest.mark.parametrize(("seed", "kills"), [(0, 1), (1, 8), (2, 8)])
def test_kill_9_at_random_moments_lands_each_record_once(world: World, seed: int, kills: int) -> None:
    killed_at_random(world, seed, kills)
