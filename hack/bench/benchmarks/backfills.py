"""Read the history of a topic whose log keeps no copy, end to end: from a broker over S3, with PostgreSQL, to Kafka's consumer.

The peers are a topic of the same broker whose log keeps its copy, and Apache Kafka. All three have the same records of JSON, which the
producer compresses with lz4. The page cache is empty, and the broker has just started. Kafka has no cache of its own. A further topic
of the broker has a table with a column for each member of its values."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firn.driver_requests.landed_offsets import (
    LANDED_PATH,
    UNINDEXED_PATH,
    Asked,
    FirstOffsets,
    Landed,
    LandedAnswer,
    LandedRange,
    Unindexed,
)
from firn.kafka_clients import kafka_id
from firn_broker.settings import BucketSettings
from firn_broker.storage.objects import open_objects
from firn_spark.kafka.diskless.direct_reads import uuid_of
from firn_spark.worker.row_groups import MOST_BYTES
from hack.bench.benchmarks.broker import Brokers, Seen, charged, child, evict, median, on_kafka, over_bucket, publish
from hack.bench.benchmarks.history import FIELDS, MEMBER_NAMES, MEMBERS, Row, members_of, values_of, write_table
from hack.bench.measuring.cores import halves, move, only_on
from hack.bench.measuring.figures import Better, Figure
from hack.bench.options import Options
from hack.support.progress import say
from tests.log_records import read_log
from tests.servers.firn_broker import FirnBroker, of_fleet
from tests.servers.kafka import tool
from tests.servers.process import await_true, free_port

PARTITIONS = 4
RECORD_BYTES = 1_000
BACKFILLS = 4
"""Consumers beside the publisher."""
SLOW_MB = 5
"""MB/s of the publisher."""
UNITS: dict[str, tuple[str, Better]] = {
    "rate": ("MB/s out of history", "higher"),
    "cpu": ("broker CPU s per GB out of history", "lower"),
    "seek": ("ms from a seek into history to its first record", "lower"),
    "publish_p99": (f"ms of publish, {SLOW_MB} MB/s, beside {BACKFILLS} backfills (99 %)", "lower"),
}
COPY, KAFKA, ALONE = "copy in the log", "Apache Kafka 4.2.1", "the same publisher alone"
RAW = "a table of raw values"
TYPED = "typed"
APART = "the same publisher alone on half of the cores"


def measure(options: Options) -> Iterator[Figure]:
    """Measure both topics of a broker, and Kafka, `Options.repeats` times."""
    runs: dict[str, list[Seen]] = {"single": [], TYPED: [], "copy": [], "kafka": []}
    for turn in range(options.repeats):
        values = values_of(RECORD_BYTES, options.megabytes)
        with _directory(options.directory / f"backfills-firn-{turn}") as directory, _fleet(directory) as fleet:
            for topic in ("single", TYPED, "copy"):
                _produce(fleet.brokers, topic, values)
            for topic in ("single", TYPED):
                fleet.land(topic, options.megabytes)
            runs[TYPED].append(_reads(TYPED, options.megabytes, fleet.restarted()))
            for topic in ("single", "copy"):
                runs[topic].append(_contest(topic, options.megabytes, fleet.restarted) | _apart(fleet, topic))
        with _directory(options.directory / f"backfills-kafka-{turn}") as directory, on_kafka(directory) as brokers:
            _produce(brokers, "kafka", values)
            runs["kafka"].append(_contest("kafka", options.megabytes, partial(_evicted, brokers)))
    seen = {name: median(runs) for name, runs in runs.items()}
    for name, (unit, better) in UNITS.items():
        ours = seen["single"][name]
        yield Figure(f"backfills_{name}", ours, unit, better, COPY, seen["copy"][name])
        yield Figure(f"backfills_{name}_kafka", ours, unit, better, KAFKA, seen["kafka"][name])
    for name, raw in seen["single"].items():
        if name in seen[TYPED]:
            unit, better = UNITS[name]
            yield Figure(f"backfills_{name}_{TYPED}", seen[TYPED][name], unit, better, RAW, raw)
    unit, single = UNITS["publish_p99"][0], seen["single"]
    yield Figure("backfills_publish_apart", single["apart_p99"], unit, "lower", APART, single["apart_alone_p99"])
    yield Figure("backfills_publish_alone", single["publish_p99"], unit, "lower", ALONE, single["alone_p99"])


@contextmanager
def _directory(path: Path) -> Iterator[Path]:
    path.mkdir()
    try:
        yield path
    finally:
        shutil.rmtree(path)


class _Fleet:
    """A broker over S3, and the requests of an ingestion driver."""

    def __init__(
        self, broker: FirnBroker, directory: Path, lake: BucketSettings, internal: str, settings: Mapping[str, Any]
    ) -> None:
        self.broker = broker
        self._settings = settings
        self.directory = directory
        self.lake = lake
        self.internal = internal

    @property
    def brokers(self) -> Brokers:
        """Return the contestant."""
        assert self.broker.process is not None
        stores = {"s3": child("versitygw"), "postgres": child("postgres")}
        return Brokers("firn-broker", self.broker.bootstrap, self.broker.process.pid, self.directory, stores)

    def restarted(self) -> Brokers:
        """Return the contestant after a restart without the page cache."""
        self.broker.stop()
        evict(self.directory)
        self.broker.start()
        return self.brokers

    @contextmanager
    def history_broker(self, cores: Set[int]) -> Iterator[None]:
        """Run a history broker on some cores inside the with block."""
        settings = {**self._settings, "nodeId": 0, "metricsListen": ""}
        history = of_fleet(self.directory, "history", {key: settings[key] for key in settings if key != "internal"})
        with only_on(cores):
            history.start()
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        await_true("both brokers are alive", lambda: len(admin.list_topics(timeout=10).brokers) == 2)
        try:
            yield
        finally:
            history.stop()

    def land(self, topic: str, megabytes: int) -> None:
        """Write the records of a topic to a data file for each partition, and wait until the broker has compared all."""
        admin = AdminClient({"bootstrap.servers": self.broker.bootstrap})
        described = admin.describe_topics(TopicCollection([topic]))[topic].result(30)
        id, files, ranges = uuid_of(kafka_id(described.topic_id)), [], []
        records = read_log(self.broker.bootstrap, topic, PARTITIONS)
        for partition, some in groupby(records, key=lambda record: record.partition):
            rows = [Row(record.offset, record.timestamp[1], record.value) for record in some]
            members = members_of(rows) if topic == TYPED else None
            file = write_table(self.directory / f"{topic}-{partition}.parquet", rows, partition, MOST_BYTES, members)
            written = Path(file.path)
            asyncio.run(self._upload(written.name, written.read_bytes()))
            written.unlink()
            files.append(file._replace(path=f"{self.lake.url}/{written.name}"))
            ranges.append(LandedRange(partition, 0, rows[-1].offset))
        landed = Landed(
            topic=id,
            generation=1,
            until_ms=int(time.time() + 3600) * 1000,
            ranges=tuple(ranges),
            files=tuple(files),
            fields=MEMBERS if topic == TYPED else FIELDS,
            members=MEMBER_NAMES if topic == TYPED else (),
        )
        assert LandedAnswer.model_validate_json(self._ask(LANDED_PATH, landed)).refusal is None
        question = Unindexed(topics=(Asked(id, 1, (1,)),))

        def compared() -> bool:
            (found,) = FirstOffsets.model_validate_json(self._ask(UNINDEXED_PATH, question)).topics
            return not found.waiting

        say(f"comparing {megabytes} MB with the table")
        await_true("all batches are in the table", compared, 600)

    async def _upload(self, name: str, data: bytes) -> None:
        objects = open_objects(self.lake)
        await objects.put(name, memoryview(data))
        await objects.close()

    def _ask(self, path: str, document: Any) -> str:
        answer = httpx.post(
            f"http://{self.internal}{path}", content=document.model_dump_json(), headers={"Authorization": "Bearer token"}, timeout=60
        )  # fmt: skip
        answer.raise_for_status()
        return answer.text


@contextmanager
def _fleet(directory: Path) -> Iterator[_Fleet]:
    """Run a broker and its stores."""
    lake, internal, whole = dict[str, Any](), f"127.0.0.1:{free_port()}", dict[str, Any]()
    token = directory / "token"
    token.write_text("token\n")

    def settings(given: Mapping[str, Any]) -> Mapping[str, Any]:
        lake.update({**given["objects"], "url": given["objects"]["url"].rpartition("/")[0] + "/lake"})
        ours = {
            "nodeId": 1,
            "historyBrokers": 1,
            "history": {"stores": [lake]},
            "internal": {"bind": internal, "tokenFile": str(token)},
            "upkeep": {"intervalSeconds": 5, "graceSeconds": 5, "mergeSeconds": 20},
        }
        whole.update({**given, **ours})
        return ours

    with over_bucket(directory, settings) as (broker, _):
        yield _Fleet(broker, directory, BucketSettings.model_validate(lake), internal, whole)


def _produce(brokers: Brokers, topic: str, values: list[bytes]) -> None:
    say(f"{brokers.name}: producing to {topic}")
    config = {"firn.history": "Single"} if topic in ("single", TYPED) else {}
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=config)])[topic].result(30)
    settings = {"linger.ms": 20, "batch.size": 64 << 10, "compression.type": "lz4", "enable.idempotence": True}
    producer = Producer({"bootstrap.servers": brokers.bootstrap, **settings})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number % 1000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def _evicted(brokers: Brokers) -> Brokers:
    evict(brokers.directory)
    return brokers


def _contest(topic: str, megabytes: int, without_caches: Callable[[], Brokers]) -> Seen:
    """Measure reads of one topic, and a publisher beside them."""
    brokers = without_caches()
    seen = _reads(topic, megabytes, brokers)
    seen["alone_p99"] = publish(brokers, "published", SLOW_MB).p99
    with _backfilled(brokers, topic, os.sched_getaffinity(0)):
        seen["publish_p99"] = publish(brokers, "published", SLOW_MB).p99
    return seen


def _apart(fleet: _Fleet, topic: str) -> Seen:
    """Measure a publisher while a history broker serves the backfills. This broker and its consumers have half of the cores."""
    ours, theirs = halves()
    brokers = fleet.brokers
    servers = (brokers.pid, *brokers.stores.values())
    move(servers, ours)
    try:
        with only_on(ours):
            seen = {"apart_alone_p99": publish(brokers, "published", SLOW_MB).p99}
            with fleet.history_broker(theirs), _backfilled(brokers, topic, theirs):
                say(f"{topic}: publishing while a history broker serves the backfills")
                seen["apart_p99"] = publish(brokers, "published", SLOW_MB).p99
    finally:
        move(servers, {*ours, *theirs})
    return seen


def _reads(topic: str, megabytes: int, brokers: Brokers) -> Seen:
    say(f"{brokers.name}: reading {topic}")
    # The first read starts the processes that rebuild records.
    seen = {"seek": _seek(brokers, topic)}
    evict(brokers.directory)
    spent, seen["rate"] = charged(brokers, lambda: _read(brokers, topic))
    seen["cpu"] = spent.broker / megabytes * 1000
    return seen


def _read(brokers: Brokers, topic: str) -> float:
    """Read a topic from its beginning with Kafka's consumer, and return MB/s of keys and values."""
    count = sum(_ends(brokers, topic))
    output = tool(
        brokers.bootstrap, "ConsumerPerformance", "--topic", topic, "--num-records", str(count), "--timeout", "60000", "--group",
        f"of-{time.monotonic_ns()}",
    )  # fmt: skip
    values = output.splitlines()[-1].split(", ")
    assert int(values[4]) >= count, output
    return float(values[2]) * 1.048576 * 1000 / float(values[7])


