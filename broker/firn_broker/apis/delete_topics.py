"""DeleteTopics (20), versions 1 to 6: by name, or by id since 6. The topic is deleted at once; maintenance deletes its
batches later.

A client that may not describe a topic does not learn the name that belongs to an id. Ids are random, so it may learn that the
topic exists, as with Kafka.

A client beyond its quota of mutations, which counts deleted partitions, gets THROTTLING_QUOTA_EXCEEDED since version 5."""

from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access.quotas import Quota
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.wire.requests import DeleteTopicsRequest

KEY = 20
VERSIONS = (1, 6)
STRICT = 5
"""The version since which a client beyond its quota is rejected (KIP-599). An older client is only throttled."""


async def handle(broker: Broker, request: DeleteTopicsRequest, call: Call) -> Fields:
    """Delete each requested topic."""
    requested = [(topic.name, topic.topic_id) for topic in request.topics]
    requested += [(name, None) for name in request.topic_names]
    hidden = broker.authorizer.forbidden(
        call.client, Operation.DESCRIBE, ResourceType.TOPIC, (name for name, _ in requested if name is not None)
    )
    if requested and all(name in hidden for name, _ in requested):
        return {"responses": [_answer(name, id, ErrorCode.topic_authorization_failed) for name, id in requested]}
    await broker.topic_metadata.refresh()
    responses = [
        _answer(name, id, ErrorCode.topic_authorization_failed)
        if name in hidden
        else await _delete(broker, call, name, id)
        for name, id in requested
    ]
    await broker.topic_metadata.refresh()
    return {"responses": responses}


async def _delete(broker: Broker, call: Call, name: str | None, id: UUID | None) -> Fields:
    client = call.client
    topic = _find(broker, name, id)
    missing = ErrorCode.unknown_topic_or_partition if name is not None else ErrorCode.unknown_topic_id
    if topic is None:
        return _answer(name, id, missing)
    authorizer = broker.authorizer
    if authorizer.forbids(client, Operation.DELETE, ResourceType.TOPIC, topic.name):
        if name is None and not authorizer.forbids(
            client, Operation.DESCRIBE, ResourceType.TOPIC, topic.name, audited=False
        ):
            name = topic.name
        return _answer(name, id, ErrorCode.topic_authorization_failed)
    if call.version >= STRICT and call.exceeds(broker.quotas, Quota.MUTATIONS):
        return _answer(topic.name, topic.id, ErrorCode.throttling_quota_exceeded)
    with broker.changing(call, [(ResourceType.TOPIC, topic.name)]) as attempt:
        attempt.made = await broker.metadata_store.topics.delete_topic(topic.id)
    if not attempt.made:
        return _answer(topic.name, topic.id, missing)
    call.count(broker.quotas, Quota.MUTATIONS, topic.partitions, strict=call.version >= STRICT)
    return _answer(topic.name, topic.id, ErrorCode.none)


def _answer(name: str | None, id: UUID | None, error: ErrorCode) -> Fields:
    return {"name": name, "topic_id": id, "error_code": error, "error_message": None}


def _find(broker: Broker, name: str | None, id: UUID | None) -> Topic | None:
    if name is not None:
        return broker.topic_metadata.by_name.get(name)
    return None if id is None else broker.topic_metadata.by_id.get(id)
