"""OffsetForLeaderEpoch (23), versions 2 to 4 (librdkafka asks in 2): the only epoch is 0, and it ends at the high watermark."""

from kio.schema.errors import ErrorCode

from firn_broker import catalogue
from firn_broker.broker import Broker
from firn_broker.router import Call
from firn_broker.wire.messages import Fields

KEY = 23
VERSIONS = (2, 4)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    topics = []
    for topic in request.topics:  # type: ignore[attr-defined]
        known = await broker.catalogue.find(topic.topic)
        partitions = []
        for one in topic.partitions:
            place = None if known is None else catalogue.partition(known, one.partition)
            (state,) = await broker.coordinator.states([place]) if place is not None else (None,)
            error, epoch, end = ErrorCode.none, -1, -1
            if state is None:
                error = ErrorCode.unknown_topic_or_partition
            elif one.current_leader_epoch > 0:
                error = ErrorCode.unknown_leader_epoch
            elif one.leader_epoch == 0:
                epoch, end = 0, state.high_watermark
            partitions.append(
                {"error_code": error, "partition": one.partition, "leader_epoch": epoch, "end_offset": end}
            )
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}
