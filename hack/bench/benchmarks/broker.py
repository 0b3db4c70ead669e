"""Compare a diskless broker with Apache Kafka: the same client commands, on the same disk, one broker after the other.

Kafka's own tools (ProducerPerformance, ConsumerPerformance) are the clients, except that librdkafka reads at the tail. Each record has
1 KB. The diskless broker runs twice: alone with a directory and SQLite, and as a fleet member with an S3 server and PostgreSQL. The CPU
time of a broker is that of its process from the start to the end of the tool. The S3 server and PostgreSQL have figures of their own.
Records are read first from the disk, and then from the page cache.
"""

from __future__ import annotations

import os
import shutil
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.request import urlopen
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import Sampler, cpu_by_part, memory_bytes, processes
from hack.bench.options import Options
from hack.support.progress import say
from tests.servers.firn_broker import FirnBroker, embedded, fleet_settings, of_fleet
from tests.servers.kafka import kafka, tool
from tests.servers.postgres import Postgres, directory_for_postgres, postgres
from tests.servers.process import free_port
from tests.servers.s3 import s3

PEER = "Apache Kafka 4.2.1"
RECORD_BYTES = 1000
PARTITIONS = 4
WARM_UP_MB = 400
LOAD_SECONDS = 15
WAITING_SECONDS = 5
WARM_SECONDS = 5
"""Seconds at the start of a load that do not count: the client compiles its code, and sends what waited for its first connection."""
SLOW_MB = 10
TAIL_MB = 40
READINGS = 3
"""Readings of the log from the page cache. Their medians count, because one takes only two seconds."""
T = TypeVar("T")
SERVER = ("-Xms1g", "-Xmx1g")
BATCHES = {"64k": 64 << 10, "1m": 1 << 20}


@dataclass
class Brokers:
    """A contestant: its address, and the processes whose CPU time counts."""

    name: str
    bootstrap: str
    pid: int
    directory: Path
    """The files of the contestant are in it."""
    stores: dict[str, int] = field(default_factory=dict)
    """Process numbers of the other servers that the contestant needs, by name."""
    database: Postgres | None = None
    """The server of the coordinator, None without one."""
    metrics: str = ""
    """The address of the broker's metrics, empty for Kafka."""
    login: Path | None = None
    """The properties with which clients authenticate."""
    admin: str = ""
    """An address for administration, if it is not the bootstrap address."""

    @property
    def config(self) -> list[str]:
        """Return the arguments of Kafka's tools that name the properties of the client."""
        return [] if self.login is None else ["--command-config", str(self.login)]


@dataclass(frozen=True)
class Spent:
    """CPU seconds of a piece of work."""

    broker: float
    stores: dict[str, float]


Seen = dict[str, float]
"""Measured values of a contestant, by name of the figure."""


def measure(options: Options) -> Iterator[Figure]:
    """Measure the contestants in turn, `Options.repeats` times, and yield medians of both of ours with Kafka's as the peer's."""
    runs: dict[str, list[Seen]] = {"kafka": [], "directory": [], "bucket": []}
    for turn in range(options.repeats):
        for name, serve in (("kafka", on_kafka), ("directory", on_directory), ("bucket", on_bucket)):
            directory = options.directory / f"broker-{name}-{turn}"
            directory.mkdir()
            with serve(directory) as brokers:
                peer = None if name == "kafka" else runs["kafka"][turn]
                runs[name].append(contest(brokers, options.megabytes, peer))
            shutil.rmtree(directory)
    medians = {name: median(seen) for name, seen in runs.items()}
    for name in ("directory", "bucket"):
        for figure, (unit, better) in UNITS.items():
            if figure in medians[name]:
                theirs = medians["kafka"].get(figure)
                yield Figure(
                    f"broker_{name}_{figure}", medians[name][figure], unit, better, PEER if theirs is not None else None, theirs
                )  # fmt: skip


def median(runs: Sequence[Seen]) -> Seen:
    """Return the median of each figure."""
    return {name: statistics.median(seen[name] for seen in runs) for name in runs[0]}


