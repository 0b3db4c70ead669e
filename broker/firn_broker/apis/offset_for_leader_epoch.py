"""OffsetForLeaderEpoch (23), versions 2 to 4 (librdkafka asks in 2): the only epoch is 0, and it ends at the high
watermark."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.broker import Broker
from firn_broker.log_types import Partition
from firn_broker.network.router import Call
from firn_broker.wire.requests import OffsetForLeaderEpochPartition, OffsetForLeaderEpochRequest

KEY = 23
VERSIONS = (2, 4)


async def handle(broker: Broker, request: OffsetForLeaderEpochRequest, call: Call) -> Fields:
    """Report the end of each requested leader epoch."""
    requested: list[tuple[str, list[tuple[OffsetForLeaderEpochPartition, Partition | None]]]] = []
    existing: dict[Partition, None] = {}
    for topic in request.topics:
        stored = await broker.topic_metadata.find(topic.topic)
        places = [None if stored is None else stored.partition(entry.partition) for entry in topic.partitions]
        requested.append((topic.topic, list(zip(topic.partitions, places, strict=True))))
        existing.update((place, None) for place in places if place is not None)
    states = dict(zip(existing, await broker.metadata_store.log.states(list(existing)), strict=True))
    topics = []
    for name, of_topic in requested:
        partitions = []
        for entry, place in of_topic:
            state = None if place is None else states[place]
            error, epoch, end = ErrorCode.none, -1, -1
            if state is None:
                error = ErrorCode.unknown_topic_or_partition
            elif entry.current_leader_epoch > 0:
                error = ErrorCode.unknown_leader_epoch
            elif entry.leader_epoch == 0:
                epoch, end = 0, state.high_watermark
            partitions.append(
                {"error_code": error, "partition": entry.partition, "leader_epoch": epoch, "end_offset": end}
            )
        topics.append({"topic": name, "partitions": partitions})
    return {"topics": topics}
