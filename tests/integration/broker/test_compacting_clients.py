"""Clients that store their state in compacted topics: Kafka Streams with a changelog, and distributed Kafka Connect.

The broker compacts the topics all the time, and the tests kill it meanwhile."""

import asyncio
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiokafka
import httpx
import kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic

from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.kafka import program
from tests.servers.process import await_true, free_port, running, stop

WORD_COUNT = Path(__file__).parents[2] / "clients" / "streams" / "WordCount.java"


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FirnBroker]:
    """Run a broker that compacts every second."""
    settings = {"GROUPS__INITIAL_REBALANCE_MS": "300", "UPKEEP__INTERVAL_SECONDS": "1"}
    with embedded(
        tmp_path_factory.mktemp("firn") / "data", **{f"FIRN_BROKER_{key}": value for key, value in settings.items()}
    ) as server:
        yield server


@pytest.fixture
def admin(firn: FirnBroker) -> AdminClient:
    return AdminClient({"bootstrap.servers": firn.bootstrap})


def write(firn: FirnBroker, topic: str, lines: list[str]) -> None:
    producer = Producer({"bootstrap.servers": firn.bootstrap, "linger.ms": 20})
    for line in lines:
        producer.produce(topic, line.encode())
    assert producer.flush(20) == 0


def records(firn: FirnBroker, topic: str) -> list[tuple[int, int, bytes | None, bytes | None]]:
    """Return (partition, offset, key, value) of every record of a topic."""
    consumer = Consumer({"bootstrap.servers": firn.bootstrap, "group.id": "nobody", "enable.partition.eof": True})
    try:
        partitions = list(consumer.list_topics(topic, 10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        messages, ended = list[tuple[int, int, bytes | None, bytes | None]](), set[int]()
        while len(ended) < len(partitions):
            message = consumer.poll(20)
            assert message is not None, f"{topic} does not end: {messages}"
            if message.error():
                ended.add(message.partition() or 0)
            else:
                messages.append((message.partition() or 0, message.offset() or 0, message.key(), message.value()))
        return messages
    finally:
        consumer.close()


def distinct(messages: list[tuple[int, int, bytes | None, bytes | None]]) -> bool:
    """Return True if no partition has a key twice."""
    return len({(message[0], message[2]) for message in messages}) == len(messages)


def values(firn: FirnBroker, topic: str) -> dict[str, str]:
    return {key.decode(): value.decode() for _, _, key, value in records(firn, topic) if key and value}


def configs(admin: AdminClient, topic: str) -> dict[str, str]:
    """Return the configs that are set on the topic."""
    (described,) = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, topic)]).values()
    return {name: entry.value for name, entry in described.result(10).items() if not entry.is_default}


@pytest.fixture(scope="module")
def holes(firn: FirnBroker) -> str:
    """Return a topic with three records left: each follows deleted records, and the last one is the end of the log."""
    admin = AdminClient({"bootstrap.servers": firn.bootstrap})
    eager = {"cleanup.policy": "compact", "delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0"}
    for made in admin.create_topics([NewTopic("holes", 1, config=eager)]).values():
        made.result(10)
    producer = Producer({"bootstrap.servers": firn.bootstrap, "compression.type": "lz4"})

    def send(*pairs: tuple[bytes, bytes | None]) -> None:
        for key, value in pairs:
            producer.produce("holes", value, key)
        assert producer.flush(20) == 0

    send(*[(b"%d" % (number % 10), b"v") for number in range(100)], *[(b"%d" % number, None) for number in range(10)])
    await_true("nothing left", lambda: records(firn, "holes") == [])
    send((b"a", b"first"), *[(b"%d" % number, b"v") for number in range(10)], (b"b", b"second"))
    send(*[(b"%d" % number, None) for number in range(10)])
    await_true("little left", lambda: len(records(firn, "holes")) == 2)
    send((b"c", b"third"))
    return "holes"


EXPECTED = [(110, b"a", b"first"), (121, b"b", b"second"), (132, b"c", b"third")]


def test_librdkafka_reads_across_removed_records(firn: FirnBroker, holes: str) -> None:
    assert [message[1:] for message in records(firn, holes)] == EXPECTED


def test_kafka_python_reads_across_removed_records(firn: FirnBroker, holes: str) -> None:
    consumer = kafka.KafkaConsumer(
        holes, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20_000
    )
    messages = list(itertools.islice(consumer, 3))
    assert [(message.offset, message.key, message.value) for message in messages] == EXPECTED
    consumer.close()


async def test_aiokafka_reads_across_removed_records(firn: FirnBroker, holes: str) -> None:
    async with aiokafka.AIOKafkaConsumer(
        holes, bootstrap_servers=firn.bootstrap, auto_offset_reset="earliest"
    ) as consumer, asyncio.timeout(30):  # fmt: skip
        messages = [await consumer.getone() for _ in range(3)]
    assert [(message.offset, message.key, message.value) for message in messages] == EXPECTED


def test_java_reads_across_removed_records(firn: FirnBroker, holes: str) -> None:
    command = program(
        "org.apache.kafka.tools.consumer.ConsoleConsumer", "--bootstrap-server", firn.bootstrap, "--topic", holes, "--from-beginning",
        "--max-messages", "3", "--timeout-ms", "30000", "--formatter-property", "print.key=true",
        "--formatter-property", "print.offset=true",
    )  # fmt: skip
    lines = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.splitlines()
    assert lines == [f"Offset:{offset}\t{key.decode()}\t{value.decode()}" for offset, key, value in EXPECTED]


