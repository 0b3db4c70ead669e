"""Python clients against the broker: aiokafka (old message versions) and kafka-python (the newest versions)."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from typing import Any

import aiokafka.errors
import kafka
import kafka.errors
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.structs import TopicPartition
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.structs import OffsetAndMetadata

from tests.servers.firn_broker import FirnBroker
from tests.servers.process import await_true

AIOKAFKA_CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
HEADERS = [("a", b"1"), ("b", b"")]
MIB = 1 << 20
TODAY = int(time.time() * 1000)
LARGE = {"max.message.bytes": str(2 * MIB)}


@pytest.fixture
async def aiokafka_admin(firn: FirnBroker) -> AsyncIterator[AIOKafkaAdminClient]:
    admin = AIOKafkaAdminClient(bootstrap_servers=firn.bootstrap)
    await admin.start()
    yield admin
    await admin.close()


@pytest.fixture
def kafka_admin(firn: FirnBroker) -> Iterator[KafkaAdminClient]:
    with closing(KafkaAdminClient(bootstrap_servers=firn.bootstrap)) as admin:
        yield admin


@pytest.mark.parametrize("codec", AIOKAFKA_CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
async def test_aiokafka_produces_and_consumes(firn: FirnBroker, name: str, codec: str | None, idempotent: bool) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=firn.bootstrap, compression_type=codec, enable_idempotence=idempotent, linger_ms=5
    ) as producer:
        sent = [await producer.send(name, b"%d" % number, key=b"k", headers=HEADERS) for number in range(100)]
        sent.append(await producer.send(name, None, key=b"k"))
        assert [(await future).offset for future in sent] == list(range(101))
    async with AIOKafkaConsumer(name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest") as consumer:
        messages = [await asyncio.wait_for(anext(consumer), 20) for _ in range(101)]
    assert [message.value for message in messages] == [*(b"%d" % number for number in range(100)), None]
    assert messages[0].headers == tuple(HEADERS)


async def test_aiokafka_groups_rebalance(firn: FirnBroker, name: str) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=firn.bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(name, 4, 1)])
    config: dict[str, Any] = {
        "bootstrap_servers": firn.bootstrap, "group_id": name, "auto_offset_reset": "earliest", "enable_auto_commit": False,
        "heartbeat_interval_ms": 200,
    }  # fmt: skip
    first, second = AIOKafkaConsumer(name, **config), AIOKafkaConsumer(name, **config)
    await first.start()
    await second.start()
    try:
        async with asyncio.timeout(30):
            while not (len(first.assignment()) == len(second.assignment()) == 2):
                await asyncio.sleep(0.05)
        async with AIOKafkaProducer(bootstrap_servers=firn.bootstrap) as producer:
            for partition in range(4):
                await producer.send_and_wait(name, b"v", partition=partition)
        records = 0
        async with asyncio.timeout(20):
            while records < 4:
                for consumer in (first, second):
                    records += sum(map(len, (await consumer.getmany(timeout_ms=200)).values()))
        await first.commit()
        await second.commit()
    finally:
        await first.stop()
        await second.stop()
    committed = await admin.list_consumer_group_offsets(name)
    assert [committed[TopicPartition(name, number)].offset for number in range(4)] == [1] * 4
    await admin.close()


async def test_aiokafka_moves_large_records(firn: FirnBroker, name: str, aiokafka_admin: AIOKafkaAdminClient) -> None:
    await aiokafka_admin.create_topics([NewTopic(name, 1, 1, topic_configs=LARGE)])
    value = bytes(range(256)) * (MIB // 256)
    async with AIOKafkaProducer(bootstrap_servers=firn.bootstrap, max_request_size=2 * MIB) as producer:
        for _ in range(3):
            await producer.send_and_wait(name, value)
    async with AIOKafkaConsumer(name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest") as consumer:
        messages = [await asyncio.wait_for(anext(consumer), 20) for _ in range(3)]
    assert [message.value for message in messages] == [value] * 3


async def test_aiokafka_static_members_rejoin_without_a_rebalance(firn: FirnBroker, name: str) -> None:
    config: dict[str, Any] = {"bootstrap_servers": firn.bootstrap, "group_id": name, "heartbeat_interval_ms": 200}
    rebalances = 0

    class Counting(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
        async def on_partitions_revoked(self, revoked: object) -> None:
            nonlocal rebalances
            rebalances += 1

        async def on_partitions_assigned(self, assigned: object) -> None:
            pass

    first = AIOKafkaConsumer(group_instance_id="first", **config)
    second = AIOKafkaConsumer(name, group_instance_id="second", **config)
    first.subscribe([name], listener=Counting())
    await first.start()
    await second.start()
    try:
        async with asyncio.timeout(30):
            while not (first.assignment() or second.assignment()):
                await asyncio.sleep(0.05)
        before = rebalances
        await second.stop()
        second = AIOKafkaConsumer(name, group_instance_id="second", **config)
        await second.start()
        assert rebalances == before
    finally:
        await first.stop()
        await second.stop()


async def test_aiokafka_administers_topics(firn: FirnBroker, name: str, aiokafka_admin: AIOKafkaAdminClient) -> None:
    admin = aiokafka_admin
    await admin.create_topics([NewTopic(name, 1, 1, topic_configs={"retention.ms": "3600000"})])
    await admin.create_partitions({name: NewPartitions(2)})
    (described,) = await admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    resource = ConfigResource(ConfigResourceType.TOPIC, name, configs={"retention.ms": "7200000"})
    await admin.alter_configs([resource])
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name)])
    configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    assert (configs["retention.ms"], configs["cleanup.policy"]) == ("7200000", "delete")
    place = TopicPartition(name, 0)
    async with AIOKafkaProducer(bootstrap_servers=firn.bootstrap) as producer:
        for number in range(5):
            await producer.send_and_wait(name, b"v", partition=0, timestamp_ms=TODAY + number)
    assert (await admin.delete_records({place: RecordsToDelete(before_offset=2)}))[place] == 2
    async with AIOKafkaConsumer(bootstrap_servers=firn.bootstrap) as consumer:
        assert (await consumer.beginning_offsets([place]), await consumer.end_offsets([place])) == (
            {place: 2},
            {place: 5},
        )
        (position,) = (await consumer.offsets_for_times({place: TODAY + 3})).values()
        assert position.offset == 3
    await admin.delete_topics([name])
    assert name not in await admin.list_topics()


async def test_aiokafka_lists_and_describes_groups(
    firn: FirnBroker, name: str, aiokafka_admin: AIOKafkaAdminClient
) -> None:
    await aiokafka_admin.create_topics([NewTopic(name, 1, 1)])
    async with AIOKafkaConsumer(name, bootstrap_servers=firn.bootstrap, group_id=name) as consumer:
        async with asyncio.timeout(30):
            while not consumer.assignment():
                await asyncio.sleep(0.05)
        assert (name, "consumer") in [tuple(listing)[:2] for listing in await aiokafka_admin.list_consumer_groups()]
        (answer,) = await aiokafka_admin.describe_consumer_groups([name])
        assert answer.groups[0][:3] == (0, name, "Stable")


async def test_an_aiokafka_transaction_is_rejected_without_retry(firn: FirnBroker, name: str) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=firn.bootstrap, transactional_id=name)
    with pytest.raises(aiokafka.errors.TransactionalIdAuthorizationFailed):
        async with asyncio.timeout(20):
            await producer.start()
    await producer.stop()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_produces_and_consumes(firn: FirnBroker, name: str, codec: str | None) -> None:
    producer = KafkaProducer(bootstrap_servers=firn.bootstrap, compression_type=codec, linger_ms=5)
    sent = [producer.send(name, b"%d" % number, key=b"k", headers=HEADERS) for number in range(100)]
    assert [future.get(20).offset for future in sent] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(
        name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest", group_id=name, consumer_timeout_ms=20_000
    )
    messages = [next(consumer) for _ in range(100)]
    consumer.commit()
    consumer.close()
    assert [message.value for message in messages] == [b"%d" % number for number in range(100)]


def test_kafka_python_moves_nulls_and_large_records(firn: FirnBroker, name: str, kafka_admin: KafkaAdminClient) -> None:
    kafka_admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1, "configs": LARGE}})
    values = [None, b"", bytes(range(256)) * (MIB // 256)]
    with closing(KafkaProducer(bootstrap_servers=firn.bootstrap, max_request_size=2 * MIB)) as producer:
        for value in values:
            producer.send(name, value, key=b"k").get(20)
    consumer = KafkaConsumer(
        name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    with closing(consumer):
        assert [next(consumer).value for _ in values] == values


class Member(threading.Thread):
    """A consumer that polls until the test ends it."""

    def __init__(self, bootstrap: str, topic: str, **config: Any) -> None:
        super().__init__(daemon=True)
        self._consumer = KafkaConsumer(
            topic,
            bootstrap_servers=bootstrap,
            group_id=topic,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
            **config,
        )
        self._over = threading.Event()
        self.owned: set[int] = set()
        self.records = 0

    def __enter__(self) -> "Member":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(30)

    def run(self) -> None:
        with closing(self._consumer):
            while not self._over.is_set():
                self.records += sum(map(len, self._consumer.poll(timeout_ms=100).values()))
                self.owned = {partition.partition for partition in self._consumer.assignment()}


@pytest.mark.parametrize("static", [False, True])
def test_kafka_python_groups_rebalance(
    firn: FirnBroker, name: str, kafka_admin: KafkaAdminClient, static: bool
) -> None:
    kafka_admin.create_topics({name: {"num_partitions": 4, "replication_factor": 1}})
    config = [{"group_instance_id": f"member-{number}"} if static else {} for number in range(2)]
    with Member(firn.bootstrap, name, **config[0]) as first:
        await_true("one member has all partitions", lambda: first.owned == {0, 1, 2, 3}, 30)
        with Member(firn.bootstrap, name, **config[1]) as second:
            await_true("two members share the partitions", lambda: len(first.owned) == len(second.owned) == 2, 30)
            assert first.owned | second.owned == {0, 1, 2, 3}
            with closing(KafkaProducer(bootstrap_servers=firn.bootstrap)) as producer:
                for partition in range(4):
                    producer.send(name, b"v", partition=partition).get(20)
            await_true("all records are consumed", lambda: first.records + second.records == 4, 30)
            described = kafka_admin.describe_groups([name])[name]
            assert (described["group_state"], len(described["members"])) == ("Stable", 2)
    assert name in [listing["group_id"] for listing in kafka_admin.list_groups()]
    if not static:  # static members leave only when their sessions expire
        kafka_admin.delete_groups([name])
        assert name not in [listing["group_id"] for listing in kafka_admin.list_groups()]


def test_kafka_python_administers_topics(firn: FirnBroker, name: str, kafka_admin: KafkaAdminClient) -> None:
    place = kafka.TopicPartition(name, 0)
    kafka_admin.create_topics({name: {"num_partitions": 1, "replication_factor": 1}})
    kafka_admin.create_partitions({name: 2})
    (described,) = kafka_admin.describe_topics([name])
    assert len(described["partitions"]) == 2
    with closing(KafkaProducer(bootstrap_servers=firn.bootstrap)) as producer:
        for number in range(5):
            producer.send(name, b"v", partition=0, timestamp_ms=TODAY + number).get(20)
    kafka_admin.delete_records({place: 2})
    with closing(KafkaConsumer(bootstrap_servers=firn.bootstrap, group_id=name)) as consumer:
        assert (consumer.beginning_offsets([place]), consumer.end_offsets([place])) == ({place: 2}, {place: 5})
        assert consumer.offsets_for_times({place: TODAY + 3})[place].offset == 3
        consumer.assign([place])
        consumer.commit({place: OffsetAndMetadata(4, "mine", -1)})
        assert consumer.committed(place) == 4
    kafka_admin.delete_topics([name])
    assert name not in kafka_admin.list_topics()


def test_a_kafka_python_transaction_is_rejected_without_retry(firn: FirnBroker, name: str) -> None:
    producer = KafkaProducer(bootstrap_servers=firn.bootstrap, transactional_id=name)
    with closing(producer), pytest.raises(kafka.errors.TransactionalIdAuthorizationFailedError):
        producer.init_transactions()
