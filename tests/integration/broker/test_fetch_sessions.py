"""kafka-python opens a fetch session, as Java clients do: an idle consumer of many partitions costs few bytes."""

import time
import urllib.request
from contextlib import closing
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic
from kafka import KafkaConsumer, KafkaProducer
from kafka.structs import TopicPartition

from tests.servers.firn_broker import embedded
from tests.servers.process import await_true, free_port

PARTITIONS = 500


def sample(port: int, name: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])


def test_an_idle_consumer_of_many_partitions_gets_few_bytes_and_each_record(tmp_path: Path) -> None:
    port = free_port()
    with embedded(tmp_path / "data", FIRN_BROKER_METRICS_LISTEN=f"127.0.0.1:{port}") as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("t", PARTITIONS)])["t"].result(20)
        consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", fetch_max_wait_ms=50)
        with closing(KafkaProducer(bootstrap_servers=broker.bootstrap)) as producer, closing(consumer):
            consumer.assign([TopicPartition("t", index) for index in range(PARTITIONS)])
            read: list[int] = []

            def sent(*partitions: int) -> bool:
                for index in partitions:
                    producer.send("t", b"%d" % index, partition=index).get(20)
                end = time.monotonic() + 20
                while len(read) < len(partitions) and time.monotonic() < end:
                    read.extend(int(record.value) for records in consumer.poll(100).values() for record in records)
                found = sorted(read)
                read.clear()
                return found == sorted(partitions)

            assert sent(0, 250, 499)
            await_true(
                "a session", lambda: sample(port, "firn_broker_fetch_session_partitions") == PARTITIONS, seconds=10
            )
            before = sample(port, "firn_broker_sent_bytes_total")
            for _ in range(10):
                consumer.poll(100)
            # Each full answer would have 20 kB.
            assert sample(port, "firn_broker_sent_bytes_total") - before < 10_000
            assert sent(250, 7)
            consumer.assign([TopicPartition("t", index) for index in range(10)])
            assert sent(7, 3)
        await_true("the end", lambda: sample(port, "firn_broker_fetch_session_partitions") == 0, seconds=10)
