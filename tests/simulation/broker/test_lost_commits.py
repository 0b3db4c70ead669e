"""A coordinator that loses its newest commits, as in a failover to a standby that lacked them, loses no acknowledged
record silently: brokers commit them again, or the whole cluster stops."""

import asyncio
import os

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.cluster.continuity import PATIENCE_SECONDS, REASON
from firn_broker.log_types import NodeAddress, Topic
from firn_broker.maintenance import fsck, recovery
from firn_broker.network.router import Client
from firn_broker.topics.configs import TopicConfigs
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.fakes.virtual_time import run
from tests.simulation.broker import wire
from tests.simulation.broker.test_failure_matrix import STORAGE_ERROR, TOPIC, brokers, janitors, numbers, send
from tests.simulation.broker.world import LEASE_SECONDS, SETTINGS, Dead, Host, World

PATIENCE = PATIENCE_SECONDS + 4 * LEASE_SECONDS


async def stops(world: World) -> str:
    """Wait until no broker serves, and return the reason that the coordinator keeps."""
    async with asyncio.timeout(PATIENCE):
        while not all((host.broker.not_ready or "").startswith(REASON) for host in world.hosts):
            await asyncio.sleep(0.1)
        while not (reason := (await world.store.nodes.progress()).stopped):
            await asyncio.sleep(0.1)
    return reason


async def refused(world: World, host: Host, number: int) -> bool:
    """Return whether a producer gets no acknowledgement from this broker."""
    try:
        return (await send(world, host, number))[0] == STORAGE_ERROR
    except Dead:
        return True


async def lose_commits(world: World, host: Host, count: int = 1, *, killed: bool = False) -> None:
    """Commit so many records, and restore the coordinator to the time before. ``killed``: the broker ends first."""
    backup = world.backup()
    assert [await send(world, host, number) for number in range(count)] == [(0, number) for number in range(count)]
    if killed:
        await asyncio.sleep(LEASE_SECONDS)
        world.kill(host)
    await world.restart_coordinator(backup)


def quiet(world: World) -> None:
    """Drop the errors that brokers have to report: that the coordinator went back, and that they stop."""
    world.errors[:] = [
        error
        for error in world.errors
        if error.get("event") not in ("this broker serves no client", "the coordinator went back")
    ]


def test_the_broker_repeats_its_lost_commits() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            assert await send(world, first, 0) == (0, 0)
            backup = world.backup()
            assert [await send(world, first, number) for number in (1, 2)] == [(0, 1), (0, 2)]
            await world.restart_coordinator(backup)
            assert await send(world, first, 3) == (0, 3)
            assert await numbers(world, second) == [0, 1, 2, 3]
            assert first.broker.not_ready is second.broker.not_ready is None
            quiet(world)

    run(story())


def test_a_broker_that_writes_nothing_more_repeats_its_lost_commits() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            await lose_commits(world, first)
            await asyncio.sleep(LEASE_SECONDS)
            assert await numbers(world, second) == [0]
            quiet(world)

    run(story())


def test_a_consumer_ahead_of_the_log_is_not_told_to_reset_its_offset() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            await lose_commits(world, host, 2)
            answer = await wire.fetch(world, host, Client("reader"), TOPIC, 0, 2)
            assert answer.error in (0, STORAGE_ERROR)
            await asyncio.sleep(LEASE_SECONDS)
            assert not (await wire.fetch(world, host, Client("reader"), TOPIC, 0, 2)).error
            quiet(world)

    run(story())


def test_the_cluster_stops_if_another_record_has_the_acknowledged_offset() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            await lose_commits(world, first)
            # The second broker finds nothing wrong: the first has not renewed its lease since.
            assert await send(world, second, 7, producer=-1) == (0, 0)
            assert "acknowledged at offset 0, and would be at 1 now" in await stops(world)
            assert await refused(world, first, 1)
            assert await refused(world, second, 8)
            answer = await wire.fetch(world, second, Client("reader"), TOPIC, 0, 0)
            assert answer.error == STORAGE_ERROR
            await janitors(world)
            stored = {
                key for key, (size, _) in (await world.store.retention.list_objects(*ALL_KEYS)).items() if size > 0
            }
            assert stored <= world.objects.objects.keys(), "nothing is deleted"
            quiet(world)

    run(story())


def test_the_cluster_stops_if_the_broker_dies_before_it_reports_another_offset(monkeypatch: pytest.MonkeyPatch) -> None:
    """It repeated its lost commit, but the coordinator has not stored the reason to stop."""

    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            backup = world.backup()
            assert await send(world, first, 0) == (0, 0)
            await asyncio.sleep(LEASE_SECONDS)
            await world.restart_coordinator(backup)
            assert await send(world, second, 7, producer=-1) == (0, 0)
            with monkeypatch.context() as patched:
                patched.setattr(world.store.nodes, "stop_serving", unavailable)
                await asyncio.sleep(LEASE_SECONDS)
                assert (first.broker.not_ready or "").startswith(REASON)
                world.kill(first)
            assert "no broker repeated them" in await stops(world)
            await recovered(world, {0: {0: 0}})
            quiet(world)

    run(story())


