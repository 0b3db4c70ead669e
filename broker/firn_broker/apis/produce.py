"""Produce (0), versions 3 to 11 (advertised from 0, see ApiVersions): batches are appended as they are.

- Each batch is checked as far as that goes without decoding records (`firn_broker.wire.records.parse`); one that is refused does not keep
  others of the request from being appended.
- acks 1 and -1 mean the same: the answer comes when the batches are durable and have their offsets. With 0 nothing is answered; an error
  then closes the connection, as with Kafka.
- Batches of a connection enter the log in the order of its requests.
- When a batch of an idempotent producer has to come again, what follows it on the connection is refused until it comes: the client sent that
  before it knew, and a producer of which nothing is known yet may begin at any sequence.
- Records without a key are INVALID_RECORD for a compacted topic, the only one whose records are decoded here.
- Transactional batches are refused: INVALID_TXN_STATE is fatal to every client, so none tries again.
"""

import asyncio

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker import catalogue
from firn_broker.broker import Broker
from firn_broker.coordinates import BatchOutcome
from firn_broker.router import Call, Client
from firn_broker.wire import keys, produce, records
from firn_broker.wire.cursor import MalformedError
from firn_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResult
from firn_broker.wire.records import Batch
from firn_broker.writer import Append

KEY = 0
VERSIONS = (0, 11)
LOWEST = 3
_LARGEST = 1 << 31
_AWAITED = 10_000
"""Batches of one connection that may be awaited; an older one is forgotten."""

Results = list[tuple[str, list[ProduceResult]]]


async def handle(broker: Broker, call: Call) -> list[bytes | memoryview] | None:
    """Answer."""
    request = produce.read(call.frame, call.header.body, call.version)
    if call.version < LOWEST:
        return [produce.write(call.version, _all(request, ErrorCode.unsupported_version))]
    if request.acks not in (-1, 0, 1):
        return [produce.write(call.version, _all(request, ErrorCode.invalid_required_acks))]
    if request.transactional_id is not None:
        return [produce.write(call.version, _all(request, ErrorCode.transactional_id_authorization_failed))]
    results, future, places = await _append(broker, call, request)
    if future is not None:
        for (topic, index, batch), outcome in zip(places, await future, strict=True):
            name, of_topic = results[topic]
            _answer(of_topic, index, outcome)
            if outcome.error is ErrorCode.kafka_storage_error:
                _await(call.client, name, of_topic[index].index, batch)
    if request.acks == 0:
        if any(result.error for _, of_topic in results for result in of_topic):
            raise MalformedError("a batch that nobody waits for was refused")
        return None
    return [produce.write(call.version, results)]


def _all(request: ProduceRequest, error: ErrorCode) -> Results:
    return [(name, [ProduceResult(one.index, error) for one in partitions]) for name, partitions in request.topics]


async def _append(
    broker: Broker, call: Call, request: ProduceRequest
) -> tuple[Results, "asyncio.Future[list[BatchOutcome]] | None", list[tuple[int, int, Batch]]]:
    """Errors that are known at once, the outcomes to come, and for each of those (topic, partition, batch) in the results."""
    order = call.client.produce_order
    if order is None:
        order = call.client.produce_order = asyncio.Lock()
    # A lock that is free is taken without a pause, so requests whose topics are known go through here in one piece.
    async with order:
        results: Results = []
        appends: list[Append] = []
        places: list[tuple[int, int, Batch]] = []
        for name, partitions in request.topics:
            try:
                topic = broker.catalogue.by_name.get(name) or await broker.catalogue.find(name)
                missing = ErrorCode.unknown_topic_or_partition
            except UnavailableError:
                topic, missing = None, ErrorCode.kafka_storage_error
            of_topic: list[ProduceResult] = []
            for one in partitions:
                place = None if topic is None else catalogue.partition(topic, one.index)
                try:
                    batch = _checked(one, _LARGEST if topic is None else broker.configs.max_message_bytes(topic))
                    if topic is not None and broker.configs.compacted(topic):
                        keys.require(batch)
                except records.InvalidBatchError as error:
                    code = missing if topic is None else error.code
                    of_topic.append(ProduceResult(one.index, code, message=str(error)))
                    continue
                if topic is None or place is None:
                    of_topic.append(ProduceResult(one.index, missing))
                    _await(call.client, name, one.index, batch)
                elif _too_early(call.client, name, one.index, batch):
                    of_topic.append(ProduceResult(one.index, ErrorCode.kafka_storage_error))
                else:
                    places.append((len(results), len(of_topic), batch))
                    of_topic.append(ProduceResult(one.index))
                    appends.append(Append(place, batch, broker.configs.append_time(topic)))
            results.append((name, of_topic))
        return results, broker.writer.append(appends) if appends else None, places


def _await(client: Client, topic: str, partition: int, batch: Batch) -> None:
    """The client will send this batch again."""
    if batch.producer_id >= 0:
        client.awaited.setdefault((topic, partition, batch.producer_id), (batch.producer_epoch, batch.base_sequence))
        if len(client.awaited) > _AWAITED:
            del client.awaited[next(iter(client.awaited))]


def _too_early(client: Client, topic: str, partition: int, batch: Batch) -> bool:
    """Whether an earlier batch of this producer has to come first."""
    key = topic, partition, batch.producer_id
    awaited = client.awaited.get(key)
    if awaited is None:
        return False
    if awaited[0] == batch.producer_epoch and awaited[1] != batch.base_sequence:
        return True
    del client.awaited[key]
    return False


def _checked(partition: ProducePartition, max_bytes: int) -> records.Batch:
    if partition.records is None:
        raise records.InvalidBatchError(ErrorCode.invalid_record, "no records")
    if len(partition.records) > max_bytes:
        raise records.InvalidBatchError(
            ErrorCode.message_too_large, f"{len(partition.records)} bytes, more than max.message.bytes={max_bytes}"
        )
    return records.parse(partition.records)


def _answer(results: list[ProduceResult], index: int, outcome: BatchOutcome) -> None:
    results[index] = ProduceResult(
        results[index].index, outcome.error, outcome.base_offset, outcome.append_ms, outcome.log_start
    )
