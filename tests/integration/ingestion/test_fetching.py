"""Tasks read the same records as another client, over every protocol, and while connections break."""

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.fetching import source
from firn_spark.worker.fetching.access import Access, access
from firn_spark.worker.fetching.slices import Slice
from tests.servers.kafka import STRANGER, STRANGER_PASSWORD, Kafka, kafka
from tests.servers.process import free_port
from tests.servers.proxies.tcp import Proxy

PARTITIONS = 3
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with kafka(tmp_path_factory.mktemp("kafka"), secure=True) as server:
        yield server


@pytest.fixture(scope="module")
def slices(broker: Kafka) -> list[Slice]:
    """Produce transactions of all codecs into two topics, some of them aborted. Return the offsets in them."""
    rng = random.Random(12)
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS) for name in "ab"]).values():
        created.result(30)
    for codec in CODECS:
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "compression.type": codec,
                "linger.ms": 20,
                "transactional.id": codec,
            }
        )
        producer.init_transactions(30)
        for _ in range(4):
            producer.begin_transaction()
            for number in range(300):
                producer.produce(
                    rng.choice("ab"),
                    key=rng.choice([None, b"key %d" % number]),
                    value=rng.choice([None, b"", rng.randbytes(rng.randrange(300)), b"x" * 5_000]),
                    headers=[("name", b"value"), ("none", None)] if rng.random() < 0.1 else None,
                    partition=rng.randrange(PARTITIONS),
                )
            producer.flush()
            (producer.commit_transaction if rng.random() < 0.6 else producer.abort_transaction)(30)
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "ends"})
    places = [TopicPartition(name, part) for name in "ab" for part in range(PARTITIONS)]
    ends = {(place.topic, place.partition): consumer.get_watermark_offsets(place, 10)[1] for place in places}
    consumer.close()
    return [Slice(*place, 3, end) for place, end in ends.items()]


@pytest.fixture(scope="module")
def expected(broker: Kafka, slices: list[Slice]) -> list[tuple[Any, ...]]:
    """Return the records that librdkafka reads."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "oracle",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in slices])
    waiting, rows = {(part.topic, part.partition) for part in slices}, []
    while waiting:
        for message in consumer.consume(1_000, 1.0):
            place = message.topic(), message.partition()
            if message.error():
                waiting.discard(place)
                continue
            kind, time = message.timestamp()
            headers = [tuple(header) for header in message.headers() or ()]
            rows.append((*place, message.offset(), time, kind - 1, message.key(), message.value(), headers))
    consumer.close()
    return sorted(rows, key=lambda row: row[:3])


def rows_of(blocks: Iterator[Fetched]) -> list[tuple[Any, ...]]:
    rows: list[tuple[Any, ...]] = []
    for block in blocks:
        headers = [[(one["key"], one["value"]) for one in listed] for listed in block.headers.to_arrow().to_pylist()]
        numbers = (block.partitions, block.offsets, block.times, block.time_types)
        columns = [array.tolist() for array in numbers]
        names = [block.topic] * len(block)
        rows += zip(names, *columns, block.keys.to_list(), block.values.to_list(), headers, strict=True)
    return sorted(rows, key=lambda row: row[:3])


CONNECTIONS: dict[str, Callable[[Kafka], KafkaConnection]] = {
    "plain": lambda broker: broker.connection,
    "TLS and SCRAM-SHA-512": lambda broker: broker.secure_connection(),
    "TLS and SCRAM-SHA-256": lambda broker: broker.secure_connection(mechanism="SCRAM-SHA-256"),
    "TLS and PLAIN": lambda broker: broker.secure_connection(mechanism="PLAIN"),
    "client certificates": lambda broker: broker.mutual_connection(),
}


@pytest.mark.parametrize("name", CONNECTIONS)
def test_the_records_are_those_that_another_client_reads(
    broker: Kafka, slices: list[Slice], expected: list[tuple[Any, ...]], name: str
) -> None:
    assert len(expected) > 2_000
    assert rows_of(source.read(access(CONNECTIONS[name](broker)), slices)) == expected


REFUSED: dict[str, Callable[[Kafka], KafkaConnection]] = {
    "a wrong password": lambda broker: broker.secure_connection(password="wrong"),
    "an unknown user": lambda broker: broker.secure_connection(username="nobody"),
    "no rights": lambda broker: broker.secure_connection(username=STRANGER, password=STRANGER_PASSWORD),
    "no certificate": lambda broker: broker.mutual_connection(None),
    "an unknown authority": lambda broker: broker.secure_connection(ca=broker.directory / "tls" / "other-ca.crt"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_client_is_told_so(broker: Kafka, slices: list[Slice], name: str) -> None:
    with pytest.raises(AccessDeniedError, match="correct"):
        rows_of(source.read(access(REFUSED[name](broker)), slices))


def test_small_answers_bring_the_same_records(
    broker: Kafka, slices: list[Slice], expected: list[tuple[Any, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "ANSWER_BYTES", 4_000)
    monkeypatch.setattr(source, "PARTITION_BYTES", 1_000)
    assert rows_of(source.read(access(broker.connection), slices)) == expected


def test_broken_connections_lose_and_double_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ANSWER_BYTES", 20_000)
    port = free_port()
    with Proxy(port) as proxy:
        listeners = f"PLAINTEXT://127.0.0.1:{proxy.port}"
        with kafka(tmp_path, port=port, advertised__listeners=listeners):
            count = produce(f"127.0.0.1:{proxy.port}")
            reading = source.read(Access(f"127.0.0.1:{proxy.port}"), [Slice("orders", 0, 0, count)])
            blocks = [next(reading)]
            for _ in range(5):
                proxy.cut()
                proxy.mend()
                blocks.append(next(reading))
        # The broker stops in an orderly way, and starts again.
        with kafka(tmp_path, port=port, advertised__listeners=listeners):
            blocks += reading
    assert [offset for block in blocks for offset in block.offsets.tolist()] == list(range(count))


def test_a_broker_that_falls_silent_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "ANSWER_BYTES", 20_000)
    monkeypatch.setattr(source, "STALL_SECONDS", 1.0)
    monkeypatch.setattr(source, "ANSWER_SECONDS", 0.3)
    port = free_port()
    with Proxy(port) as proxy, kafka(tmp_path, port=port, advertised__listeners=f"PLAINTEXT://127.0.0.1:{proxy.port}"):
        count = produce(f"127.0.0.1:{proxy.port}")
        reading = source.read(Access(f"127.0.0.1:{proxy.port}"), [Slice("orders", 0, 0, count)])
        next(reading)
        proxy.hold()
        with pytest.raises(UnavailableError, match="topic orders, partition 0, offset .*: no record arrived"):
            list(reading)


def produce(bootstrap: str) -> int:
    """Produce records to partition 0 of a new topic in batches of a few records. Return their number."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
    producer = Producer({"bootstrap.servers": bootstrap, "batch.num.messages": 10, "enable.idempotence": True})
    for number in range(2_000):
        producer.produce("orders", b"%d" % number + b"x" * 100, partition=0)
    assert producer.flush(30) == 0
    return 2_000
