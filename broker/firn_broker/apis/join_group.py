"""JoinGroup (11), versions 0 to 9. The answer comes when the rebalance is done (`firn_broker.groups.classic`).

Since version 4 a new member first gets its id (MEMBER_ID_REQUIRED) and joins again with it. Since 5 members may be
static. Since 9 the answer may let a static leader that returns skip the assignment."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.classic import JoinReply, JoinRequest
from firn_broker.groups.group import GroupError
from firn_broker.network.router import Call
from firn_broker.wire.requests import JoinGroupRequest

KEY = 11
VERSIONS = (0, 9)


async def handle(broker: Broker, request: JoinGroupRequest, call: Call) -> Fields:
    """Answer when the rebalance that the member takes part in is done."""
    session = request.session_timeout.total_seconds()
    rebalance = request.rebalance_timeout.total_seconds()
    try:
        if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
            raise GroupError(ErrorCode.group_authorization_failed)
        reply = await broker.groups.join(
            request.group_id,
            JoinRequest(
                request.member_id,
                request.group_instance_id,
                call.client.id,
                "/" + call.client.address,
                session,
                session if rebalance < 0 else rebalance,
                request.protocol_type,
                [(protocol.name, protocol.metadata) for protocol in request.protocols],
                known_id_required=call.version >= 4,
                skips_assignment=call.version >= 9,
            ),
        )
    except GroupError as error:
        reply = JoinReply(error.code, request.member_id)
    return {
        "error_code": reply.error, "generation_id": reply.generation, "protocol_type": reply.protocol_type,
        # Null only since version 7.
        "protocol_name": reply.protocol if call.version >= 7 else reply.protocol or "",
        "leader": reply.leader, "skip_assignment": reply.skip_assignment, "member_id": reply.member,
        "members": [
            {"member_id": id, "group_instance_id": instance, "metadata": data} for id, instance, data in reply.members
        ],
    }  # fmt: skip
