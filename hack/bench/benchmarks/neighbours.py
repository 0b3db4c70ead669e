"""Measure well-behaved producers of a diskless broker beside one slow or hostile client, against the same run without it."""

from __future__ import annotations

import asyncio
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka.admin import AdminClient, NewTopic

from hack.bench.benchmarks.broker import Brokers, create, on_bucket, on_directory, produce, records, stalls
from hack.bench.contestants import wire_client
from hack.bench.contestants.hostile import KINDS
from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.support.places import REPOSITORY
from hack.support.progress import say
from tests.unit.broker.batches import raw

TOPIC, HISTORY = "neighbours", "history"
HISTORY_MB = 200
CLIENTS = 4
REQUESTS_PER_SECOND = 50
"""Requests of each client."""
IN_FLIGHT = 5
"""Requests that a client sends together, so that the broker uploads at once. Otherwise times depend on its flush timer."""
BATCH_BYTES = 16_000
SECONDS = 6.0
REPEATS = 3
PEER = "the same clients alone"


def measure(options: Options) -> Iterator[Figure]:
    """Measure both kinds of our broker."""
    for name, serve in (("directory", on_directory), ("bucket", on_bucket)):
        directory = options.directory / f"neighbours-{name}"
        directory.mkdir()
        with serve(directory) as brokers:
            prepare(brokers)
            for kind in KINDS:
                say(f"{brokers.name}: producers beside a client of kind {kind}")
                before = stalls(brokers)
                beside, alone = compare(brokers, kind)
                yield Figure(
                    f"neighbours_{name}_{kind}_p99", beside, "ms of publish beside this client (99 %)", "lower", PEER, alone
                )  # fmt: skip
                yield Figure(
                    f"neighbours_{name}_{kind}_stalls", stalls(brokers) - before,
                    "stalls of the event loop over 100 ms", "lower",
                )  # fmt: skip


def prepare(brokers: Brokers) -> None:
    """Create the topics, and records for the clients that read."""
    create(brokers, TOPIC, CLIENTS)
    produce(brokers, HISTORY, records(HISTORY_MB), 1 << 20)
    admin = AdminClient({"bootstrap.servers": brokers.bootstrap})
    compacted = NewTopic("compacted", 1, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([compacted])["compacted"].result(30)
    asyncio.run(publish(brokers.bootstrap, SECONDS))


def compare(brokers: Brokers, kind: str) -> tuple[float, float]:
    """Return the median milliseconds of the slowest 1 % of requests beside the clients of a kind, and without them.

    Runs with and without them take turns, so that other work of the machine hits both."""
    beside, alone = [], []
    for _ in range(REPEATS):
        alone.append(percentile(asyncio.run(publish(brokers.bootstrap, SECONDS)), 0.99))
        with hostile(brokers, kind):
            beside.append(percentile(asyncio.run(publish(brokers.bootstrap, SECONDS)), 0.99))
    return statistics.median(beside), statistics.median(alone)


@contextmanager
def hostile(brokers: Brokers, kind: str) -> Iterator[None]:
    """Run the clients of a kind inside the with block."""
    command = [sys.executable, "-m", "hack.bench.contestants.hostile", kind, brokers.bootstrap, HISTORY]
    process = subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.DEVNULL)
    try:
        time.sleep(2)
        yield
        assert process.poll() is None, f"the clients of kind {kind} ended"
    finally:
        process.kill()
        process.wait()


async def publish(bootstrap: str, seconds: float) -> list[float]:
    """Publish at a constant rate; return the milliseconds from the time when each request was due to its answer."""
    host, port = bootstrap.split(":")
    batch = bytes(raw(BATCH_BYTES // wire_client.RECORD_BYTES, body=bytes(BATCH_BYTES)))
    took: list[float] = []

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        frame = wire_client.request(wire_client.PRODUCE, wire_client.produce(TOPIC, number, batch))
        count = int(seconds * REQUESTS_PER_SECOND)
        begun = time.perf_counter() + number / CLIENTS / REQUESTS_PER_SECOND
        due = [begun + place // IN_FLIGHT * IN_FLIGHT / REQUESTS_PER_SECOND for place in range(count)]

        async def send() -> None:
            for moment in due:
                await asyncio.sleep(max(moment - time.perf_counter(), 0))
                writer.write(frame)

        sending = asyncio.create_task(send())
        for moment in due:
            error = wire_client.produce_error(await wire_client.answer(reader))
            assert not error, f"Kafka error {error}"
            took.append((time.perf_counter() - moment) * 1000)
        await sending
        writer.close()

    await asyncio.gather(*map(client, range(CLIENTS)))
    return took
