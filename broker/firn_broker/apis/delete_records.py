"""DeleteRecords (21), versions 0 to 2: the log start moves up to an offset, or to the high watermark (-1); batches go in the background."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.topics import topic_metadata

KEY = 21
VERSIONS = (0, 2)
ALL = -1


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    topics = []
    for topic in request.topics:  # type: ignore[attr-defined]
        known = await broker.catalogue.find(topic.name)
        partitions = []
        for one in topic.partitions:
            place = None if known is None else topic_metadata.partition(known, one.partition_index)
            (state,) = await broker.metadata_store.log.states([place]) if place is not None else (None,)
            error, low = ErrorCode.none, -1
            if state is None or place is None:
                error = ErrorCode.unknown_topic_or_partition
            else:
                offset = state.high_watermark if one.offset == ALL else one.offset
                if not 0 <= offset <= state.high_watermark:
                    error = ErrorCode.offset_out_of_range
                else:
                    moved = await broker.metadata_store.log.advance_start(place, offset)
                    low = -1 if moved is None else moved.log_start
            partitions.append({"partition_index": one.partition_index, "low_watermark": low, "error_code": error})
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}
