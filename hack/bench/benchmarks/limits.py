"""Measure the limits of a diskless broker: commits of its coordinators, a thousand partitions, five hundred idle connections.

The benchmark also measures a thousand partitions and five hundred idle connections on Apache Kafka.
"""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from uuid import uuid4

from firn.model.clock import SystemClock
from firn_broker.log_types import BatchEntry, Commit, NodeAddress, Partition, Topic
from firn_broker.metadata_store.postgres.store import PostgresStore
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.ports import MetadataStore
from firn_broker.settings import PostgresSettings
from hack.bench.benchmarks.broker import (
    PEER,
    Brokers,
    charged,
    consume,
    create,
    on_bucket,
    on_directory,
    on_kafka,
    produce,
    stalls,
)
from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Better, Figure
from hack.bench.measuring.process_tree import cpu_by_part, memory_bytes
from hack.bench.options import Options
from hack.support.progress import say
from tests.servers.postgres import directory_for_postgres, postgres

PARTITIONS = 1000
MANY_RECORDS = 200_000
CONNECTIONS = 500
IDLE_SECONDS = 20
COMMIT_SECONDS = 5
BATCHES = (1, 100, 1000)
"""Numbers of batches in a commit, each of another partition."""


def measure(options: Options) -> Iterator[Figure]:
    """Measure the three limits in turn."""
    yield from asyncio.run(commits(options.directory))
    many, idle = [], []
    stood: dict[str, float] = {}
    for name, serve in (("kafka", on_kafka), ("directory", on_directory), ("bucket", on_bucket)):
        directory = options.directory / f"limits-{name}"
        directory.mkdir()
        with serve(directory) as brokers:
            many.append(thousand_partitions(brokers))
            idle.append(idle_connections(brokers))
            if brokers.metrics:
                stood[name] = stalls(brokers)
    for (theirs, *ours), units in ((many, MANY), (idle, IDLE)):
        for where, values in zip(("directory", "bucket"), ours, strict=True):
            for name, (unit, better) in units.items():
                yield Figure(f"limits_{where}_{name}", values[name], unit, better, PEER, theirs[name])
    for where, count in stood.items():
        yield Figure(f"limits_{where}_stalls", count, "stalls of the event loop over 100 ms", "lower")


MANY: dict[str, tuple[str, Better]] = {
    "partitions_in": (f"records/s into {PARTITIONS} partitions, batches of 16 KiB", "higher"),
    "partitions_in_cpu": ("broker CPU s per million records in", "lower"),
    "partitions_out": (f"records/s out of {PARTITIONS} partitions", "higher"),
    "partitions_out_cpu": ("broker CPU s per million records out", "lower"),
}
IDLE: dict[str, tuple[str, Better]] = {
    "idle_cpu": (f"% of a core for {CONNECTIONS} consumers that wait at the end of a partition", "lower"),
    "idle_memory": (f"KB a connection, {CONNECTIONS} of them", "lower"),
    "idle_p99": ("ms of publish (99 %) beside them, 10 MB/s", "lower"),
}


