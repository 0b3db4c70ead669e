"""FindCoordinator (10), versions 0 to 5: which broker has a group, several at once since 4.

For transactions: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which every client takes as final.
"""

from kio.schema.errors import ErrorCode

from firn_broker.broker import Broker
from firn_broker.router import Call
from firn_broker.wire.messages import Fields

KEY = 10
VERSIONS = (0, 5)
GROUP, TRANSACTION = 0, 1


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    type = getattr(request, "key_type", GROUP)
    if call.version < 4:
        return _one(broker, request.key, type)  # type: ignore[attr-defined]
    return {"coordinators": [_one(broker, key, type) for key in request.coordinator_keys]}  # type: ignore[attr-defined]


def _one(broker: Broker, key: str, type: int) -> Fields:
    error, message = ErrorCode.none, None
    if type == TRANSACTION:
        error, message = (
            ErrorCode.transactional_id_authorization_failed,
            "Transactions are not supported on this cluster.",
        )
    elif type != GROUP:
        error, message = ErrorCode.invalid_request, f"Coordinators of type {type} do not exist here."
    elif not broker.live_nodes():
        error = ErrorCode.coordinator_not_available
    if error:
        return {"key": key, "node_id": -1, "host": "", "port": -1, "error_code": error, "error_message": message}
    node = broker.membership.of_shard(broker.groups.shard(key))
    return {
        "key": key, "node_id": node.id, "host": node.address.host, "port": node.address.port, "error_code": error,
        "error_message": None,
    }  # fmt: skip
