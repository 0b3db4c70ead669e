"""Leadership spreads, moves only where it has to, and prefers the client's zone."""

from collections import Counter
from dataclasses import replace
from uuid import UUID

import pytest

from firn_broker.cluster import membership as module
from firn_broker.cluster.membership import Membership
from firn_broker.log_types import EXTERNAL, Endpoint, Node, NodeAddress, NodeLease, Partition
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.nodes import SqliteNodes
from firn_broker.metadata_store.sqlite.store import SqliteStore
from tests.fakes.clock import FakeClock

PARTITIONS = [Partition(UUID(int=topic << 64 | 99), number) for topic in range(30) for number in range(100)]


def membership(*zones: str) -> Membership:
    made = Membership(SqliteStore(":memory:", FakeClock(), "c", Inline()).nodes, NodeAddress("h", 1), ttl_ms=1000)
    made.nodes = [Node(number, NodeAddress("h", number, zone)) for number, zone in enumerate(zones)]
    made.lease, made.until = NodeLease(0, 1), float("inf")
    return made


@pytest.mark.parametrize("nodes", [2, 3, 7])
async def test_partitions_spread_evenly(nodes: int) -> None:
    brokers = membership(*[""] * nodes)
    led = Counter(brokers.leader(partition, "").id for partition in PARTITIONS)
    assert len(led) == nodes
    assert max(led.values()) < 1.25 * len(PARTITIONS) / nodes
    shards = Counter(brokers.shard_coordinator(number).id for number in range(1000))
    assert max(shards.values()) < 1.3 * 1000 / nodes


async def test_a_removed_broker_moves_only_its_own_partitions() -> None:
    brokers = membership("", "", "", "")
    before = {partition: brokers.leader(partition, "").id for partition in PARTITIONS}
    brokers.nodes = [node for node in brokers.nodes if node.id != 2]
    after = {partition: brokers.leader(partition, "").id for partition in PARTITIONS}
    assert all(after[partition] == before[partition] for partition in PARTITIONS if before[partition] != 2)
    assert {after[partition] for partition in PARTITIONS if before[partition] == 2} == {0, 1, 3}


async def test_a_client_is_sent_to_its_zone() -> None:
    brokers = membership("a", "b", "b", "c")
    assert {brokers.leader(partition, "b").id for partition in PARTITIONS} == {1, 2}
    assert {brokers.leader(partition, "nowhere").id for partition in PARTITIONS} == {0, 1, 2, 3}


@pytest.mark.parametrize(("zones", "serving"), [(("", "", ""), {1, 2}), (("",), {0})])
async def test_a_broker_without_a_lease_redirects_clients_to_others(zones: tuple[str, ...], serving: set[int]) -> None:
    brokers = membership(*zones)
    brokers.until = 0
    assert {brokers.leader(partition, "").id for partition in PARTITIONS} == serving
    assert {brokers.shard_coordinator(number).id for number in range(100)} == serving
    brokers.until = float("inf")
    assert {brokers.shard_coordinator(number).id for number in range(100)} == {*range(len(zones))}


async def test_the_only_external_broker_keeps_its_clients() -> None:
    brokers = membership("", "")
    brokers.nodes = [replace(brokers.nodes[0], address=NodeAddress("h", 1, "", Endpoint("out", 1))), brokers.nodes[1]]
    brokers.until = 0
    assert {brokers.leader(partition, "", EXTERNAL).id for partition in PARTITIONS} == {0}
    assert {brokers.leader(partition, "").id for partition in PARTITIONS} == {1}


async def test_other_brokers_have_a_lease_time_after_a_common_outage() -> None:
    clock = FakeClock()
    store = SqliteStore(":memory:", clock, "c", Inline())
    await store.start()
    first, second = (Membership(store.nodes, NodeAddress("h", port), ttl_ms=1000) for port in (1, 2))
    for member in (first, second, first):
        await member.join() if member.until == 0 else await member._renew()
    clock.advance(5)
    first.until = 0
    await first._renew()
    assert [node.id for node in first.nodes] == [0, 1], "the other broker may not have had time to renew yet"
    first._missed_until = 0
    await first._renew()
    assert [node.id for node in first.nodes] == [0], "the other broker had time to renew"
    await second._renew()
    await first._renew()
    assert [node.id for node in first.nodes] == [0, 1]
    for _ in range(2):
        clock.advance(5)
        first.until = 0
        await first._renew()
    assert [node.id for node in first.nodes] == [0], "a dead broker is not listed because renewals are late"


async def test_a_broker_that_loses_its_node_id_while_joining_gets_another() -> None:
    class Slow(SqliteNodes):
        slow = True

        async def join(self, address: NodeAddress, ttl_ms: int, node_id: int | None = None) -> NodeLease:
            lease = await super().join(address, ttl_ms, node_id)
            if self.slow:
                self.slow = False
                await super().join(NodeAddress("other", 1), ttl_ms, lease.node)
            return lease

    store = SqliteStore(":memory:", FakeClock(), "c", Inline())
    await store.start()
    member = Membership(Slow(store.database), NodeAddress("h", 1), ttl_ms=1000)
    await member.join()
    assert [(node.id, node.address.host) for node in member.nodes] == [(0, "other"), (1, "h")]
    assert member.lease.node == 1


def test_leaders_are_hashed_once() -> None:
    topic, near = UUID(int=77), [Node(number, NodeAddress("h", 1)) for number in range(3)]
    ids = tuple(node.id for node in near)
    expected = tuple(module.leader(near, Partition(topic, index)).id for index in range(50))
    assert module.leaders(ids, topic, 50) == expected
    hits = module.leaders.cache_info().hits
    assert module.leaders(ids, topic, 50) == expected
    assert module.leaders.cache_info().hits == hits + 1
