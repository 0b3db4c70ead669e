"""CreatePartitions (37), versions 0 to 3: topics can only grow. Replica assignments are only counted.

A client beyond its quota of mutations, which counts new partitions, gets THROTTLING_QUOTA_EXCEEDED since version 3."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access.quotas import Quota
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.creation import MAX_PARTITIONS, TopicError
from firn_broker.wire.requests import CreatePartitionsRequest, CreatePartitionsTopic

KEY = 37
VERSIONS = (0, 3)
STRICT = 3
"""The version since which a client beyond its quota is rejected (KIP-599). An older client is only throttled."""
THROTTLED = "The throttling quota has been exceeded."
Result = tuple[ErrorCode, str | None]
"""An error and its message."""


async def handle(broker: Broker, request: CreatePartitionsRequest, call: Call) -> Fields:
    """Add partitions to each requested topic."""
    names = {requested.name for requested in request.topics}
    denied = broker.authorizer.forbidden(call.client, Operation.ALTER, ResourceType.TOPIC, names)
    if denied != names:
        await broker.topic_metadata.refresh()
    results = []
    for requested in request.topics:
        error, message = ErrorCode.topic_authorization_failed, None
        if requested.name not in denied:
            error, message = _invalid(broker, requested)
            if error is ErrorCode.none and not request.validate_only:
                error, message = await _grow(broker, call, requested)
        results.append({"name": requested.name, "error_code": error, "error_message": message})
    if denied != names:
        await broker.topic_metadata.refresh()
    return {"results": results}


def _invalid(broker: Broker, requested: CreatePartitionsTopic) -> Result:
    """Return why the topic cannot have so many partitions."""
    topic = broker.topic_metadata.by_name.get(requested.name)
    if topic is None:
        return ErrorCode.unknown_topic_or_partition, f"The topic '{requested.name}' does not exist."
    if requested.count <= topic.partitions:
        return ErrorCode.invalid_partitions, (
            f"The topic {requested.name} currently has {topic.partitions} partition(s); {requested.count} would not be an increase."
        )
    if requested.count > MAX_PARTITIONS:
        return ErrorCode.invalid_partitions, f"{requested.count} partitions: a topic may have at most {MAX_PARTITIONS}."
    if (refused := _refused(broker, topic, requested.count)) is not None:
        return refused
    if requested.assignments is not None and len(requested.assignments) != requested.count - topic.partitions:
        return ErrorCode.invalid_replica_assignment, "The request must have an assignment for each new partition."
    return ErrorCode.none, None


async def _grow(broker: Broker, call: Call, requested: CreatePartitionsTopic) -> Result:
    topic = broker.topic_metadata.by_name[requested.name]
    strict = call.version >= STRICT
    if strict and call.exceeds(broker.quotas, Quota.MUTATIONS):
        return ErrorCode.throttling_quota_exceeded, THROTTLED
    with broker.changing(call, [(ResourceType.TOPIC, requested.name)]) as attempt:
        attempt.made = await broker.metadata_store.topics.grow_topic(topic.id, requested.count)
    if not attempt.made:
        return ErrorCode.unknown_topic_or_partition, None
    call.count(broker.quotas, Quota.MUTATIONS, requested.count - topic.partitions, strict=strict)
    return ErrorCode.none, None


def _refused(broker: Broker, topic: Topic, partitions: int) -> Result | None:
    try:
        broker.topics.check_compacted(partitions, topic.configs)
    except TopicError as error:
        return ErrorCode.invalid_partitions, str(error)
    try:
        broker.topics.check_room(0, partitions - topic.partitions)
    except TopicError as error:
        return error.code, str(error)
    return None
