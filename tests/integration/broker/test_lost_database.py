"""The database of a fleet is gone: `firn-broker fsck --recover --topics` makes a new one from the bucket and a list of topics."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml
from confluent_kafka import Producer, TopicCollection, TopicPartition

from firn.kafka_clients import kafka_id
from firn.model.errors import ExitCode
from tests.integration.broker.admins import admin
from tests.integration.broker.test_librdkafka import create, produce, read
from tests.integration.broker.test_merges import PARTITIONS, UPKEEP, counted, fill
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import Postgres, query
from tests.servers.process import await_true, free_port
from tests.servers.s3 import S3

SHORT = {"leaseSeconds": 2, "upkeep": UPKEEP}


def fsck(settings: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "firn_broker", "fsck", "--config", str(settings), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def places(broker: FirnBroker, topic: str, count: int) -> dict[tuple[int, int], tuple[bytes, int]]:
    """Return value and time of each record by partition and offset."""
    return {
        (record.partition(), record.offset()): (record.value(), record.timestamp()[1])
        for record in read(broker, topic, count)
    }


def topics_file(broker: FirnBroker, directory: Path, topic: str, landed: dict[str, int]) -> Path:
    """Write the file that describes a topic."""
    (described,) = admin(broker).describe_topics(TopicCollection([topic])).values()
    topic_id = kafka_id(described.result(10).topic_id)
    known: dict[str, Any] = {"name": topic, "id": topic_id, "partitions": PARTITIONS, "next": landed}
    file = directory / "topics.json"
    file.write_text(json.dumps({"topics": [{**known, "configs": {"retention.ms": "-1"}}]}))
    return file


def send(producer: Producer, topic: str, count: int) -> None:
    """Send records to partition 2, one batch for each."""
    failed: list[str] = []
    for number in range(count):
        producer.produce(
            topic,
            b"%d" % number,
            partition=2,
            on_delivery=lambda error, _: failed.append(str(error)) if error else None,
        )
        assert producer.flush(60) == 0
    assert failed == []


def test_a_new_database_gets_topics_and_records_with_their_offsets(
    tmp_path: Path, database: Postgres, storage: S3, name: str
) -> None:
    metrics = free_port()
    settings = fleet_settings(tmp_path, database, storage, f"lost-{name}")
    broker = of_fleet(tmp_path, "lost", {**settings, **SHORT, "metricsListen": f"127.0.0.1:{metrics}"})
    broker.start()
    create(broker, name, PARTITIONS)
    deleted = len(fill(broker, name))
    await_true("objects are merged", lambda: counted(metrics, "merged objects") >= 6)
    starts = dict.fromkeys(range(PARTITIONS), deleted // PARTITIONS)
    for future in admin(broker).delete_records([TopicPartition(name, *each) for each in starts.items()]).values():
        future.result(30)
    living = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    send(living, name, 5)
    kept = len(fill(broker, name)) + 5
    await_true("the small objects are deleted", lambda: counted(metrics, "deleted objects") >= 12)
    produce(broker, name, [{"value": b"newest %d" % number, "partition": 1} for number in range(20)])
    before = places(broker, name, kept + 20)
    file = topics_file(broker, tmp_path, name, {"1": starts[1] + (kept - 5) // PARTITIONS})
    broker.stop()

    configuration = tmp_path / "lost.yaml"
    schema = yaml.safe_load(configuration.read_text())["coordinator"]["schemaName"]
    query(database, f"DROP SCHEMA {schema} CASCADE")
    refused = fsck(configuration, "--recover")
    assert refused.returncode == ExitCode.CONFIGURATION, refused.stderr
    assert "does not exist, or is empty" in refused.stderr
    done = fsck(configuration, "--recover", "--topics", str(file))
    assert done.returncode == ExitCode.DONE, done.stderr + done.stdout
    report = json.loads(done.stdout)
    assert (report["topics"], report["gaps"], report["recovered"]["again"]) == ([name], {}, [])
    assert report["recovered"]["records"] == 20

    broker.start()
    assert places(broker, name, kept + 20) == before
    (offset,) = produce(broker, name, [{"value": b"after", "partition": 1}])
    assert offset == max(offset for partition, offset in before if partition == 1) + 1
    send(living, name, 5)
    broker.stop()
