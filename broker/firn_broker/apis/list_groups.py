"""ListGroups (16), versions 0 to 5: the groups that this broker coordinates; clients ask every broker. By state since
4, by type since 5."""

from collections.abc import Container

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import ListGroupsRequest

KEY = 16
VERSIONS = (0, 5)


async def handle(broker: Broker, request: ListGroupsRequest, call: Call) -> Fields:
    """List the groups that this broker coordinates."""
    states = {state.lower() for state in request.states_filter}
    kinds = {kind.lower() for kind in request.types_filter}
    try:
        groups = await broker.groups.list()
    except GroupError as error:
        return {"error_code": error.code, "groups": ()}
    hidden: Container[str] = ()
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        names = (group.name for group in groups)
        hidden = broker.authorizer.forbidden(call.client, Operation.DESCRIBE, ResourceType.GROUP, names, audited=False)
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": group.name, "protocol_type": group.protocol_type or "", "group_state": group.state.value,
                "group_type": group.kind,
            }
            for group in groups
            if group.name not in hidden
            and (not states or group.state.value.lower() in states) and (not kinds or group.kind in kinds)
        ],
    }  # fmt: skip