def test_streams_counts_words_and_restores_its_counts(firn: FirnBroker, admin: AdminClient, tmp_path: Path) -> None:
    for made in admin.create_topics([NewTopic("lines", 2), NewTopic("counts", 2)]).values():
        made.result(10)
    states = itertools.count()

    @contextmanager
    def counting() -> Iterator["subprocess.Popen[bytes]"]:
        # No file of the earlier counts is left on this machine.
        state, log = tmp_path / f"state-{next(states)}", tmp_path / "streams.log"
        command = program(str(WORD_COUNT), firn.bootstrap, "words", "lines", "counts", str(state), jars="streams")
        with running(
            command, lambda: log.exists() and log.read_text().splitlines()[-1:] == ["RUNNING"], log
        ) as process:
            yield process

    write(firn, "lines", ["one two", "two three three", "three"] * 100)
    with counting() as process:
        await_true("all words counted", lambda: values(firn, "counts") == {"one": "100", "two": "200", "three": "300"})
        (changelog,) = [name for name in admin.list_topics(timeout=10).topics if name.endswith("-changelog")]
        (repartition,) = [name for name in admin.list_topics(timeout=10).topics if name.endswith("-repartition")]
        # Streams purges at a commit some time after the last count.
        await_true("Streams deletes records that it has read", lambda: records(firn, repartition) == [])
        stop(process)
    assert configs(admin, changelog)["cleanup.policy"] == "compact"
    assert configs(admin, repartition)["retention.ms"] == "-1"
    await_true("the changelog compacted", lambda: len(records(firn, changelog)) < 20)
    firn.kill()
    firn.start()
    with counting():
        write(firn, "lines", ["two", "four"] * 50)
        expected = {"one": "100", "two": "250", "three": "300", "four": "50"}
        await_true("counting continues", lambda: values(firn, "counts") == expected)


def test_connect_keeps_its_connectors_and_their_offsets(firn: FirnBroker, admin: AdminClient, tmp_path: Path) -> None:
    source, sink, port = tmp_path / "source.txt", tmp_path / "sink.txt", free_port()
    lines = [f"line {number}" for number in range(500)]
    source.write_text("".join(f"{line}\n" for line in lines))
    strings = "org.apache.kafka.connect.storage.StringConverter"
    worker = {
        "bootstrap.servers": firn.bootstrap, "group.id": "workers", "key.converter": strings, "value.converter": strings,
        "config.storage.topic": "connect-configs", "offset.storage.topic": "connect-offsets", "status.storage.topic": "connect-status",
        "config.storage.replication.factor": "1", "offset.storage.replication.factor": "1", "status.storage.replication.factor": "1",
        "offset.flush.interval.ms": "300", "listeners": f"http://127.0.0.1:{port}", "plugin.discovery": "service_load",
        "scheduled.rebalance.max.delay.ms": "0",
    }  # fmt: skip
    # Otherwise the broker may keep older records, as long as they are less than half of the bytes.
    worker |= {f"{purpose}.storage.min.cleanable.dirty.ratio": "0" for purpose in ("config", "offset", "status")}
    properties = tmp_path / "worker.properties"
    properties.write_text("".join(f"{key}={value}\n" for key, value in worker.items()))
    command = program("org.apache.kafka.connect.cli.ConnectDistributed", str(properties), jars="connect")
    address = f"http://127.0.0.1:{port}/connectors"

    def asked(path: str = "") -> Any:
        try:
            answer = httpx.get(address + path, timeout=5)
        except httpx.TransportError:
            return None
        return answer.json() if answer.status_code == 200 else None

    def works(name: str) -> bool:
        status = asked(f"/{name}/status") or {"tasks": []}
        return [task["state"] for task in status["tasks"]] == ["RUNNING"]

    def copied() -> list[str]:
        return sink.read_text().splitlines() if sink.exists() else []

    def position() -> int:
        """Return the position of the source that Connect has stored."""
        return max(
            (json.loads(record[3] or b"{}").get("position", 0) for record in records(firn, "connect-offsets")),
            default=0,
        )

    connectors = {"source": {"file": str(source), "topic": "copied"}, "sink": {"file": str(sink), "topics": "copied"}}
    with running(command, lambda: asked() == [], tmp_path / "connect.log"):
        for name, config in connectors.items():
            kind = {"connector.class": f"FileStream{name.capitalize()}"}
            made = httpx.put(f"{address}/{name}/config", json={**kind, **config}, timeout=30)
            assert made.status_code == 201, made.text
        await_true("all lines copied", lambda: copied() == lines)
        await_true("the source's offset kept", lambda: position() == source.stat().st_size)
    internal = {"connect-configs": 1, "connect-offsets": 25, "connect-status": 5}
    for topic, partitions in internal.items():
        assert configs(admin, topic)["cleanup.policy"] == "compact"
        assert len(admin.list_topics(topic, 10).topics[topic].partitions) == partitions
    await_true("one record of each key", lambda: all(distinct(records(firn, topic)) for topic in internal))
    firn.kill()
    firn.start()
    with source.open("a") as file:
        file.write("one more\n")
    with running(command, lambda: works("source") and works("sink"), tmp_path / "connect.log"):
        await_true("the later line", lambda: copied()[500:] == ["one more"])
    assert copied() == [*lines, "one more"]