BY_SIZE: dict[str, tuple[str, Better]] = {
    "": ("MB/s in", "higher"),
    "_cpu": ("broker CPU s per GB in", "lower"),
    "_s3_cpu": ("CPU s of the S3 server per GB in", "lower"),
    "_postgres_cpu": ("CPU s of PostgreSQL per GB in", "lower"),
    "_rows": ("rows of PostgreSQL a commit", "lower"),
}
UNITS: dict[str, tuple[str, Better]] = {
    **{f"produce_{size}{suffix}": unit for size in BATCHES for suffix, unit in BY_SIZE.items()},
    "catch_up": ("MB/s out, from the page cache", "higher"),
    "catch_up_cpu": ("broker CPU s per GB out, from the page cache", "lower"),
    "cold_catch_up": ("MB/s out, from the disk", "higher"),
    "cold_catch_up_cpu": ("broker CPU s per GB out, from the disk", "lower"),
    "tail_cpu": (f"broker CPU s per GB in and out, one consumer at the tail, {TAIL_MB} MB/s", "lower"),
    "tail_p50": (f"ms from send to the consumer at the tail, {TAIL_MB} MB/s", "lower"),
    "tail_p99": (f"ms from send to the consumer at the tail, {TAIL_MB} MB/s", "lower"),
    "beside_p99": (f"ms of publish, {SLOW_MB} MB/s, beside a consumer that reads history", "lower"),
    "slow_p50": (f"ms of publish, {SLOW_MB} MB/s", "lower"),
    "slow_p99": (f"ms of publish, {SLOW_MB} MB/s", "lower"),
    "half_p50": ("ms of publish, half of its own MB/s in", "lower"),
    "half_p99": ("ms of publish, half of its own MB/s in", "lower"),
    "same_p50": ("ms of publish, half of Kafka's MB/s in", "lower"),
    "same_p99": ("ms of publish, half of Kafka's MB/s in", "lower"),
    "waiting": ("requests/s of a producer that waits for each answer", "higher"),
    "memory": ("MB at most (PSS)", "lower"),
    "stalls": ("stalls of the event loop over 100 ms", "lower"),
}


def contest(brokers: Brokers, megabytes: int, peer: Seen | None) -> Seen:
    """Measure one contestant, with ``megabytes`` in and out."""
    seen: Seen = {}
    with Sampler(brokers.pid, interval=1.0, memory_interval=0.5).sampling() as usage:
        say(f"{brokers.name}: warming up")
        for batch_bytes in BATCHES.values():
            produce(brokers, "warm", records(WARM_UP_MB), batch_bytes)
        consume(brokers, "warm", records(WARM_UP_MB))
        for size in BATCHES:
            seen |= into(brokers, size, megabytes)
        seen |= out_of_history(brokers, megabytes)
        seen |= at_the_tail(brokers)
        seen |= under_load(brokers, {"slow": SLOW_MB, "half": seen["produce_1m"] / 2})
        # Ours are also measured at half of Kafka's throughput.
        same = {f"same_{percentile}": seen[f"half_{percentile}"] for percentile in ("p50", "p99")}
        seen |= same if peer is None else under_load(brokers, {"same": peer["produce_1m"] / 2})
        seen |= beside_history(brokers, megabytes)
        seen["waiting"] = waiting(brokers)
    if brokers.metrics:
        seen["stalls"] = stalls(brokers)
    seen["memory"] = max(usage.peak_bytes, memory_bytes(brokers.pid)) / 1e6
    return seen


def records(megabytes: float) -> int:
    """Return the number of records in so many megabytes."""
    return int(megabytes * 1_000_000 / RECORD_BYTES)


