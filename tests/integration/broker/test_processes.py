"""A pod with several broker processes, and consumers that read in their own rack."""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

from confluent_kafka import Consumer, TopicPartition
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.broker.admins import admin
from tests.integration.broker.test_fleet import all_of
from tests.integration.broker.test_librdkafka import create, produce, read, take
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3

PARTITIONS = 6


def children(broker: FirnBroker) -> list[int]:
    """Return the ids of the broker's child processes."""
    assert broker.process is not None
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(broker.process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def free_pair() -> int:
    """Return a free port whose next port is free too."""
    while True:
        port = free_port()
        with suppress(OSError), socket.create_server(("127.0.0.1", port + 1)):
            return port


def brokers_of(broker: FirnBroker) -> set[int]:
    return {node.id for node in admin(broker).list_topics(timeout=10).brokers.values()}


def test_a_killed_process_returns_and_loses_no_record(
    tmp_path: Path, database: Postgres, storage: S3, name: str
) -> None:
    settings = {**fleet_settings(tmp_path, database, storage, "processes"), "leaseSeconds": 2, "nodeId": 3}
    broker = of_fleet(tmp_path, "processes", settings)
    broker.arguments += ["--processes", "2"]
    broker.port = free_pair()
    both = FirnBroker([], 0, Path(), bootstrap_servers=f"{broker.bootstrap},127.0.0.1:{broker.port + 1}")
    try:
        broker.start()
        await_true("each process is a node", lambda: brokers_of(both) == {6, 7})
        create(both, name, PARTITIONS)
        produce(both, name, [{"value": b"%d" % number, "partition": number % PARTITIONS} for number in range(300)])
        before = children(broker)
        os.kill(before[1], signal.SIGKILL)
        produce(both, name, [{"value": b"%d" % number, "partition": number % PARTITIONS} for number in range(300, 600)])
        assert sorted(int(record.value()) for record in read(both, name, 600)) == list(range(600))
        await_true("the process is back", lambda: brokers_of(both) == {6, 7} and len(children(broker)) == 2)
        assert before[0] in children(broker)
    finally:
        assert broker.stop() == 0


def sent_bytes(metrics: str) -> float:
    """Return the bytes that a broker has sent to clients."""
    with urlopen(f"http://{metrics}/metrics", timeout=30) as answer:
        families = text_string_to_metric_families(answer.read().decode())
    return next(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == "firn_broker_sent_bytes_total"
    )


def test_a_consumer_reads_from_the_broker_of_its_rack(
    tmp_path: Path, database: Postgres, storage: S3, name: str
) -> None:
    metrics = {zone: f"127.0.0.1:{free_port()}" for zone in ("a", "b")}
    settings = fleet_settings(tmp_path, database, storage, "racks")
    brokers = [
        of_fleet(tmp_path, f"rack-{zone}", {**settings, "zone": zone, "metricsListen": place})
        for zone, place in metrics.items()
    ]
    try:
        for broker in brokers:
            broker.start()
        both = all_of(brokers)
        await_true("each broker knows both", lambda: all(len(brokers_of(broker)) == 2 for broker in brokers))
        create(both, name, PARTITIONS)
        value = os.urandom(1000)
        produce(both, name, [{"value": value, "partition": number % PARTITIONS} for number in range(3000)])
        before = {zone: sent_bytes(place) for zone, place in metrics.items()}
        consumer = Consumer({"bootstrap.servers": both.bootstrap, "group.id": name, "client.rack": "b"})
        consumer.assign([TopicPartition(name, index, 0) for index in range(PARTITIONS)])
        assert len(take(consumer, 3000)) == 3000
        consumer.close()
        sent = {zone: sent_bytes(place) - before[zone] for zone, place in metrics.items()}
        assert sent["b"] > 3_000_000 > 300_000 > sent["a"]
    finally:
        for broker in brokers:
            if broker.process is not None:
                broker.stop()
