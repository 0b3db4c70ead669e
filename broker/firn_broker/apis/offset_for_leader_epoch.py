"""OffsetForLeaderEpoch (23), versions 2 to 4 (librdkafka asks in 2): the only epoch is 0, and it ends at the high watermark."""

from typing import Any

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.log_types import Partition
from firn_broker.network.router import Call
from firn_broker.topics import topic_metadata

KEY = 23
VERSIONS = (2, 4)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    asked: list[tuple[str, list[tuple[Any, Partition | None]]]] = []
    wanted: dict[Partition, None] = {}
    for topic in request.topics:  # type: ignore[attr-defined]
        known = await broker.catalogue.find(topic.topic)
        places = [None if known is None else topic_metadata.partition(known, one.partition) for one in topic.partitions]
        asked.append((topic.topic, list(zip(topic.partitions, places, strict=True))))
        wanted.update((place, None) for place in places if place is not None)
    states = dict(zip(wanted, await broker.metadata_store.log.states(list(wanted)), strict=True))
    topics = []
    for name, of_topic in asked:
        partitions = []
        for one, place in of_topic:
            state = None if place is None else states[place]
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
        topics.append({"topic": name, "partitions": partitions})
    return {"topics": topics}
