"""Leadership spreads, moves only where it has to, and prefers the client's zone."""

from collections import Counter
from uuid import UUID

import pytest

from firn_broker.coordinates import Node, NodeAddress, NodeLease, Partition
from firn_broker.coordination.sqlite import Inline, SqliteCoordinator
from firn_broker.membership import Membership
from tests.fakes.clock import FakeClock

PARTITIONS = [Partition(UUID(int=topic << 64 | 99), number) for topic in range(30) for number in range(100)]


def membership(*zones: str) -> Membership:
    made = Membership(SqliteCoordinator(":memory:", FakeClock(), "c", Inline()), NodeAddress("h", 1), ttl_ms=1000)
    made.nodes = [Node(number, NodeAddress("h", number, zone)) for number, zone in enumerate(zones)]
    return made


@pytest.mark.parametrize("nodes", [2, 3, 7])
def test_partitions_spread_evenly(nodes: int) -> None:
    brokers = membership(*[""] * nodes)
    led = Counter(brokers.leader(partition, "").id for partition in PARTITIONS)
    assert len(led) == nodes
    assert max(led.values()) < 1.25 * len(PARTITIONS) / nodes
    shards = Counter(brokers.of_shard(number).id for number in range(1000))
    assert max(shards.values()) < 1.3 * 1000 / nodes


def test_a_broker_that_goes_moves_only_its_own() -> None:
    brokers = membership("", "", "", "")
    before = {partition: brokers.leader(partition, "").id for partition in PARTITIONS}
    brokers.nodes = [node for node in brokers.nodes if node.id != 2]
    after = {partition: brokers.leader(partition, "").id for partition in PARTITIONS}
    assert all(after[partition] == before[partition] for partition in PARTITIONS if before[partition] != 2)
    assert {after[partition] for partition in PARTITIONS if before[partition] == 2} == {0, 1, 3}


def test_a_client_is_sent_to_its_zone() -> None:
    brokers = membership("a", "b", "b", "c")
    assert {brokers.leader(partition, "b").id for partition in PARTITIONS} == {1, 2}
    assert {brokers.leader(partition, "nowhere").id for partition in PARTITIONS} == {0, 1, 2, 3}


async def test_who_lost_its_place_while_it_took_it_takes_another() -> None:
    class Slow(SqliteCoordinator):
        slow = True

        async def join(self, address: NodeAddress, ttl_ms: int, wanted: int | None = None) -> NodeLease:
            lease = await super().join(address, ttl_ms, wanted)
            if self.slow:
                self.slow = False
                await super().join(NodeAddress("other", 1), ttl_ms, lease.node)
            return lease

    coordinator = Slow(":memory:", FakeClock(), "c", Inline())
    await coordinator.start()
    member = Membership(coordinator, NodeAddress("h", 1), ttl_ms=1000)
    await member.join()
    assert [(it.id, it.address.host) for it in member.nodes] == [(0, "other"), (1, "h")]
    assert member.lease.node == 1
