"""DeleteRecords (21), versions 0 to 2: the log start moves up to an offset, or to the high watermark (-1); batches go
in the background."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Partition
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteRecordsRequest

KEY = 21
VERSIONS = (0, 2)
ALL = -1


async def handle(broker: Broker, request: DeleteRecordsRequest, call: Call) -> Fields:
    """Move the log start of each requested partition."""
    denied = broker.authorizer.forbidden(
        call.client, Operation.DELETE, ResourceType.TOPIC, (topic.name for topic in request.topics)
    )
    topics = []
    for topic in request.topics:
        stored = None if topic.name in denied else await broker.topic_metadata.find(topic.name)
        with broker.changing(call, [(ResourceType.TOPIC, topic.name)]) as attempt:
            partitions = []
            for entry in topic.partitions:
                place = None if stored is None else stored.partition(entry.partition_index)
                error, low = ErrorCode.unknown_topic_or_partition, -1
                if topic.name in denied:
                    error = ErrorCode.topic_authorization_failed
                elif place is not None:
                    error, low = await _move(broker, place, entry.offset)
                partitions.append({"partition_index": entry.partition_index, "low_watermark": low, "error_code": error})
            attempt.made = any(not partition["error_code"] for partition in partitions)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _move(broker: Broker, place: Partition, requested: int) -> tuple[ErrorCode, int]:
    """Move the log start, and return it."""
    (state,) = await broker.metadata_store.log.states([place])
    if state is None:
        return ErrorCode.unknown_topic_or_partition, -1
    offset = state.high_watermark if requested == ALL else requested
    if not 0 <= offset <= state.high_watermark:
        return ErrorCode.offset_out_of_range, -1
    moved = await broker.metadata_store.log.advance_start(place, offset)
    return ErrorCode.none, -1 if moved is None else moved.log_start
