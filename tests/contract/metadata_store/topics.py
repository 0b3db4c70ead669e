"""The contract of `TopicStore`, for every implementation."""

from uuid import UUID

from kio.schema.errors import ErrorCode

from firn_broker.log_types import Lookup, Partition, Topic
from firn_broker.ports import MetadataStore
from tests.contract.metadata_store.builders import FIRST, TOPIC, Advance, Log, StoreContract, batch, offsets


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
            assert topics.version > version
            version = topics.version
        assert not await store.topics.grow_topic(TOPIC, 5)
        assert not await store.topics.configure_topic(TOPIC, {"a": "b"}, {})
        assert not await store.topics.delete_topic(TOPIC)

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