def _ends(brokers: Brokers, topic: str) -> list[int]:
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "ends"})
    ends = [
        consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=30)[1] for number in range(PARTITIONS)
    ]
    consumer.close()
    return ends


def _seek(brokers: Brokers, topic: str) -> float:
    """Return the most milliseconds from the assignment of an offset in the middle to the first record."""
    took = []
    for partition, end in enumerate(_ends(brokers, topic)):
        consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "seek"})
        consumer.list_topics(topic, timeout=30)
        began = time.monotonic()
        consumer.assign([TopicPartition(topic, partition, end // 2)])
        message = consumer.poll(60)
        assert message is not None
        assert message.error() is None
        took.append((time.monotonic() - began) * 1000)
        consumer.close()
    return max(took)


@contextmanager
def _backfilled(brokers: Brokers, topic: str, cores: Set[int]) -> Iterator[None]:
    """Run consumers on some cores that read a topic from its beginning, again and again, inside the with block."""
    over = threading.Event()

    def read(number: int) -> None:
        os.sched_setaffinity(0, cores)
        while not over.is_set():
            consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": f"backfill-{number}"})
            consumer.assign([TopicPartition(topic, part, 0) for part in range(PARTITIONS)])
            while not over.is_set() and consumer.consume(10_000, 2.0):
                pass
            consumer.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(BACKFILLS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
