"""JoinGroup (11), versions 0 to 9. The answer comes when the rebalance is done (`firn_broker.groups.classic`).

Since version 4 a new member is first told its id (MEMBER_ID_REQUIRED) and comes again, since 5 members may be static, since 9 a static
leader that comes back may be told to skip the assignment.
"""

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.classic import JoinReply, JoinRequest
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 11
VERSIONS = (0, 9)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    session = request.session_timeout.total_seconds()  # type: ignore[attr-defined]
    rebalance = getattr(request, "rebalance_timeout", None)
    member: str = request.member_id  # type: ignore[attr-defined]
    try:
        reply = await broker.groups.join(
            request.group_id,  # type: ignore[attr-defined]
            JoinRequest(
                member,
                getattr(request, "group_instance_id", None),
                call.client.id,
                "/" + call.client.peer.rpartition(":")[0],
                session,
                session if rebalance is None or rebalance.total_seconds() < 0 else rebalance.total_seconds(),
                request.protocol_type,  # type: ignore[attr-defined]
                [(it.name, it.metadata) for it in request.protocols],  # type: ignore[attr-defined]
                known_id_required=call.version >= 4,
                skips_assignment=call.version >= 9,
            ),
        )
    except GroupError as error:
        reply = JoinReply(error.code, member)
    return {
        "error_code": reply.error, "generation_id": reply.generation, "protocol_type": reply.protocol_type,
        # Null only since version 7.
        "protocol_name": reply.protocol if call.version >= 7 else reply.protocol or "",
        "leader": reply.leader, "skip_assignment": reply.skip_assignment, "member_id": reply.member,
        "members": [
            {"member_id": id, "group_instance_id": instance, "metadata": data} for id, instance, data in reply.members
        ],
    }  # fmt: skip
