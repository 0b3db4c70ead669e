"""OffsetForLeaderEpoch (23), versions 2 to 4 (librdkafka asks in 2): the only epoch is 0, and it ends at the high
watermark."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.topics.places import find_places
from firn_broker.wire.requests import OffsetForLeaderEpochRequest

KEY = 23
VERSIONS = (2, 4)


async def handle(broker: Broker, request: OffsetForLeaderEpochRequest, call: Call) -> Fields:
    """Report the end of each requested leader epoch."""
    hidden = broker.authorizer.forbidden(
        call.client, Operation.DESCRIBE, ResourceType.TOPIC, (topic.topic for topic in request.topics)
    )
    requested = ((topic.topic, [entry.partition for entry in topic.partitions]) for topic in request.topics)
    found = await find_places(broker.topic_metadata, broker.metadata_store.log, requested, hidden)
    topics = []
    for topic, places in zip(request.topics, found.by_topic, strict=True):
        partitions = []
        for entry, place in zip(topic.partitions, places, strict=True):
            state = found.state(place)
            error, epoch, end = ErrorCode.none, -1, -1
            if topic.topic in hidden:
                error = ErrorCode.topic_authorization_failed
            elif state is None:
                error = ErrorCode.unknown_topic_or_partition
            elif entry.current_leader_epoch > 0:
                error = ErrorCode.unknown_leader_epoch
            elif entry.leader_epoch == 0:
                epoch, end = 0, state.high_watermark
            partitions.append(
                {"error_code": error, "partition": entry.partition, "leader_epoch": epoch, "end_offset": end}
            )
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}
