"""ListPartitionReassignments (46), version 0: there are never any."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.network.router import Call

KEY = 46
VERSIONS = (0, 0)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