async def unavailable(reason: str) -> None:
    raise UnavailableError(f"the coordinator cannot be reached to store {reason}")


def test_the_cluster_stops_if_the_broker_of_the_lost_commits_is_gone() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            await lose_commits(world, first, killed=True)
            assert "no broker repeated them" in await stops(world)
            assert await refused(world, second, 1)
            await asyncio.sleep(SETTINGS.upkeep.uncommitted_seconds + 10 * LEASE_SECONDS)
            assert world.objects.objects, "the only copy of the record stays"
            quiet(world)

    run(story())


def test_brokers_that_start_later_do_not_serve_until_an_administrator_allows_it() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            assert await send(world, host, 0) == (0, 0)
            await world.store.nodes.stop_serving(f"{REASON}: commits are lost")
            await stops(world)
            assert not await world.store.nodes.allow_serving(), "a broker is live"
            world.kill(host)
            starting = world.later(world.start())
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert not starting.done()
            assert await world.store.nodes.allow_serving()
            assert await send(world, await starting, 1) == (0, 1)
            quiet(world)

    run(story())


def test_a_recovery_commits_all_lost_records_again() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            await lose_commits(world, first, 5)
            assert await send(world, second, 7, producer=-1) == (0, 0)
            reason = await stops(world)
            for host in (first, second):
                world.kill(host)
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert (await world.store.nodes.progress()).stopped == reason
            assert await world.store.nodes.stop_idle("a recovery runs")
            assert (await world.store.nodes.progress()).stopped == reason
            starting = world.later(world.start())
            findings = await fsck.check(world.store.retention, world.objects, read=True)
            keys = [*findings.uncommitted, *findings.newer]
            done = await recovery.recover(world.store, world.objects, keys, TopicConfigs({}))
            assert not done.rejected
            assert done.skipped == []
            await asyncio.sleep(2 * LEASE_SECONDS)
            assert not starting.done()
            assert await world.store.nodes.allow_serving()
            host = await starting
            assert sorted(await numbers(world, host)) == [0, 1, 2, 3, 4, 7]
            assert await send(world, host, 5) == (0, 6)
            again = await fsck.check(world.store.retention, world.objects, read=True)
            assert (again.uncommitted, again.newer, again.lost) == ([], [], False)
            quiet(world)

    run(story())


def test_a_recovery_keeps_the_order_of_a_producer_that_wrote_to_two_brokers() -> None:
    async def story() -> None:
        async with brokers() as world:
            hosts = first, second = tuple(world.hosts)
            backup = world.backup()
            for number, host in enumerate((second, first, second, first)):
                assert await send(world, host, number) == (0, number)
            for host in hosts:
                world.kill(host)
            await world.restart_coordinator(backup)
            await asyncio.sleep(2 * LEASE_SECONDS)
            findings = await fsck.check(world.store.retention, world.objects, read=True)
            keys = [*findings.uncommitted, *findings.newer]
            done = await recovery.recover(world.store, world.objects, keys, TopicConfigs({}))
            assert not done.rejected
            assert await numbers(world, await world.start()) == [0, 1, 2, 3]

    run(story())


def test_no_broker_rejects_a_consumer_that_is_ahead_before_the_writer_noticed() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            await asyncio.sleep(LEASE_SECONDS)
            backup = world.backup()
            assert [await send(world, first, number) for number in (0, 1)] == [(0, 0), (0, 1)]
            world.freeze(first)
            await world.restart_coordinator(backup)
            assert (await wire.fetch(world, second, Client("reader"), TOPIC, 0, 2)).error == STORAGE_ERROR
            world.thaw(first)
            await asyncio.sleep(LEASE_SECONDS)
            assert not (await wire.fetch(world, second, Client("reader"), TOPIC, 0, 2)).error
            assert (await wire.fetch(world, second, Client("reader"), TOPIC, 0, 3)).error == STORAGE_ERROR
            await asyncio.sleep(LEASE_SECONDS)
            rejected = await wire.fetch(world, second, Client("reader"), TOPIC, 0, 3)
            assert rejected.error == ErrorCode.offset_out_of_range.value, "no commit is lost"
            quiet(world)

    run(story())


