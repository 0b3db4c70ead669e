"""ListOffsets (2), versions 1 to 9: the log start (-2), the high watermark (-1), the record with the greatest timestamp
(-3), or the first record of a time or later.

- The offsets are read from the coordinator after the request arrived. The leader epoch is 0.
- By time, the coordinator finds the batch, and the broker decodes that batch to find the record. If the batch cannot be
  decoded within bounds, the answer is its first record, which is never too late.
- A partition that is requested twice is INVALID_REQUEST, as with Kafka, because each request costs a read.
- -4 and -5 (tiered storage) are the log start and no offset, as in a Kafka cluster without tiered storage.
"""

from collections import Counter
from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records import contents, record_batch
from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log.decoder import TURN_RECORDS, Decoder
from firn_broker.log.reader import UnreadableError
from firn_broker.log_types import EARLIEST, LATEST, MAX_TIMESTAMP, LogState, Partition
from firn_broker.network.router import Call
from firn_broker.topics.places import find_places
from firn_broker.wire.requests import ListOffsetsRequest

KEY = 2
VERSIONS = (1, 9)
EARLIEST_LOCAL, LATEST_TIERED = -4, -5


async def handle(broker: Broker, request: ListOffsetsRequest, call: Call) -> Fields:
    """Report the requested offset of each partition."""
    hidden = broker.authorizer.forbidden(
        call.client, Operation.DESCRIBE, ResourceType.TOPIC, (topic.name for topic in request.topics)
    )
    requested = ((topic.name, [entry.partition_index for entry in topic.partitions]) for topic in request.topics)
    found = await find_places(broker.topic_metadata, broker.metadata_store.log, requested, hidden)
    times = Counter(place for places in found.by_topic for place in places)
    topics = []
    for topic, places in zip(request.topics, found.by_topic, strict=True):
        partitions = []
        for entry, place in zip(topic.partitions, places, strict=True):
            state = found.state(place)
            error, offset, timestamp = ErrorCode.none, -1, -1
            if topic.name in hidden:
                error = ErrorCode.topic_authorization_failed
            elif place is None or state is None:
                error = ErrorCode.unknown_topic_or_partition
            elif times[place] > 1:
                error = ErrorCode.invalid_request
            else:
                error, offset, timestamp = await _offset(broker, call.client.address, place, state, entry.timestamp)
            partitions.append(
                {
                    "partition_index": entry.partition_index, "error_code": error, "timestamp": timestamp, "offset": offset,
                    "leader_epoch": 0 if offset >= 0 else -1,
                }
            )  # fmt: skip
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _offset(
    broker: Broker, address: str, partition: Partition, state: LogState, timestamp: int
) -> tuple[ErrorCode, int, int]:
    """Find (error, offset, timestamp) for a time or one of Kafka's special times."""
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return ErrorCode.none, state.log_start, -1
    if timestamp == LATEST:
        return ErrorCode.none, state.high_watermark, -1
    if timestamp == LATEST_TIERED:
        return ErrorCode.none, -1, -1
    try:
        return ErrorCode.none, *await _by_time(broker, address, partition, timestamp, state.log_start)
    except (UnreadableError, UnavailableError, ValueError):
        return ErrorCode.kafka_storage_error, -1, -1


async def _by_time(broker: Broker, address: str, partition: Partition, timestamp: int, start: int) -> tuple[int, int]:
    """Find (offset, timestamp) of the first record of that time or later; -1 each if there is none."""
    since = start
    while True:
        async with broker.decoder.searches.turn(address):
            run = await broker.metadata_store.log.find_by_time(partition, timestamp, since)
            if run is None:
                return -1, -1
            block = await broker.reader.read(run)
            data = block.whole(run)
            match = await _search(broker.decoder, address, data, timestamp, start)
        if match[0] >= 0 or timestamp == MAX_TIMESTAMP:
            return match
        # The records of that time lie below the log start, or the batch header claims a later time than any record has.
        since = run.last_offset + 1


async def _search(decoder: Decoder, address: str, data: memoryview, timestamp: int, start: int) -> tuple[int, int]:
    best = (-1, -1)
    for place, size, offsets in record_batch.walk(data):
        batch = data[place : place + size]
        newest, _, _ = record_batch.header(batch)
        base = int.from_bytes(batch[:8], "big")
        if newest < timestamp or newest <= best[1] or base + offsets <= start:
            continue
        async with decoder.opened.turn(address):
            search = search_batch(batch, timestamp, start)
            while (match := await decoder.run(search.__next__, address)) is None:
                pass
        if match[0] >= 0 and timestamp != MAX_TIMESTAMP:
            return match
        if match[1] > best[1]:
            best = match
    return best


def search_batch(batch: memoryview, timestamp: int, start: int) -> Iterator[tuple[int, int] | None]:
    """Find (offset, timestamp) in one batch; -1 each if there is none. Yield None after each `TURN_RECORDS` records, and
    the result at the end.

    A batch that cannot be decoded has its first offset and its greatest timestamp."""
    best = (-1, -1)
    try:
        for number, (_, places) in enumerate(contents.open_batch(batch, TURN_RECORDS)):
            if number:
                yield None
            for record in places:
                if record.offset < start:
                    continue
                if timestamp != MAX_TIMESTAMP and record.timestamp >= timestamp:
                    yield record.offset, record.timestamp
                    return
                if timestamp == MAX_TIMESTAMP and record.timestamp > best[1]:
                    best = record.offset, record.timestamp
    except contents.UndecodableError:
        newest, _, _ = record_batch.header(batch)
        # The caller passes only batches with a header timestamp of at least ``timestamp``.
        best = max(int.from_bytes(batch[:8], "big"), start), newest
    yield best
