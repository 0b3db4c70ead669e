"""Consumers that state their rack fetch from a broker of their zone (KIP-392)."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_fetch_sessions import Consumer
from tests.unit.broker.test_whole_brokers import bases, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

PARTITIONS = 8
NONE = -1


def consumer(asked: Asked, id: Any, rack: str, version: int = 12) -> Consumer:
    made = Consumer(asked, id, version)
    made.rack = rack
    return made


async def metadata(asked: Asked) -> tuple[dict[int, str | None], list[tuple[int, ...]]]:
    """Return the rack of each broker, and the replicas of each partition of topic "t"; the first one leads."""
    answer = await asked.ask(3, 12, topics=[{"name": "t"}])
    for partition in answer.topics[0].partitions:
        assert partition.leader_id == partition.replica_nodes[0]
        assert partition.isr_nodes == partition.replica_nodes
    racks = {node.node_id: node.rack for node in answer.brokers}
    return racks, [partition.replica_nodes for partition in answer.topics[0].partitions]


@pytest.mark.parametrize("version", [11, 12, 13, 16])
def test_a_consumer_is_sent_to_a_broker_of_its_rack(version: int) -> None:
    async def story() -> None:
        shared = Shared()
        async with (
            broker(shared, 1, zone="a", lease_seconds=1) as far,
            broker(shared, 2, zone="b") as near,
            broker(shared, 3, zone="b"),
        ):
            id = await create(near, "t", PARTITIONS)
            await far.broker.membership._renew()
            await far.broker.topic_metadata.refresh()
            await produce(far, "t", 0, raw(3))
            racks, replicas = await metadata(far)
            sent = await consumer(far, id, "b", version).changes(dict.fromkeys(range(PARTITIONS), 0))
            preferred = [sent[index].preferred_read_replica for index in range(PARTITIONS)]
            assert {racks[node] for node in preferred} == {"b"}
            assert len(set(preferred)) == 2, "the brokers of the rack share the consumers"
            assert all(node in nodes for node, nodes in zip(preferred, replicas, strict=True)), (
                "a Java client uses no node that is no replica"
            )
            assert {bytes(found.records or b"") for found in sent.values()} == {b""}
            read = (await consumer(near, id, "b", version).changes({0: 0}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (NONE, [0])

    run(story())


@pytest.mark.parametrize(("offset", "error"), [(1, ErrorCode.offset_out_of_range), (7, ErrorCode.kafka_storage_error)])
def test_the_leader_itself_answers_for_offsets_outside_of_the_log(offset: int, error: ErrorCode) -> None:
    """A Java client that has a preferred replica does not reset its offset, but asks the leader again. An offset behind
    the end is out of range only after all brokers have compared their counters."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, zone="a") as far, broker(shared, 2, zone="b") as near:
            id = await create(near, "t")
            await far.broker.membership._renew()
            await far.broker.topic_metadata.refresh()
            await produce(far, "t", 0, raw(3))
            await produce(far, "t", 0, raw(3))
            await far.ask(
                21,
                2,
                timeout=timedelta(seconds=1),
                topics=[{"name": "t", "partitions": [{"partition_index": 0, "offset": 3}]}],
            )
            read = (await consumer(far, id, "b").changes({0: offset}))[0]
            assert (read.preferred_read_replica, read.error_code) == (NONE, error)
            sent = (await consumer(far, id, "b").changes({0: 6}))[0]
            assert (sent.log_start_offset, sent.high_watermark) == (3, 6)
            assert sent.preferred_read_replica == near.broker.membership.lease.node

    run(story())


@pytest.mark.parametrize("rack", ["", "a", "elsewhere"])
def test_a_consumer_without_a_broker_in_its_rack_stays(rack: str) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, zone="a") as far, broker(shared, 2, zone="b") as near:
            id = await create(near, "t")
            await far.broker.membership._renew()
            await far.broker.topic_metadata.refresh()
            await produce(far, "t", 0, raw(3))
            read = (await consumer(far, id, rack).changes({0: 0}))[0]
            assert (read.preferred_read_replica, bases(read.records)) == (NONE, [0])

    run(story())


def test_a_session_reports_a_broker_that_joins_the_rack() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, zone="a") as far:
            reader = consumer(far, await create(far, "t"), "b")
            assert (await reader.changes({0: 0}))[0].preferred_read_replica == NONE
            assert await reader.changes({}) == {}
            async with broker(shared, 2, zone="b") as near:
                await far.broker.membership._renew()
                lease = near.broker.membership.lease
                found = (await reader.changes({}))[0]
                assert (found.error_code, found.preferred_read_replica) == (ErrorCode.none, lease.node)

    run(story())


def test_brokers_without_zones_are_single_replicas() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as first, broker(shared, 2):
            await create(first, "t", PARTITIONS)
            await first.broker.membership._renew()
            racks, replicas = await metadata(first)
            assert set(racks.values()) == {None}
            assert {len(nodes) for nodes in replicas} == {1}

    run(story())
