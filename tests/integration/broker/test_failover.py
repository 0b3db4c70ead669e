"""PostgreSQL fails over to a standby that lacks the newest commits: no acknowledged record is lost."""

import itertools
import json
import re
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from operator import gt
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition

from firn.model.errors import ExitCode
from firn_broker.cluster.continuity import REASON
from tests.integration.broker.test_fleet import all_of, fleet_of
from tests.integration.broker.test_librdkafka import create, produce, read
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import Postgres, copy, crash, directory_for_postgres, postgres, query
from tests.servers.process import await_true, free_port
from tests.servers.proxies.tcp import Proxy
from tests.servers.s3 import S3

PARTITIONS = 4
PAUSE_SECONDS = 0.005
"""Time between two records of a load."""
STREAMING = "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
NOTICED, REPAIRED = b"this broker serves no client", b"the coordinator has all acknowledged commits again"
"""Messages of brokers."""


@contextmanager
def primary_and_standby() -> Iterator[tuple[Postgres, ExitStack, Path]]:
    """Run a primary. Its exit stack ends it, and a standby may follow at the same port from the directory."""
    with directory_for_postgres() as directory, ExitStack() as running:
        yield running.enter_context(postgres(directory, free_port())), running, directory.parent / "standby"


def numbered(start: int, end: int) -> list[dict[str, Any]]:
    return [{"value": b"%d" % number} for number in range(start, end)]


def values(records: list[Any]) -> list[int]:
    return [int(record.value()) for record in records]


def test_the_broker_repeats_the_commits_that_the_standby_lacks(tmp_path: Path, storage: S3, name: str) -> None:
    with primary_and_standby() as (primary, running, standby), fleet_of(1, tmp_path, primary, storage) as (broker,):
        create(broker, name)
        produce(broker, name, numbered(0, 50))
        copy(primary, standby)
        for start in range(50, 100, 10):
            produce(broker, name, numbered(start, start + 10))
        running.close()
        with postgres(standby, primary.port):
            produce(broker, name, numbered(100, 150), **{"enable.idempotence": True})
            records = read(broker, name, 150)
            assert values(records) == [record.offset() for record in records] == list(range(150))
            assert b"the coordinator has all acknowledged commits again" in broker.log.read_bytes()
            broker.stop()


