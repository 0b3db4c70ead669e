"""One diskless broker beside Apache Kafka: the same client commands in one run, both on the same disk, one after the other.

Kafka's own tools are the clients (ProducerPerformance, ConsumerPerformance), records of 1 KB. The broker runs twice: on its own, over a
directory and SQLite, and as one of a fleet, over an S3 server and PostgreSQL. What is charged to a broker is the CPU of its process from the
moment the tool starts until it has ended; what the S3 server and PostgreSQL use beside it has figures of its own.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from confluent_kafka.admin import AdminClient, NewTopic
from localcluster.progress import say

from bench.figures import Figure
from bench.options import Options
from bench.process_tree import Sampler, cpu_by_part, memory_bytes, processes
from tests.servers.firn_broker import embedded, fleet_settings, of_fleet
from tests.servers.kafka import kafka, program
from tests.servers.postgres import directory_for_postgres, postgres
from tests.servers.s3 import s3

PEER = "Apache Kafka 4.2.1"
RECORD_BYTES = 1000
PARTITIONS = 4
WARM_UP_MB = 200
HALF_LOAD_SECONDS = 20
SLOW_MB = 10
TAIL_MB = 40
T = TypeVar("T")
CLIENT = ("-Xmx512m", "-XX:+UseParallelGC")
SERVER = ("-Xms1g", "-Xmx1g")
BATCHES = {"64k": 64 << 10, "1m": 1 << 20}


@dataclass
class Brokers:
    """One contestant: how it is reached, and the processes that are charged."""

    name: str
    bootstrap: str
    pid: int
    stores: dict[str, int] = field(default_factory=dict)
    """Servers that it needs beside it, by name."""


@dataclass(frozen=True)
class Spent:
    """CPU seconds that a piece of work took."""

    broker: float
    stores: dict[str, float]


@dataclass
class Seen:
    """What was measured on one contestant, by the name of the figure."""

    values: dict[str, float] = field(default_factory=dict)


def measure(options: Options) -> Iterator[Figure]:
    """Every contestant in turn; figures of both of ours stand beside Kafka's."""
    found: dict[str, Seen] = {}
    for name, serve in (("kafka", on_kafka), ("directory", on_directory), ("bucket", on_bucket)):
        directory = options.directory / f"broker-{name}"
        directory.mkdir()
        with serve(directory) as brokers:
            found[name] = contest(brokers, options.megabytes, found.get("kafka"))
    kafka_values = found["kafka"].values
    for name in ("directory", "bucket"):
        for figure, (unit, better) in UNITS.items():
            if figure in found[name].values:
                peer = kafka_values.get(figure)
                yield Figure(
                    f"broker_{name}_{figure}", found[name].values[figure], unit, better, PEER if peer is not None else None, peer
                )  # fmt: skip


UNITS = {
    **{
        f"produce_{size}{what}": unit
        for size in BATCHES
        for what, unit in (
            ("", ("MB/s in", "higher")),
            ("_cpu", ("broker CPU s per GB in", "lower")),
            ("_s3_cpu", ("CPU s of the S3 server per GB in", "lower")),
            ("_postgres_cpu", ("CPU s of PostgreSQL per GB in", "lower")),
        )
    },
    "catch_up": ("MB/s out", "higher"),
    "catch_up_cpu": ("broker CPU s per GB out", "lower"),
    "tail_cpu": (f"broker CPU s per GB in and out, one consumer at the tail, {TAIL_MB} MB/s", "lower"),
    "tail_behind": ("records that the consumer at the tail did not get in time", "lower"),
    "slow_p50": (f"ms of publish, {SLOW_MB} MB/s", "lower"),
    "slow_p99": (f"ms of publish, {SLOW_MB} MB/s", "lower"),
    "half_p50": ("ms of publish, half of its own MB/s in", "lower"),
    "half_p99": ("ms of publish, half of its own MB/s in", "lower"),
    "same_p50": ("ms of publish, half of Kafka's MB/s in", "lower"),
    "same_p99": ("ms of publish, half of Kafka's MB/s in", "lower"),
    "memory": ("MB at most (PSS)", "lower"),
}


