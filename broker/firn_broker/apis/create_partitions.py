"""CreatePartitions (37), versions 0 to 3: topics can only grow. Replica assignments are only counted."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.creation import MAX_PARTITIONS, TopicError
from firn_broker.wire.requests import CreatePartitionsRequest

KEY = 37
VERSIONS = (0, 3)


async def handle(broker: Broker, request: CreatePartitionsRequest, call: Call) -> Fields:
    """Add partitions to each requested topic."""
    names = {requested.name for requested in request.topics}
    denied = broker.authorizer.forbidden(call.client, Operation.ALTER, ResourceType.TOPIC, names)
    if denied != names:
        await broker.topic_metadata.refresh()
    results = []
    for requested in request.topics:
        error, message = ErrorCode.none, None
        topic = broker.topic_metadata.by_name.get(requested.name)
        if requested.name in denied:
            error = ErrorCode.topic_authorization_failed
        elif topic is None:
            error, message = ErrorCode.unknown_topic_or_partition, f"The topic '{requested.name}' does not exist."
        elif requested.count <= topic.partitions:
            error = ErrorCode.invalid_partitions
            message = f"The topic {requested.name} currently has {topic.partitions} partition(s); {requested.count} would not be an increase."
        elif requested.count > MAX_PARTITIONS:
            error, message = (
                ErrorCode.invalid_partitions,
                f"{requested.count} partitions: a topic may have at most {MAX_PARTITIONS}.",
            )
        elif (refused := _refused(broker, topic, requested.count)) is not None:
            error, message = refused
        elif requested.assignments is not None and len(requested.assignments) != requested.count - topic.partitions:
            error, message = (
                ErrorCode.invalid_replica_assignment,
                "The request must have an assignment for each new partition.",
            )
        elif not request.validate_only and not await broker.metadata_store.topics.grow_topic(topic.id, requested.count):
            error = ErrorCode.unknown_topic_or_partition
        elif not request.validate_only:
            broker.note_change(call.client, "CreatePartitions", ResourceType.TOPIC, requested.name)
        results.append({"name": requested.name, "error_code": error, "error_message": message})
    if denied != names:
        await broker.topic_metadata.refresh()
    return {"results": results}


def _refused(broker: Broker, topic: Topic, partitions: int) -> tuple[ErrorCode, str] | None:
    try:
        broker.topics.check_compacted(partitions, topic.configs)
    except TopicError as error:
        return ErrorCode.invalid_partitions, str(error)
    try:
        broker.topics.check_room(0, partitions - topic.partitions)
    except TopicError as error:
        return error.code, str(error)
    return None
