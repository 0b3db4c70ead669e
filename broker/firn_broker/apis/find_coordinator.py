"""FindCoordinator (10), versions 0 to 5: the broker that coordinates a group. Several groups since 4, each answered
once.

The address is that of the client's listener. Without one there, the answer is COORDINATOR_NOT_AVAILABLE: the client
retries.

For transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which is final for every client.
"""

from collections.abc import Callable
from functools import cache

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Node
from firn_broker.network.router import Call, Client
from firn_broker.wire.requests import FindCoordinatorRequest

KEY = 10
VERSIONS = (0, 5)
GROUP, TRANSACTION = 0, 1


async def handle(broker: Broker, request: FindCoordinatorRequest, call: Call) -> Fields:
    """Name the broker that coordinates each requested group."""
    # A shard has many groups, and the choice of its node examines all nodes.
    shard_coordinator = cache(broker.membership.shard_coordinator)
    if call.version < 4:
        return _coordinator(broker, call.client, request.key, request.key_type, shard_coordinator)
    keys = dict.fromkeys(request.coordinator_keys)
    return {
        "coordinators": [_coordinator(broker, call.client, key, request.key_type, shard_coordinator) for key in keys]
    }


def _coordinator(
    broker: Broker, client: Client, key: str, type: int, shard_coordinator: Callable[[int], Node]
) -> Fields:
    error, message = ErrorCode.none, None
    if type == TRANSACTION:
        error, message = (
            ErrorCode.transactional_id_authorization_failed,
            "Transactions are not supported on this cluster.",
        )
    elif type != GROUP:
        error, message = ErrorCode.invalid_request, f"Coordinators of type {type} do not exist here."
    elif broker.authorizer.forbids(client, Operation.DESCRIBE, ResourceType.GROUP, key):
        error = ErrorCode.group_authorization_failed
    if error:
        return _refused(key, error, message)
    node = shard_coordinator(broker.groups.shard(key)) if broker.live_nodes() else None
    endpoint = None if node is None else node.address.endpoint(client.listener)
    if node is None or endpoint is None:
        return _refused(key, ErrorCode.coordinator_not_available, None)
    return {
        "key": key, "node_id": node.id, "host": endpoint.host, "port": endpoint.port, "error_code": ErrorCode.none,
        "error_message": None,
    }  # fmt: skip


def _refused(key: str, error: ErrorCode, message: str | None) -> Fields:
    return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}
