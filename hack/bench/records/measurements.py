"""Generate the records of the benchmarks and produce them. A record is JSON of about 200 bytes with eight typed values."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model.jobs import Column, RecordSchema
from tests.servers.kafka import tool

COLUMNS = (
    Column(name="id", type="long", required=True),
    Column(name="at", type="timestamptz"),
    Column(name="device", type="string"),
    Column(name="region", type="string"),
    Column(name="temperature", type="double"),
    Column(name="count", type="int"),
    Column(name="active", type="boolean"),
    Column(name="note", type="string"),
)
TEXTS = tuple(
    column.model_copy(update={"type": "string"}) if column.type == "timestamptz" else column for column in COLUMNS
)
"""Columns for the same records, with the timestamp as a text. No contestant parses it."""
SCHEMA = RecordSchema(format="Json", fields=COLUMNS)

_FORMAT = (
    '{"id":%d,"at":"%sZ","device":"sensor-%06d","region":"%s","temperature":%.3f,"count":%d,"active":%s,"note":"%s"}'
)
_REGIONS = ("eu-central-1", "eu-west-1", "us-east-1", "us-west-2", "ap-southeast-1", "sa-east-1")
_WORDS = tuple(
    word
    for line in (
        "door open closed valve pump pressure nominal above below threshold limit reading drift calibrated battery low charging",
        "restart after update firmware signal weak strong lost regained maintenance due inspected by crew shift morning evening",
        "humidity temperature vibration spike steady falling rising unknown cause cleared manually automatic override engaged",
    )
    for word in line.split()
)
_NOTES = 20_000
_CHUNK = 20_000
_IN_FLIGHT = 400_000
_PACE_SECONDS = 0.02


class Generator:
    """A generator of records with ids from 0 on, the same ones for the same seed."""

    def __init__(self, seed: int = 1) -> None:
        self._random = np.random.default_rng(seed)
        lengths = self._random.integers(5, 10, _NOTES)
        self._notes = [" ".join(self._random.choice(_WORDS, length)) for length in lengths]
        self._next = 0
        self._time = np.datetime64("2026-01-01T00:00:00.000", "ms")

    def draw(self, count: int) -> tuple[Any, list[tuple[int, int, str, float, int, bool, str]]]:
        """Return the times (numpy, ms) and the other fields of the next ``count`` records. The device is a number."""
        pick = self._random
        times = self._time + np.cumsum(pick.integers(0, 3, count)).astype("timedelta64[ms]")
        others = zip(
            range(self._next, self._next + count),
            pick.integers(0, 50_000, count).tolist(),
            [_REGIONS[index] for index in pick.integers(0, len(_REGIONS), count).tolist()],
            pick.normal(20.0, 6.0, count).tolist(),
            pick.integers(0, 100_000, count).tolist(),
            (pick.random(count) < 0.8).tolist(),
            [self._notes[index] for index in pick.integers(0, _NOTES, count).tolist()],
            strict=True,
        )
        self._next += count
        self._time = times[-1] if count else self._time
        return times, list(others)

    def generate(self, count: int) -> list[bytes]:
        """Return the next ``count`` values as JSON."""
        times, others = self.draw(count)
        return [
            (_FORMAT % (number, at, *values, "true" if active else "false", note)).encode()
            for at, (number, *values, active, note) in zip(np.datetime_as_string(times).tolist(), others, strict=True)
        ]


def create_topics(bootstrap: str, topics: Sequence[str], partitions: int = 1) -> None:
    """Create topics. Fails if one exists."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    futures = admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1) for name in topics])
    for future in futures.values():
        future.result()


Generate = Callable[[int], list[bytes]]
"""A function that returns the next values, as many as its argument says."""


def fill(
    bootstrap: str, topic: str, rows: int, partitions: int, codec: str = "none", generate: Generate | None = None
) -> int:
    """Produce ``rows`` records evenly over the topic's partitions, in batches compressed with ``codec``.

    Without ``generate``, the records are those of `Generator`, as JSON. Returns the bytes of their values. Raises RuntimeError unless all arrived.
    """
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "batch.size": 256 * 1024,
            "compression.type": codec,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT,
            "queue.buffering.max.kbytes": 1024 * 1024,
            "log_level": 4,
        }
    )
    generate = generate or Generator().generate
    size = 0
    for number, start in enumerate(range(0, rows, _CHUNK)):
        values = generate(min(_CHUNK, rows - start))
        size += sum(map(len, values))
        while len(producer) > _IN_FLIGHT:
            producer.poll(0.01)
        producer.produce_batch(topic, [{"value": value} for value in values], partition=number % partitions)
    producer.flush(120)
    arrived = sum(end for _, end in watermarks(bootstrap, topic, partitions).values())
    if arrived != rows:
        raise RuntimeError(f"topic {topic} has {arrived} records, but {rows} were produced")
    return size


def watermarks(bootstrap: str, topic: str, partitions: int) -> dict[int, tuple[int, int]]:
    """Return the first and the end offset by partition."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench"})
    try:
        return {
            part: consumer.get_watermark_offsets(TopicPartition(topic, part), timeout=30) for part in range(partitions)
        }
    finally:
        consumer.close()


def read_through(bootstrap: str, topic: str, partitions: int) -> float:
    """Read the whole topic once and return the seconds. Then the broker is equally warm for every contestant."""
    started = time.monotonic()
    count = sum(end - start for start, end in watermarks(bootstrap, topic, partitions).values())
    # Kafka's own consumer, because one in Python would need minutes for 20 million records.
    tool(bootstrap, "ConsumerPerformance", "--topic", topic, "--num-records", str(count), "--timeout", "20000")
    return time.monotonic() - started


Place = tuple[str, int]
"""Topic and partition."""


def produce_paced(
    bootstrap: str, places: Sequence[Place], per_second: float, seconds: float
) -> dict[Place, list[float]]:
    """Produce at a steady rate to each place in turn, and return the send times of the records (Unix seconds) by offset.

    The topics must be empty. Raises RuntimeError unless all records arrived.
    """
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 5, "log_level": 4})
    generator = Generator()
    written: dict[Place, list[float]] = {place: [] for place in places}
    total = int(per_second * seconds)
    started = time.monotonic()
    sent = 0
    while sent < total:
        due = min(total, int((time.monotonic() - started) * per_second))
        for value in generator.generate(due - sent):
            place = places[sent % len(places)]
            producer.produce(place[0], value, partition=place[1])
            written[place].append(time.time())
            sent += 1
        producer.poll(0)
        time.sleep(_PACE_SECONDS)
    if left := producer.flush(60):
        raise RuntimeError(f"{left} of {total} records were not acknowledged")
    return written
