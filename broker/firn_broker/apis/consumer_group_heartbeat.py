"""ConsumerGroupHeartbeat (68), versions 0 and 1: members of KIP-848 groups join, stay and leave
(`firn_broker.groups.consumer`).

Since version 1 members choose their ids, and may subscribe by a pattern in the syntax of RE2 (like Kafka's RE2/J). RE2
matches in linear time, so no pattern blocks the broker. Online migration between the protocols is off, as with
``group.consumer.migration.policy=disabled``."""

from datetime import timedelta
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.consumer import JOIN, HeartbeatReply, HeartbeatRequest, Partitions
from firn_broker.groups.group import GroupError
from firn_broker.log_types import Partition
from firn_broker.network.router import Call
from firn_broker.wire.requests import ConsumerGroupHeartbeatRequest

KEY = 68
VERSIONS = (0, 1)
NO_TOPIC = UUID(int=0)
"""The id zero, which no topic has."""


async def handle(broker: Broker, request: ConsumerGroupHeartbeatRequest, call: Call) -> Fields:
    """Keep the member in its group, and give it the partitions that it may read."""
    member, epoch = request.member_id, request.member_epoch
    if not member and call.version == 0 and epoch == JOIN:
        member = str(broker.identifiers.uuid4())
    rebalance = request.rebalance_timeout.total_seconds()
    names = request.subscribed_topic_names
    owned = request.topic_partitions
    try:
        if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
            raise GroupError(ErrorCode.group_authorization_failed)
        if broker.authorizer.forbidden(call.client, Operation.DESCRIBE, ResourceType.TOPIC, names or ()):
            raise GroupError(ErrorCode.topic_authorization_failed)
        reply = await broker.groups.consume(
            request.group_id,
            HeartbeatRequest(
                member,
                epoch,
                request.instance_id,
                request.rack_id,
                None if rebalance < 0 else rebalance,
                None if names is None else frozenset(names),
                request.subscribed_topic_regex,
                request.server_assignor,
                None if owned is None else frozenset(
                    Partition(topic.topic_id or NO_TOPIC, index) for topic in owned for index in topic.partitions
                ),
                call.client.id,
                "/" + call.client.address,
                broker.authorizer.sight(call.client),
            ),
        )  # fmt: skip
    except GroupError as error:
        reply = HeartbeatReply(error.code, member)
    assignment = None if reply.assignment is None else {"topic_partitions": by_topic(reply.assignment)}
    return {
        "error_code": reply.error, "error_message": reply.message, "member_id": reply.member, "member_epoch": reply.epoch,
        "heartbeat_interval": i32Timedelta.parse(timedelta(milliseconds=broker.settings.groups.consumer_heartbeat_ms)),
        "assignment": assignment,
    }  # fmt: skip


def by_topic(partitions: Partitions) -> list[Fields]:
    """Group partitions by topic, as the messages of KIP-848 have them."""
    indexes_of: dict[object, list[int]] = {}
    for topic, index in sorted(partitions):
        indexes_of.setdefault(topic, []).append(index)
    return [{"topic_id": topic, "partitions": indexes} for topic, indexes in indexes_of.items()]
