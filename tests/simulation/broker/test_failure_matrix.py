"""The failure table of docs/operations/diskless-brokers.md, with a test for each row."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import ExitCode, FencedError
from firn_broker.log_types import BatchOutcome, Commit, NodeAddress, Topic
from firn_broker.maintenance import fsck
from firn_broker.network.router import Client
from firn_broker.network.server import Server
from firn_broker.settings import BrokerSettings
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.fakes.virtual_time import run
from tests.simulation.broker import clients, wire
from tests.simulation.broker.world import (
    AFTER,
    BEFORE,
    COORDINATOR,
    LEASE_SECONDS,
    OBJECTS,
    SETTINGS,
    Dead,
    Host,
    World,
)

STORAGE_ERROR = ErrorCode.kafka_storage_error.value
TOPIC = "t"
PRODUCER = 7
INTERVAL = SETTINGS.model_copy(update={"writer": SETTINGS.writer.model_copy(update={"puts_per_second": 0})})
"""Batches wait for the end of the interval, so that faults happen before their upload."""


@asynccontextmanager
async def brokers(count: int = 2, settings: BrokerSettings = INTERVAL) -> AsyncIterator[World]:
    """Run a world without faults, until the test adds some."""
    world = World(1, settings)
    await world.store.start()
    for _ in range(count):
        await world.start()
    id = world.hosts[0].broker.identifiers.uuid4()
    await world.store.topics.create_topic(Topic(id, TOPIC, 1, {"retention.ms": "-1"}))
    yield world
    world.end()
    assert not world.errors


async def send(world: World, host: Host, number: int, *, producer: int = PRODUCER) -> tuple[int, int]:
    """Send one batch of one record and return (error, offset). A ``producer`` of -1 is not idempotent."""
    more = {} if producer < 0 else {"producer": producer, "epoch": 0, "sequence": number}
    return await wire.produce(world, host, Client("peer"), TOPIC, 0, wire.batch(number, 1, 1, 10, **more))


async def numbers(world: World, host: Host) -> list[int]:
    """Read the log and return the numbers of its batches."""
    seen: list[int] = []
    offset = 0
    while True:
        answer = await wire.fetch(world, host, Client("reader"), TOPIC, 0, offset)
        assert not answer.error
        seen += [batch.number for batch in answer.batches]
        offset += len(answer.batches)
        if offset >= answer.high:
            return seen


async def died(work: "asyncio.Task[tuple[int, int]]") -> bool:
    try:
        await work
    except Dead:
        return True
    return False


async def janitors(world: World) -> None:
    """Wait until reservations are withdrawn and dead objects are deleted."""
    await asyncio.sleep(
        LEASE_SECONDS + SETTINGS.upkeep.abandon_seconds + SETTINGS.upkeep.grace_seconds + 3 * SETTINGS.upkeep.interval_seconds
    )  # fmt: skip


def refusals(world: World) -> list[str]:
    """Collect the keys of commits that the coordinator rejects from now on."""
    commit = world.store.log.commit
    rejected: list[str] = []

    async def watched(request: Commit) -> Sequence[BatchOutcome]:
        try:
            return await commit(request)
        except FencedError:
            rejected.append(request.key)
            raise

    world.store.log.commit = watched  # type: ignore[method-assign,assignment]
    return rejected


def test_a_broker_dies_before_the_upload() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            first.doom = ("put", BEFORE)
            assert await died(asyncio.create_task(send(world, first, 0)))
            assert not world.objects.objects
            assert await send(world, second, 0) == (0, 0)
            reserved = len(await world.store.retention.list_objects(*ALL_KEYS))
            await janitors(world)
            assert len(await world.store.retention.list_objects(*ALL_KEYS)) < reserved, (
                "reservations of dead brokers are withdrawn"
            )
            assert await numbers(world, second) == [0]

    run(story())


def test_a_broker_dies_between_upload_and_commit() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            first.doom = ("put", AFTER)
            assert await died(asyncio.create_task(send(world, first, 0)))
            (orphan,) = world.objects.objects
            assert await numbers(world, second) == []
            assert await send(world, second, 0) == (0, 0)
            await janitors(world)
            assert (await world.store.retention.dead_backlog()).kept == 0, "its only batch is in the log"
            assert orphan in world.objects.objects, "a recovery may still need it"
            await asyncio.sleep(SETTINGS.upkeep.uncommitted_seconds)
            assert orphan not in world.objects.objects, "retention finds it by its reservation"
            assert await numbers(world, second) == [0]

    run(story())


@pytest.mark.parametrize("producer", [PRODUCER, -1])
def test_an_uncommitted_object_whose_batch_is_not_known_stays(producer: int) -> None:
    """The producer did not send the batch again, or it is not idempotent."""

    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            first.doom = ("put", AFTER)
            assert await died(asyncio.create_task(send(world, first, 0, producer=producer)))
            (orphan,) = world.objects.objects
            assert await send(world, second, 0, producer=-1) == (0, 0)
            await janitors(world)
            await asyncio.sleep(10 * SETTINGS.upkeep.uncommitted_seconds)
            assert orphan in world.objects.objects, "it may be the only copy of its records"
            assert (await world.store.retention.dead_backlog()).kept == 1
            keep_ms = int(SETTINGS.upkeep.uncommitted_seconds * 1000)
            assert await world.store.retention.withdraw_reservations([orphan], keep_ms) == 1
            await janitors(world)
            assert orphan in world.objects.objects, "an administrator may change the decision"
            await asyncio.sleep(SETTINGS.upkeep.uncommitted_seconds)
            assert orphan not in world.objects.objects
            assert await numbers(world, second) == [0]

    run(story())


def test_a_broker_dies_between_commit_and_reply() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            first.doom = ("commit", AFTER)
            assert await died(asyncio.create_task(send(world, first, 0)))
            assert await numbers(world, second) == [0]
            assert await send(world, second, 0) == (0, 0), "an idempotent producer gets the offset of the first batch"
            assert await numbers(world, second) == [0]
            third = await world.start()
            third.doom = ("commit", AFTER)
            assert await died(asyncio.create_task(send(world, third, 1, producer=-1)))
            assert await send(world, second, 1, producer=-1) == (0, 2), "any other producer has it twice, as with Kafka"
            assert await numbers(world, second) == [0, 1, 1]

    run(story())


def test_the_reply_to_a_commit_is_lost_and_the_broker_lives() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            commit = world.store.log.commit
            lost: list[object] = []

            async def once(*values: object) -> object:
                outcome = await commit(*values)  # type: ignore[arg-type]
                if not lost:
                    lost.append(outcome)
                    # The reply is lost, and the coordinator cannot be reached for a while.
                    world.life += 1
                    world.down[COORDINATOR] = world.now() + 2
                return outcome

            world.store.log.commit = once  # type: ignore[method-assign,assignment]
            first = asyncio.create_task(send(world, host, 0))
            await asyncio.sleep(0.5)
            later = asyncio.create_task(send(world, host, 1))
            await asyncio.sleep(1)
            assert lost
            assert not first.done(), "the outcome is not known yet"
            assert not later.done(), "later files wait"
            assert (await first, await later) == ((0, 0), (0, 1))
            assert await numbers(world, host) == [0, 1]

    run(story())


def test_a_zombie_commits_late() -> None:
    async def story() -> None:
        async with brokers() as world:
            zombie, other = world.hosts
            assert await send(world, zombie, 0) == (0, 0)
            waiting = asyncio.create_task(send(world, zombie, 1))
            await asyncio.sleep(0.1)
            world.freeze(zombie)
            assert await died(waiting)
            assert await send(world, other, 1) == (0, 1)
            await janitors(world)
            held = zombie.broker.membership.lease
            refused = refusals(world)
            assert (await world.store.nodes.join(NodeAddress("new", 1), 60_000)).node == held.node, "its place is taken"
            world.thaw(zombie)
            # The coordinator rejects its upload, and the requests that arrived while it was frozen.
            assert await send(world, zombie, 2) == (STORAGE_ERROR, -1)
            assert refused
            await asyncio.sleep(LEASE_SECONDS)
            assert zombie.broker.membership.lease != held, "it has another node lease from now on"
            assert await send(world, zombie, 2) == (0, 2)
            assert await numbers(world, other) == [0, 1, 2]

    run(story())


def test_a_zombie_with_withdrawn_reservations_commits_nothing() -> None:
    async def story() -> None:
        async with brokers() as world:
            zombie, other = world.hosts
            assert await send(world, zombie, 0) == (0, 0)
            world.freeze(zombie)
            await janitors(world)
            world.thaw(zombie)
            # No other broker took its node id, so it keeps its lease and reserves new keys.
            assert await send(world, zombie, 1) == (0, 1)
            assert await numbers(world, other) == [0, 1]

    run(story())


async def served_by(world: World, host: Host) -> tuple[set[int], set[int]]:
    """Return the ids of the brokers and of the leaders that this broker names in Metadata."""
    metadata = await wire.call(world, host, 3, 12, topics=None, allow_auto_topic_creation=False)
    return {node.node_id for node in metadata.brokers}, {
        part.leader_id for topic in metadata.topics for part in topic.partitions
    }


def test_one_broker_alone_cannot_reach_the_coordinator() -> None:
    async def story() -> None:
        async with brokers() as world:
            well, cut = world.hosts
            await asyncio.sleep(LEASE_SECONDS)
            id = well.broker.membership.lease.node
            assert await send(world, cut, 0) == (0, 0)
            cut.cut = world.now() + 20 * LEASE_SECONDS
            unknown = asyncio.create_task(send(world, cut, 1))
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert await served_by(world, cut) == ({id}, {id})
            group = await wire.call(world, cut, 10, 2, key="g", key_type=0)
            assert (group.error_code, group.node_id) == (ErrorCode.none, id)
            # It accepts nothing more, and requests that wait get an error.
            assert await send(world, cut, 2) == (STORAGE_ERROR, -1)
            assert await died(unknown) or unknown.result() == (STORAGE_ERROR, -1)
            world.errors.clear()
            assert await send(world, well, 1) == (0, 1)
            await asyncio.sleep(20 * LEASE_SECONDS)
            assert len((await served_by(world, cut))[0]) == 2
            assert await send(world, cut, 2) == (0, 2)
            assert await numbers(world, well) == [0, 1, 2], "no earlier batch was committed late"

    run(story())


def test_a_batch_abandoned_by_an_isolated_broker_is_not_committed() -> None:
    async def story() -> None:
        async with brokers() as world:
            well, cut = world.hosts
            await asyncio.sleep(LEASE_SECONDS)
            # Without idempotence, nothing else prevents a second copy.
            unknown = asyncio.create_task(send(world, cut, 0, producer=-1))
            await asyncio.sleep(0.05)
            cut.cut = world.now() + 5 * LEASE_SECONDS
            assert await died(unknown) or unknown.result() == (STORAGE_ERROR, -1)
            world.errors.clear()
            assert await send(world, well, 0, producer=-1) == (0, 0)
            await asyncio.sleep(10 * LEASE_SECONDS)
            assert await numbers(world, cut) == [0]

    run(story())


def test_the_coordinator_cannot_be_reached_when_a_broker_starts() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            world.down[COORDINATOR] = world.now() + 10
            began = world.now()
            late = await world.start()
            assert world.now() - began >= 10
            assert await send(world, late, 0) == (0, 0)

    run(story())


def test_an_outage_of_the_coordinator_loses_no_record() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            assert await send(world, host, 0) == (0, 0)
            world.down[COORDINATOR] = world.now() + 3 * LEASE_SECONDS
            client = Client("peer")
            # It acknowledges nothing, and returns nothing that may be old.
            waiting = [
                world.later(
                    wire.produce(
                        world,
                        host,
                        client,
                        TOPIC,
                        0,
                        wire.batch(number, 1, 1, 10, producer=PRODUCER, epoch=0, sequence=number),
                    )
                )
                for number in (1, 2)
            ]
            assert (await wire.fetch(world, host, Client("reader"), TOPIC, 0, 0)).error == STORAGE_ERROR
            joined = await wire.call(
                world, host, 11, 2, group_id="g", member_id="", session_timeout=clients.milliseconds(6000),
                rebalance_timeout=clients.milliseconds(6000), protocol_type="consumer", protocols=[{"name": "range", "metadata": b""}],
            )  # fmt: skip
            assert joined.error_code is ErrorCode.coordinator_not_available
            await asyncio.sleep(2)
            assert not any(task.done() for task in waiting)
            await asyncio.wait(waiting)
            assert all(isinstance(task.exception(), Dead) for task in waiting), (
                "clients timed out, but the broker still has their batches"
            )
            world.errors.clear()
            await asyncio.sleep(3 * LEASE_SECONDS)
            # Clients send them again, and learn that they were committed.
            assert [await send(world, host, number) for number in (1, 2)] == [(0, 1), (0, 2)]
            assert await numbers(world, host) == [0, 1, 2]

    run(story())


async def test_requests_that_wait_for_the_coordinator_are_bounded() -> None:
    class Stuck:
        def __init__(self) -> None:
            self.taken = 0

        async def handle(self, *_: object) -> None:
            self.taken += 1
            await asyncio.get_running_loop().create_future()

        def stalled(self) -> None:
            pass

        def reads(self, _: int) -> bool:
            return False

    bound = 1 << 20
    settings = SETTINGS.connections.model_copy(update={"buffered_bytes": bound})
    server, stuck = Server(settings), Stuck()
    _, port = await server.bind("127.0.0.1", 0)
    await server.accept(stuck)  # type: ignore[arg-type]
    size = bound // 4
    frame = size.to_bytes(4, "big") + b"\0\0\0\7" + bytes(size - 4)
    writers = []
    for _ in range(8):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(frame)
        writers.append(writer)
    async with asyncio.timeout(30):
        while stuck.taken + server._budget.waiting < 8:
            await asyncio.sleep(0.001)
    assert 1 <= stuck.taken < 8
    # A request that has begun to arrive may finish.
    assert server._budget.used <= bound + size
    for writer in writers:
        writer.close()
    await server.stop(0.01, lambda: None)


def test_the_coordinator_may_be_restored_to_an_older_backup() -> None:
    unmerged = INTERVAL.model_copy(update={"upkeep": INTERVAL.upkeep.model_copy(update={"merged_bytes": 0})})

    async def story() -> None:
        async with brokers(settings=unmerged) as world:
            first, second = world.hosts
            assert await send(world, first, 0) == (0, 0)
            backup = world.backup()
            assert (await fsck.check(world.store.retention, world.objects, read=False)).verdict is ExitCode.DONE
            for number in range(1, 100):
                assert await send(world, first, number) == (0, number)
            for host in (first, second):
                world.kill(host)
            await world.restart_coordinator(backup)
            findings = await fsck.check(world.store.retention, world.objects, read=False)
            assert findings.verdict is ExitCode.CORRUPT
            assert len(findings.newer) + len(findings.uncommitted) == 99
            (topic,) = (await world.store.topics.load_topics()).topics  # type: ignore[union-attr]
            assert findings.newer_records == {f"{topic.id}/0": len(findings.newer)}
            assert not findings.missing, "all objects that the coordinator knows exist"

    run(story())


def test_a_slow_or_failing_object_store_loses_no_record() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            world.down[OBJECTS] = world.now() + 1
            assert await send(world, host, 0) == (0, 0), "uploads are retried"
            world.down[OBJECTS] = world.now() + 60
            client = Client("peer")
            batches = [
                wire.batch(number, 1, 1, 4000, producer=PRODUCER, epoch=0, sequence=number) for number in range(1, 11)
            ]
            answers = await asyncio.gather(
                *(wire.produce(world, host, client, TOPIC, 0, batch, seconds=8) for batch in batches[:8]),
                return_exceptions=True,
            )
            # The first request fails after the time-out of the upload. Later requests fail after it, if their clients
            # still wait.
            assert answers[0] == (STORAGE_ERROR, -1)
            assert all(answer == (STORAGE_ERROR, -1) or isinstance(answer, Dead) for answer in answers), answers
            await asyncio.sleep(30)
            assert not host.broker.writer.unfinished, "no request waits for ever"
            world.down[OBJECTS] = 0.0
            assert [await send(world, host, number) for number in range(1, 11)] == [
                (0, number) for number in range(1, 11)
            ]
            assert await numbers(world, host) == list(range(11))

    run(story())


def test_the_object_store_returns_damaged_batches() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            assert await send(world, first, 0) == (0, 0)
            world.objects.share = 1.0
            assert await numbers(world, second) == [0], "the second read is whole"
            assert world.faults["bit flipped"] == 1
            world.objects.share = 0.0
            before = set(world.objects.objects)
            assert await send(world, first, 1) == (0, 1)
            (key,) = set(world.objects.objects) - before
            whole = world.objects.objects[key]
            world.objects.objects[key] = whole[:100] + bytes([whole[100] ^ 1]) + whole[101:]
            answer = await wire.fetch(world, second, Client("reader"), TOPIC, 0, 1)
            assert (answer.error, answer.batches) == (STORAGE_ERROR, [])
            world.objects.objects[key] = whole
            assert await numbers(world, second) == [0, 1]

    run(story())
