"""Heartbeat (12), versions 0 to 4: REBALANCE_IN_PROGRESS makes a member join again."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import HeartbeatRequest

KEY = 12
VERSIONS = (0, 4)


async def handle(broker: Broker, request: HeartbeatRequest, call: Call) -> Fields:
    """Keep the member in its group."""
    try:
        if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
            raise GroupError(ErrorCode.group_authorization_failed)
        error = await broker.groups.heartbeat(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id,
        )
    except GroupError as refused:
        error = refused.code
    return {"error_code": error}
