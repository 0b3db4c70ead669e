"""Every acknowledged record of a diskless topic lands exactly once if tasks read the bucket and drivers, commits or logs
fail. The faults are those of `test_exactly_once`, and each test shows where the tasks read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition

from firn.model.jobs import GroupSettings
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetching.access import Bucket
from firn_spark.worker.fetching.slices import ObjectRange, Slice
from tests.integration.ingestion.test_direct_reads import Diskless, running, world_of
from tests.integration.ingestion.test_exactly_once import (
    EACH_PLACE,
    await_all,
    failed,
    fenced,
    good,
    killed,
    killed_at_random,
    topic_with,
    unanswered,
)
from tests.integration.ingestion.world import Record, World, exactly, places, value
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port
from tests.servers.proxies.tcp import Proxy
from tests.servers.s3 import S3


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory, database: Postgres, storage: S3) -> Iterator[Diskless]:
    with running(tmp_path_factory.mktemp("faults"), database, storage, "faults") as made:
        yield made


@pytest.fixture
def world(settings: GroupSettings, diskless: Diskless, spark: object, tmp_path: Path) -> Iterator[World]:
    with world_of(diskless, settings, spark, tmp_path) as world:
        yield world


@pytest.fixture
def direct(world: World, diskless: Diskless) -> Iterator[World]:
    """Return the world. At the end, no driver may have fetched a record from the broker."""
    before = diskless.fetches()
    yield world
    world.stop()
    assert diskless.fetches() == before


@pytest.mark.long
def test_kill_9_around_commits_lands_each_record_once(direct: World) -> None:
    killed(direct, ["after-commit", "after-dlq-commit"])


@pytest.mark.long
def test_kill_9_at_each_place_lands_each_record_once(direct: World) -> None:
    killed(direct, EACH_PLACE)


@pytest.mark.long
@pytest.mark.parametrize("name", EACH_PLACE)
def test_a_failure_at_each_place_lands_each_record_once(direct: World, name: str) -> None:
    failed(direct, name)


@pytest.mark.long
def test_of_two_drivers_one_is_fenced_and_records_land_once(direct: World) -> None:
    fenced(direct)


@pytest.mark.parametrize(
    "after", [pytest.param(0, marks=pytest.mark.long, id="dead letters"), pytest.param(1, id="table")]
)
def test_a_commit_without_an_answer_lands_each_record_once(direct: World, flaky: Proxy, after: int) -> None:
    unanswered(direct, flaky, after)


@pytest.mark.long
@pytest.mark.parametrize(("seed", "kills"), [(0, 2), (1, 8)])
def test_kill_9_at_random_moments_lands_each_record_once(direct: World, seed: int, kills: int) -> None:
    killed_at_random(direct, seed, kills)


def before_the_read(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Sequence[ObjectRange]], None]
) -> list[Sequence[ObjectRange]]:
    """Call ``act`` with the ranges of the next round before its tasks read them. Return a list that then has these
    ranges."""
    plans: list[Sequence[ObjectRange]] = []
    locate = DirectReader.locate

    def located(
        reader: DirectReader, groups: Sequence[Sequence[Slice]], topic_ids: Mapping[str, str]
    ) -> list[list[Slice]]:
        found = locate(reader, groups, topic_ids)
        if not plans:
            plans.append([one for group in found for part in group for one in part.ranges])
            act(plans[0])
        return found

    monkeypatch.setattr(DirectReader, "locate", located)
    return plans


def await_deleted(diskless: Diskless, ranges: Sequence[ObjectRange]) -> None:
    """Wait until the broker has deleted the objects of the ranges."""
    files = {diskless.bucket / one.key for one in ranges}
    assert files
    await_true("the objects are deleted", lambda: not any(file.exists() for file in files), 120)


def test_records_that_retention_deletes_inside_an_object_still_land(
    direct: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The object stays because of its other records, and the task reads all of it."""
    topic, job = topic_with(direct, good(0))
    direct.stop()
    direct.produce(topic, good(10))

    def delete(ranges: Sequence[ObjectRange]) -> None:
        assert ranges[0].base == 10 < ranges[0].last
        place = TopicPartition(topic, 0, ranges[0].last)
        direct.admin.delete_records([place])[place].result(30)

    plans = before_the_read(monkeypatch, delete)
    direct.start()
    await_all(direct, job, 20)
    losses = direct.await_state(job, "CaughtUp").losses
    assert plans
    assert places(direct.rows(job)) == exactly({0: 20})
    assert losses is None or not losses.ranges


def test_records_whose_objects_retention_deletes_are_reported(
    world: World, diskless: Diskless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The objects are deleted before the task reads them. The broker reports the loss, and the next round records it."""
    topic, job = topic_with(world, good(0))
    world.stop()
    world.produce(topic, good(10))
    world.produce(topic, good(20))
    before = diskless.fetches()

    def delete(ranges: Sequence[ObjectRange]) -> None:
        place = TopicPartition(topic, 0, 25)
        world.admin.delete_records([place])[place].result(30)
        await_deleted(diskless, [one for one in ranges if one.last < 20])

    before_the_read(monkeypatch, delete)
    world.start()
    await_all(world, job, 30)
    losses = world.await_state(job, "CaughtUp").losses
    assert losses is not None
    assert [(gap.partition, gap.start, gap.end) for gap in losses.ranges] == [(0, 10, 25)]
    assert [row["id"] for row in world.rows(job)] == [*range(10), *range(25, 30)]
    detoured = diskless.fetches()
    assert detoured > before
    world.produce(topic, good(30))
    await_all(world, job, 40)
    assert diskless.fetches() == detoured


def test_rounds_fetch_after_a_bucket_did_not_answer(
    world: World, diskless: Diskless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tasks meet the failure once, not in each round."""
    topic, job = topic_with(world, good(0))
    world.stop()
    noted: list[bool] = []
    note = DirectReader.note

    def noting(reader: DirectReader, *, usable: bool) -> None:
        noted.append(usable)
        note(reader, usable=usable)

    closed = {
        "aws_endpoint": f"http://127.0.0.1:{free_port()}",
        "aws_region": "us-east-1",
        "aws_access_key_id": "a",
        "aws_secret_access_key": "b",
    }
    monkeypatch.setattr(DirectReader, "note", noting)
    monkeypatch.setattr(DirectReader, "bucket", lambda _: Bucket("s3://firn/log", closed))
    before = diskless.fetches()
    world.start()
    for first in (10, 20, 30):
        world.produce(topic, good(first))
        await_all(world, job, first + 10)
    assert noted == [False]
    assert diskless.fetches() > before
    assert places(world.rows(job)) == exactly({0: 40})


def test_records_that_compaction_moves_land_once(
    world: World, diskless: Diskless, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compaction deletes the objects before the task reads them. The broker has what is left of their records."""
    topic = world.topic(cleanup_policy="compact")
    job = world.job(topic)
    keyed = [Record(value(n), key=b"%d" % (n % 20)) for n in range(400)]
    world.produce(topic, keyed[:100])
    before = diskless.fetches()

    def compact(ranges: Sequence[ObjectRange]) -> None:
        assert ranges[-1].last == 99
        world.produce(topic, keyed[100:])
        await_deleted(diskless, ranges)

    before_the_read(monkeypatch, compact)
    world.apply(job)
    world.start()
    await_all(world, job, 400)
    landed = places(world.rows(job))
    assert set(landed.values()) == {1}
    assert {offset for _, offset in landed} >= set(range(380, 400))
    assert diskless.fetches() > before
