"""IncrementalAlterConfigs (44), versions 0 and 1: configs of topics are set (0), unset (1), or lists appended to (2) and taken from (3)."""

from firn.records.messages import Fields
from firn_broker.apis.alter_configs import alter
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.configs import DEFINITIONS, LISTS, InvalidConfigError

KEY = 44
VERSIONS = (0, 1)
SET, DELETE, APPEND, SUBTRACT = range(4)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    return {
        "responses": [
            await alter(broker, one, changed, validate_only=request.validate_only)  # type: ignore[attr-defined]
            for one in request.resources  # type: ignore[attr-defined]
        ]
    }


def changed(topic: Topic, resource: object) -> dict[str, str | None]:
    """The topic's new configs. Raises InvalidConfigError."""
    found: dict[str, str | None] = dict(topic.configs)
    for it in resource.configs:  # type: ignore[attr-defined]
        if it.name not in DEFINITIONS:
            raise InvalidConfigError(f"Unknown topic config name: {it.name}")
        if it.config_operation == SET:
            found[it.name] = it.value
        elif it.config_operation == DELETE:
            found.pop(it.name, None)
        elif it.config_operation in (APPEND, SUBTRACT):
            if it.name not in LISTS:
                raise InvalidConfigError(f"Config {it.name} is no list.")
            now = [part for part in (found.get(it.name) or DEFINITIONS[it.name].default).split(",") if part]
            given = [part for part in (it.value or "").split(",") if part]
            if it.config_operation == APPEND:
                now += [part for part in given if part not in now]
            else:
                now = [part for part in now if part not in given]
            found[it.name] = ",".join(now)
        else:
            raise InvalidConfigError(f"Unknown operation {it.config_operation} on config {it.name}.")
    return found
