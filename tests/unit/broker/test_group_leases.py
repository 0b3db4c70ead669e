"""A broker never keeps other brokers from groups by a lease that it does not know of."""

from random import Random

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.coordinates import Lease, Node, NodeAddress, NodeLease, StoredGroup
from firn_broker.coordination.sqlite import Inline, SqliteCoordinator
from firn_broker.groups.coordinator import GroupCoordinator, GroupError
from firn_broker.identifiers import Identifiers
from firn_broker.membership import Membership
from firn_broker.settings import GroupSettings
from tests.fakes.virtual_time import LoopClock


class Losing(SqliteCoordinator):
    """Loses the answer of the next call of ``lost``."""

    lost = ""

    def _lose(self, name: str) -> None:
        if self.lost == name:
            self.lost = ""
            raise UnavailableError("the answer was lost")

    async def take(self, name: str, lease: NodeLease) -> Lease | None:
        found = await super().take(name, lease)
        self._lose("take")
        return found

    async def release(self, held: Lease, lease: NodeLease) -> None:
        if self.lost == "release":
            self._lose("release")
        await super().release(held, lease)

    async def groups(self, shard: int | None = None) -> list[StoredGroup]:
        self._lose("groups")
        return list(await super().groups(shard))


@pytest.mark.parametrize("lost", ["take", "groups", "release"])
async def test_a_lease_whose_answer_was_lost_is_given_back_when_the_shard_is_anothers(lost: str) -> None:
    coordinator, clock = Losing(":memory:", LoopClock(), "c", Inline()), LoopClock()
    await coordinator.start()
    brokers = []
    for number in range(2):
        membership = Membership(coordinator, NodeAddress("h", number), ttl_ms=3_600_000)
        await membership.join()
        settings = GroupSettings(shards=1)
        made = GroupCoordinator(coordinator, membership, Identifiers(clock, Random(number)), clock, settings)
        brokers.append((membership, made))
    (first, mine), (second, other) = brokers
    first.nodes = second.nodes = [Node(first.lease.node, NodeAddress("h", 0))]
    coordinator.lost = lost
    if lost == "release":
        assert await mine.describe("g") is None
    else:
        with pytest.raises(GroupError) as refused:
            await mine.describe("g")
        assert refused.value.code is ErrorCode.coordinator_not_available
    first.nodes = second.nodes = [Node(second.lease.node, NodeAddress("h", 1))]
    if lost != "release":
        with pytest.raises(GroupError) as refused:
            await other.describe("g")
        assert refused.value.code is ErrorCode.coordinator_load_in_progress
    await mine._check()
    assert await other.describe("g") is None
