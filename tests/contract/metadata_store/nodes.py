"""The contract of `NodeStore`, for every implementation."""

import pytest

from firn.model.errors import FencedError
from firn_broker.log_types import (
    EPOCH_STEPS,
    KEPT_EPOCHS,
    LOST_PRODUCERS,
    REPAIRS,
    Commit,
    Endpoint,
    NodeAddress,
    StoredGroup,
)
from firn_broker.ports import MetadataStore, WentBackError
from tests.contract.metadata_store.builders import (
    ADDRESS,
    SECOND,
    TTL,
    Advance,
    Log,
    StoreContract,
    batch,
    offsets,
    placed,
    produced,
)


class NodeContract(StoreContract):
    """The contract of `NodeStore`."""

    async def test_the_cluster_keeps_its_id(self, store: MetadataStore) -> None:
        assert await store.cluster_id() == await store.cluster_id() != ""

    async def test_a_lease_from_before_the_clock_went_back_ends_on_time(
        self, store: MetadataStore, advance: Advance
    ) -> None:
        first, _ = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, TTL)
        await advance(-1000 * TTL / 1000)
        assert [node.id for node in await store.nodes.renew(first, TTL)] == [0, 1]
        await advance(TTL / 1000 + 1)
        assert [node.id for node in await store.nodes.renew(first, TTL)] == [0]

    async def test_a_node_does_not_shorten_a_longer_lease_of_another(
        self, store: MetadataStore, advance: Advance
    ) -> None:
        """While a roll-out raises leaseSeconds, brokers have leases of two lengths."""
        short, long = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, TTL)
        await store.nodes.renew(long, 3 * TTL)
        await store.nodes.renew(short, TTL)
        await advance(2 * TTL / 1000)
        assert [node.id for node in await store.nodes.renew(short, TTL)] == [0, 1]
        await advance(TTL / 1000 + 1)
        assert [node.id for node in await store.nodes.renew(short, TTL)] == [0]

    async def test_nodes_get_the_lowest_free_id(self, store: MetadataStore, advance: Advance) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, 2 * TTL)
        assert (first.node, second.node) == (0, 1)
        await advance(TTL / 1000 + 1)
        again = await store.nodes.join(ADDRESS, TTL)
        assert again.node == 0
        assert again.epoch > first.epoch

    async def test_a_node_that_does_not_renew_is_not_live(self, store: MetadataStore, advance: Advance) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(NodeAddress("b", 2, "z"), TTL)
        await advance(6)
        await store.nodes.renew(first, TTL)
        await advance(6)
        assert [node.id for node in await store.nodes.renew(first, TTL)] == [0]
        nodes = await store.nodes.renew(second, TTL)
        assert [node.id for node in await store.nodes.renew(first, TTL)] == [0, 1], (
            "no other node has its id, so it may return"
        )
        assert [node.id for node in nodes][:1] == [0]
        assert (await store.nodes.renew(first, TTL))[1].address == NodeAddress("b", 2, "z")

    async def test_a_node_has_the_listeners_with_which_it_joined_last(self, store: MetadataStore) -> None:
        others = {"secure": Endpoint("a", 9093), "partners": Endpoint("b.example", 9095)}
        lease = await store.nodes.join(NodeAddress("a", 1, others=others), TTL, 3)
        (node,) = await store.nodes.renew(lease, TTL)
        assert node.address == NodeAddress("a", 1, others=others)
        again = await store.nodes.join(NodeAddress("a", 1, others={"secure": Endpoint("a", 9999)}), TTL, 3)
        (node,) = await store.nodes.renew(again, TTL)
        assert node.address.others == {"secure": Endpoint("a", 9999)}

    async def test_a_node_has_an_external_address(self, store: MetadataStore) -> None:
        outside = NodeAddress("a", 1, "z", Endpoint("a.example", 31000))
        lease = await store.nodes.join(outside, TTL, 3)
        assert [node.address for node in await store.nodes.renew(lease, TTL)] == [outside]
        lease = await store.nodes.join(NodeAddress("a", 1, "z"), TTL, 3)
        assert [node.address.external for node in await store.nodes.renew(lease, TTL)] == [None], (
            "the node no longer has an external listener"
        )

    async def test_joining_with_a_node_id_fences_its_holder(self, store: MetadataStore) -> None:
        first = await store.nodes.join(ADDRESS, TTL, 3)
        second = await store.nodes.join(ADDRESS, TTL, 3)
        assert first.node == second.node == 3
        assert 1 <= second.epoch - first.epoch <= EPOCH_STEPS
        with pytest.raises(FencedError):
            await store.nodes.renew(first, TTL)

    async def test_a_node_that_leaves_is_not_live_at_once(self, store: MetadataStore) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, TTL)
        await store.nodes.leave(second)
        assert [node.id for node in await store.nodes.renew(first, TTL)] == [0]

    async def test_a_lease_has_one_holder(self, store: MetadataStore, advance: Advance) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, 3 * TTL)
        held = await store.nodes.acquire("upkeep", first)
        assert held is not None
        assert await store.nodes.acquire("upkeep", first) == held
        assert await store.nodes.acquire("upkeep", second) is None
        await advance(TTL / 1000 + 1)
        taken = await store.nodes.acquire("upkeep", second)
        assert taken is not None
        assert taken.epoch > held.epoch

    async def test_a_node_finds_the_leases_that_it_holds(self, store: MetadataStore) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, TTL)
        held = await store.nodes.acquire("groups/1", first)
        assert held is not None
        await store.nodes.acquire("upkeep", first)
        await store.nodes.acquire("groups/2", second)
        assert await store.nodes.held(first) == ["groups/1", "upkeep"]
        await store.nodes.release(held, first)
        assert await store.nodes.held(first) == ["upkeep"]
        assert await store.nodes.held(await store.nodes.join(ADDRESS, TTL, first.node)) == []

    async def test_a_released_lease_is_free_and_its_epoch_over(self, store: MetadataStore) -> None:
        first, second = await store.nodes.join(ADDRESS, TTL), await store.nodes.join(ADDRESS, TTL)
        held = await store.nodes.acquire("groups/1", first)
        assert held is not None
        await store.nodes.release(held, first)
        with pytest.raises(FencedError):
            await store.groups.save_group(held, 1, StoredGroup("g", 1, "{}"))
        taken = await store.nodes.acquire("groups/1", second)
        assert taken is not None
        assert taken.epoch > held.epoch

    async def test_counters_of_progress_never_fall(self, store: MetadataStore, log: Log) -> None:
        seen = dict((await store.nodes.progress()).counters)
        assert seen[log.lease.commits] == 0
        for step in (
            log.commit(batch()),
            log.commit(batch(SECOND), produced(0)),
            store.nodes.allocate_producer_ids(10),
            store.nodes.join(ADDRESS, TTL, log.lease.node),
            store.nodes.raise_counter("topics", 7),
            store.nodes.raise_counter("topics", 3),
        ):
            await step
            counters = (await store.nodes.progress()).counters
            assert all(counters[name] >= value for name, value in seen.items())
            seen = dict(counters)
        assert (seen[log.lease.commits], seen["topics"], seen["producer"]) == (2, 7, 10)

    async def test_only_commits_with_batches_count_and_each_of_them_once(self, store: MetadataStore, log: Log) -> None:
        key = await log.key()
        for _ in range(2):
            await log.commit(batch(), key=key)
        await log.commit()
        assert (await store.nodes.progress()).counters[log.lease.commits] == 1

    async def test_counters_of_old_epochs_are_deleted(self, store: MetadataStore) -> None:
        leases = [await store.nodes.join(ADDRESS, TTL, 0) for _ in range(KEPT_EPOCHS + 3)]
        kept = [name for name in (await store.nodes.progress()).counters if name.startswith("commits/")]
        assert sorted(kept) == sorted(lease.commits for lease in leases[-KEPT_EPOCHS:])

    async def test_a_stopped_store_rejects_commits_until_no_broker_is_live(
        self, store: MetadataStore, log: Log, advance: Advance
    ) -> None:
        key = await log.key()
        await store.nodes.stop_serving("some commits are lost")
        await store.nodes.stop_serving("another reason")
        assert (await store.nodes.progress()).stopped == "some commits are lost"
        with pytest.raises(WentBackError, match="some commits are lost"):
            await log.commit(batch(), key=key)
        assert offsets(await log.store.log.commit(Commit(log.lease, key, 1000, placed([batch()]), repair=True))) == [0]
        assert not await store.nodes.allow_serving()
        await advance(TTL / 1000 + 1)
        producers = (await store.nodes.progress()).counters.get("producer", 0)
        assert await store.nodes.allow_serving()
        progress = await store.nodes.progress()
        assert (progress.stopped, progress.counters["producer"]) == ("", producers + LOST_PRODUCERS)
        repairs = progress.counters[REPAIRS]
        assert await store.nodes.allow_serving()
        assert (await store.nodes.progress()).counters[REPAIRS] > repairs
        assert offsets(await log.commit(batch())) == [1]

    async def test_a_store_is_stopped_for_a_repair_only_while_no_broker_is_live(
        self, store: MetadataStore, log: Log, advance: Advance
    ) -> None:
        assert not await store.nodes.stop_idle("a repair")
        assert (await store.nodes.progress()).stopped == ""
        await advance(TTL / 1000 + 1)
        for reason in ("a repair", "a second repair"):
            assert await store.nodes.stop_idle(reason)
        assert (await store.nodes.progress()).stopped == "a repair"

    async def test_producer_ids_are_allocated_once(self, store: MetadataStore) -> None:
        first = await store.nodes.allocate_producer_ids(10)
        assert await store.nodes.allocate_producer_ids(1) >= first + 10