def test_no_producer_id_is_given_twice() -> None:
    async def story() -> None:
        async with brokers(1) as world:
            (host,) = world.hosts
            backup = world.backup()
            before = await host.broker.metadata_store.nodes.allocate_producer_ids(10)
            await world.restart_coordinator(backup)
            await asyncio.sleep(LEASE_SECONDS)
            assert await host.broker.metadata_store.nodes.allocate_producer_ids(10) >= before + 10
            quiet(world)

    run(story())


def test_brokers_forget_a_lost_topic() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            backup = world.backup()
            for name in ("lost", "lost too"):
                await world.store.topics.create_topic(Topic(first.broker.identifiers.uuid4(), name, 1, {}))
            await asyncio.sleep(LEASE_SECONDS)
            assert "lost" in second.broker.topic_metadata.by_name
            await world.restart_coordinator(backup)
            await asyncio.sleep(LEASE_SECONDS)
            for host in (first, second):
                assert list(host.broker.topic_metadata.by_name) == [TOPIC]
                assert host.broker.not_ready is None
            quiet(world)

    run(story())


def test_an_epoch_that_the_coordinator_forgot_is_no_loss() -> None:
    async def story() -> None:
        async with brokers() as world:
            first, second = world.hosts
            assert await send(world, first, 0) == (0, 0)
            await asyncio.sleep(LEASE_SECONDS)
            node = first.broker.membership.lease.node
            world.kill(first)
            for _ in range(10):
                await world.store.nodes.join(NodeAddress("h", 1), 1, node)
            await asyncio.sleep(3 * LEASE_SECONDS)
            assert second.broker.not_ready is None
            assert await send(world, second, 1) == (0, 1)

    run(story())


@pytest.mark.parametrize("seed", range(400 if os.environ.get("FIRN_LONG") else 12))
def test_no_acknowledged_record_is_lost_silently(seed: int) -> None:
    """The coordinator loses up to its last second in the middle of a load, more than once."""

    async def story() -> None:
        async with brokers(3) as world:
            world.slowness = world.chance.choice((0.01, 0.2, 1.0))
            world.chance.seed(seed)
            acknowledged: dict[int, dict[int, int]] = {}
            producing = [world.later(produce(world, id, acknowledged.setdefault(id, {}))) for id in range(1, 5)]
            killed = False
            for _ in range(3):
                await asyncio.sleep(2 + world.chance.random() * 4)
                backup = world.backup()
                await asyncio.sleep(world.chance.random())
                world.faults["lost commits"] += 1
                await world.restart_coordinator(backup)
                if len(world.hosts) > 1 and world.chance.random() < 0.3:
                    killed = True
                    world.kill(world.chance.choice(world.hosts))
                    world.later(world.start())
            await asyncio.sleep(2 * PATIENCE)
            for task in producing:
                task.cancel()
            stopped = (await world.store.nodes.progress()).stopped
            world.slowness = 0.01
            if stopped:
                await stops(world)
                await recovered(world, acknowledged)
            elif killed:
                # No other broker may have seen the last commits of a broker that dies with them. Then maintenance reports
                # their objects, and keeps them.
                await recovered(world, acknowledged)
            else:
                log = await numbers(world, world.hosts[0])
                for id, batches in acknowledged.items():
                    assert all(log[offset] == id * 1000 + number for number, offset in batches.items())
            assert sum(map(len, acknowledged.values())) > 10
            quiet(world)

    run(story())


async def produce(world: World, id: int, acknowledged: dict[int, int]) -> None:
    """Produce batches of one record, each until it is acknowledged."""
    client = Client("peer")
    for number in range(1000):
        while True:
            host = world.chance.choice(world.hosts)
            data = wire.batch(id * 1000 + number, 1, 1, 10, producer=id, epoch=0, sequence=number)
            try:
                error, offset = await wire.produce(world, host, client, TOPIC, 0, data)
            except Dead:
                continue
            if error == ErrorCode.none.value:
                acknowledged[number] = offset
                break
            await asyncio.sleep(0.2)


async def recovered(world: World, acknowledged: dict[int, dict[int, int]]) -> None:
    """Recover all lost commits, and check that the log has each acknowledged batch."""
    for host in list(world.hosts):
        world.kill(host)
    await asyncio.sleep(2 * LEASE_SECONDS)
    assert await world.store.nodes.stop_idle("a recovery runs")
    findings = await fsck.check(world.store.retention, world.objects, read=True)
    keys = [*findings.uncommitted, *findings.newer]
    done = await recovery.recover(world.store, world.objects, keys, TopicConfigs({}))
    assert (done.rejected, done.skipped, done.kept) == ({}, [], [])
    assert await world.store.nodes.allow_serving()
    log = await numbers(world, await world.start())
    assert {id * 1000 + number for id, batches in acknowledged.items() for number in batches} <= set(log)
