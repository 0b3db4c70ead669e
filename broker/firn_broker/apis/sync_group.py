"""SyncGroup (14), versions 0 to 5. The leader's assignments are stored before any member gets its own."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.classic import SyncReply
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import SyncGroupRequest

KEY = 14
VERSIONS = (0, 5)


async def handle(broker: Broker, request: SyncGroupRequest, call: Call) -> Fields:
    """Give the member its assignment once the leader has sent all of them."""
    try:
        if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
            raise GroupError(ErrorCode.group_authorization_failed)
        reply = await broker.groups.sync(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
            request.protocol_type,
            request.protocol_name,
            {entry.member_id: entry.assignment for entry in request.assignments},
        )
    except GroupError as error:
        reply = SyncReply(error.code)
    return {
        "error_code": reply.error, "protocol_type": reply.protocol_type, "protocol_name": reply.protocol,
        "assignment": reply.assignment,
    }  # fmt: skip
