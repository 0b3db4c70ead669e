"""InitProducerId (22), versions 0 to 4: an id and epoch 0 for an idempotent producer.

- A producer that has an id (since version 3) keeps it with the next epoch; after the last epoch it gets a new id.
- With a transactional id: TRANSACTIONAL_ID_AUTHORIZATION_FAILED, which is final for every client. Transactions are not
  supported."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.network.router import Call, Client
from firn_broker.wire.requests import InitProducerIdRequest

KEY = 22
VERSIONS = (0, 4)
LAST_EPOCH = 32_766


async def handle(broker: Broker, request: InitProducerIdRequest, call: Call) -> Fields:
    """Give the producer an id, or the next epoch of the id that it has."""
    if request.transactional_id is not None:
        return {
            "error_code": ErrorCode.transactional_id_authorization_failed, "producer_id": -1, "producer_epoch": -1,
        }  # fmt: skip
    if _forbidden(broker, call.client):
        return {"error_code": ErrorCode.cluster_authorization_failed, "producer_id": -1, "producer_epoch": -1}
    id, epoch = request.producer_id, request.producer_epoch
    if id >= 0 and 0 <= epoch < LAST_EPOCH:
        return {"error_code": ErrorCode.none, "producer_id": id, "producer_epoch": epoch + 1}
    return {"error_code": ErrorCode.none, "producer_id": await broker.producer_ids.allocate(), "producer_epoch": 0}


def _forbidden(broker: Broker, client: Client) -> bool:
    """Return whether the client may not be an idempotent producer: it needs the right on the cluster, or may write any topic
    (KIP-679)."""
    authorizer = broker.authorizer
    if authorizer.open or authorizer.allows_any(client.caller, Operation.WRITE, ResourceType.TOPIC):
        return False
    return authorizer.forbids(client, Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, CLUSTER_NAME)
