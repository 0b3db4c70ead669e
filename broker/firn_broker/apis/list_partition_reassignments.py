"""ListPartitionReassignments (46), version 0: there are never any."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import ListPartitionReassignmentsRequest

KEY = 46
VERSIONS = (0, 0)


async def handle(broker: Broker, request: ListPartitionReassignmentsRequest, call: Call) -> Fields:
    """Report that no partition is being reassigned."""
    return {"error_code": ErrorCode.none, "error_message": None, "topics": ()}
