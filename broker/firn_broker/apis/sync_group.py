"""SyncGroup (14), versions 0 to 5. The leader's assignments are stored before anybody is given a part."""

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.classic import SyncReply
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 14
VERSIONS = (0, 5)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    try:
        reply = await broker.groups.sync(
            request.group_id,  # type: ignore[attr-defined]
            request.member_id,  # type: ignore[attr-defined]
            getattr(request, "group_instance_id", None),
            request.generation_id,  # type: ignore[attr-defined]
            getattr(request, "protocol_type", None),
            getattr(request, "protocol_name", None),
            {it.member_id: it.assignment for it in request.assignments},  # type: ignore[attr-defined]
        )
    except GroupError as error:
        reply = SyncReply(error.code)
    return {
        "error_code": reply.error, "protocol_type": reply.protocol_type, "protocol_name": reply.protocol,
        "assignment": reply.assignment,
    }  # fmt: skip
