"""Real clients follow a broker to a history broker for old records, and come back for new ones."""

import asyncio
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer
from confluent_kafka import Consumer, TopicPartition
from kafka import KafkaConsumer

from tests.integration.broker.test_fleet import all_of
from tests.integration.broker.test_franz_go import franz as franz
from tests.integration.broker.test_librdkafka import create, produce, read
from tests.integration.broker.test_merges import PARTITIONS, ROUNDS, UPKEEP, counted, fill
from tests.integration.ingestion import other_clients
from tests.log_records import digests, read_log
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3

Ports = tuple[int, int]
"""Ports of the metrics of the history broker and of the other one."""


@pytest.fixture
def fleet(tmp_path: Path, database: Postgres, storage: S3, name: str) -> Iterator[tuple[list[FirnBroker], Ports]]:
    """Run a history broker, and one for producers."""
    settings = fleet_settings(tmp_path, database, storage, f"history-brokers-{name}")
    settings |= {"leaseSeconds": 2, "upkeep": UPKEEP, "historyBrokers": 1}
    ports = free_port(), free_port()
    brokers = [
        of_fleet(tmp_path, f"node-{node}", {**settings, "nodeId": node, "metricsListen": f"127.0.0.1:{port}"})
        for node, port in enumerate(ports)
    ]
    for broker in brokers:
        broker.start()
    yield brokers, ports
    for broker in brokers:
        broker.stop()


def redirected(port: int, to: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith(f'firn_broker_redirected_partitions_total{{to="{to}"}}')
    )


def test_clients_read_old_records_from_the_history_broker_and_new_ones_from_the_other(
    fleet: tuple[list[FirnBroker], Ports], name: str, franz: Path
) -> None:
    brokers, (history, main) = fleet
    everybody = all_of(brokers)
    create(everybody, name, PARTITIONS)
    count = len(fill(everybody, name))
    await_true("objects are merged", lambda: sum(counted(port, "merged objects") for port in (history, main)) >= ROUNDS)
    await_true(
        "old objects are deleted", lambda: sum(counted(port, "deleted objects") for port in (history, main)) >= ROUNDS
    )
    produce(everybody, name, [{"value": b"new %d" % number, "partition": number % PARTITIONS} for number in range(50)])
    before = read_log(everybody.bootstrap, name, PARTITIONS)
    assert len(before) == count + 50
    # The consumer asks for the end of each partition, for which the history broker sends it back.
    assert redirected(history, "newest") >= PARTITIONS
    expected = digests(before)
    for client in (other_clients.by_java, lambda *place: other_clients.by_franz_go(franz, *place)):
        seen = redirected(main, "history")
        assert client(brokers[1].bootstrap, name) == expected
        assert redirected(main, "history") >= seen + PARTITIONS


async def test_python_clients_read_old_records(fleet: tuple[list[FirnBroker], Ports], name: str) -> None:
    brokers, (history, main) = fleet
    everybody = all_of(brokers)
    create(everybody, name, PARTITIONS)
    expected = sorted(fill(everybody, name))
    await_true("objects are merged", lambda: sum(counted(port, "merged objects") for port in (history, main)) >= ROUNDS)
    place = {"bootstrap_servers": brokers[1].bootstrap, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(name, **place) as consumer:
        found = [(await asyncio.wait_for(anext(consumer), 20)).value for _ in expected]
    assert sorted(found) == expected
    assert redirected(main, "history") >= PARTITIONS
    with closing(KafkaConsumer(name, **place, consumer_timeout_ms=20_000)) as waiting:
        assert sorted(message.value for message in islice(waiting, len(expected))) == expected


def test_a_consumer_that_has_read_old_records_gets_new_ones_at_once(
    fleet: tuple[list[FirnBroker], Ports], name: str
) -> None:
    brokers, ports = fleet
    everybody = all_of(brokers)
    create(everybody, name, PARTITIONS)
    count = len(fill(everybody, name))
    await_true("objects are merged", lambda: sum(counted(port, "merged objects") for port in ports) >= ROUNDS)
    consumer = Consumer({"bootstrap.servers": everybody.bootstrap, "group.id": name})
    consumer.assign([TopicPartition(name, number, 0) for number in range(PARTITIONS)])
    found: list[bytes | None] = []

    def has(records: int) -> bool:
        found.extend(message.value() for message in consumer.consume(1_000, 1.0) if message.error() is None)
        return len(found) >= records

    await_true("old records", lambda: has(count))
    await_true("the consumer is back", lambda: redirected(ports[0], "newest") >= PARTITIONS)
    produce(everybody, name, [{"value": b"new %d" % number, "partition": number % PARTITIONS} for number in range(50)])
    await_true("new records", lambda: has(count + 50))
    assert len(found) == count + 50
    consumer.close()


def test_the_end_of_the_history_broker_stops_no_consumer(fleet: tuple[list[FirnBroker], Ports], name: str) -> None:
    brokers, ports = fleet
    everybody = all_of(brokers)
    create(everybody, name, PARTITIONS)
    count = len(fill(everybody, name))
    await_true("objects are merged", lambda: sum(counted(port, "merged objects") for port in ports) >= ROUNDS)
    brokers[0].kill()
    assert len(read(everybody, name, count)) == count
    brokers[0].start()
