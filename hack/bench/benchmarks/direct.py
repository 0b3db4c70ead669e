"""Compare direct reads of a diskless topic with fetches from its broker, as tasks of ingestion read it.

One process reads the whole topic in both ways in turn, and decodes nothing. The broker serves the newest part of the topic from its
cache, and reads the bucket for the rest. The object store is on the same machine, so its CPU time is shown too.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from firn.kafka_clients import kafka_id
from firn.model.jobs import DirectReads
from firn_spark.kafka.diskless.direct_reads import DirectReader
from firn_spark.worker.fetched import Fetched
from firn_spark.worker.fetching import source
from firn_spark.worker.fetching.access import Access
from firn_spark.worker.fetching.objects import Objects
from firn_spark.worker.fetching.slices import Slice
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import cpu_by_part, processes
from hack.bench.options import Options
from hack.bench.records.measurements import create_topics, fill, watermarks
from hack.support.progress import step
from tests.servers.firn_broker import FirnBroker, fleet_settings, of_fleet
from tests.servers.postgres import postgres
from tests.servers.process import free_port
from tests.servers.s3 import s3

TOPIC = "measurements"
PARTITIONS = 4
PEER = "fetches from the broker"
FIGURES: dict[str, tuple[str, Better]] = {
    "broker_cpu_seconds_per_million_records": ("CPU s of the broker", "lower"),
    "task_cpu_seconds_per_million_records": ("CPU s of the reading process", "lower"),
    "store_cpu_seconds_per_million_records": ("CPU s of the S3 server", "lower"),
    "records_per_second": ("records/s", "higher"),
}


@dataclass(frozen=True)
class Stage:
    """A diskless broker, and the settings for direct reads of its bucket."""

    broker: FirnBroker
    reads: DirectReads


def measure(options: Options) -> Iterator[Figure]:
    """Fill the topic, read it in both ways in turn, and compare them."""
    with _stage(options.directory / "direct") as stage:
        bootstrap = stage.broker.bootstrap
        with step(f"producing {options.rows:,} records"):
            create_topics(bootstrap, [TOPIC], PARTITIONS)
            fill(bootstrap, TOPIC, options.rows, PARTITIONS)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        described = admin.describe_topics(TopicCollection([TOPIC]))[TOPIC].result(30)
        ids = {TOPIC: kafka_id(described.topic_id)}
        slices = [Slice(TOPIC, part, 0, end) for part, (_, end) in watermarks(bootstrap, TOPIC, PARTITIONS).items()]
        reader = DirectReader("bench", stage.reads)

        def fetched() -> Iterator[Fetched]:
            return source.read(Access(bootstrap), slices)

        def direct() -> Iterator[Fetched]:
            bucket, (located,) = reader.bucket(), reader.locate([slices], ids)
            if bucket is None or not all(part.ranges for part in located):
                raise RuntimeError("the broker did not say where the records are")
            objects = Objects(bucket, located)
            yield from objects.blocks()
            if objects.rest:
                raise RuntimeError(objects.problem)

        next(direct())  # compiled code is loaded
        ours, theirs = [], []
        for _ in range(options.repeats):
            theirs.append(_run(stage, options.rows, PEER, fetched))
            ours.append(_run(stage, options.rows, "direct reads", direct))
    for name, (unit, better) in FIGURES.items():
        yield Figure(f"direct_{name}", _median(ours, name), unit, better, PEER, _median(theirs, name))


def _median(runs: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(run[name] for run in runs)


def _run(stage: Stage, rows: int, way: str, read: Callable[[], Iterator[Fetched]]) -> dict[str, float]:
    """Read the topic, and return the values of `FIGURES`."""
    with step(f"reading {rows:,} records by {way}"):
        before, started, own = _spent(stage), time.monotonic(), time.process_time()
        count = sum(len(block) for block in read())
        own, seconds = time.process_time() - own, time.monotonic() - started
        broker, store = (after - earlier for after, earlier in zip(_spent(stage), before, strict=True))
    if count != rows:
        raise RuntimeError(f"{way} returned {count} of {rows} records")
    return {
        "broker_cpu_seconds_per_million_records": broker / rows * 1e6,
        "task_cpu_seconds_per_million_records": own / rows * 1e6,
        "store_cpu_seconds_per_million_records": store / rows * 1e6,
        "records_per_second": rows / seconds,
    }


def _spent(stage: Stage) -> tuple[float, float]:
    """Return the CPU seconds of the broker, and of the S3 server that this process has started."""
    assert stage.broker.process is not None
    stores = (one for one in processes().values() if one.command == "versitygw" and one.parent == os.getpid())
    return sum(cpu_by_part(stage.broker.process.pid).values()), sum(one.cpu for one in stores)


@contextmanager
def _stage(directory: Path) -> Iterator[Stage]:
    """Run PostgreSQL, an S3 server and a diskless broker inside the with block."""
    directory.mkdir(parents=True)
    with postgres(directory / "postgres") as database, s3(directory) as storage:
        settings = fleet_settings(directory, database, storage)
        token, port = directory / "token", free_port()
        token.write_text("token")
        internal = {"bind": f"127.0.0.1:{port}", "tokenFile": str(token)}
        broker = of_fleet(directory, "broker", {**settings, "internal": internal})
        reads = DirectReads(
            address=f"http://127.0.0.1:{port}",
            token_path=str(token),
            url=settings["objects"]["url"],
            properties=settings["objects"]["config"],
            secret_properties=settings["objects"]["secretConfig"],
        )
        broker.start()
        try:
            yield Stage(broker, reads)
        finally:
            broker.stop()