def into(brokers: Brokers, size: str, megabytes: int) -> Seen:
    """Measure one producer at full speed, in batches of ``size``."""
    say(f"{brokers.name}: {megabytes} MB in batches of {size}")
    before = rows(brokers)
    spent, sent = charged(brokers, lambda: produce(brokers, f"in-{size}", records(megabytes), BATCHES[size]))
    after = rows(brokers)
    seen = {f"produce_{size}": sent.rate, f"produce_{size}_cpu": spent.broker / megabytes * 1000}
    seen |= {f"produce_{size}_{store}_cpu": cpu / megabytes * 1000 for store, cpu in spent.stores.items()}
    if before and after:
        seen[f"produce_{size}_rows"] = (after[0] - before[0]) / (after[1] - before[1])
    return seen


def rows(brokers: Brokers) -> tuple[int, int] | None:
    """Return (rows of runs and objects, committed objects) in PostgreSQL, None without a database."""
    if brokers.database is None:
        return None
    database = brokers.database
    with psycopg.connect(database.uri, user=database.user, password=database.password) as connection:
        result = connection.execute(
            "SELECT (SELECT count(*) FROM fleet.run), count(*) FROM fleet.wal WHERE state = 1"
        ).fetchone()
    assert result is not None
    return result[0] + result[1], result[1]


def stalls(brokers: Brokers) -> float:
    """Return how often the broker's event loop stood still for more than 100 ms, since the broker's start."""
    with urlopen(f"http://{brokers.metrics}/metrics", timeout=30) as answer:
        return long_stalls(answer.read().decode())


