"""Metadata (3), versions 0 to 12: live brokers, and topics with their partitions.

- The leader of a partition is the broker that this client should use: one of its zone, by rendezvous hashing. Any
  broker serves any partition. The leader epoch is always 0.
- The replicas of a partition are its leader and a broker of each zone. All of them are in sync. So consumers can fetch
  from the broker of their rack (KIP-392).
- Addresses are those of the client's listener. A broker without an address there is left out.
- A topic requested by name is created on demand if the cluster and the client (since version 4) allow it.
- A topic that is named more than once is described once, as with Kafka.
- Topics by id since 12: unknown ids are UNKNOWN_TOPIC_ID.
- A topic that the client may not describe is TOPIC_AUTHORIZATION_FAILED, whether it exists or not, and is not among all
  topics. An id is random, so the answer may reveal that its topic exists, as with Kafka.
- Authorized operations on topics since 8, and on the cluster in 8 to 10 (KIP-430).
- While the coordinator cannot be reached, the answer has the last known topics. For an unknown topic it has
  LEADER_NOT_AVAILABLE: clients retry."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records.cursor import MalformedError
from firn.records.message_writer import Fields
from firn_broker.access.quotas import Quota
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.cluster.membership import leaders, replicas
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.creation import TopicError
from firn_broker.wire.requests import MetadataRequest, MetadataTopic

log = structlog.get_logger()

KEY = 3
VERSIONS = (0, 12)
BY_ID = 12
NOT_REQUESTED = -(1 << 31)
"""The operations on a resource if the client does not ask for them."""


class Near(NamedTuple):
    """The ids of the nodes near a client, and of groups of nodes: each zone, and the history brokers.

    Each partition has a replica in each group."""

    nodes: tuple[int, ...]
    groups: tuple[tuple[int, ...], ...]


async def handle(broker: Broker, request: MetadataRequest, call: Call) -> Fields:
    """List the live brokers and the requested topics."""
    requested = request.topics
    nodes = broker.endpoints(call.client)
    listener = call.client.listener
    near = Near(
        tuple(node.id for node in broker.membership.near(call.client.zone, listener)),
        tuple(filter(None, (*broker.membership.zones(listener), broker.membership.history_brokers(listener)))),
    )
    if requested is None or (call.version == 0 and not requested):
        try:
            await broker.topic_metadata.refresh()
        except UnavailableError as error:
            log.warning(
                "the coordinator cannot be reached: answered with the last known topics",
                client=call.client.id,
                error=str(error),
            )
        known = broker.topic_metadata.by_name
        hidden = broker.authorizer.forbidden(call.client, Operation.DESCRIBE, ResourceType.TOPIC, known, audited=False)
        topics = [_topic(broker, call, request, topic, near) for name, topic in known.items() if name not in hidden]
    else:
        once = {topic.topic_id if topic.name is None else topic.name: topic for topic in requested}
        topics = [await _requested(broker, call, request, topic, near) for topic in once.values()]
    return {
        "brokers": [
            {"node_id": node.id, "host": endpoint.host, "port": endpoint.port, "rack": node.address.zone or None}
            for node, endpoint in nodes
        ],
        "cluster_id": broker.cluster_id,
        "controller_id": broker.controller(nodes),
        "topics": topics,
        "cluster_authorized_operations": _cluster_operations(broker, call, request),
    }


def _cluster_operations(broker: Broker, call: Call, request: MetadataRequest) -> int:
    if not request.include_cluster_authorized_operations:
        return NOT_REQUESTED
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return 0
    return broker.authorizer.operations(call.client, ResourceType.CLUSTER, CLUSTER_NAME)


async def _requested(
    broker: Broker, call: Call, request: MetadataRequest, requested: MetadataTopic, near: Near
) -> Fields:
    name = requested.name
    if name is None and call.version < BY_ID:
        raise MalformedError("a topic of the request has no name")
    if name is None:
        id = requested.topic_id
        try:
            topic = None if id is None else await broker.topic_metadata.find_id(id)
        except UnavailableError:
            return _unknown(None, id, ErrorCode.leader_not_available)
        if topic is None:
            return _unknown(None, id, ErrorCode.unknown_topic_id)
        if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.TOPIC, topic.name):
            return _unknown(None, id, ErrorCode.topic_authorization_failed)
        return _topic(broker, call, request, topic, near)
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.TOPIC, name):
        return _unknown(name, None, ErrorCode.topic_authorization_failed)
    try:
        topic = await _named(broker, call, name, create=request.allow_auto_topic_creation)
    except TopicError as error:
        return _unknown(name, None, error.code)
    except UnavailableError:
        return _unknown(name, None, ErrorCode.leader_not_available)
    if topic is None:
        return _unknown(name, None, ErrorCode.unknown_topic_or_partition)
    return _topic(broker, call, request, topic, near)


async def _named(broker: Broker, call: Call, name: str, *, create: bool) -> Topic | None:
    """Return the topic, or create it if the client may do that. Raises TopicError and UnavailableError."""
    authorizer, client = broker.authorizer, call.client
    if (authorizer.open and not broker.quotas.active) or not create or not broker.topics.settings.auto_create:
        return await (broker.topics.on_demand(name) if create else broker.topic_metadata.find(name))
    if (topic := await broker.topic_metadata.find(name)) is not None:
        return topic
    if authorizer.forbids(client, Operation.CREATE, ResourceType.CLUSTER, CLUSTER_NAME, audited=False) and (
        authorizer.forbids(client, Operation.CREATE, ResourceType.TOPIC, name)
    ):
        raise TopicError(ErrorCode.topic_authorization_failed, "Authorization failed.")
    with broker.changing(call, [(ResourceType.TOPIC, name)]) as attempt:
        topic = await broker.topics.on_demand(name)
        attempt.made = topic is not None
    if topic is not None:
        call.count(broker.quotas, Quota.MUTATIONS, topic.partitions)
    return topic


def _unknown(name: str | None, id: object, error: ErrorCode) -> Fields:
    return {"error_code": error, "name": name, "topic_id": id, "partitions": ()}


def _topic(broker: Broker, call: Call, request: MetadataRequest, topic: Topic, near: Near) -> Fields:
    operations = NOT_REQUESTED
    if request.include_topic_authorized_operations:
        operations = broker.authorizer.operations(call.client, ResourceType.TOPIC, topic.name)
    return {
        "error_code": ErrorCode.none, "name": topic.name, "topic_id": topic.id,
        "partitions": partial(_partitions, topic, near), "topic_authorized_operations": operations,
    }  # fmt: skip


def _partitions(topic: Topic, near: Near) -> Sequence[Fields]:
    return [
        {
            "error_code": ErrorCode.none, "partition_index": index, "leader_id": id, "leader_epoch": 0,
            "replica_nodes": ids, "isr_nodes": ids, "offline_replicas": (),
        }
        for index, (id, ids) in enumerate(
            zip(
                leaders(near.nodes, topic.id, topic.partitions),
                replicas(near.nodes, near.groups, topic.id, topic.partitions),
                strict=True,
            )
        )
    ]  # fmt: skip
