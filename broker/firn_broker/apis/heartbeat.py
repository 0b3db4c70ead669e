"""Heartbeat (12), versions 0 to 4: REBALANCE_IN_PROGRESS tells a member to join again."""

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 12
VERSIONS = (0, 4)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    try:
        error = await broker.groups.heartbeat(
            request.group_id,  # type: ignore[attr-defined]
            request.member_id,  # type: ignore[attr-defined]
            getattr(request, "group_instance_id", None),
            request.generation_id,  # type: ignore[attr-defined]
        )
    except GroupError as refused:
        error = refused.code
    return {"error_code": error}