def long_stalls(text: str) -> float:
    """Return the number of stalls over 100 ms in a broker's metrics document."""
    values = {
        (sample.name, sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    name = "firn_broker_loop_stall_seconds"
    return values[f"{name}_count", ""] - values[f"{name}_bucket", "0.1"]


def out_of_history(brokers: Brokers, megabytes: int) -> Seen:
    """Read the log from its beginning with one consumer: from the disk, then from the page cache."""
    say(f"{brokers.name}: reading the log from its beginning")

    def read(name: str) -> Seen:
        spent, rate = charged(brokers, lambda: consume(brokers, "in-1m", records(megabytes)))
        return {name: rate, f"{name}_cpu": spent.broker / megabytes * 1000}

    evict(brokers.directory)
    return read("cold_catch_up") | median([read("catch_up") for _ in range(READINGS)])


def evict(directory: Path) -> None:
    """Write all files of a directory to the disk, and remove them from the page cache. PostgreSQL has its files elsewhere."""
    for path in directory.rglob("*"):
        # A directory cannot be opened like this, and a broker may delete a file meanwhile.
        with suppress(IsADirectoryError, FileNotFoundError), path.open("rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def at_the_tail(brokers: Brokers) -> Seen:
    """Measure a consumer that waits at the end of the log, and a producer."""
    say(f"{brokers.name}: at the tail")
    megabytes = TAIL_MB * (WARM_SECONDS + LOAD_SECONDS)
    create(brokers, "tail")
    delays: list[float] = []
    ready = threading.Event()
    reading = threading.Thread(target=follow, args=(brokers, "tail", records(megabytes), delays, ready))
    reading.start()
    ready.wait(60)

    def work() -> None:
        produce(brokers, "tail", records(megabytes), BATCHES["64k"], TAIL_MB, linger_ms=5)
        reading.join()

    spent, _ = charged(brokers, work)
    assert delays, "the consumer at the tail did not receive all records"
    return {
        "tail_cpu": spent.broker / megabytes * 1000,
        "tail_p50": percentile(delays, 0.5),
        "tail_p99": percentile(delays, 0.99),
    }


def follow(brokers: Brokers, topic: str, count: int, delays: list[float], ready: threading.Event) -> None:
    """Read ``count`` new records, then add the milliseconds from send to receipt of some of them to ``delays``.

    Those of the first `WARM_SECONDS` do not count."""
    consumer = Consumer({"bootstrap.servers": brokers.bootstrap, "group.id": "tail", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    consumer.poll(0.5)
    ready.set()
    received, first, seen = 0, None, []
    until = time.monotonic() + 6 * (WARM_SECONDS + LOAD_SECONDS)
    while received < count and time.monotonic() < until:
        messages = consumer.consume(2000, 0.5)
        now = time.time() * 1000
        received += len(messages)
        sent = [message.timestamp()[1] for message in messages[::50] if message.error() is None]
        first = min(sent, default=None) if first is None else first
        seen += [now - moment for moment in sent if first is not None and moment - first > 1000 * WARM_SECONDS]
    consumer.close()
    if received >= count:
        delays += seen


def under_load(brokers: Brokers, loads: Mapping[str, float]) -> Seen:
    """Measure the time of a publish at each load in MB/s."""
    seen: Seen = {}
    for load, rate in loads.items():
        say(f"{brokers.name}: publishing {rate:.0f} MB/s")
        sent = publish(brokers, f"load-{load}", rate)
        seen |= {f"{load}_p50": sent.p50, f"{load}_p99": sent.p99}
    return seen


def publish(brokers: Brokers, topic: str, rate: float) -> Sent:
    """Send ``rate`` MB/s for `LOAD_SECONDS`, after `WARM_SECONDS`."""
    count, warm_up = records(rate * (WARM_SECONDS + LOAD_SECONDS)), records(rate * WARM_SECONDS)
    return produce(brokers, topic, count, BATCHES["1m"], rate, linger_ms=5, warm_up=warm_up)


def beside_history(brokers: Brokers, megabytes: int) -> Seen:
    """Measure the time of a publish while a consumer reads history at full speed."""
    say(f"{brokers.name}: publishing {SLOW_MB} MB/s beside a consumer of history")
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            consume(brokers, "in-1m", records(megabytes))

    reading = threading.Thread(target=read)
    reading.start()
    try:
        sent = publish(brokers, "load-beside", SLOW_MB)
    finally:
        over.set()
        reading.join()
    return {"beside_p99": sent.p99}


def waiting(brokers: Brokers) -> float:
    """Return the requests per second of a producer that sends a record after the answer to the one before."""
    say(f"{brokers.name}: a producer that waits for each answer")
    create(brokers, "waiting", 1)
    producer = Producer({"bootstrap.servers": brokers.bootstrap, "linger.ms": 0, "acks": "all"})

    def send() -> None:
        producer.produce("waiting", b"x" * 100)
        assert producer.flush(30) == 0

    # Without the time in which the producer connects.
    send()
    answered, began = 0, time.monotonic()
    while time.monotonic() < began + WAITING_SECONDS:
        send()
        answered += 1
    return answered / (time.monotonic() - began)


def charged(brokers: Brokers, work: Callable[[], T]) -> tuple[Spent, T]:
    """Run ``work`` and return its CPU cost and its result."""

    def now() -> dict[str, float]:
        pids = {"": brokers.pid, **brokers.stores}
        return {name: sum(cpu_by_part(pid).values()) for name, pid in pids.items()}

    before = now()
    result = work()
    after = now()
    cpu = {name: after[name] - before[name] for name in after}
    return Spent(cpu.pop(""), cpu), result


@dataclass(frozen=True)
class Sent:
    """Result of ProducerPerformance: MB/s, and milliseconds from send to acknowledgement."""

    rate: float
    p50: float
    p99: float


def produce(
    brokers: Brokers,
    topic: str,
    count: int,
    batch: int,
    megabytes_per_second: float = -1,
    *,
    linger_ms: int = 50,
    idempotent: bool = True,
    warm_up: int = 0,
) -> Sent:
    """Send ``count`` records to a topic, at full speed without a rate. Creates a missing topic. The first ``warm_up`` records do not
    count."""
    rate = -1 if megabytes_per_second < 0 else records(megabytes_per_second)
    create(brokers, topic)
    output = tool(
        brokers.bootstrap, "ProducerPerformance", "--topic", topic, "--num-records", str(count), "--record-size", str(RECORD_BYTES),
        "--throughput", str(rate), "--command-property", f"batch.size={batch}", f"linger.ms={linger_ms}", "acks=all",
        f"buffer.memory={64 << 20}", f"max.request.size={8 << 20}", "delivery.timeout.ms=120000",
        f"enable.idempotence={str(idempotent).lower()}", "--warmup-records", str(warm_up), *brokers.config,
    )  # fmt: skip
    # With a warm-up, the last line is that of the other records: ... steady state records sent, ...
    # ... records sent, 204081.6 records/sec (194.63 MB/sec), 12.1 ms avg latency, 105.00 ms max latency, 9 ms 50th, 40 ms 95th, ...
    words = output.splitlines()[-1].replace(",", "").split()
    assert int(words[0]) == count - warm_up, output

    def before(*label: str) -> float:
        place = next(number for number in range(len(words)) if words[number : number + len(label)] == list(label))
        return float(words[place - 1])

    return Sent(before("records/sec") * RECORD_BYTES / 1e6, before("ms", "50th"), before("ms", "99th"))


def consume(brokers: Brokers, topic: str, count: int) -> float:
    """Read a topic from its beginning and return the MB/s of the fetches."""
    # The timeout is the longest wait for one more record.
    arguments = (
        "--topic",
        topic,
        "--num-records",
        str(count),
        "--timeout",
        "20000",
        "--group",
        f"of-{topic}-{uuid4()}",
        *brokers.config,
    )
    output = tool(brokers.bootstrap, "ConsumerPerformance", *arguments)
    values = output.splitlines()[-1].split(", ")
    assert int(values[4]) >= count, output
    return float(values[4]) * RECORD_BYTES / 1e3 / float(values[7])


def create(brokers: Brokers, topic: str, partitions: int = PARTITIONS) -> None:
    """Create a topic, unless it exists."""
    admin = AdminClient({"bootstrap.servers": brokers.admin or brokers.bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


@contextmanager
def on_kafka(directory: Path) -> Iterator[Brokers]:
    """Run one node of Apache Kafka with its default settings."""
    with kafka(directory, java=SERVER, log__retention__check__interval__ms="86400000") as server:
        yield Brokers("kafka", server.bootstrap, child("java"), directory)


@contextmanager
def on_directory(directory: Path) -> Iterator[Brokers]:
    """Run our broker alone."""
    metrics = f"127.0.0.1:{free_port()}"
    with embedded(directory / "data", FIRN_BROKER_METRICS_LISTEN=metrics) as broker:
        assert broker.process is not None
        yield Brokers("firn-broker over a directory", broker.bootstrap, broker.process.pid, directory, metrics=metrics)


@contextmanager
def on_bucket(directory: Path) -> Iterator[Brokers]:
    """Run our broker as one of a fleet, with the settings from the operator."""
    metrics = f"127.0.0.1:{free_port()}"
    with over_bucket(directory, lambda given: {"metricsListen": metrics}) as (broker, database):
        assert broker.process is not None
        stores = {"s3": child("versitygw"), "postgres": child("postgres")}
        name = "firn-broker over a bucket"
        yield Brokers(name, broker.bootstrap, broker.process.pid, directory, stores, database, metrics)


@contextmanager
def over_bucket(
    directory: Path, more: Callable[[Mapping[str, Any]], Mapping[str, Any]]
) -> Iterator[tuple[FirnBroker, Postgres]]:
    """Run an S3 server, PostgreSQL and our broker. ``more`` returns settings in addition to those of the stores."""
    with ExitStack() as stack:
        storage = stack.enter_context(s3(directory))
        database = stack.enter_context(postgres(stack.enter_context(directory_for_postgres()), durable=True))
        given = {**fleet_settings(directory, database, storage), "nodeId": 0}
        broker = of_fleet(directory, "broker-0", {**given, **more(given)})
        broker.start()
        try:
            yield broker, database
        finally:
            broker.stop()


def child(command: str) -> int:
    """Return the number of the child process with this command."""
    mine = os.getpid()
    (pid,) = [each.pid for each in processes().values() if each.parent == mine and each.command == command]
    return pid
