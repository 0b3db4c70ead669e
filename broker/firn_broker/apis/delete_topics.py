"""DeleteTopics (20), versions 1 to 6: by name, or by id since 6. The topic is gone at once; its batches go in the background."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.network.router import Call

KEY = 20
VERSIONS = (1, 6)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    if call.version >= 6:
        wanted = [(one.name, one.topic_id) for one in request.topics]  # type: ignore[attr-defined]
    else:
        wanted = [(name, None) for name in request.topic_names]  # type: ignore[attr-defined]
    await broker.catalogue.refresh()
    responses = []
    for name, id in wanted:
        topic = broker.catalogue.by_name.get(name) if name is not None else broker.catalogue.by_id.get(id)
        error = ErrorCode.none
        if topic is None or not await broker.metadata_store.topics.delete_topic(topic.id):
            error = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
        responses.append(
            {
                "name": topic.name if topic else name, "topic_id": topic.id if topic else id, "error_code": error,
                "error_message": None,
            }
        )  # fmt: skip
    await broker.catalogue.refresh()
    return {"responses": responses}
