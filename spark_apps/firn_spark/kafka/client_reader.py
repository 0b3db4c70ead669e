"""Records through librdkafka, inside a task: one consumer for all topics of the task.

This is for many small topics, and for records whose time does not fit microseconds, on which Spark's source fails. Only committed
records are read. Offsets without a record (compaction, aborted transactions, markers) are skipped.
"""

import operator
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import pyarrow as pa
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import KafkaError, TopicPartition

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, NotReadyError, UnavailableError
from firn_spark.kafka.clients import STALL_SECONDS, silent_logger
from firn_spark.kafka.header_bytes import HeaderReader
from firn_spark.kafka.refusals import GRANT_HINT, denied, refuses_connection

BATCH_RECORDS = 10_000
BATCH_BYTES = 16 * 1024 * 1024
Ranges = Mapping[int, tuple[int, int]]
"""Partition -> (first offset to read, offset to stop before)."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a partition for a task."""

    topic: str
    partition: int
    start: int
    end: int


CLIENT_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp_ms", pa.int64()),
        ("timestampType", pa.int32()),
        ("headers", pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
    ]
)
_headers = operator.methodcaller("headers")
"""``message.headers()``, called from C. For names that are not UTF-8 it returns a result *and* leaves an exception set.
Python's interpreter does not check for that in a specialised call, and raises the exception at any later place. A call from
C checks, and raises SystemError at once."""
_TIMESTAMP_TYPES = {1: 0, 2: 1}
"""librdkafka's TIMESTAMP_CREATE_TIME and TIMESTAMP_LOG_APPEND_TIME -> Kafka's types; -1 for a record without a time."""


def client_records(config: Mapping[str, Any], slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """Read the records in ``slices``, with ``timestamp_ms`` in place of Spark's ``timestamp``. Runs in a task.

    Raises UnavailableError when nothing arrives for `STALL_SECONDS`, AccessDeniedError if the brokers refuse the client, and
    NotReadyError if the log no longer reaches back to a start.
    """
    reader = _ClientReader(config, [part for part in slices if part.start < part.end])
    try:
        yield from reader.batches()
    finally:
        reader.close()


class _ClientReader:
    """A consumer, the ends that it still has to reach, and the rows that wait to become a batch."""

    def __init__(self, config: Mapping[str, Any], slices: Sequence[Slice]) -> None:
        self._slices = slices
        self._troubles: list[KafkaError] = []
        self._consumer = KafkaConsumer(
            {
                **config,
                "group.id": "firn",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 100,
                "fetch.error.backoff.ms": 100,
                "queued.max.messages.kbytes": 16 * 1024,
                "max.partition.fetch.bytes": 1024 * 1024,
                "message.max.bytes": 100_000_000,
                "error_cb": self._troubles.append,
            },
            logger=silent_logger(),
        )
        self._headers_again = HeaderReader(config)
        self._waiting = {(part.topic, part.partition): part.end for part in slices}
        self._columns: list[list[Any]] = [[] for _ in CLIENT_SCHEMA]
        self._size = 0
        self._deadline = 0.0

    def close(self) -> None:
        """Close the consumers."""
        self._headers_again.close()
        self._consumer.close()

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Read until every slice has reached its end."""
        self._consumer.assign([TopicPartition(part.topic, part.partition, part.start) for part in self._slices])
        self._postpone()
        while self._waiting:
            messages = self._consumer.consume(BATCH_RECORDS, timeout=0.2)
            self._check(bool(messages))
            done: list[TopicPartition] = []
            for message in messages:
                self._receive(message, done)
                if self._size >= BATCH_BYTES:
                    yield self._batch()
                    self._postpone()
            if done and self._waiting:
                self._consumer.incremental_unassign(done)
            if len(self._columns[0]) >= BATCH_RECORDS:
                yield self._batch()
                self._postpone()
        if self._columns[0]:
            yield self._batch()

    def _postpone(self) -> None:
        """Restart the stall timeout, because the brokers answered, or because landing a batch took the time."""
        self._deadline = time.monotonic() + STALL_SECONDS

    def _check(self, answered: bool) -> None:
        for trouble in self._troubles:
            if refuses_connection(trouble):
                _raise(trouble, next(iter(self._waiting)))
        self._troubles.clear()
        if not answered and time.monotonic() > self._deadline:
            topic, partition = next(iter(self._waiting))
            raise UnavailableError(
                f"topic {topic}, partition {partition}: no record and no end of the partition within {STALL_SECONDS:.0f} s",
                reason=Reason.BROKER_UNREACHABLE,
            )

    def _receive(self, message: Any, done: list[TopicPartition]) -> None:
        """Add a message's record, and its partition to ``done`` if that has reached its end."""
        place = (message.topic() or "", message.partition() or 0)
        end = self._waiting.get(place)
        if end is None:
            return
        self._postpone()
        error, offset = message.error(), message.offset() or 0
        reached = offset
        if error is not None:
            # An end before the planned one happens while followers catch up with a new leader: read on.
            if error.code() != KafkaError._PARTITION_EOF:
                _raise(error, place)
        elif offset < end:
            self._add(message, place, offset)
            reached = offset + 1
        if reached >= end:
            del self._waiting[place]
            done.append(TopicPartition(*place))

    def _add(self, message: Any, place: tuple[str, int], offset: int) -> None:
        kind, timestamp = message.timestamp()
        key, value = message.key(), message.value()
        try:
            headers: Any = _headers(message)
        except (SystemError, UnicodeDecodeError):
            headers = self._headers_again.read(*place, offset, STALL_SECONDS)
            self._postpone()
        row = (
            _bytes(key),
            _bytes(value),
            *place,
            offset,
            timestamp if kind else -1,
            _TIMESTAMP_TYPES.get(kind, -1),
            [{"key": name, "value": _bytes(data)} for name, data in headers or ()],
        )
        for column, item in zip(self._columns, row, strict=True):
            column.append(item)
        self._size += len(key or b"") + len(value or b"")

    def _batch(self) -> pa.RecordBatch:
        """Make a batch of the waiting rows."""
        columns = zip(self._columns, CLIENT_SCHEMA, strict=True)
        arrays = [pa.array(column, type=field.type) for column, field in columns]
        self._columns, self._size = [[] for _ in CLIENT_SCHEMA], 0
        return pa.RecordBatch.from_arrays(arrays, schema=CLIENT_SCHEMA)


def _raise(error: KafkaError, place: tuple[str, int]) -> NoReturn:
    topic, partition = place
    where = f"topic {topic}, partition {partition}: {error.str()}"
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise NotReadyError(
            f"{where}; the log no longer has this offset. The driver reloads the bounds of the log and retries"
        )
    if denied(error):
        raise AccessDeniedError(f"{where}; {GRANT_HINT}")
    raise UnavailableError(where, reason=Reason.BROKER_UNREACHABLE)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value
