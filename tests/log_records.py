"""The records of a topic, as a client reads them from its log."""

import time
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition


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


def _record(message: Message) -> LogRecord:
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    return LogRecord(
        partition, offset, message.timestamp(), message.key(), message.value(), tuple(message.headers() or ())
    )
