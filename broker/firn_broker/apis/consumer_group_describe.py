"""ConsumerGroupDescribe (69), versions 0 and 1: groups of KIP-848. Any other is GROUP_ID_NOT_FOUND: clients use
DescribeGroups then.

The kind of a member (version 1) is always "consumer", as no group has members of both protocols.
A group that is named more than once is described once.
"""

from collections.abc import Iterator

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.apis.consumer_group_heartbeat import by_topic
from firn_broker.broker import Broker
from firn_broker.groups import consumer
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import ConsumerGroupDescribeRequest

KEY = 69
VERSIONS = (0, 1)
CONSUMER = 1
HIDDEN_TOPICS = "The group has topics that the client is not authorized to describe."


async def handle(broker: Broker, request: ConsumerGroupDescribeRequest, call: Call) -> Fields:
    """Describe each named group."""
    groups = []
    for name in dict.fromkeys(request.group_ids):
        try:
            if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.GROUP, name):
                raise GroupError(ErrorCode.group_authorization_failed)
            group = await broker.groups.describe(name)
            if not isinstance(group, consumer.Group):
                groups.append(_refused(name, ErrorCode.group_id_not_found, f"Group {name} is not a consumer group."))
            elif broker.authorizer.forbidden(
                call.client, Operation.DESCRIBE, ResourceType.TOPIC, _topics(broker, group)
            ):
                groups.append(_refused(name, ErrorCode.topic_authorization_failed, HIDDEN_TOPICS))
            else:
                described = _described(broker, group)
                if request.include_authorized_operations:
                    operations = broker.authorizer.operations(call.client, ResourceType.GROUP, name)
                    described["authorized_operations"] = operations
                groups.append(described)
        except GroupError as error:
            groups.append(_refused(name, error.code, None))
    return {"groups": groups}


def _refused(name: str, error: ErrorCode, message: str | None) -> Fields:
    return {
        "error_code": error, "error_message": message, "group_id": name, "group_state": "", "group_epoch": 0,
        "assignment_epoch": 0, "assignor_name": "", "members": (),
    }  # fmt: skip


def _topics(broker: Broker, group: consumer.Group) -> Iterator[str]:
    """Yield the topics of all assignments, perhaps several times."""
    topics = broker.topic_metadata.by_id
    for member in group.members.values():
        for partitions in (member.assigned, member.target):
            yield from (topics[partition.topic].name for partition in partitions if partition.topic in topics)


def _described(broker: Broker, group: consumer.Group) -> dict[str, object]:
    return {
        "error_code": ErrorCode.none, "error_message": None, "group_id": group.name, "group_state": group.state.value,
        "group_epoch": group.epoch, "assignment_epoch": group.assignment_epoch, "assignor_name": group.assignor,
        "members": [
            {
                "member_id": member.id, "instance_id": member.instance, "rack_id": member.rack, "member_epoch": member.epoch,
                "client_id": member.client, "client_host": member.host, "subscribed_topic_names": sorted(member.names),
                "subscribed_topic_regex": member.pattern, "assignment": _assignment(broker, member.assigned),
                "target_assignment": _assignment(broker, member.target), "member_type": CONSUMER,
            }
            for member in group.members.values()
        ],
    }  # fmt: skip


def _assignment(broker: Broker, partitions: consumer.Partitions) -> Fields:
    topics = broker.topic_metadata.by_id
    return {
        "topic_partitions": [
            {**entry, "topic_name": topics[entry["topic_id"]].name}
            for entry in by_topic(partitions)
            if entry["topic_id"] in topics
        ]
    }
