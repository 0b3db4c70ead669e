"""DescribeCluster (60), versions 0 and 1: the live brokers, at their addresses of the client's listener.

There is no controller: each broker can do its work, and names itself. Every client may ask, because it needs the addresses. Only a client
that may describe the cluster learns what it may do there.
"""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeClusterRequest

KEY = 60
VERSIONS = (0, 1)
BROKERS = 1
NOT_REQUESTED = -(1 << 31)
"""The operations on the cluster if the client does not ask for them."""


async def handle(broker: Broker, request: DescribeClusterRequest, call: Call) -> Fields:
    """List the live brokers at the addresses of the client's listener."""
    error, message = ErrorCode.none, None
    if request.endpoint_type != BROKERS:
        error, message = (
            ErrorCode.mismatched_endpoint_type,
            "The request asks for controllers, but this endpoint belongs to a broker.",
        )
    operations = NOT_REQUESTED
    if request.include_cluster_authorized_operations:
        hidden = broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME)
        operations = 0 if hidden else broker.authorizer.operations(call.client, ResourceType.CLUSTER, CLUSTER_NAME)
    nodes = broker.endpoints(call.client)
    return {
        "error_code": error, "error_message": message, "endpoint_type": BROKERS, "cluster_id": broker.cluster_id,
        "controller_id": broker.controller(nodes),
        "brokers": [
            {"broker_id": node.id, "host": endpoint.host, "port": endpoint.port, "rack": node.address.zone or None}
            for node, endpoint in nodes
        ],
        "cluster_authorized_operations": operations,
    }  # fmt: skip
