"""CreateTopics (19), versions 2 to 7.

- Any replication factor is accepted, because the object store replicates; the answer has 1. Replica assignments only
  give the number of partitions.
- A client beyond its quota of mutations gets THROTTLING_QUOTA_EXCEEDED since version 6. The request that exceeds the
  quota is the last one that creates topics.
- The answer has the topic's configs since version 5. A name that occurs twice in a request is INVALID_REQUEST for both.
"""

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access.quotas import Quota
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call, Client
from firn_broker.topics.creation import TopicError
from firn_broker.wire.requests import CreateTopicsRequest, CreateTopicsTopic

KEY = 19
VERSIONS = (2, 7)
STRICT = 6
"""The version since which a client beyond its quota is rejected (KIP-599). An older client is only throttled."""
THROTTLED = "The throttling quota has been exceeded."


async def handle(broker: Broker, request: CreateTopicsRequest, call: Call) -> Fields:
    """Create each requested topic."""
    strict = call.version >= STRICT
    names = Counter(requested.name for requested in request.topics)
    denied = _denied(broker, call.client, names)
    undescribed = broker.authorizer.forbidden(
        call.client, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, names, audited=False
    )
    topics = []
    for requested in request.topics:
        try:
            if names[requested.name] > 1:
                raise TopicError(ErrorCode.invalid_request, f"Duplicate topic name: {requested.name}")
            if requested.name in denied:
                raise TopicError(ErrorCode.topic_authorization_failed, "Authorization failed.")
            if strict and not request.validate_only and call.exceeds(broker.quotas, Quota.MUTATIONS):
                raise TopicError(ErrorCode.throttling_quota_exceeded, THROTTLED)
            creates = not request.validate_only
            with broker.changing(call, [(ResourceType.TOPIC, requested.name)] if creates else ()) as attempt:
                topic = await broker.topics.create(
                    requested.name,
                    _partitions(requested),
                    {config.name: config.value for config in requested.configs},
                    validate_only=request.validate_only,
                )
                attempt.made = creates
        except TopicError as error:
            topics.append(_refused(requested.name, error))
        else:
            topics.append(_created(broker, topic, described=topic.name not in undescribed))
            if creates:
                call.count(broker.quotas, Quota.MUTATIONS, topic.partitions, strict=strict)
    return {"topics": topics}


def _denied(broker: Broker, client: Client, names: Iterable[str]) -> Container[str]:
    """Return the topics that the client may not create. The right to create on the cluster is enough for all."""
    if not broker.authorizer.forbids(client, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False):
        return ()
    return broker.authorizer.forbidden(client, Operation.CREATE, ResourceType.TOPIC, names)


def _partitions(requested: CreateTopicsTopic) -> int:
    number = requested.num_partitions
    assigned = [assignment.partition_index for assignment in requested.assignments]
    if not assigned:
        return number
    if number != -1 or sorted(assigned) != list(range(len(assigned))):
        raise TopicError(
            ErrorCode.invalid_replica_assignment,
            "the replica assignments must name the partitions from 0 on, without a gap",
        )
    return len(assigned)


def _refused(name: str, error: TopicError) -> Fields:
    return {
        "name": name, "topic_id": None, "error_code": error.code, "error_message": str(error), "num_partitions": -1,
        "replication_factor": -1, "configs": (),
    }  # fmt: skip


def _created(broker: Broker, topic: Topic, *, described: bool) -> Fields:
    if not described:
        return {
            "name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none, "error_message": None,
            "topic_config_error_code": ErrorCode.topic_authorization_failed, "num_partitions": -1, "replication_factor": -1,
            "configs": (),
        }  # fmt: skip
    return {
        "name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none, "error_message": None,
        "num_partitions": topic.partitions, "replication_factor": 1,
        "configs": partial(_configs, broker, topic),
    }  # fmt: skip


def _configs(broker: Broker, topic: Topic) -> Sequence[Fields]:
    return [
        {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
        for name, value, source, _ in broker.configs.described(topic)
    ]
