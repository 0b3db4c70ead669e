"""Where records come from: a profile's Kafka, as the driver asks it for topic ids and offsets, and as tasks read ranges of it.

Tasks read in one of two ways, chosen by the driver a round at a time:

- `spark_records`: Spark's own Kafka source, for much data.
- `client_records`: librdkafka, one consumer a task however many topics it serves, for many small topics; and for records whose
  time does not fit microseconds, at which Spark's source fails.

Both read committed records only, and both step over offsets that hold none (compaction, aborted transactions, markers).
"""

import json
import operator
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import (
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from firn.kafka_clients import connection_settings, kafka_id, refuses_certificate
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_spark.credentials import read_secret
from firn_spark.kafka.header_bytes import HeaderReader

REQUEST_SECONDS = 10.0
STALL_SECONDS = 30.0
POLL_RECORDS = 5_000
POLL_BYTES = 4 * 1024 * 1024
"""What Spark's Kafka source takes from a partition at once: with Kafka's own 500 records, its bookkeeping between polls costs a quarter of
the throughput."""
SMALL_RECORD_BYTES = 8 * 1024
"""Key and value of a record that is read by `small_records_session`."""
SMALL_BATCH_RECORDS = 512
TASK_BATCH_RECORDS = 16_384
BATCH_RECORDS = 10_000
_NOT_LET_IN = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION, KafkaError._SSL})
_DENIED = _NOT_LET_IN | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
}
_UNANSWERED = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
WAY_OUT = "grant the driver's user Describe and Read on the topic, or correct its credentials"
Ranges = Mapping[int, tuple[int, int]]
"""Partition -> (first offset to read, offset to stop before)."""


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """A topic as the brokers know it."""

    topic_id: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Slice:
    """One partition's range for one task."""

    topic: str
    partition: int
    start: int
    end: int


def client_config(connection: KafkaConnection) -> dict[str, Any]:
    """librdkafka's settings for ``connection``. Raises NotReadyError where a secret's file is missing."""
    return {
        **connection_settings(connection, read_secret),
        "log_level": 3,
        "socket.connection.setup.timeout.ms": 10_000,
        "reconnect.backoff.max.ms": 5_000,
    }


def spark_options(connection: KafkaConnection) -> dict[str, str]:
    """The same for Spark's Kafka source (Kafka's Java client, PEM certificates inline)."""
    options = {
        "kafka.bootstrap.servers": connection.bootstrap_servers,
        "kafka.security.protocol": connection.protocol,
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "failOnDataLoss": "true",
        "kafkaConsumer.pollTimeoutMs": str(int(STALL_SECONDS * 1000)),
        "kafka.max.poll.records": str(POLL_RECORDS),
        "kafka.max.partition.fetch.bytes": str(POLL_BYTES),
    }
    if connection.ca_path is not None:
        options |= {
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.certificates": read_secret(connection.ca_path),
        }
    if connection.certificate_path is not None and connection.certificate_key_path is not None:
        options |= {
            "kafka.ssl.keystore.type": "PEM",
            "kafka.ssl.keystore.certificate.chain": read_secret(connection.certificate_path),
            "kafka.ssl.keystore.key": read_secret(connection.certificate_key_path),
        }
    if "SSL" in connection.protocol and not connection.verify_hostname:
        options["kafka.ssl.endpoint.identification.algorithm"] = ""
    if connection.sasl_mechanism is not None:
        password = read_secret(connection.sasl_password_path) if connection.sasl_password_path else ""
        module = "plain.PlainLoginModule" if connection.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
        options |= {
            "kafka.sasl.mechanism": connection.sasl_mechanism,
            "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
            f"username={_quoted(connection.sasl_username or '')} password={_quoted(password)};",
        }
    return options


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


