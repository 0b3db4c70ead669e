"""DeleteTopics (20), versions 1 to 6: by name, or by id since 6. The topic is deleted at once; maintenance deletes its
batches later."""

from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteTopicsRequest

KEY = 20
VERSIONS = (1, 6)


async def handle(broker: Broker, request: DeleteTopicsRequest, call: Call) -> Fields:
    """Delete each requested topic."""
    requested = [(topic.name, topic.topic_id) for topic in request.topics]
    requested += [(name, None) for name in request.topic_names]
    await broker.topic_metadata.refresh()
    responses = []
    for name, id in requested:
        topic = _find(broker, name, id)
        error = ErrorCode.none
        if topic is None or not await broker.metadata_store.topics.delete_topic(topic.id):
            error = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
        responses.append(
            {
                "name": topic.name if topic else name, "topic_id": topic.id if topic else id, "error_code": error,
                "error_message": None,
            }
        )  # fmt: skip
    await broker.topic_metadata.refresh()
    return {"responses": responses}


def _find(broker: Broker, name: str | None, id: UUID | None) -> Topic | None:
    if name is not None:
        return broker.topic_metadata.by_name.get(name)
    return None if id is None else broker.topic_metadata.by_id.get(id)
