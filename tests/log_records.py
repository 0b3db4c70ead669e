"""The records of a topic, as a client reads them from its log."""

import struct
import time
from collections.abc import Iterable
from hashlib import sha256
from typing import Any, NamedTuple

from confluent_kafka import TIMESTAMP_CREATE_TIME, Consumer, KafkaError, Message, TopicPartition


class LogRecord(NamedTuple):
    """A record as librdkafka returns it. ``timestamp`` is its kind, and milliseconds since 1970."""

    partition: int
    offset: int
    timestamp: tuple[int, int]
    key: Any
    value: Any
    headers: tuple[Any, ...]


def read_log(
    bootstrap: str, topic: str, partitions: int, *, patience: float = 60.0, retries: bool = False
) -> list[LogRecord]:
    """Return all records of a topic by partition and offset. Fails after ``patience`` seconds without one, and on other errors than those
    that the client retries itself, if ``retries`` permits these."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": topic, "enable.partition.eof": True, "check.crcs": True}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partitions)])
    found, ended, deadline = list[LogRecord](), set[int | None](), time.monotonic() + patience
    try:
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"{topic}: no record within {patience} s, after {len(found)} records"
            for message in consumer.consume(1_000, 1.0):
                error = message.error()
                if error is None:
                    found.append(_record(message))
                    deadline = time.monotonic() + patience
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    assert retries, error
                    assert error.retriable(), error
    finally:
        consumer.close()
    return sorted(found, key=lambda record: record[:2])


def digests(records: Iterable[LogRecord]) -> dict[int, str]:
    """Return a digest of the records of each partition, so that clients in other languages can show what they read.

    Each record is its offset (8 bytes), the kind of its timestamp (4: 0 for that of the producer, 1 for the append time), the timestamp
    (8), key, value, the number of headers (4), and name and value of each. Before each of these texts comes its length (4), or -1 if it
    is null. All numbers are big-endian."""
    found: dict[int, Any] = {}
    for record in records:
        kind, milliseconds = record.timestamp
        digest = found.setdefault(record.partition, sha256())
        digest.update(struct.pack(">qiq", record.offset, kind - TIMESTAMP_CREATE_TIME, milliseconds))
        digest.update(_field(record.key) + _field(record.value) + struct.pack(">i", len(record.headers)))
        for name, value in record.headers:
            digest.update(_field(name.encode()) + _field(value))
    return {partition: digest.hexdigest() for partition, digest in found.items()}


def _field(text: bytes | None) -> bytes:
    return struct.pack(">i", -1) if text is None else struct.pack(">i", len(text)) + text


def _record(message: Message) -> LogRecord:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return LogRecord(
        partition, offset, message.timestamp(), message.key(), message.value(), tuple(message.headers() or ())
    )
