"""LeaveGroup (13), versions 0 to 5: one member until 2, several since 3, static ones by their instance."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 13
VERSIONS = (0, 5)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    if call.version >= 3:
        members = [(it.member_id, it.group_instance_id) for it in request.members]  # type: ignore[attr-defined]
    else:
        members = [(request.member_id, None)]  # type: ignore[attr-defined]
    try:
        errors = await broker.groups.leave(request.group_id, members)  # type: ignore[attr-defined]
    except GroupError as error:
        return {"error_code": error.code, "members": ()}
    return {
        "error_code": ErrorCode.none if call.version >= 3 else errors[0],
        "members": [
            {"member_id": id, "group_instance_id": instance, "error_code": error}
            for (id, instance), error in zip(members, errors, strict=True)
        ],
    }
