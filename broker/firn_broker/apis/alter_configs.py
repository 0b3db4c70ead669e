"""AlterConfigs (33), versions 0 to 2: all configs of a topic are replaced by those given. Configs of brokers come from their own files."""

from kio.schema.errors import ErrorCode

from firn_broker import configs
from firn_broker.broker import Broker
from firn_broker.configs import InvalidConfigError
from firn_broker.coordinates import Topic
from firn_broker.router import Call
from firn_broker.topics import TopicError
from firn_broker.wire.messages import Fields

KEY = 33
VERSIONS = (0, 2)
TOPIC = 2


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    return {
        "responses": [
            await alter(broker, one, replaced, validate_only=request.validate_only)  # type: ignore[attr-defined]
            for one in request.resources  # type: ignore[attr-defined]
        ]
    }


def replaced(topic: Topic, resource: object) -> dict[str, str | None]:
    """The topic's new configs."""
    return {it.name: it.value for it in resource.configs}  # type: ignore[attr-defined]


async def alter(broker: Broker, resource: object, change: object, *, validate_only: bool) -> Fields:
    """Answer for one resource: ``change(topic, resource)`` gives the new configs."""
    error, message = ErrorCode.none, None
    kind: int = resource.resource_type  # type: ignore[attr-defined]
    name: str = resource.resource_name  # type: ignore[attr-defined]
    await broker.catalogue.refresh()
    topic = broker.catalogue.by_name.get(name)
    if kind != TOPIC:
        error, message = ErrorCode.invalid_request, "Only configs of topics can be altered here."
    elif topic is None:
        error, message = ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
    else:
        try:
            wanted = change(topic, resource)  # type: ignore[operator]
            configs.check(wanted)
            broker.topics.check_compacted(topic.partitions, wanted)
        except (InvalidConfigError, TopicError) as invalid:
            error, message = ErrorCode.invalid_config, str(invalid)
        else:
            if not validate_only and not await broker.coordinator.configure_topic(topic.id, wanted):
                error = ErrorCode.unknown_topic_or_partition
    await broker.catalogue.refresh()
    return {"error_code": error, "error_message": message, "resource_type": kind, "resource_name": name}
