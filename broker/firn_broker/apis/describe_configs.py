"""DescribeConfigs (32), versions 1 to 4: topics with all of Kafka's configs, and a broker with those of its settings
that Kafka has too.

Synonyms name the same config at each level that sets it. No documentation is sent.
A resource that is requested more than once is described once.
"""

from collections.abc import Callable, Collection, Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call, Client
from firn_broker.topics.configs import DEFINITIONS, ConfigType, Source
from firn_broker.wire.requests import DescribeConfigsRequest, DescribeConfigsResource

KEY = 32
VERSIONS = (1, 4)
TOPIC, BROKER = 2, 4


async def handle(broker: Broker, request: DescribeConfigsRequest, call: Call) -> Fields:
    """Describe the configs of each requested resource."""
    results = []
    for resource in dict.fromkeys(request.resources):
        error, message = ErrorCode.none, None
        configs: Callable[[], Sequence[Fields]] = tuple
        keys = None if resource.configuration_keys is None else set(resource.configuration_keys)
        if (denied := _denied(broker, call.client, resource)) is not None:
            error = denied
        elif resource.resource_type == TOPIC:
            topic = await broker.topic_metadata.find(resource.resource_name)
            if topic is None:
                error = ErrorCode.unknown_topic_or_partition
            else:
                configs = partial(_topic_entries, broker, topic, keys)
        elif resource.resource_type == BROKER:
            if resource.resource_name not in ("", *(str(node.id) for node in broker.live_nodes())):
                error, message = ErrorCode.invalid_request, f"Broker {resource.resource_name} does not exist."
            elif resource.resource_name:
                configs = partial(_broker_entries, broker, keys)
        else:
            error, message = (
                ErrorCode.invalid_request,
                f"Resources of type {resource.resource_type} have no configs here.",
            )
        results.append(
            {
                "error_code": error, "error_message": message, "resource_type": resource.resource_type,
                "resource_name": resource.resource_name,
                "configs": configs,
            }
        )  # fmt: skip
    return {"results": results}


def _denied(broker: Broker, client: Client, resource: DescribeConfigsResource) -> ErrorCode | None:
    """Return the error if the client may not describe the configs of a resource. The right on the cluster is that on its
    brokers."""
    operation, forbids = Operation.DESCRIBE_CONFIGS, broker.authorizer.forbids
    if resource.resource_type == TOPIC and forbids(client, operation, ResourceType.TOPIC, resource.resource_name):
        return ErrorCode.topic_authorization_failed
    if resource.resource_type == BROKER and forbids(client, operation, ResourceType.CLUSTER, CLUSTER_NAME):
        return ErrorCode.cluster_authorization_failed
    return None


def _entry(name: str, value: str, source: Source, type: ConfigType, synonyms: list[tuple[str, Source]]) -> Fields:
    return {
        "name": name, "value": value, "read_only": source is Source.BROKER and not synonyms, "config_source": source,
        "is_sensitive": False, "config_type": type, "documentation": None,
        "synonyms": [{"name": name, "value": value, "source": source} for value, source in synonyms],
    }  # fmt: skip


def _topic_entries(broker: Broker, topic: Topic, keys: Collection[str] | None) -> Sequence[Fields]:
    if keys is not None and not keys:
        return ()
    return [
        _entry(name, value, source, DEFINITIONS[name].type, synonyms)
        for name, value, source, synonyms in broker.configs.described(topic)
        if keys is None or name in keys
    ]


def _broker_entries(broker: Broker, keys: Collection[str] | None) -> Sequence[Fields]:
    settings = broker.settings
    entries = [
        ("broker.id", str(broker.membership.lease.node), ConfigType.INT),
        ("broker.rack", settings.zone, ConfigType.STRING),
        ("auto.create.topics.enable", str(settings.topics.auto_create).lower(), ConfigType.BOOLEAN),
        ("num.partitions", str(settings.topics.partitions), ConfigType.INT),
        ("default.replication.factor", "1", ConfigType.INT),
        ("socket.request.max.bytes", str(settings.connections.max_request_bytes), ConfigType.INT),
        ("group.min.session.timeout.ms", str(settings.groups.min_session_ms), ConfigType.INT),
        ("group.max.session.timeout.ms", str(settings.groups.max_session_ms), ConfigType.INT),
        ("group.initial.rebalance.delay.ms", str(settings.groups.initial_rebalance_ms), ConfigType.INT),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN),
    ]
    return [
        _entry(name, value, Source.BROKER, type, []) for name, value, type in entries if keys is None or name in keys
    ]
