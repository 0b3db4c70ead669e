"""librdkafka (confluent-kafka) against the broker."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConsumerGroupDescription,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from tests.integration.broker.admins import admin
from tests.servers.firn_broker import FirnBroker
from tests.servers.process import await_true

LATER = {
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
}
"""Errors after which a client asks again."""
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def produce(broker: FirnBroker, topic: str, records: list[dict[str, Any]], **config: Any) -> list[int]:
    """Produce records and return their offsets in order."""
    offsets: dict[int, int] = {}
    errors: list[KafkaError] = []
    producer = Producer({"bootstrap.servers": broker.bootstrap, "linger.ms": 5, **config})

    def delivered(number: int) -> Callable[[KafkaError | None, Any], None]:
        return lambda error, message: errors.append(error) if error else offsets.update({number: message.offset()})

    for number, record in enumerate(records):
        producer.produce(topic, on_delivery=delivered(number), **record)
        producer.poll(0)
    assert producer.flush(30) == 0
    assert not errors, errors[:3]
    return [offsets[number] for number in range(len(records))]


def read(broker: FirnBroker, topic: str, count: int, **config: Any) -> list[Any]:
    """Read ``count`` records from the beginning with a new consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": f"reader-of-{topic}-{time.monotonic_ns()}",
            "auto.offset.reset": "earliest", "enable.auto.commit": False, **config,
        }
    )  # fmt: skip
    partitions = consumer.list_topics(topic, 10).topics[topic].partitions
    consumer.assign([TopicPartition(topic, number, 0) for number in partitions])
    try:
        return take(consumer, count)
    finally:
        consumer.close()


def take(consumer: Consumer, count: int, seconds: float = 40) -> list[Any]:
    messages: list[Any] = []
    deadline = time.monotonic() + seconds
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} records of {count}"
        for message in consumer.consume(count - len(messages), 0.2):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def create(broker: FirnBroker, topic: str, partitions: int = 1, **config: str) -> None:
    # Some records of tests have timestamps years ago, and the first round of retention must not delete them.
    configs = {key.replace("_", "."): value for key, value in ({"retention_ms": "-1"} | config).items()}
    (made,) = admin(broker).create_topics([NewTopic(topic, partitions, config=configs)]).values()
    made.result(10)


def describe(client: AdminClient, group: str) -> ConsumerGroupDescription:
    """Describe a group. librdkafka does not repeat the request itself if the coordinator of a busy machine is late."""
    found: list[ConsumerGroupDescription] = []

    def described() -> bool:
        (answer,) = client.describe_consumer_groups([group]).values()
        try:
            found.append(answer.result(20))
        except KafkaException as error:
            if error.args[0].code() not in LATER:
                raise
        return bool(found)

    await_true(f"a description of group {group}", described, 30)
    return found[0]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("idempotent", [False, True])
def test_records_read_back_as_they_were_written(firn: FirnBroker, name: str, codec: str, idempotent: bool) -> None:
    create(firn, name)
    records: list[dict[str, Any]] = [
        {"key": None, "value": b"v"},
        {"key": b"k", "value": None},
        {"key": b"", "value": b""},
        {"key": b"k", "value": b"v", "headers": [("a", b"1"), ("a", None), ("ä", b"")], "timestamp": 1234567890123},
        *({"key": b"%d" % number, "value": b"x" * number} for number in range(200)),
    ]
    assert produce(firn, name, records, **{"compression.type": codec, "enable.idempotence": idempotent}) == list(
        range(204)
    )
    messages = read(firn, name, 204)
    assert [message.offset() for message in messages] == list(range(204))
    assert [(message.key(), message.value()) for message in messages] == [
        (record["key"], record["value"]) for record in records
    ]
    assert messages[3].headers() == [("a", b"1"), ("a", None), ("ä", b"")]
    assert messages[3].timestamp() == (1, 1234567890123)


def test_a_record_of_a_megabyte_reads_back(firn: FirnBroker, name: str) -> None:
    create(firn, name, max_message_bytes="4000000")
    value = bytes(range(256)) * 4096
    produce(firn, name, [{"value": value}] * 3, **{"message.max.bytes": 4_000_000})
    assert [message.value() for message in read(firn, name, 3)] == [value] * 3


def test_a_batch_above_the_topic_limit_is_rejected(firn: FirnBroker, name: str) -> None:
    create(firn, name, max_message_bytes="1000")
    with pytest.raises(AssertionError, match="MSG_SIZE_TOO_LARGE"):
        produce(firn, name, [{"value": b"x" * 2000}])


def test_producing_to_a_missing_topic_creates_it(firn: FirnBroker, name: str) -> None:
    assert produce(firn, name, [{"value": b"v"}]) == [0]


