"""The contract of `TopicStore`, for every implementation."""

import asyncio
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Lookup, Partition, Topic, Topics, TopicsVersion
from firn_broker.ports import MetadataStore
from firn_broker.topics.topic_metadata import TopicMetadata
from tests.contract.metadata_store.builders import FIRST, TOPIC, Advance, Log, StoreContract, batch, offsets


async def whole(store: MetadataStore) -> Topics:
    """Load all topics."""
    topics = await store.topics.load_topics()
    assert topics is not None
    return topics


class TopicContract(StoreContract):
    """The contract of `TopicStore`."""

    async def test_a_topic_name_is_taken_once(self, store: MetadataStore) -> None:
        assert await store.topics.create_topic(Topic(TOPIC, "orders", 3, {"retention.ms": "1"}))
        assert not await store.topics.create_topic(Topic(UUID(int=8), "orders", 1, {}))
        topics = await store.topics.load_topics()
        assert topics is not None
        assert list(topics.topics) == [Topic(TOPIC, "orders", 3, {"retention.ms": "1"})]
        assert await store.topics.load_topics(topics.version) is None

    async def test_every_change_of_a_topic_raises_the_version(self, store: MetadataStore) -> None:
        await store.topics.create_topic(Topic(TOPIC, "orders", 1, {}))
        version = -1
        for change in (
            store.topics.grow_topic(TOPIC, 4),
            store.topics.configure_topic(TOPIC, {}, {"a": "b"}),
            store.topics.delete_topic(TOPIC),
        ):
            assert await change
            topics = await store.topics.load_topics()
            assert topics is not None
            assert topics.version.number > version
            version = topics.version.number
        assert not await store.topics.grow_topic(TOPIC, 5)
        assert not await store.topics.configure_topic(TOPIC, {"a": "b"}, {})
        assert not await store.topics.delete_topic(TOPIC)

    async def test_a_refresh_loads_only_changed_and_deleted_topics(self, store: MetadataStore) -> None:
        ids = [UUID(int=number) for number in range(1, 6)]
        for id in ids[:3]:
            await store.topics.create_topic(Topic(id, f"t{id.int}", 1, {}))
        known = (await whole(store)).version
        await store.topics.grow_topic(ids[0], 2)
        await store.topics.configure_topic(ids[0], {}, {"a": "b"})
        await store.topics.delete_topic(ids[1])
        await store.topics.create_topic(Topic(ids[3], "t2", 1, {}))
        await store.topics.create_topic(Topic(ids[4], "t5", 1, {}))
        await store.topics.delete_topic(ids[4])
        loaded = await store.topics.load_topics(known)
        assert loaded is not None
        assert (loaded.whole, list(loaded.topics), sorted(loaded.deleted)) == (
            False, [Topic(ids[0], "t1", 2, {"a": "b"}), Topic(ids[3], "t2", 1, {})], [ids[1], ids[4]],
        )  # fmt: skip
        assert loaded.version == (await whole(store)).version
        assert await store.topics.load_topics(loaded.version) is None

    async def test_a_version_of_another_history_loads_all_topics(self, store: MetadataStore) -> None:
        await store.topics.create_topic(Topic(TOPIC, "orders", 1, {}))
        version = (await whole(store)).version
        for known in (version._replace(mark="another"), TopicsVersion(version.number + 5, version.mark)):
            loaded = await store.topics.load_topics(known)
            assert loaded is not None
            assert (loaded.whole, len(loaded.topics), loaded.version) == (True, 1, version)

    async def test_a_version_that_a_repair_made_has_no_changes(self, store: MetadataStore) -> None:
        await store.topics.create_topic(Topic(TOPIC, "orders", 1, {}))
        known = (await whole(store)).version
        await store.nodes.raise_counter("topics", 10)
        repaired = await store.topics.load_topics(known)
        assert repaired is not None
        assert (repaired.version, repaired.whole, repaired.topics) == (TopicsVersion(10, ""), False, [])
        assert await store.topics.load_topics(repaired.version) is None
        await store.topics.grow_topic(TOPIC, 2)
        changed = await store.topics.load_topics(repaired.version)
        assert changed is not None
        assert (changed.version.number, changed.whole, changed.topics[0].partitions) == (11, True, 2)

    async def test_no_refresh_misses_a_change(self, store: MetadataStore) -> None:
        """Many changes at the same time, and refreshes that each continue from the version before."""
        metadata = TopicMetadata(store.topics, Watermarks())
        left = 4

        async def change(worker: int) -> None:
            nonlocal left
            for number in range(10):
                id = UUID(int=100 * worker + number)
                await store.topics.create_topic(Topic(id, f"t{id.int}", 1, {}))
                await store.topics.grow_topic(id, 2)
                if number % 3 == 0:
                    await store.topics.delete_topic(id)
            left -= 1

        async def refresh() -> None:
            while left:
                await metadata.refresh()

        await asyncio.gather(*(change(worker) for worker in range(1, 5)), refresh(), refresh())
        await metadata.refresh()
        assert metadata.by_id == {topic.id: topic for topic in (await whole(store)).topics}
        assert (len(metadata.by_id), len(metadata.by_name), metadata.partitions) == (24, 24, 48)

    async def test_configs_are_replaced_only_if_they_equal_the_known_ones(self, store: MetadataStore) -> None:
        first, second = {"a": "1", "b": "2"}, {"c": "3"}
        await store.topics.create_topic(Topic(TOPIC, "orders", 1, first))
        assert await store.topics.configure_topic(TOPIC, {"b": "2", "a": "1"}, second)
        before = await store.topics.load_topics()
        assert before is not None
        assert not await store.topics.configure_topic(TOPIC, first, {})
        assert await store.topics.load_topics(before.version) is None
        assert before.topics[0].configs == second

    async def test_a_grown_topic_has_its_new_partitions(self, log: Log) -> None:
        await log.store.topics.grow_topic(TOPIC, 3)
        assert offsets(await log.commit(batch(Partition(TOPIC, 2)))) == [0]
        await log.store.topics.grow_topic(TOPIC, 2)
        (state,) = await log.store.log.states([Partition(TOPIC, 2)])
        assert state is not None

    async def test_a_deleted_topic_accepts_no_batches_and_its_objects_are_dead(
        self, log: Log, advance: Advance
    ) -> None:
        key = await log.key()
        await log.commit(batch(), key=key)
        await log.store.topics.delete_topic(TOPIC)
        (outcome,) = await log.commit(batch())
        assert outcome.error is ErrorCode.unknown_topic_or_partition
        assert await log.store.log.states([FIRST]) == [None]
        assert (await log.store.log.find([Lookup(FIRST, 0, 1)]))[0].error is ErrorCode.unknown_topic_or_partition
        assert await log.store.retention.drop_ranges(100) == 1
        await advance(11)
        assert key in await log.store.retention.dead_objects(10_000, 10)

    async def test_a_recreated_topic_begins_at_offset_zero(self, log: Log) -> None:
        await log.commit(batch(records=5))
        await log.store.topics.delete_topic(TOPIC)
        other = UUID(int=8)
        await log.store.topics.create_topic(Topic(other, "orders", 1, {}))
        assert offsets(await log.commit(batch(Partition(other, 0)))) == [0]