class Kafka:
    """The admin side of one profile's brokers. Safe to use from several threads; every call is bounded by `REQUEST_SECONDS`."""

    def __init__(self, profile: str, connection: KafkaConnection) -> None:
        self.profile = profile
        self.connection = connection
        self._denial: KafkaError | None = None
        config: dict[str, Any] = {**client_config(connection), "error_cb": self._note}
        self._admin = AdminClient(config, logger=_quiet())

    def _note(self, trouble: KafkaError) -> None:
        # Brokers that do not let us in are told apart from silent ones only here: requests just time out.
        if _not_let_in(trouble):
            self._denial = trouble

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo | FirnError]:
        """Id and partitions of each topic, or why not. Raises UnavailableError where no broker answers."""
        if not names:
            return {}
        futures = self._call(
            lambda: self._admin.describe_topics(TopicCollection(list(names)), request_timeout=REQUEST_SECONDS)
        )
        found: dict[str, TopicInfo | FirnError] = {}
        for topic, future in futures.items():
            try:
                description = future.result()
            except KafkaException as error:
                found[topic] = self.translate(error, f"topic {topic}")
                if isinstance(found[topic], UnavailableError):
                    raise found[topic] from error  # type: ignore[misc]
                continue
            leaderless = [str(part.id) for part in description.partitions if part.leader is None or part.leader.id < 0]
            if leaderless:
                found[topic] = UnavailableError(
                    f"topic {topic}: partition {', '.join(leaderless)} has no leader; a broker is down",
                    reason=Reason.BROKER_UNREACHABLE,
                )
            else:
                partitions = tuple(sorted(part.id for part in description.partitions))
                found[topic] = TopicInfo(kafka_id(description.topic_id), partitions)
        return found

    def ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """The last stable offset of each partition: where a reader of committed records comes to an end for now."""
        return self._offsets(topics, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def starts(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int] | FirnError]:
        """The log start of each partition."""
        return self._offsets(topics, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def since(self, topics: Mapping[str, Sequence[int]], timestamp_ms: int) -> dict[str, dict[int, int] | FirnError]:
        """The first offset of each partition whose record is not older than ``timestamp_ms``; its end where there is none (-1 from Kafka)."""
        return self._offsets(topics, OffsetSpec.for_timestamp(timestamp_ms))

    def _offsets(self, topics: Mapping[str, Sequence[int]], spec: Any) -> dict[str, dict[int, int] | FirnError]:
        request = {TopicPartition(topic, part): spec for topic, parts in topics.items() for part in parts}
        if not request:
            return {topic: {} for topic in topics}
        futures = self._call(
            lambda: self._admin.list_offsets(
                request, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=REQUEST_SECONDS
            )
        )
        found: dict[str, dict[int, int] | FirnError] = {topic: {} for topic in topics}
        for partition, future in futures.items():
            known = found[partition.topic]
            if isinstance(known, FirnError):
                continue
            try:
                known[partition.partition] = future.result().offset
            except KafkaException as error:
                found[partition.topic] = self.translate(
                    error, f"topic {partition.topic}, partition {partition.partition}"
                )
        return found

    def _call(self, request: Any) -> dict[Any, "Future[Any]"]:
        self._admin.poll(0)
        self._denial = None
        try:
            return request()  # type: ignore[no-any-return]
        except KafkaException as error:
            raise self.translate(error, "request") from error

    def translate(self, error: KafkaException, subject: str) -> FirnError:
        """What a client's exception means, by who has to act."""
        cause = error.args[0]
        if cause.code() in _UNANSWERED:
            self._admin.poll(0)
            cause = self._denial or cause
        what = f"profile {self.profile} ({self.connection.bootstrap_servers}), {subject}: {cause.str()}"
        if cause.code() in _DENIED or _not_let_in(cause):
            return AccessDeniedError(f"{what}; {WAY_OUT}")
        if cause.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return NotReadyError(f"{what}; it is created by the operator, or was deleted")
        return UnavailableError(what, reason=Reason.BROKER_UNREACHABLE)


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("firn.kafka")
    logger.addHandler(logging.NullHandler())
    logger.propagate = False
    return logger


def spark_records(spark: Any, options: Mapping[str, str], topics: Mapping[str, Ranges], tasks: int, split: bool) -> Any:
    """A DataFrame of the records in ``topics``' ranges, in about ``tasks`` partitions; a range is read by several tasks only where ``split``.
    Records without headers have an empty list of them."""
    from pyspark.sql import functions

    starts = {topic: {str(p): start for p, (start, _) in ranges.items()} for topic, ranges in topics.items()}
    ends = {topic: {str(p): end for p, (_, end) in ranges.items()} for topic, ranges in topics.items()}
    count = sum(len(ranges) for ranges in topics.values())
    reader = (
        spark.read.format("kafka")
        .options(**options)
        .option("assign", json.dumps({topic: sorted(ranges) for topic, ranges in topics.items()}))
        .option("startingOffsets", json.dumps(starts))
        .option("endingOffsets", json.dumps(ends))
    )
    if split and count < tasks:
        reader = reader.option("minPartitions", str(tasks))
    # Spark weighs an Arrow batch after every row, and for rows of null lists Arrow then goes through the whole batch again: with an empty
    # list in place of null, a million records cost 6 CPU seconds where they cost 80.
    frame = reader.load().withColumn("headers", functions.expr("coalesce(headers, array())"))
    return frame.coalesce(tasks) if count > tasks else frame


def small_records_session(spark: Any) -> Any:
    """A session of the same application that sends Arrow batches to Python by number of records and does not weigh them after every row,
    which costs a third of the JVM's time. For topics whose records were small so far: should large ones come after all, a batch is a few
    hundred of them at most."""
    session = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(SMALL_BATCH_RECORDS))
    session.conf.set("spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1))
    return session


def together(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Small batches made into larger ones, of `TASK_BATCH_RECORDS` records or `POLL_BYTES`: decoding has a price per batch."""
    waiting: list[pa.RecordBatch] = []
    records = size = 0
    for batch in batches:
        waiting.append(batch)
        records += len(batch)
        size += batch.nbytes
        if records >= TASK_BATCH_RECORDS or size >= POLL_BYTES:
            yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)
            waiting, records, size = [], 0, 0
    if waiting:
        yield waiting[0] if len(waiting) == 1 else pa.concat_batches(waiting)


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
"""``message.headers()``, which for names that are not UTF-8 returns a result *and* leaves an exception behind. Python's interpreter does not look
for that where it has specialised a call that runs often, and then raises it anywhere later; calls from C do look, and raise SystemError at once."""
_TIMESTAMP_TYPES = {1: 0, 2: 1}
"""librdkafka's TIMESTAMP_CREATE_TIME, TIMESTAMP_LOG_APPEND_TIME to Kafka's; none at all is -1."""


def client_records(config: Mapping[str, Any], slices: Sequence[Slice]) -> Iterator[pa.RecordBatch]:
    """The records in ``slices``, with ``timestamp_ms`` in place of Spark's ``timestamp``. Runs in a task.

    Raises UnavailableError when nothing arrives for `STALL_SECONDS`, AccessDeniedError where the brokers refuse us, and NotReadyError when
    the log no longer reaches back to a start.
    """
    troubles: list[KafkaError] = []
    consumer = KafkaConsumer(
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
            "error_cb": troubles.append,
        },
        logger=_quiet(),
    )
    headers_again = HeaderReader(config)
    try:
        waiting = {(part.topic, part.partition): part.end for part in slices if part.start < part.end}
        consumer.assign(
            [TopicPartition(part.topic, part.partition, part.start) for part in slices if part.start < part.end]
        )
        deadline = time.monotonic() + STALL_SECONDS
        columns: list[list[Any]] = [[] for _ in CLIENT_SCHEMA]
        size = 0
        while waiting:
            messages = consumer.consume(BATCH_RECORDS, timeout=0.2)
            for trouble in troubles:
                if _not_let_in(trouble):
                    _raise(trouble, next(iter(waiting)))
            troubles.clear()
            if not messages and time.monotonic() > deadline:
                topic, partition = next(iter(waiting))
                raise UnavailableError(
                    f"topic {topic}, partition {partition}: no record and no end within {STALL_SECONDS:.0f} s",
                    reason=Reason.BROKER_UNREACHABLE,
                )
            done: list[TopicPartition] = []
            for message in messages:
                place = (message.topic() or "", message.partition() or 0)
                end = waiting.get(place)
                if end is None:
                    continue
                deadline = time.monotonic() + STALL_SECONDS
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        # An end before the planned one happens while followers catch up with a new leader: read on.
                        if (message.offset() or 0) >= end:
                            del waiting[place]
                            done.append(TopicPartition(*place))
                        continue
                    _raise(error, place)
                offset = message.offset() or 0
                if offset >= end:
                    del waiting[place]
                    done.append(TopicPartition(*place))
                    continue
                kind, timestamp = message.timestamp()
                key, value = message.key(), message.value()
                try:
                    headers: Any = _headers(message)
                except (SystemError, UnicodeDecodeError):
                    headers = headers_again.read(*place, offset, STALL_SECONDS)
                    deadline = time.monotonic() + STALL_SECONDS
                row = (
                    _bytes(key),
                    _bytes(value),
                    place[0],
                    place[1],
                    offset,
                    timestamp if kind else -1,
                    _TIMESTAMP_TYPES.get(kind, -1),
                    [{"key": name, "value": _bytes(data)} for name, data in headers or ()],
                )
                for column, item in zip(columns, row, strict=True):
                    column.append(item)
                size += len(key or b"") + len(value or b"")
                if offset + 1 >= end:
                    del waiting[place]
                    done.append(TopicPartition(*place))
                if size >= 16 * 1024 * 1024:
                    yield _batch(columns)
                    columns, size = [[] for _ in CLIENT_SCHEMA], 0
                    # What whoever lands the batch took is not the brokers' silence.
                    deadline = time.monotonic() + STALL_SECONDS
            if done and waiting:
                consumer.incremental_unassign(done)
            if len(columns[0]) >= BATCH_RECORDS:
                yield _batch(columns)
                columns, size = [[] for _ in CLIENT_SCHEMA], 0
                deadline = time.monotonic() + STALL_SECONDS
        if columns[0]:
            yield _batch(columns)
    finally:
        headers_again.close()
        consumer.close()


def _not_let_in(error: KafkaError) -> bool:
    return error.code() in _NOT_LET_IN or refuses_certificate(error.str())


def _raise(error: KafkaError, place: tuple[str, int]) -> None:
    where = f"topic {place[0]}, partition {place[1]}: {error.str()}"
    if error.code() in (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE):
        raise NotReadyError(f"{where}; the log moved, plan again")
    if error.code() in _DENIED or _not_let_in(error):
        raise AccessDeniedError(f"{where}; {WAY_OUT}")
    raise UnavailableError(where, reason=Reason.BROKER_UNREACHABLE)


def _bytes(value: bytes | str | None) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def _batch(columns: list[list[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(column, type=field.type) for column, field in zip(columns, CLIENT_SCHEMA, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CLIENT_SCHEMA)
