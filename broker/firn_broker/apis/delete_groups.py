"""DeleteGroups (42), versions 0 to 2: empty groups, with their offsets; each is answered once, as with Kafka."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteGroupsRequest

KEY = 42
VERSIONS = (0, 2)


async def handle(broker: Broker, request: DeleteGroupsRequest, call: Call) -> Fields:
    """Delete each named group."""
    results = []
    for name in dict.fromkeys(request.groups_names):
        error = ErrorCode.none
        try:
            if broker.authorizer.forbids(call.client, Operation.DELETE, ResourceType.GROUP, name):
                raise GroupError(ErrorCode.group_authorization_failed)
            with broker.changing(call, [(ResourceType.GROUP, name)]) as attempt:
                await broker.groups.delete(name)
                attempt.made = True
        except GroupError as refused:
            error = refused.code
        results.append({"group_id": name, "error_code": error})
    return {"results": results}
