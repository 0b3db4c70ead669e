"""DeleteGroups (42), versions 0 to 2: empty groups, with their offsets; each is answered once, as with Kafka."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.groups.coordinator import GroupError
from firn_broker.network.router import Call

KEY = 42
VERSIONS = (0, 2)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    results = []
    for name in dict.fromkeys(request.groups_names):  # type: ignore[attr-defined]
        error = ErrorCode.none
        try:
            await broker.groups.delete(name)
        except GroupError as refused:
            error = refused.code
        results.append({"group_id": name, "error_code": error})
    return {"results": results}
