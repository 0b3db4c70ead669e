"""ListGroups (16), versions 0 to 4: the groups that this broker coordinates; clients ask all brokers."""

from kio.schema.errors import ErrorCode

from firn_broker.broker import Broker
from firn_broker.groups.coordinator import GroupError
from firn_broker.router import Call
from firn_broker.wire.messages import Fields

KEY = 16
VERSIONS = (0, 4)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    states = set(getattr(request, "states_filter", ()))
    try:
        groups = await broker.groups.list()
    except GroupError as error:
        return {"error_code": error.code, "groups": ()}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {"group_id": it.name, "protocol_type": it.protocol_type or "", "group_state": it.state.value}
            for it in groups
            if not states or it.state.value in states
        ],
    }
