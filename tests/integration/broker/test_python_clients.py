"""What the clients in Python can do with our broker: aiokafka (old versions of messages only) and kafka-python (the newest)."""

import asyncio
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.structs import TopicPartition
from kafka import KafkaConsumer, KafkaProducer

from tests.servers.firn_broker import FirnBroker

AIOKAFKA_CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
HEADERS = [("a", b"1"), ("b", b"")]


@pytest.mark.parametrize("codec", AIOKAFKA_CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
async def test_aiokafka_produces_and_consumes(firn: FirnBroker, name: str, codec: str | None, idempotent: bool) -> None:
    async with AIOKafkaProducer(
        bootstrap_servers=firn.bootstrap, compression_type=codec, enable_idempotence=idempotent, linger_ms=5
    ) as producer:
        sent = [await producer.send(name, b"%d" % number, key=b"k", headers=HEADERS) for number in range(100)]
        sent.append(await producer.send(name, None, key=b"k"))
        assert [(await it).offset for it in sent] == list(range(101))
    async with AIOKafkaConsumer(name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest") as consumer:
        found = [await asyncio.wait_for(anext(consumer), 20) for _ in range(101)]
    assert [it.value for it in found] == [*(b"%d" % number for number in range(100)), None]
    assert found[0].headers == tuple(HEADERS)


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


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_produces_and_consumes(firn: FirnBroker, name: str, codec: str | None) -> None:
    producer = KafkaProducer(bootstrap_servers=firn.bootstrap, compression_type=codec, linger_ms=5)
    sent = [producer.send(name, b"%d" % number, key=b"k", headers=HEADERS) for number in range(100)]
    assert [it.get(20).offset for it in sent] == list(range(100))
    producer.close()
    consumer = KafkaConsumer(
        name, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest", group_id=name, consumer_timeout_ms=20_000
    )
    found = [next(consumer) for _ in range(100)]
    consumer.commit()
    consumer.close()
    assert [it.value for it in found] == [b"%d" % number for number in range(100)]
