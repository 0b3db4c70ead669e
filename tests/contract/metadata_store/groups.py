"""The contract of `GroupStore`, for every implementation."""

from uuid import UUID

import pytest

from firn.model.errors import FencedError
from firn_broker.log_types import CommittedOffset, Partition, StoredGroup, Topic
from tests.contract.metadata_store.builders import (
    ADDRESS,
    FIRST,
    SECOND,
    TOPIC,
    TTL,
    Advance,
    Log,
    StoreContract,
    batch,
)


class GroupContract(StoreContract):
    """The contract of `GroupStore`."""

    async def test_groups_are_saved_by_shard(self, log: Log) -> None:
        held = await log.store.nodes.acquire("groups/1", log.lease)
        assert held is not None
        await log.store.groups.save_group(held, 1, StoredGroup("a", 1, '{"x": 1}'))
        await log.store.groups.save_group(held, 1, StoredGroup("a", 2, '{"x": 2}'))
        await log.store.groups.save_group(held, 2, StoredGroup("b", 1, "{}"))
        await log.store.groups.save_group(held, 1, StoredGroup("a", 1, '{"x": "late"}'))
        assert list(await log.store.groups.load_groups(1)) == [StoredGroup("a", 2, '{"x": 2}')]
        assert [group.name for group in await log.store.groups.load_groups()] == ["a", "b"]

    async def test_offsets_are_saved_with_their_metadata(self, log: Log) -> None:
        held = await log.store.nodes.acquire("groups/1", log.lease)
        assert held is not None
        newest = {FIRST: CommittedOffset(5, 0, "so far"), SECOND: CommittedOffset(7)}
        await log.store.groups.commit_offsets(held, "g", {FIRST: CommittedOffset(4)})
        await log.store.groups.commit_offsets(held, "g", newest)
        assert dict(await log.store.groups.load_offsets("g")) == newest
        assert await log.store.groups.groups_with_offsets() == ["g"]
        await log.store.groups.delete_offsets(held, "g", [SECOND])
        assert list(await log.store.groups.load_offsets("g")) == [FIRST]
        await log.store.groups.delete_group(held, "g")
        assert dict(await log.store.groups.load_offsets("g")) == {}

    async def test_groups_with_offsets_are_found_by_shard(self, log: Log) -> None:
        commit, find = log.store.groups.commit_offsets, log.store.groups.groups_with_offsets
        for number, name in enumerate("abcd"):
            await commit(None, name, {FIRST: CommittedOffset(1), SECOND: CommittedOffset(1)}, number % 2)
        assert [await find(0), await find(1), await find(2)] == [["a", "c"], ["b", "d"], []]
        # An earlier version saves no shard.
        await commit(None, "old", {FIRST: CommittedOffset(1), SECOND: CommittedOffset(1)})
        assert [await find(0), await find(1), await find(2)] == [["a", "c", "old"], ["b", "d", "old"], ["old"]]
        await commit(None, "old", {FIRST: CommittedOffset(2), SECOND: CommittedOffset(2)}, 1)
        assert [await find(0), await find(1)] == [["a", "c"], ["b", "d", "old"]]
        assert await find() == ["a", "b", "c", "d", "old"]

    @pytest.mark.parametrize("part", ["state", "offsets"])
    async def test_a_group_in_use_is_not_deleted_as_unused(self, log: Log, advance: Advance, part: str) -> None:
        groups = log.store.groups
        held = await log.store.nodes.acquire("groups/1", log.lease)
        assert held is not None
        await groups.save_group(held, 1, StoredGroup("g", 1, "{}"))
        await groups.commit_offsets(held, "g", {FIRST: CommittedOffset(1)})
        await advance(6)
        if part == "state":
            await groups.save_group(held, 1, StoredGroup("g", 2, "{}"))
        else:
            await groups.commit_offsets(held, "g", {FIRST: CommittedOffset(2)})
        await advance(6)
        assert not await groups.delete_group(held, "g", 10_000)
        assert [group.name for group in await groups.load_groups(1)] == await groups.groups_with_offsets() == ["g"]
        await advance(6)
        assert await groups.delete_group(held, "g", 10_000)
        assert [*await groups.load_groups(1), *await groups.groups_with_offsets()] == []

    async def test_a_former_lease_holder_changes_no_group(self, log: Log, advance: Advance) -> None:
        held = await log.store.nodes.acquire("groups/1", log.lease)
        assert held is not None
        await advance(TTL / 1000 + 1)
        other = await log.store.nodes.join(ADDRESS, TTL, 7)
        assert await log.store.nodes.acquire("groups/1", other) is not None
        for change in (
            log.store.groups.save_group(held, 1, StoredGroup("a", 1, "{}")),
            log.store.groups.delete_group(held, "a"),
            log.store.groups.commit_offsets(held, "a", {FIRST: CommittedOffset(1)}),
            log.store.groups.delete_offsets(held, "a", [FIRST]),
        ):
            with pytest.raises(FencedError):
                await change

    async def test_lags_are_per_topic_the_greatest_first(self, log: Log) -> None:
        await log.commit(batch(FIRST, records=5), batch(SECOND, records=7))
        other = UUID(int=8)
        await log.store.topics.create_topic(Topic(other, "other", 1, {}))
        await log.commit(batch(Partition(other, 0), records=20))
        commit = log.store.groups.commit_offsets
        await commit(
            None, "a", {FIRST: CommittedOffset(1), SECOND: CommittedOffset(9), Partition(other, 0): CommittedOffset(0)}
        )
        await commit(None, "b", {SECOND: CommittedOffset(2), Partition(TOPIC, 99): CommittedOffset(2)})
        await commit(None, "not asked for", {SECOND: CommittedOffset(0)})
        lags = [("a", other, 20), ("b", TOPIC, 5), ("a", TOPIC, 4)]
        assert list(await log.store.groups.lags(["a", "b", "none"], 10)) == lags
        assert list(await log.store.groups.lags(["a", "b", "none"], 2)) == lags[:2]
        await log.store.topics.delete_topic(other)
        assert list(await log.store.groups.lags(["a", "b"], 10)) == lags[1:]
        assert list(await log.store.groups.lags([], 10)) == []

    async def test_deleting_a_topic_deletes_its_offsets(self, log: Log) -> None:
        await log.store.groups.commit_offsets(None, "g", {FIRST: CommittedOffset(5)})
        await log.store.topics.delete_topic(TOPIC)
        assert dict(await log.store.groups.load_offsets("g")) == {}

    async def test_no_offsets_are_saved_for_a_deleted_topic(self, log: Log) -> None:
        held = await log.store.nodes.acquire("groups/1", log.lease)
        gone = Partition(UUID(int=6), 0)
        for lease in (held, None):
            await log.store.groups.commit_offsets(lease, "g", {gone: CommittedOffset(5), SECOND: CommittedOffset(6)})
            assert list(await log.store.groups.load_offsets("g")) == [SECOND]
        await log.store.topics.delete_topic(TOPIC)
        await log.store.groups.commit_offsets(held, "g", {SECOND: CommittedOffset(7)})
        assert await log.store.groups.groups_with_offsets() == []