def contest(brokers: Brokers, megabytes: int, peer: Seen | None) -> Seen:
    """All of it on one contestant, ``megabytes`` each way."""
    seen = Seen()
    records = megabytes * 1_000_000 // RECORD_BYTES
    with Sampler(brokers.pid, interval=1.0, memory_interval=0.5).sampling() as usage:
        say(f"{brokers.name}: warming up")
        for size in BATCHES.values():
            produce(brokers, "warm", WARM_UP_MB * 1_000_000 // RECORD_BYTES, size)
        consume(brokers, "warm", WARM_UP_MB * 1_000_000 // RECORD_BYTES)
        for size, batch in BATCHES.items():
            say(f"{brokers.name}: {megabytes} MB in batches of {size}")
            spent, sent = charged(
                brokers, lambda batch=batch, size=size: produce(brokers, f"in-{size}", records, batch)
            )
            seen.values[f"produce_{size}"] = sent.rate
            seen.values[f"produce_{size}_cpu"] = spent.broker / megabytes * 1000
            for store, cpu in spent.stores.items():
                seen.values[f"produce_{size}_{store}_cpu"] = cpu / megabytes * 1000
        say(f"{brokers.name}: reading it from the beginning")
        spent, rate = charged(brokers, lambda: consume(brokers, "in-1m", records))
        seen.values["catch_up"] = rate
        seen.values["catch_up_cpu"] = spent.broker / megabytes * 1000
        say(f"{brokers.name}: at the tail")
        tailed = TAIL_MB * HALF_LOAD_SECONDS * 1_000_000 // RECORD_BYTES
        spent, missed = charged(brokers, lambda: tail(brokers, tailed))
        seen.values["tail_cpu"] = spent.broker / (TAIL_MB * HALF_LOAD_SECONDS) * 1000
        seen.values["tail_behind"] = missed
        say(f"{brokers.name}: latency")
        loads = {"slow": SLOW_MB, "half": seen.values["produce_1m"] / 2}
        if peer is not None:
            loads["same"] = peer.values["produce_1m"] / 2
        for load, rate in loads.items():
            sent = produce(
                brokers,
                f"load-{load}",
                int(rate * HALF_LOAD_SECONDS * 1_000_000 / RECORD_BYTES),
                BATCHES["1m"],
                rate,
                linger_ms=5,
            )
            seen.values[f"{load}_p50"], seen.values[f"{load}_p99"] = sent.p50, sent.p99
    if peer is None:
        # Its own half is what ours are asked for, too.
        seen.values |= {f"same_{what}": seen.values[f"half_{what}"] for what in ("p50", "p99")}
    seen.values["memory"] = max(usage.peak_bytes, memory_bytes(brokers.pid)) / 1e6
    return seen


def charged(brokers: Brokers, work: Callable[[], T]) -> tuple[Spent, T]:
    """What ``work`` gives, and what it cost."""

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
    """What ProducerPerformance says: MB/s, and milliseconds from send to acknowledgement."""

    rate: float
    p50: float
    p99: float


def produce(
    brokers: Brokers,
    topic: str,
    records: int,
    batch: int,
    megabytes_per_second: float = -1,
    *,
    linger_ms: int = 50,
    properties: Sequence[str] = (),
) -> Sent:
    """Send ``records`` to a topic, which is made if need be; as fast as it goes if no rate is given."""
    rate = -1 if megabytes_per_second < 0 else int(megabytes_per_second * 1_000_000 / RECORD_BYTES)
    create(brokers, topic)
    said = tool(
        brokers, "ProducerPerformance", "--topic", topic, "--num-records", str(records), "--record-size", str(RECORD_BYTES),
        "--throughput", str(rate), "--command-property", f"batch.size={batch}", f"linger.ms={linger_ms}", "acks=all",
        f"buffer.memory={64 << 20}", f"max.request.size={8 << 20}", "delivery.timeout.ms=120000",
        *properties,
    )  # fmt: skip
    # ... records sent, 204081.6 records/sec (194.63 MB/sec), 12.1 ms avg latency, 105.00 ms max latency, 9 ms 50th, 40 ms 95th, ...
    words = said.splitlines()[-1].replace(",", "").split()
    assert int(words[0]) == records, said

    def before(*label: str) -> float:
        place = next(number for number in range(len(words)) if words[number : number + len(label)] == list(label))
        return float(words[place - 1])

    return Sent(before("records/sec") * RECORD_BYTES / 1e6, before("ms", "50th"), before("ms", "99th"))


def consume(brokers: Brokers, topic: str, records: int) -> float:
    """Read a topic from its beginning; MB/s while it fetched."""
    said = tool(brokers, "ConsumerPerformance", *_consumer(topic, records))
    values = said.splitlines()[-1].split(", ")
    assert int(values[4]) >= records, said
    return float(values[4]) * RECORD_BYTES / 1e3 / float(values[7])


def tail(brokers: Brokers, records: int) -> int:
    """A consumer that is there first, and a producer; how many records had not come soon after the last was acknowledged."""
    create(brokers, "tail")
    missed = []

    def read() -> None:
        said = tool(brokers, "ConsumerPerformance", *_consumer("tail", records), check=False)
        missed.append(records - int(said.splitlines()[-1].split(", ")[4]))

    reading = threading.Thread(target=read)
    reading.start()
    produce(brokers, "tail", records, BATCHES["64k"], TAIL_MB, linger_ms=5)
    reading.join()
    return missed[0]


def _consumer(topic: str, records: int) -> tuple[str, ...]:
    # The time-out is how long it waits for one more record.
    return ("--topic", topic, "--num-records", str(records), "--timeout", "20000", "--group", f"of-{topic}")


def create(brokers: Brokers, topic: str, partitions: int = PARTITIONS) -> None:
    """A topic, unless it is there."""
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    if topic not in admin.list_topics(timeout=30).topics:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def tool(brokers: Brokers, name: str, *arguments: str, check: bool = True) -> str:
    """What one of Kafka's tools prints."""
    command = program(
        f"org.apache.kafka.tools.{name}", "--bootstrap-server", brokers.bootstrap, *arguments, flags=CLIENT
    )
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0 or not check, ended.stdout + ended.stderr
    return ended.stdout.strip()


@contextmanager
def on_kafka(directory: Path) -> Iterator[Brokers]:
    """One node of Apache Kafka with its ordinary settings."""
    with kafka(directory, java=SERVER, log__retention__check__interval__ms="86400000") as server:
        yield Brokers("kafka", server.bootstrap, child("java"))


@contextmanager
def on_directory(directory: Path) -> Iterator[Brokers]:
    """Our broker on its own."""
    with embedded(directory / "data") as broker:
        assert broker.process is not None
        yield Brokers("firn-broker over a directory", broker.bootstrap, broker.process.pid)


@contextmanager
def on_bucket(directory: Path) -> Iterator[Brokers]:
    """Our broker as one of a fleet, with the settings that the operator gives it."""
    with ExitStack() as stack:
        storage = stack.enter_context(s3(directory))
        database = stack.enter_context(postgres(stack.enter_context(directory_for_postgres()), durable=True))
        settings = fleet_settings(directory, database, storage)
        broker = of_fleet(directory, "broker-0", {**settings, "nodeId": 0})
        broker.start()
        try:
            assert broker.process is not None
            stores = {"s3": child("versitygw"), "postgres": child("postgres")}
            yield Brokers("firn-broker over a bucket", broker.bootstrap, broker.process.pid, stores)
        finally:
            broker.stop()


def child(command: str) -> int:
    """The process of that name that this one started."""
    mine = os.getpid()
    (pid,) = [it.pid for it in processes().values() if it.parent == mine and it.command == command]
    return pid
