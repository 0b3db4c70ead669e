"""ListPartitionReassignments (46), version 0: there are never any."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import ListPartitionReassignmentsRequest

KEY = 46
VERSIONS = (0, 0)


async def handle(broker: Broker, request: ListPartitionReassignmentsRequest, call: Call) -> Fields:
    """Report that no partition is being reassigned."""
    error = ErrorCode.none
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        error = ErrorCode.cluster_authorization_failed
    return {"error_code": error, "error_message": None, "topics": ()}
