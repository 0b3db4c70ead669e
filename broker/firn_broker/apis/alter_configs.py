"""AlterConfigs (33), versions 0 to 2: all configs of a topic are replaced by those given. The configs of brokers come
from their settings."""

from collections.abc import Callable
from typing import Protocol, TypeVar

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics import configs
from firn_broker.topics.configs import InvalidConfigError
from firn_broker.topics.creation import TopicError
from firn_broker.wire.requests import AlterConfigsRequest, AlterConfigsResource

KEY = 33
VERSIONS = (0, 2)
TOPIC = 2
ATTEMPTS = 20
"""Attempts of one change. An attempt fails only if another client has changed the configs in between."""


class Resource(Protocol):
    """A resource of a request that alters configs."""

    @property
    def resource_type(self) -> int:
        """Return 2 for a topic, 4 for a broker."""

    @property
    def resource_name(self) -> str:
        """Return the name of the topic, or the broker's id."""


R = TypeVar("R", bound=Resource)
Change = Callable[[Topic, R], dict[str, str | None]]


async def handle(broker: Broker, request: AlterConfigsRequest, call: Call) -> Fields:
    """Replace the configs of each requested resource."""
    return {
        "responses": [
            await alter(broker, call, resource, replaced, validate_only=request.validate_only)
            for resource in request.resources
        ]
    }


def replaced(topic: Topic, resource: AlterConfigsResource) -> dict[str, str | None]:
    """Return exactly the configs of the request."""
    return {config.name: config.value for config in resource.configs}


async def alter(broker: Broker, call: Call, resource: R, change: Change[R], *, validate_only: bool) -> Fields:
    """Change the configs of one resource to what ``change(topic, resource)`` returns."""
    kind, name = resource.resource_type, resource.resource_name
    error: ErrorCode
    message: str | None
    if kind != TOPIC:
        error, message = ErrorCode.invalid_request, "Only configs of topics can be altered here."
    elif broker.authorizer.forbids(call.client, Operation.ALTER_CONFIGS, ResourceType.TOPIC, name):
        error, message = ErrorCode.topic_authorization_failed, None
    else:
        with broker.changing(call, () if validate_only else [(ResourceType.TOPIC, name)]) as attempt:
            error, message = await _alter(broker, name, resource, change, validate_only=validate_only)
            attempt.made = not error
    return {"error_code": error, "error_message": message, "resource_type": kind, "resource_name": name}


async def _alter(
    broker: Broker, name: str, resource: R, change: Change[R], *, validate_only: bool
) -> tuple[ErrorCode, str | None]:
    for _ in range(ATTEMPTS):
        await broker.topic_metadata.refresh()
        topic = broker.topic_metadata.by_name.get(name)
        if topic is None:
            return ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
        try:
            changed = configs.check(change(topic, resource))
            broker.topics.check_compacted(topic.partitions, changed)
            broker.topics.check_gate(changed)
        except (InvalidConfigError, TopicError) as invalid:
            return ErrorCode.invalid_config, str(invalid)
        if validate_only:
            return ErrorCode.none, None
        if await broker.metadata_store.topics.configure_topic(topic.id, topic.configs, changed):
            await broker.topic_metadata.refresh()
            return ErrorCode.none, None
        # Another client changed the configs after they were read, and its change must not be lost.
    return ErrorCode.request_timed_out, f"The configs of topic '{name}' are being changed by other clients: try again."
