"""AlterConfigs (33), versions 0 to 2: all configs of a topic are replaced by those given. Configs of brokers come from their own files."""

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics import configs
from firn_broker.topics.configs import InvalidConfigError
from firn_broker.topics.creation import TopicError

KEY = 33
VERSIONS = (0, 2)
TOPIC = 2
ATTEMPTS = 20
"""Each one that fails is another's change that was made."""


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
    kind: int = resource.resource_type  # type: ignore[attr-defined]
    name: str = resource.resource_name  # type: ignore[attr-defined]
    error: ErrorCode
    message: str | None
    if kind != TOPIC:
        error, message = ErrorCode.invalid_request, "Only configs of topics can be altered here."
    else:
        error, message = await _alter(broker, name, resource, change, validate_only=validate_only)
    return {"error_code": error, "error_message": message, "resource_type": kind, "resource_name": name}


async def _alter(
    broker: Broker, name: str, resource: object, change: object, *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    for _ in range(ATTEMPTS):
        await broker.catalogue.refresh()
        topic = broker.catalogue.by_name.get(name)
        if topic is None:
            return ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
        try:
            wanted = change(topic, resource)  # type: ignore[operator]
            configs.check(wanted)
            broker.topics.check_compacted(topic.partitions, wanted)
        except (InvalidConfigError, TopicError) as invalid:
            return ErrorCode.invalid_config, str(invalid)
        if validate_only:
            return ErrorCode.none, None
        if await broker.metadata_store.topics.configure_topic(topic.id, topic.configs, wanted):
            await broker.catalogue.refresh()
            return ErrorCode.none, None
        # Somebody else changed it meanwhile, and that must not be lost.
    return ErrorCode.request_timed_out, f"The configs of topic '{name}' are changed by others all the time: try again."
