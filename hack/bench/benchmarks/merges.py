"""Compare a diskless broker that merges objects with one that does not.

The figures are rows and objects per GB, the time of a publish, and the rate of a consumer that reads many partitions.

Each broker is one of a fleet, with an S3 server and PostgreSQL. A producer writes to a thousand partitions in turn, and another one to
a few. Objects are merged 20 s after their commit, so that merges run beside the load. Afterwards the benchmark waits for all merges,
starts the broker again without its cache, and removes the files from the page cache.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition

from hack.bench.benchmarks.broker import (
    RECORD_BYTES,
    Brokers,
    Seen,
    create,
    evict,
    median,
    over_bucket,
    produce,
    records,
)
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import Sampler
from hack.bench.options import Options
from hack.support.progress import say
from tests.servers.postgres import Postgres
from tests.servers.process import await_true

FEW, MANY = 16, 1000
"""Partitions of both topics."""
MEGABYTES_PER_SECOND = 5
"""Load of each topic."""
WAITING_RECORDS = 50_000
"""Records that the producer of many partitions has sent without an answer, at most."""
READING_SECONDS = 60
"""Longest time for which history is read."""
UPKEEP = {"intervalSeconds": 5, "graceSeconds": 20, "mergeSeconds": 20}
WITHOUT = "without merges"
UNITS: dict[str, tuple[str, Better]] = {
    "few_rows": (f"rows of the coordinator per GB, {FEW} partitions", "lower"),
    "many_rows": (f"rows of the coordinator per GB, {MANY} partitions", "lower"),
    "objects": ("objects per GB", "lower"),
    "publish_p99": (f"ms of publish, {MEGABYTES_PER_SECOND} MB/s, beside merges", "lower"),
    "history": (f"MB/s out of the history of {MANY} partitions", "higher"),
    "memory": ("MB at most of the broker and its processes (PSS)", "lower"),
}


def measure(options: Options) -> Iterator[Figure]:
    """Measure both brokers in turn, `Options.repeats` times."""
    runs: dict[bool, list[Seen]] = {True: [], False: []}
    for turn in range(options.repeats):
        for merges in (False, True):
            directory = options.directory / f"merges-{merges}-{turn}"
            directory.mkdir()
            runs[merges].append(contest(directory, merges, 60 * options.minutes))
            shutil.rmtree(directory)
    ours, theirs = median(runs[True]), median(runs[False])
    for name, (unit, better) in UNITS.items():
        yield Figure(f"merges_{name}", ours[name], unit, better, WITHOUT, theirs[name])


def contest(directory: Path, merges: bool, seconds: float) -> Seen:
    """Measure one broker."""
    upkeep = UPKEEP if merges else {**UPKEEP, "mergedBytes": 0}
    with over_bucket(directory, lambda given: {"upkeep": upkeep}) as (broker, database):
        assert broker.process is not None
        brokers = Brokers("with merges" if merges else WITHOUT, broker.bootstrap, broker.process.pid, directory)
        create(brokers, "few", FEW)
        create(brokers, "many", MANY)
        say(f"{brokers.name}: {MEGABYTES_PER_SECOND} MB/s to {FEW} and to {MANY} partitions for {seconds:.0f} s")
        spreading = threading.Thread(target=spread, args=(brokers, seconds))
        with Sampler(brokers.pid, interval=1.0, memory_interval=0.5).sampling() as usage:
            spreading.start()
            count = records(MEGABYTES_PER_SECOND * seconds)
            sent = produce(
                brokers, "few", count, 1 << 20, MEGABYTES_PER_SECOND, linger_ms=5,
                warm_up=records(MEGABYTES_PER_SECOND * 5),
            )  # fmt: skip
            spreading.join()
            await_merged(database, merges)
        seen = counts(database, 2 * MEGABYTES_PER_SECOND * seconds / 1000)
        seen |= {"publish_p99": sent.p99, "memory": usage.peak_bytes / 1e6}
        broker.stop()
        broker.start()
        evict(directory)
        say(f"{brokers.name}: reading {MANY} partitions")
        return seen | {"history": read(brokers, records(MEGABYTES_PER_SECOND * seconds))}


def spread(brokers: Brokers, seconds: float) -> None:
    """Write records to all partitions in turn, at the same rate."""
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "linger.ms": 50, "acks": "all"})
    value, each = b"x" * RECORD_BYTES, records(MEGABYTES_PER_SECOND) // 20
    began, number = time.monotonic(), 0
    for step in range(round(20 * seconds)):
        for _ in range(each):
            producer.produce("many", value, partition=number % MANY)
            number += 1
        while len(producer) > WAITING_RECORDS:
            producer.poll(0.05)
        producer.poll(0)
        time.sleep(max(0.0, began + step / 20 - time.monotonic()))
    assert producer.flush(60) == 0


def rows_and_objects(database: Postgres) -> dict[str, int]:
    """Return the rows of batch ranges by topic, the objects, and those of brokers (``unmerged``)."""
    with psycopg.connect(database.uri, user=database.user, password=database.password) as connection:
        rows = connection.execute(
            "SELECT topic.name, count(*) FROM fleet.run JOIN fleet.log ON log.id = run.log JOIN fleet.topic ON topic.id = log.topic_id"
            " GROUP BY 1 UNION ALL SELECT 'objects', count(*) FROM fleet.wal WHERE state = 1"
            " UNION ALL SELECT 'unmerged', count(*) FROM fleet.wal WHERE state = 1 AND level = 0"
        ).fetchall()
    return dict(rows)


def await_merged(database: Postgres, merges: bool) -> None:
    """Wait until no object of a broker waits for a merge, and no merge changes anything any more."""
    if not merges:
        return
    seen: list[dict[str, int]] = []

    def settled() -> bool:
        seen.append(rows_and_objects(database))
        return seen[-1]["unmerged"] <= 1 and len(seen) > 20 and seen[-1] == seen[-20]

    await_true("all objects are merged", settled, 600)


def counts(database: Postgres, gigabytes: float) -> Seen:
    """Return rows and objects per GB."""
    found = rows_and_objects(database)
    return {
        "few_rows": found["few"] / (gigabytes / 2),
        "many_rows": found["many"] / (gigabytes / 2),
        "objects": found["objects"] / gigabytes,
    }


def read(brokers: Brokers, count: int) -> float:
    """Read all partitions of ``many`` from their beginning with one consumer; return MB/s."""
    consumer = Consumer(
        {
            "bootstrap.servers": brokers.bootstrap, "group.id": "history", "enable.auto.commit": False,
            "queued.max.messages.kbytes": 262_144, "fetch.max.bytes": 50 << 20,
        }
    )  # fmt: skip
    consumer.assign([TopicPartition("many", partition, 0) for partition in range(MANY)])
    received, began, seconds = 0, time.monotonic(), 0.0
    while received < count - MANY and seconds < READING_SECONDS:
        received += sum(message.error() is None for message in consumer.consume(10_000, 1.0))
        seconds = time.monotonic() - began
    consumer.close()
    return received * RECORD_BYTES / 1e6 / seconds
