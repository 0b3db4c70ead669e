"""History brokers serve consumers of old records, and the others serve producers, groups and consumers of new ones (KIP-392)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_history_indexing import World
from tests.unit.broker.test_merging import MERGES
from tests.unit.broker.test_preferred_replicas import NONE, consumer, metadata
from tests.unit.broker.test_whole_brokers import bases, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

PARTITIONS = 4
BATCHES = 6
SETTINGS: dict[str, Any] = {"history_brokers": 1, **MERGES}


@asynccontextmanager
async def fleet(shared: Shared, **settings: Any) -> AsyncIterator[tuple[Asked, Asked, UUID]]:
    """Run a history broker and another one, with old records in topic "t". Yield both brokers and the id of the topic."""
    async with (
        broker(shared, 1, node_id=0, **SETTINGS, **settings) as history,
        broker(shared, 2, node_id=1, **SETTINGS, **settings) as main,
    ):
        id = await create(main, "t", PARTITIONS, retention_ms="-1")
        for partition in range(PARTITIONS):
            for _ in range(BATCHES):
                assert (await produce(main, "t", partition, raw(3))).error_code is ErrorCode.none
        await asyncio.sleep(200)
        for asked in (history, main):
            await asked.broker.topic_metadata.refresh()
        assert all(key.endswith(".merged") for key in shared.objects.objects)
        yield history, main, id


@pytest.mark.parametrize("version", [11, 12, 13, 16])
def test_a_history_broker_serves_old_records_until_their_end(version: int) -> None:
    async def story() -> None:
        async with fleet(Shared()) as (history, main, id):
            reader = consumer(main, id, "", version)
            sent = await reader.changes(dict.fromkeys(range(PARTITIONS), 0))
            assert {
                (sent[index].preferred_read_replica, sent[index].records or b"") for index in range(PARTITIONS)
            } == {(0, b"")}
            assert {sent[index].high_watermark for index in range(PARTITIONS)} == {3 * BATCHES}
            old = consumer(history, id, "", version)
            read = (await old.changes({0: 0}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (
                NONE,
                [3 * number for number in range(BATCHES)],
            )
            await produce(main, "t", 0, raw(3))
            back = (await old.changes({0: 3 * BATCHES}))[0]
            assert (back.preferred_read_replica, back.records or b"") == (1, b"")
            new = (await consumer(main, id, "", version).changes({0: 3 * BATCHES}))[0]
            assert (new.preferred_read_replica, bases(new.records)) == (NONE, [3 * BATCHES])

    run(story())


def test_a_history_broker_sends_consumers_at_the_end_back_at_once() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (history, _, id):
            before = asyncio.get_running_loop().time()
            back = (await consumer(history, id, "").changes({0: 3 * BATCHES}))[0]
            assert (back.preferred_read_replica, back.error_code) == (1, ErrorCode.none)
            assert asyncio.get_running_loop().time() == before

    run(story())


def test_clients_that_know_no_preferred_replica_stay() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (_, main, id):
            read = (await consumer(main, id, "", 10).changes({0: 0}))[0]
            assert bases(read.records) == [3 * number for number in range(BATCHES)]

    run(story())


def test_a_client_that_does_not_follow_gets_the_records() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (_, main, id):
            reader = consumer(main, id, "")
            assert (await reader.changes({0: 0}))[0].preferred_read_replica == 0
            read = (await reader.changes({0: 0}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (
                NONE,
                [3 * number for number in range(BATCHES)],
            )
            assert (await consumer(main, id, "").changes({1: 0}))[1].preferred_read_replica == 0

    run(story())


def test_records_in_the_table_are_read_from_a_history_broker(tmp_path: Any) -> None:
    async def story() -> None:
        world = World(tmp_path)
        settings: dict[str, Any] = {"tables": world.tables(), "history_brokers": 1, "upkeep": {"merged_bytes": 0}}
        async with (
            broker(world.shared, 1, node_id=0, **settings) as history,
            broker(world.shared, 2, node_id=1, **settings) as main,
        ):
            world.topic = await create(main, "t", partitions=2, retention_ms="-1")
            await world.fill(main, 5)
            await world.index(main)
            assert (await consumer(main, world.topic, "").changes({1: 0}))[1].preferred_read_replica == 0
            await world.check(history)

    run(story())


def test_a_consumer_that_seeks_back_follows_again() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (_, main, id):
            reader = consumer(main, id, "")
            assert (await reader.changes({0: 0}))[0].preferred_read_replica == 0
            await produce(main, "t", 0, raw(3))
            assert bases((await reader.changes({0: 3 * BATCHES}))[0].records) == [3 * BATCHES]
            assert (await reader.changes({0: 0}))[0].preferred_read_replica == 0

    run(story())


def test_a_client_that_stays_at_a_history_broker_gets_new_records() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (history, main, id):
            reader = consumer(history, id, "")
            assert (await reader.changes({0: 3 * BATCHES}))[0].preferred_read_replica == 1
            await produce(main, "t", 0, raw(3))
            read = (await reader.changes({0: 3 * BATCHES}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (NONE, [3 * BATCHES])

    run(story())


def test_history_brokers_lead_no_partition() -> None:
    async def story() -> None:
        async with fleet(Shared()) as (history, main, _):
            for asked in (history, main):
                await asked.broker.membership._renew()
                racks, replicas = await metadata(asked)
                assert set(racks) == {0, 1}
                assert set(replicas) == {(1, 0)}

    run(story())


def test_history_brokers_serve_everything_if_only_they_are_alive() -> None:
    async def story() -> None:
        shared = Shared()
        async with fleet(shared) as (history, main, id):
            await main.broker.leave_service()
            await main.broker.membership.leave()
            await history.broker.membership._renew()
            _, replicas = await metadata(history)
            assert set(replicas) == {(0,)}
            assert (await produce(history, "t", 0, raw(3))).error_code is ErrorCode.none
            read = (await consumer(history, id, "").changes({0: 3 * BATCHES}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (NONE, [3 * BATCHES])

    run(story())


def test_without_a_live_history_broker_the_others_serve_old_records() -> None:
    async def story() -> None:
        shared = Shared()
        async with fleet(shared) as (history, main, id):
            await history.broker.leave_service()
            await history.broker.membership.leave()
            await main.broker.membership._renew()
            read = (await consumer(main, id, "").changes({0: 0}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (
                NONE,
                [3 * number for number in range(BATCHES)],
            )

    run(story())


def test_consumers_of_a_zone_go_to_the_history_broker_and_back_to_their_zone() -> None:
    async def story() -> None:
        shared = Shared()
        async with (
            broker(shared, 1, node_id=0, zone="a", **SETTINGS) as history,
            broker(shared, 2, node_id=1, zone="a", **SETTINGS) as far,
            broker(shared, 3, node_id=2, zone="b", **SETTINGS) as near,
        ):
            id = await create(near, "t", retention_ms="-1")
            for _ in range(BATCHES):
                await produce(near, "t", 0, raw(3))
            await asyncio.sleep(200)
            for asked in (history, far, near):
                await asked.broker.topic_metadata.refresh()
            assert (await consumer(far, id, "b").changes({0: 0}))[0].preferred_read_replica == 2
            assert (await consumer(near, id, "b").changes({0: 0}))[0].preferred_read_replica == 0
            read = (await consumer(history, id, "b").changes({0: 0}))[0]
            assert (read.preferred_read_replica, len(bases(read.records))) == (NONE, BATCHES)
            assert (await consumer(history, id, "b").changes({0: 3 * BATCHES}))[0].preferred_read_replica == 2

    run(story())
