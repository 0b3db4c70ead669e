"""LeaveGroup (13), versions 0 to 5: one member until 2, several since 3, static ones by their instance id."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import LeaveGroupRequest

KEY = 13
VERSIONS = (0, 5)


async def handle(broker: Broker, request: LeaveGroupRequest, call: Call) -> Fields:
    """Remove members from their group."""
    several = call.version >= 3
    members = [(member.member_id, member.group_instance_id) for member in request.members]
    if not several:
        members = [(request.member_id, None)]
    try:
        if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
            raise GroupError(ErrorCode.group_authorization_failed)
        errors = await broker.groups.leave(request.group_id, members)
    except GroupError as error:
        return {"error_code": error.code, "members": ()}
    return {
        "error_code": ErrorCode.none if several else errors[0],
        "members": [
            {"member_id": id, "group_instance_id": instance, "error_code": error}
            for (id, instance), error in zip(members, errors, strict=True)
        ],
    }
