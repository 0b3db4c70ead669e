"""Fetch (1), versions 4 to 16: whole batches from the one with the requested offset on.

- Topics by id since 13. The broker keeps no sessions: the session id of the answer is 0, so each request of a client is
  complete. An unknown session is FETCH_SESSION_ID_NOT_FOUND.
- There are no transactions: the last stable offset is the high watermark, and no transaction is aborted.
- A partition that is requested several times is answered once, from the last requested offset, as by Kafka.
- One batch larger than all bounds may be in an answer. Otherwise no consumer could read it.
- OFFSET_OUT_OF_RANGE refers only to bounds that were read after the request arrived. Batches that cannot be read now
  are KAFKA_STORAGE_ERROR, after which clients retry."""

from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.broker import Broker
from firn_broker.log.reader import Position
from firn_broker.log_types import Topic
from firn_broker.network.budget import Counted, Share
from firn_broker.network.router import Call
from firn_broker.wire import fetch
from firn_broker.wire.fetch import FetchPartition, FetchResult

KEY = 1
VERSIONS = (4, 16)
MAX_WAIT_MS = 300_000

Results = list[tuple[str | UUID, list[FetchResult]]]


async def handle(broker: Broker, call: Call) -> list[bytes | memoryview]:
    """Answer with whole batches. The sender of the answer releases its share of the budget."""
    share = Share(broker.reader.answers, call.client.peer)
    try:
        return Counted(await _answer(broker, call, share), share)
    except BaseException:
        share.release()
        raise


async def _answer(broker: Broker, call: Call, share: Share) -> list[bytes | memoryview]:
    request = fetch.read(call.frame, call.header.body, call.version)
    if request.session_id != 0 and request.session_epoch > 0:
        return fetch.write(call.version, request.isolation, [], ErrorCode.fetch_session_id_not_found)
    results: Results = []
    positions: list[Position] = []
    answers: list[FetchResult] = []
    asked: dict[str | UUID, dict[int, FetchPartition]] = {}
    for name, partitions in request.topics:
        asked.setdefault(name, {}).update((partition.index, partition) for partition in partitions)
    for name, of_name in asked.items():
        topic, missing = await _topic(broker, name)
        of_topic = []
        for requested in of_name.values():
            result = FetchResult(requested.index)
            of_topic.append(result)
            place = None if topic is None else topic.partition(requested.index)
            if place is None:
                result.error = missing
            elif requested.leader_epoch > 0:
                result.error = ErrorCode.unknown_leader_epoch
            else:
                positions.append(Position(place, requested.offset, requested.max_bytes))
                answers.append(result)
        results.append((name, of_topic))
    failed = any(result.error for _, of_topic in results for result in of_topic)
    try:
        read = await broker.reader.fetch(
            positions,
            min_bytes=0 if failed else request.min_bytes,
            max_bytes=request.max_bytes,
            max_wait_seconds=min(max(request.max_wait_ms, 0), MAX_WAIT_MS) / 1000,
            share=share,
        )
    except UnavailableError:
        for result in answers:
            result.error = ErrorCode.kafka_storage_error
    else:
        for result, records in zip(answers, read, strict=True):
            result.error, result.records = records.error, records.batches
            result.high_watermark, result.log_start = records.high_watermark, records.log_start
    return fetch.write(call.version, request.isolation, results)


async def _topic(broker: Broker, name: str | UUID) -> tuple[Topic | None, ErrorCode]:
    """Return the topic, and the error for a partition that does not exist."""
    try:
        if isinstance(name, UUID):
            topic = await broker.topic_metadata.find_id(name)
            return topic, ErrorCode.unknown_topic_or_partition if topic else ErrorCode.unknown_topic_id
        return await broker.topic_metadata.find(name), ErrorCode.unknown_topic_or_partition
    except UnavailableError:
        return None, ErrorCode.kafka_storage_error
