"""ListGroups (16), versions 0 to 5: the groups that this broker coordinates; clients ask all brokers. By state since 4, by type since 5."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 16
VERSIONS = (0, 5)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    states = {state.lower() for state in getattr(request, "states_filter", ())}
    kinds = {kind.lower() for kind in getattr(request, "types_filter", ())}
    try:
        groups = await broker.groups.list()
    except GroupError as error:
        return {"error_code": error.code, "groups": ()}
    return {
        "error_code": ErrorCode.none,
        "groups": [
            {
                "group_id": it.name, "protocol_type": it.protocol_type or "", "group_state": it.state.value,
                "group_type": it.kind,
            }
            for it in groups
            if (not states or it.state.value.lower() in states) and (not kinds or it.kind in kinds)
        ],
    }  # fmt: skip
