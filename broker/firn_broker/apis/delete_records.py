"""DeleteRecords (21), versions 0 to 2: the log start moves up to an offset, or to the high watermark (-1); batches go
in the background."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
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
        partitions = []
        for entry in topic.partitions:
            place = None if stored is None else stored.partition(entry.partition_index)
            (state,) = await broker.metadata_store.log.states([place]) if place is not None else (None,)
            error, low = ErrorCode.none, -1
            if topic.name in denied:
                error = ErrorCode.topic_authorization_failed
            elif state is None or place is None:
                error = ErrorCode.unknown_topic_or_partition
            else:
                offset = state.high_watermark if entry.offset == ALL else entry.offset
                if not 0 <= offset <= state.high_watermark:
                    error = ErrorCode.offset_out_of_range
                else:
                    moved = await broker.metadata_store.log.advance_start(place, offset)
                    low = -1 if moved is None else moved.log_start
            partitions.append({"partition_index": entry.partition_index, "low_watermark": low, "error_code": error})
        if any(not partition["error_code"] for partition in partitions):
            broker.note_change(call.client, "DeleteRecords", ResourceType.TOPIC, topic.name)
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}
