"""IncrementalAlterConfigs (44), versions 0 and 1: configs of topics are set (0), unset (1), and lists are extended (2)
or reduced (3)."""

from firn.records.message_writer import Fields
from firn_broker.apis.alter_configs import alter
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.configs import DEFINITIONS, LISTS, InvalidConfigError
from firn_broker.wire.requests import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResource

KEY = 44
VERSIONS = (0, 1)
SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(broker: Broker, request: IncrementalAlterConfigsRequest, call: Call) -> Fields:
    """Change the named configs of each requested resource."""
    return {
        "responses": [
            await alter(broker, call, resource, changed, validate_only=request.validate_only)
            for resource in request.resources
        ]
    }


def changed(topic: Topic, resource: IncrementalAlterConfigsResource) -> dict[str, str | None]:
    """Apply the operations to the topic's configs. Raises InvalidConfigError."""
    configs: dict[str, str | None] = dict(topic.configs)
    for change in resource.configs:
        if change.name not in DEFINITIONS:
            raise InvalidConfigError(f"Unknown topic config name: {change.name}")
        if change.config_operation == SET:
            configs[change.name] = change.value
        elif change.config_operation == DELETE:
            configs.pop(change.name, None)
        elif change.config_operation in (APPEND, SUBTRACT):
            if change.name not in LISTS:
                raise InvalidConfigError(
                    f"Config {change.name} is not a list, so APPEND and SUBTRACT do not apply; use SET."
                )
            now = [part for part in (configs.get(change.name) or DEFINITIONS[change.name].default).split(",") if part]
            given = [part for part in (change.value or "").split(",") if part]
            if change.config_operation == APPEND:
                now += [part for part in given if part not in now]
            else:
                now = [part for part in now if part not in given]
            configs[change.name] = ",".join(now)
        else:
            raise InvalidConfigError(f"Unknown operation {change.config_operation} on config {change.name}.")
    return configs
