"""DescribeCluster (60), versions 0 and 1: the live brokers, at their addresses of the client's listener.

There is no controller; the lowest node stands for it.
"""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.broker import Broker
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeClusterRequest

KEY = 60
VERSIONS = (0, 1)
BROKERS = 1


async def handle(broker: Broker, request: DescribeClusterRequest, call: Call) -> Fields:
    """List the live brokers at the addresses of the client's listener."""
    error, message = ErrorCode.none, None
    if request.endpoint_type != BROKERS:
        error, message = (
            ErrorCode.mismatched_endpoint_type,
            "The request asks for controllers, but this endpoint belongs to a broker.",
        )
    nodes = broker.endpoints(call.client)
    return {
        "error_code": error, "error_message": message, "endpoint_type": BROKERS, "cluster_id": broker.cluster_id,
        "controller_id": min((node.id for node, _ in nodes), default=-1),
        "brokers": [
            {"broker_id": node.id, "host": endpoint.host, "port": endpoint.port, "rack": node.address.zone or None}
            for node, endpoint in nodes
        ],
    }  # fmt: skip
