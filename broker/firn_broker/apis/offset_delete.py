"""OffsetDelete (47), version 0: offsets of partitions that no member of the group is subscribed to.

Subscriptions of classic consumers are read from their metadata (protocol type ``consumer``); groups of other protocol
types have to be empty."""

from kio.schema.errors import ErrorCode

from firn.records.cursor import Cursor, MalformedError
from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups import classic, consumer
from firn_broker.groups.group import Group, GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import OffsetDeleteRequest

KEY = 47
VERSIONS = (0, 0)
CONSUMER = "consumer"


async def handle(broker: Broker, request: OffsetDeleteRequest, call: Call) -> Fields:
    """Delete the offsets of partitions to which no member of the group is subscribed."""
    name = request.group_id
    try:
        if broker.authorizer.forbids(call.client, Operation.DELETE, ResourceType.GROUP, name):
            raise GroupError(ErrorCode.group_authorization_failed)
        denied = broker.authorizer.forbidden(
            call.client, Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics)
        )
        group = await broker.groups.describe(name)
        if group is None:
            raise GroupError(ErrorCode.group_id_not_found)
        subscribed = _subscribed(broker, group)
        places, topics = [], []
        for topic in request.topics:
            stored = None if topic.name in denied else await broker.topic_metadata.find(topic.name)
            partitions = []
            for entry in topic.partitions:
                place = None if stored is None else stored.partition(entry.partition_index)
                error = ErrorCode.none
                if topic.name in denied:
                    error = ErrorCode.topic_authorization_failed
                elif place is None:
                    error = ErrorCode.unknown_topic_or_partition
                elif topic.name in subscribed:
                    error = ErrorCode.group_subscribed_to_topic
                else:
                    places.append(place)
                partitions.append({"partition_index": entry.partition_index, "error_code": error})
            topics.append({"name": topic.name, "partitions": partitions})
        with broker.changing(call, [(ResourceType.GROUP, name)]) as attempt:
            await broker.groups.delete_offsets(name, places)
            attempt.made = True
    except GroupError as error:
        return {"error_code": error.code, "topics": ()}
    return {"error_code": ErrorCode.none, "topics": topics}


def _subscribed(broker: Broker, group: Group) -> set[str]:
    if isinstance(group, consumer.Group):
        topics = broker.topic_metadata.by_id
        return {topics[id].name for id in group.subscribed() if id in topics}
    if not isinstance(group, classic.Group) or group.empty:
        return set()
    if group.protocol_type != CONSUMER:
        raise GroupError(ErrorCode.non_empty_group)
    names: set[str] = set()
    for member in group.members.values():
        for _, metadata in member.protocols:
            cursor = Cursor(memoryview(metadata), 0, flexible=False)
            try:
                cursor.i16()
                names.update(cursor.string() or "" for _ in range(cursor.count()))
            except MalformedError as error:
                raise GroupError(ErrorCode.non_empty_group) from error
    return names