def thousand_partitions(brokers: Brokers) -> dict[str, float]:
    """Write records of 1 KB, each batch to another partition, and read them.

    Not idempotent: with so many partitions, Kafka 4.2.1 refuses batches of its own idempotent producer (OutOfOrderSequence)
    until they time out.
    """
    say(f"{brokers.name}: {PARTITIONS} partitions")
    create(brokers, "many", PARTITIONS)
    produce(brokers, "many", MANY_RECORDS // 4, 16 << 10, idempotent=False)
    spent, sent = charged(brokers, lambda: produce(brokers, "many", MANY_RECORDS, 16 << 10, idempotent=False))
    total = MANY_RECORDS + MANY_RECORDS // 4
    read, rate = charged(brokers, lambda: consume(brokers, "many", total))
    return {
        "partitions_in": sent.rate * 1000,
        "partitions_in_cpu": spent.broker / MANY_RECORDS * 1e6,
        "partitions_out": rate * 1000,
        "partitions_out_cpu": read.broker / total * 1e6,
    }


def idle_connections(brokers: Brokers) -> dict[str, float]:
    """Measure a producer beside consumers that fetch every half second, as by default, and get no records."""
    say(f"{brokers.name}: {CONNECTIONS} idle consumers")
    create(brokers, "idle", 1)
    produce(brokers, "beside", 10_000, 64 << 10)
    return asyncio.run(_beside_idle(brokers))


async def _beside_idle(brokers: Brokers) -> dict[str, float]:
    memory = memory_bytes(brokers.pid)
    host, port = brokers.bootstrap.split(":")
    waiting = [asyncio.create_task(_wait_for_records(host, int(port))) for _ in range(CONNECTIONS)]
    try:
        await asyncio.sleep(5)
        cpu = sum(cpu_by_part(brokers.pid).values())
        await asyncio.sleep(IDLE_SECONDS)
        cpu = sum(cpu_by_part(brokers.pid).values()) - cpu
        memory = memory_bytes(brokers.pid) - memory
        sent = await asyncio.to_thread(produce, brokers, "beside", 200_000, 64 << 10, 10, linger_ms=5, warm_up=50_000)
        assert not any(task.done() for task in waiting), "the broker did not answer a consumer"
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    return {
        "idle_cpu": cpu / IDLE_SECONDS * 100,
        "idle_memory": memory / CONNECTIONS / 1000,
        "idle_p99": sent.p99,
    }


async def _wait_for_records(host: str, port: int) -> None:
    """Fetch (version 11) an empty partition again and again, until it is cancelled."""
    reader, writer = await asyncio.open_connection(host, port)
    name, size = b"idle", struct.pack(">i", 1 << 20)
    body = (
        struct.pack(">hhih", 1, 11, 7, -1) + struct.pack(">iii", -1, 500, 1) + size + b"\0" + struct.pack(">ii", 0, -1)
        + struct.pack(">ih", 1, len(name)) + name + struct.pack(">iiiqq", 1, 0, -1, 0, -1) + size + struct.pack(">ih", 0, 0)
    )  # fmt: skip
    try:
        while True:
            writer.write(struct.pack(">i", len(body)) + body)
            (length,) = struct.unpack(">i", await reader.readexactly(4))
            await reader.readexactly(length)
    finally:
        writer.close()


async def commits(directory: Path) -> Iterable[Figure]:
    """Measure commits of idempotent producers' batches, one after the other, as a broker makes them."""
    rates = []
    with ExitStack() as stack:
        database = stack.enter_context(postgres(stack.enter_context(directory_for_postgres()), durable=True))
        password = directory / "password"
        password.write_text(database.password)
        settings = PostgresSettings(uri=database.uri, user=database.user, password_file=str(password))
        stores: dict[str, MetadataStore] = {
            "postgres": PostgresStore(settings),
            "sqlite": SqliteStore(str(directory / "coordinator.db"), SystemClock(), str(uuid4())),
        }
        for name, store in stores.items():
            await store.start()
            for batches in BATCHES:
                say(f"commits in {name}: {batches} batches each")
                took = await _commits(store, batches)
                rates.append(
                    Figure(
                        f"limits_commits_{name}_{batches}",
                        len(took) / sum(took),
                        f"commits/s of {batches} batches",
                        "higher",
                    )
                )
                rates.append(
                    Figure(
                        f"limits_commit_{name}_{batches}_p99",
                        percentile(took, 0.99) * 1000,
                        f"ms a commit of {batches} batches",
                        "lower",
                    )
                )
            await store.close()
    return rates


async def _commits(store: MetadataStore, batches: int) -> list[float]:
    """Return the seconds of each commit."""
    topic = Topic(uuid4(), f"of-{batches}", batches, {})
    await store.topics.create_topic(topic)
    lease = await store.nodes.join(NodeAddress("127.0.0.1", 9092), 600_000)
    took: list[float] = []
    until = time.monotonic() + COMMIT_SECONDS
    while time.monotonic() < until:
        number = len(took)
        key = f"wal/{topic.name}-{number}"
        await store.log.reserve(lease, [key])
        entries = [
            BatchEntry(Partition(topic.id, index), 32 + 1000 * index, 1000, 1, 0, False, 1, 0, number)
            for index in range(batches)
        ]
        began = time.perf_counter()
        outcomes = await store.log.commit(Commit(lease, key, 1000 * batches, entries))
        took.append(time.perf_counter() - began)
        assert all(not outcome.error and outcome.base_offset == number for outcome in outcomes)
    return took