def test_append_time_replaces_the_timestamp(firn: FirnBroker, name: str) -> None:
    create(firn, name, message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    produce(firn, name, [{"value": b"v", "timestamp": 5}])
    (message,) = read(firn, name, 1)
    kind, stamp = message.timestamp()
    assert kind == 2
    assert before - 1000 <= stamp <= time.time() * 1000 + 1000


def test_offsets_are_listed(firn: FirnBroker, name: str) -> None:
    create(firn, name)
    for stamp in (1000, 3000, 2000):
        produce(firn, name, [{"value": b"v", "timestamp": stamp + number} for number in range(10)])
    partition = TopicPartition(name, 0)

    def listed(spec: OffsetSpec) -> int:
        (listing,) = admin(firn).list_offsets({partition: spec}).values()
        offset: int = listing.result(10).offset
        return offset

    assert listed(OffsetSpec.earliest()) == 0
    assert listed(OffsetSpec.latest()) == 30
    assert listed(OffsetSpec.max_timestamp()) == 19
    for stamp, offset in ((0, 0), (1005, 5), (1010, 10), (2000, 10), (3009, 19), (3010, -1)):
        assert listed(OffsetSpec.for_timestamp(stamp)) == offset, stamp


def test_configs_are_described_and_altered(firn: FirnBroker, name: str) -> None:
    create(firn, name, retention_ms="1000")
    resource = ConfigResource(ResourceType.TOPIC, name)

    def described() -> dict[str, Any]:
        (description,) = admin(firn).describe_configs([resource]).values()
        return {key: entry.value for key, entry in description.result(10).items()}

    before = described()
    assert (before["retention.ms"], before["cleanup.policy"], before["max.message.bytes"]) == (
        "1000",
        "delete",
        "1048588",
    )
    change = ConfigResource(
        ResourceType.TOPIC, name,
        incremental_configs=[
            ConfigEntry("segment.ms", "5000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("retention.ms", None, incremental_operation=AlterConfigOpType.DELETE),
        ],
    )  # fmt: skip
    for done in admin(firn).incremental_alter_configs([change]).values():
        done.result(10)
    after = described()
    assert (after["retention.ms"], after["segment.ms"]) == ("604800000", "5000")
    wrong = ConfigResource(
        ResourceType.TOPIC, name,
        incremental_configs=[ConfigEntry("retention.ms", "a while", incremental_operation=AlterConfigOpType.SET)],
    )  # fmt: skip
    (done,) = admin(firn).incremental_alter_configs([wrong]).values()
    with pytest.raises(KafkaException, match="INVALID_CONFIG"):
        done.result(10)


def test_topics_are_grown_and_deleted(firn: FirnBroker, name: str) -> None:
    create(firn, name)
    for done in admin(firn).create_partitions([NewPartitions(name, 3)]).values():
        done.result(10)
    assert len(admin(firn).list_topics(name, 10).topics[name].partitions) == 3
    with pytest.raises(KafkaException, match="already exists"):
        create(firn, name)
    for done in admin(firn).delete_topics([name]).values():
        done.result(10)
    assert name not in admin(firn).list_topics(timeout=10).topics


def test_records_are_deleted_up_to_an_offset(firn: FirnBroker, name: str) -> None:
    create(firn, name)
    for _ in range(3):
        produce(firn, name, [{"value": b"v"}] * 10)
    (done,) = admin(firn).delete_records([TopicPartition(name, 0, 15)]).values()
    assert done.result(10).low_watermark == 15
    messages = read(firn, name, 15)
    assert [message.offset() for message in messages] == list(range(15, 30))


def test_a_transaction_is_rejected_without_retry(firn: FirnBroker, name: str) -> None:
    producer = Producer({"bootstrap.servers": firn.bootstrap, "transactional.id": "t"})
    with pytest.raises(KafkaException) as refused:
        producer.init_transactions(20)
    assert refused.value.args[0].fatal()


def group(broker: FirnBroker, name: str, **config: Any) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": broker.bootstrap, "group.id": name, "auto.offset.reset": "earliest", "enable.auto.commit": False,
            "session.timeout.ms": 6000, "heartbeat.interval.ms": 300, **config,
        }
    )  # fmt: skip


def test_members_share_partitions_and_take_over(firn: FirnBroker, name: str) -> None:
    create(firn, name, 4)
    for partition in range(4):
        produce(firn, name, [{"value": b"%d" % number, "partition": partition} for number in range(50)])
    first, second = group(firn, name), group(firn, name)
    first.subscribe([name])
    assert len(take(first, 200)) == 200
    first.commit(asynchronous=False)
    second.subscribe([name])
    deadline = time.monotonic() + 30
    while not (len(first.assignment()) == len(second.assignment()) == 2):
        assert time.monotonic() < deadline
        assert first.poll(0.1) is None
        assert second.poll(0.1) is None
    description = describe(admin(firn), name)
    assert (description.state.name, len(description.members)) == ("STABLE", 2)
    first.close()
    while len(second.assignment()) != 4:
        assert time.monotonic() < deadline
        assert second.poll(0.1) is None
    second.close()
    (offsets,) = admin(firn).list_consumer_group_offsets([_all_of(name)]).values()
    assert sorted(position.offset for position in offsets.result(10).topic_partitions) == [50] * 4
    listed = admin(firn).list_consumer_groups().result(10)
    assert name in [listing.group_id for listing in listed.valid]
    for done in admin(firn).delete_consumer_groups([name]).values():
        done.result(10)
    assert name not in [listing.group_id for listing in admin(firn).list_consumer_groups().result(10).valid]


def _all_of(name: str) -> Any:
    return ConsumerGroupTopicPartitions(name)


def test_a_static_member_rejoins_without_a_rebalance(firn: FirnBroker, name: str) -> None:
    create(firn, name, 2)
    generations = []
    for _ in range(2):
        member = group(firn, name, **{"group.instance.id": "a", "session.timeout.ms": 30000})
        member.subscribe([name])
        deadline = time.monotonic() + 20
        while len(member.assignment()) != 2:
            assert time.monotonic() < deadline
            member.poll(0.1)
        generations.append([participant.group_instance_id for participant in describe(admin(firn), name).members])
        member.close()
    assert generations == [["a"], ["a"]]
