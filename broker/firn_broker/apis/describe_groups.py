"""DescribeGroups (15), versions 0 to 5. A group that does not exist, or is one of KIP-848, is Dead, without an error,
as with Kafka. A group that is named more than once is described once."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.classic import Group, State
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeGroupsRequest

KEY = 15
VERSIONS = (0, 5)
NOT_REQUESTED = -(1 << 31)
"""The operations of a group if the client does not ask for them."""


async def handle(broker: Broker, request: DescribeGroupsRequest, call: Call) -> Fields:
    """Describe each named group."""
    groups = []
    for name in dict.fromkeys(request.groups):
        try:
            if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.GROUP, name):
                raise GroupError(ErrorCode.group_authorization_failed)
            group = await broker.groups.describe(name)
            operations = NOT_REQUESTED
            if request.include_authorized_operations:
                operations = broker.authorizer.operations(call.client, ResourceType.GROUP, name)
            groups.append(_group(name, group if isinstance(group, Group) else None, operations=operations))
        except GroupError as error:
            groups.append(_group(name, None, error.code))
    return {"groups": groups}


def _group(
    name: str, group: Group | None, error: ErrorCode = ErrorCode.none, operations: int = NOT_REQUESTED
) -> Fields:
    stable = group is not None and group.state is State.STABLE
    return {
        "error_code": error, "group_id": name,
        "group_state": "" if error else group.state if group else State.DEAD,
        "protocol_type": (group.protocol_type if group else None) or "",
        "protocol_data": (group.protocol if group and stable else None) or "",
        "members": [
            {
                "member_id": member.id, "group_instance_id": member.instance, "client_id": member.client,
                "client_host": member.host,
                "member_metadata": member.metadata(group.protocol) if group and stable else b"",
                "member_assignment": member.assignment if stable else b"",
            }
            for member in (group.members.values() if group else ())
        ],
        "authorized_operations": operations,
    }  # fmt: skip