def test_a_metric_counts_the_standbys_that_no_commit_waits_for(tmp_path: Path, storage: S3) -> None:
    with ExitStack() as stack:
        directory = stack.enter_context(directory_for_postgres())
        primary = stack.enter_context(postgres(directory, durable=True))
        copy(primary, directory.parent / "standby", follows=True)
        stack.enter_context(postgres(directory.parent / "standby", durable=True))
        await_true("a standby streams", lambda: query(primary, STREAMING) == 1)
        settings = {**fleet_settings(tmp_path, primary, storage, "standbys"), "requireDurable": True}
        broker = of_fleet(tmp_path, "broker", settings)
        address = f"127.0.0.1:{free_port()}"
        broker.arguments += ["--metrics-listen", address]
        assert standbys_at_start(broker, address) == 1
        query(primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        query(primary, "SELECT pg_reload_conf()")
        await_true("commits wait for the standby", lambda: query(primary, f"{STREAMING} AND sync_state = 'sync'") == 1)
        assert standbys_at_start(broker, address) == 0


def standbys_at_start(broker: FirnBroker, address: str) -> float:
    """Start a broker, and return its metric of asynchronous standbys."""
    broker.start()
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            text = answer.read().decode()
    finally:
        broker.stop()
    (found,) = re.findall(r"^firn_broker_coordinator_asynchronous_standbys (\S+)$", text, re.MULTILINE)
    return float(found)


class Load:
    """A producer in its own thread. It notes what brokers acknowledged, and goes on after errors."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.acknowledged: dict[int, tuple[int, int]] = {}
        """Partition and offset by number."""
        self._topic = topic
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 0, "message.timeout.ms": 3_000}
        )
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._producer.flush(30)

    def _run(self) -> None:
        for number in itertools.count():
            if self._ended.is_set():
                return
            partition = number % PARTITIONS
            self._producer.produce(
                self._topic, b"%d" % number, partition=partition, on_delivery=partial(self._delivered, number)
            )
            self._producer.poll(PAUSE_SECONDS)

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged[number] = message.partition() or 0, message.offset() or 0

    def acknowledges(self, count: int) -> None:
        """Wait until brokers have acknowledged ``count`` more records."""
        enough = len(self.acknowledged) + count
        await_true(f"{count} more records", lambda: len(self.acknowledged) >= enough)


def promote(standby: Postgres) -> None:
    assert query(standby, "SELECT pg_promote(true, 60)")


def compare(database: Postgres, schema: str) -> None:
    """Wait until each broker has compared the coordinator with its past: after a renewal of its lease, and before the
    next renewal."""
    for _ in range(2):
        await_true("each broker has renewed its lease", partial(renewed, database, schema, leases(database, schema)))


def renewed(database: Postgres, schema: str, before: list[int]) -> bool:
    return all(map(gt, leases(database, schema), before))


def leases(database: Postgres, schema: str) -> list[int]:
    """Return when the lease of each broker expires, by node."""
    return list(query(database, f"SELECT array_agg(expires_ms ORDER BY id) FROM {schema}.node"))


def decide(decision: str, settings: Path) -> dict[str, Any]:
    """Run fsck with --recover or --accept as soon as the leases of all brokers are over, and return its report."""
    done: list[subprocess.CompletedProcess[str]] = []

    def decided() -> bool:
        command = [sys.executable, "-m", "firn_broker", "fsck", decision, "--config", str(settings)]
        done.append(subprocess.run(command, capture_output=True, text=True, timeout=60))
        return done[-1].returncode != ExitCode.TEMPORARY

    await_true("the leases of the brokers are over", decided)
    assert done[-1].returncode == ExitCode.DONE, done[-1].stderr
    report: dict[str, Any] = json.loads(done[-1].stdout)
    return report


def test_a_promoted_standby_loses_no_acknowledged_record_under_load(tmp_path: Path, storage: S3, name: str) -> None:
    """Replication is asynchronous, and the line to the standby stops before the primary dies."""
    with ExitStack() as stack:
        directory = stack.enter_context(directory_for_postgres())
        primary = stack.enter_context(postgres(directory))
        line = stack.enter_context(Proxy(primary.port))
        copy(replace(primary, port=line.port), directory.parent / "standby", follows=True)
        standby = stack.enter_context(postgres(directory.parent / "standby"))
        service = stack.enter_context(Proxy(primary.port))
        fleet = stack.enter_context(fleet_of(2, tmp_path, replace(primary, port=service.port), storage))
        everybody = all_of(fleet)
        create(everybody, name, PARTITIONS)
        objects = storage.directory / "buckets" / storage.bucket
        schema = yaml.safe_load((tmp_path / "broker-0.yaml").read_text())["coordinator"]["schemaName"]
        mine = objects / schema.replace("_", "-")

        def stopped() -> str:
            return str(query(standby, f"SELECT stopped FROM {schema}.cluster"))

        def decided() -> bool:
            """Return whether brokers have repeated the lost commits, or have stopped."""
            noticed = [broker.log.read_bytes() for broker in fleet]
            return bool(stopped()) or (
                any(NOTICED in text for text in noticed)
                and all(text.rfind(REPAIRED) >= text.rfind(NOTICED) for text in noticed)
            )

        with Load(everybody.bootstrap, name) as load:
            load.acknowledges(200)
            await_true("a standby streams", lambda: query(primary, "SELECT count(*) FROM pg_stat_replication") == 1)
            line.hold()
            load.acknowledges(100)
            crash(directory)
            assert (written := stored(mine))
            promote(standby)
            service.lead_to(standby.port)
            compare(standby, schema)
            await_true("the brokers have decided", decided)
            if not stopped():
                load.acknowledges(100)
        if reason := stopped():
            assert reason.startswith(REASON)
            for broker in fleet:
                broker.stop()
            assert not decide("--recover", tmp_path / "broker-0.yaml")["recovered"]["rejected"]
            for broker in fleet:
                broker.start()
        assert written <= stored(mine), "objects that may hold acknowledged records stay"
        check_acknowledged(everybody, name, load.acknowledged, same_offsets=not reason)


def stored(directory: Path) -> set[str]:
    """Return the keys of all WAL objects below a directory of the bucket."""
    return {str(path) for path in directory.rglob("*") if path.is_file()}


def check_acknowledged(
    broker: FirnBroker, topic: str, acknowledged: dict[int, tuple[int, int]], *, same_offsets: bool
) -> None:
    """Check that the log has each acknowledged record, and at its offset unless offsets may have changed."""
    places: dict[int, set[tuple[int, int]]] = {}
    for record in read_to_ends(broker, topic):
        places.setdefault(int(record.value()), set()).add((record.partition(), record.offset()))
    assert acknowledged.keys() <= places.keys()
    if same_offsets:
        assert all(place in places[number] for number, place in acknowledged.items())


def read_to_ends(broker: FirnBroker, topic: str) -> list[Any]:
    """Read each partition up to its present end.

    A broker may still append records that the producer gave up. So a number of records would not show that each
    partition was read to its end."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "enable.auto.commit": False})
    ends: dict[int, int] = {}

    def known() -> bool:
        # A broker that has just started may not be ready for this client.
        with suppress(KafkaException):
            for number in range(PARTITIONS):
                ends[number] = consumer.get_watermark_offsets(TopicPartition(topic, number), 10)[1]
        return len(ends) == PARTITIONS

    await_true("the ends of all partitions", known)
    consumer.assign([TopicPartition(topic, number, 0) for number in ends])
    records: list[Any] = []
    unread = {number for number, end in ends.items() if end}

    def complete() -> bool:
        for record in consumer.consume(1_000, 0.2):
            assert record.error() is None, record.error()
            records.append(record)
            if (record.offset() or 0) + 1 >= ends[record.partition() or 0]:
                unread.discard(record.partition() or 0)
        return not unread

    await_true("all records up to the ends", complete)
    consumer.close()
    for number, end in ends.items():
        offsets = [record.offset() for record in records if record.partition() == number]
        assert offsets[:end] == list(range(end)), "a log has no gap"
    return records


@pytest.mark.long
@pytest.mark.parametrize("decision", ["--recover", "--accept"])
def test_an_administrator_decides_after_the_loss_of_commits_and_broker(
    tmp_path: Path, storage: S3, name: str, decision: str
) -> None:
    with primary_and_standby() as (primary, running, standby), fleet_of(1, tmp_path, primary, storage) as (broker,):
        create(broker, name)
        produce(broker, name, numbered(0, 50))
        copy(primary, standby)
        produce(broker, name, numbered(50, 100))
        broker.kill()
        running.close()
        with postgres(standby, primary.port):
            report = decide(decision, tmp_path / "broker-0.yaml")
            assert sum(report["newer_records"].values()) + len(report["uncommitted"]) > 0
            broker.start()
            produce(broker, name, numbered(100, 110))
            if decision == "--recover":
                assert report["recovered"]["records"] == 50
                assert values(read(broker, name, 110)) == list(range(110))
            else:
                assert values(read(broker, name, 60)) == [*range(50), *range(100, 110)]
            broker.stop()
