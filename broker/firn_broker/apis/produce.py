"""Produce (0), versions 3 to 11 (advertised from 0, see ApiVersions): batches are appended as they are.

- Each batch is checked as far as possible without decoding records (`firn.records.record_batch.parse`). A rejected
  batch does not affect the others of the request.
- acks 1 and -1 mean the same: the answer comes when the batches are durable and have their offsets. With acks 0 there
  is no answer, and an error closes the connection, as with Kafka.
- The batches of a connection enter the log in the order of its requests.
- When an idempotent producer has to send a batch again, the later batches of the connection are rejected until it does.
  The client sent them before it knew of the error, and a producer that the coordinator has forgotten may start at any
  sequence.
- The first and the greatest timestamp of the batch header are checked: INVALID_TIMESTAMP.
- Compacted topics reject records without a key: INVALID_RECORD. Only for these topics does the broker decode records
  here. A batch with more records than it decodes is MESSAGE_TOO_LARGE, after which Java clients split the batch.
- Topics with a gate (`firn_broker.topics.gate`) accept a batch only if each value begins with a schema id of the topic's subject:
  INVALID_RECORD, with the indexes of the other records since version 8. While the schema registry does not answer, a batch with an
  unknown id is rejected with KAFKA_STORAGE_ERROR, after which clients send it again. With ``Decode``, each value also has to fit its
  schema. A batch that is too large to decode is MESSAGE_TOO_LARGE.
- A topic that the client may not write is TOPIC_AUTHORIZATION_FAILED, whether it exists or not. Its batches are not parsed.
- The answer asks a client to pause (throttle time, KIP-219) while it fills the memory for requests, or if it exceeds its
  quota. A quota counts the whole request, as in Kafka. Only for a quota does the broker enforce the pause.
- The timeout of the request has no effect. When it passes, the outcome is not known yet, and REQUEST_TIMED_OUT would
  make clients send batches again that may be in the log.
- Transactional batches are rejected with INVALID_TXN_STATE, which is fatal to every client, so no client retries.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records import record_batch
from firn.records.cursor import MalformedError
from firn.records.record_batch import Batch, InvalidBatchError
from firn_broker import metrics
from firn_broker.access.quotas import Quota
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log.writer import Append
from firn_broker.log_types import BatchOutcome, Topic
from firn_broker.network.budget import Share
from firn_broker.network.router import Call, Client
from firn_broker.topics.gate import RefusedRecordsError
from firn_broker.topics.value_checks import MOST_NAMED
from firn_broker.wire import produce
from firn_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResult

KEY = 0
VERSIONS = (0, 11)
LOWEST = 3
_LARGEST = 1 << 31
NO_TIMESTAMP = -1
_AWAITED = 10_000
"""Rejected batches of one connection that are remembered; the oldest are forgotten first."""
_AGAIN = (ErrorCode.kafka_storage_error, ErrorCode.unknown_topic_or_partition)
"""Errors of a commit after which a client sends the batch again."""
_LONGEST_THROTTLE_MS = 100
"""About the time in which an object store with free capacity takes the last fifth of the memory. A longer pause would
leave it idle."""
_IN_FLIGHT = 5
"""Requests that an idempotent producer may have in flight (``max.in.flight.requests.per.connection``)."""

_AT_A_TIME = 256
"""Batches that are checked before other requests may run."""

_ELEMENT_BYTES = 2048
"""Bytes that a partition of a request takes in memory besides its records. In the frame it may have as few as six
bytes."""

UNAUTHORIZED = "the client may not write to the topic"

Results = list[tuple[str, list[ProduceResult]]]


@dataclass(frozen=True, slots=True)
class Rejection:
    """The error for a rejected batch, the reason, and the records that are the reason."""

    code: ErrorCode
    why: str
    records: Sequence[tuple[int, str]] = ()
    awaited: Batch | None = None
    """The batch, if the client sends it again."""


async def handle(broker: Broker, call: Call) -> list[bytes | memoryview] | None:
    """Append the batches, and answer when they are durable."""
    share = Share(broker.parsed, call.client.peer)
    try:
        # A free lock is acquired without a pause. The next request of the connection waits unparsed.
        async with call.client.produce_order:
            request = await _read(call, share)
            if (refused := _refusal(call, request)) is not None:
                return [produce.write(call.version, _all(request, refused), _throttle_ms(broker, call))]
            results, future, places = await _append(broker, call, request)
        return await _answer_durably(broker, call, request, results, future, places)
    finally:
        share.release()


async def _read(call: Call, share: Share) -> ProduceRequest:
    """Parse the request and acquire the memory that it takes.

    The memory is known only after parsing. A request that has to wait for it is dropped and parsed again, so that
    waiting requests take no more than their bytes, and requests with a free share pass them.
    """
    request: ProduceRequest | None = produce.read(call.frame, call.header.body, call.version)
    assert request is not None
    if not share.begin(request.elements * _ELEMENT_BYTES):
        request = None
        await share.granted()
        request = produce.read(call.frame, call.header.body, call.version)
    return request


def _refusal(call: Call, request: ProduceRequest) -> ErrorCode | None:
    if call.version < LOWEST:
        return ErrorCode.unsupported_version
    if request.acks not in (-1, 0, 1):
        return ErrorCode.invalid_required_acks
    if request.transactional_id is not None:
        return ErrorCode.transactional_id_authorization_failed
    return None


async def _answer_durably(
    broker: Broker,
    call: Call,
    request: ProduceRequest,
    results: Results,
    future: "asyncio.Future[list[BatchOutcome]] | None",
    places: list[tuple[int, int]],
) -> list[bytes | memoryview] | None:
    if future is not None:
        for (topic, index), outcome in zip(places, await future, strict=True):
            _answer(results[topic][1], index, outcome)
        _note_failures(call.client)
    throttle_ms = _throttle_ms(broker, call)
    if request.acks == 0:
        if any(result.error for _, of_topic in results for result in of_topic):
            raise MalformedError("a batch with acks=0 was rejected")
        return None
    return [produce.write(call.version, results, throttle_ms)]


def _throttle_ms(broker: Broker, call: Call) -> int:
    """Count the request, and return how long the client should pause before its next one."""
    call.count(broker.quotas, Quota.PRODUCER_BYTES, len(call.frame))
    call.count_time(broker.quotas)
    client = call.client
    throttle_ms = 0 if client.budget is None else round(client.budget.fullness(client.peer) * _LONGEST_THROTTLE_MS)
    if throttle_ms:
        metrics.THROTTLED.inc()
    return max(throttle_ms, call.throttle_ms)


def _all(request: ProduceRequest, error: ErrorCode) -> Results:
    return [
        (name, [ProduceResult(partition.index, error) for partition in partitions])
        for name, partitions in request.topics
    ]


async def _append(
    broker: Broker, call: Call, request: ProduceRequest
) -> tuple[Results, "asyncio.Future[list[BatchOutcome]] | None", list[tuple[int, int]]]:
    """Append the batches; return the known errors, the future outcomes, and (topic, partition) of each of those in the
    results."""
    address = call.client.address
    denied = broker.authorizer.forbidden(
        call.client, Operation.WRITE, ResourceType.TOPIC, (name for name, _ in request.topics)
    )
    checked = [
        (name, *(_denied(partitions) if name in denied else await _check(broker, address, name, partitions)))
        for name, partitions in request.topics
    ]
    # No await from here on: another request must not add an awaited batch between this check and the append.
    _note_failures(call.client)
    results: Results = []
    appends: list[Append] = []
    places: list[tuple[int, int]] = []
    buffered: list[tuple[str, int, Batch]] = []
    for name, topic, missing, batches in checked:
        of_topic: list[ProduceResult] = []
        for index, batch in batches:
            place = None if topic is None else topic.partition(index)
            if isinstance(batch, Rejection):
                code = missing if topic is None else batch.code
                of_topic.append(ProduceResult(index, code, message=batch.why, record_errors=batch.records))
                if batch.awaited is not None:
                    _await(call.client, name, index, batch.awaited)
            elif topic is None or place is None:
                of_topic.append(ProduceResult(index, missing))
                _await(call.client, name, index, batch)
            elif _too_early(call.client, name, index, batch):
                of_topic.append(ProduceResult(index, ErrorCode.kafka_storage_error))
            else:
                places.append((len(results), len(of_topic)))
                buffered.append((name, index, batch))
                of_topic.append(ProduceResult(index))
                appends.append(Append(place, batch, broker.configs.append_time(topic)))
        results.append((name, of_topic))
    future = broker.writer.append(appends) if appends else None
    if future is not None and any(batch.producer_id >= 0 for _, _, batch in buffered):
        call.client.buffered.append((future, buffered))
    return results, future, places


def _denied(partitions: Sequence[ProducePartition]) -> tuple[None, ErrorCode, list[tuple[int, Batch | Rejection]]]:
    """Return the same as `_check` for a topic that the client may not write, whether it exists or not."""
    code = ErrorCode.topic_authorization_failed
    return None, code, [(partition.index, Rejection(code, UNAUTHORIZED)) for partition in partitions]


async def _check(
    broker: Broker, address: str, name: str, partitions: Sequence[ProducePartition]
) -> tuple[Topic | None, ErrorCode, list[tuple[int, Batch | Rejection]]]:
    """Return the topic, the error for missing partitions, and for each partition its batch or the reason for its rejection."""
    try:
        topic = broker.topic_metadata.by_name.get(name) or await broker.topic_metadata.find(name)
        missing = ErrorCode.unknown_topic_or_partition
    except UnavailableError:
        topic, missing = None, ErrorCode.kafka_storage_error
    max_bytes = _LARGEST if topic is None else broker.configs.max_message_bytes(topic)
    times = None if topic is None else broker.configs.timestamps(topic, int(broker.clock.now().timestamp() * 1000))
    compacted = topic is not None and broker.configs.compacted(topic)
    gated_by = None if topic is None else broker.configs.gated_by(topic)
    checked: list[tuple[int, Batch | Rejection]] = []
    nameable = MOST_NAMED
    for number, partition in enumerate(partitions, 1):
        batch = None
        try:
            batch = _parse(partition, max_bytes, times)
            if compacted:
                await broker.checks.require(batch, address)
            # The answer for a partition that does not exist is the same for any batch.
            if topic is not None and gated_by is not None and topic.partition(partition.index) is not None:
                await broker.gate.require(name, gated_by, batch, address)
            checked.append((partition.index, batch))
        except InvalidBatchError as error:
            # The error itself would keep the frames of its traceback in memory.
            # A small request may have thousands of batches with wrong records, and each name takes memory.
            records = error.records[:nameable] if isinstance(error, RefusedRecordsError) else ()
            nameable -= len(records)
            awaited = batch if error.code in _AGAIN else None
            checked.append((partition.index, Rejection(error.code, str(error), records, awaited)))
        if not number % _AT_A_TIME:
            # Other requests must not wait for many batches.
            await asyncio.sleep(0)
    return topic, missing, checked


def _note_failures(client: Client) -> None:
    """Note which buffered batches the client has to send again, perhaps before it has the answer."""
    waiting = []
    for future, batches in client.buffered:
        if not future.done():
            waiting.append((future, batches))
        elif not future.cancelled():
            for (topic, index, batch), outcome in zip(batches, future.result(), strict=True):
                if outcome.error in _AGAIN:
                    _await(client, topic, index, batch)
    client.buffered = waiting


def _await(client: Client, topic: str, partition: int, batch: Batch) -> None:
    """Remember that the client has to send this batch again, unless it has to send an earlier one."""
    if batch.producer_id >= 0:
        key = topic, partition, batch.producer_id
        epoch, sequence, _ = client.awaited.get(key, (-1, -1, 0))
        first = sequence == batch.base_sequence or record_batch.precedes(batch.base_sequence, sequence)
        if epoch != batch.producer_epoch or first:
            client.awaited[key] = batch.producer_epoch, batch.base_sequence, 0
        if len(client.awaited) > _AWAITED:
            del client.awaited[next(iter(client.awaited))]


def _too_early(client: Client, topic: str, partition: int, batch: Batch) -> bool:
    """Return whether an earlier batch of this producer has to arrive first; count the rejection."""
    key = topic, partition, batch.producer_id
    awaited = client.awaited.get(key)
    if awaited is None:
        return False
    epoch, sequence, rejected = awaited
    if epoch == batch.producer_epoch and record_batch.precedes(batch.base_sequence, sequence):
        return False
    if epoch == batch.producer_epoch and sequence != batch.base_sequence and rejected < _IN_FLIGHT:
        client.awaited[key] = epoch, sequence, rejected + 1
        return True
    # This is the awaited batch, or the client has sent the awaited batch to another broker in between.
    del client.awaited[key]
    return False


def _parse(partition: ProducePartition, max_bytes: int, times: tuple[int, int] | None) -> Batch:
    if partition.records is None:
        raise InvalidBatchError(ErrorCode.invalid_record, "the partition has no records")
    if len(partition.records) > max_bytes:
        raise InvalidBatchError(
            ErrorCode.message_too_large,
            f"the batch has {len(partition.records)} bytes, more than max.message.bytes={max_bytes}",
        )
    batch = record_batch.parse(partition.records)
    if times is not None:
        for time in (batch.base_timestamp, batch.max_timestamp):
            if time != NO_TIMESTAMP and not times[0] <= time <= times[1]:
                raise InvalidBatchError(
                    ErrorCode.invalid_timestamp,
                    f"timestamp {time} is not between {times[0]} and {times[1]}, the bounds that message.timestamp.before.max.ms and"
                    " message.timestamp.after.max.ms allow now",
                )
    return batch


def _answer(results: list[ProduceResult], index: int, outcome: BatchOutcome) -> None:
    results[index] = ProduceResult(
        results[index].index, outcome.error, outcome.base_offset, outcome.append_ms, outcome.log_start
    )
