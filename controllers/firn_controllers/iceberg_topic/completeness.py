"""The condition Complete, and the early warning before the log deletes records that have not landed."""

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import FirnError
from firn.model.progress import described
from firn_controllers.conditions.render import Verdict
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.ports import TopicState

KEPT = -1
"""Value of retention.ms of a log that deletes no records by their age."""
WARNED_AT = 0.5
"""Share of the log's retention from which waiting records are near their deletion."""


def complete(observed: ObservedTopic) -> Verdict:
    """Return whether records were lost before they landed. A loss stays until an annotation acknowledges it."""
    losses = observed.progress.losses if observed.progress is not None else None
    if losses is None:
        before = next(
            (item for item in observed.entry.status.get("conditions") or [] if item["type"] == ConditionType.COMPLETE),
            None,
        )
        if before is not None and before["status"] == "False":
            return Verdict("False", Reason.RECORDS_LOST, before["message"])
        return Verdict("Unknown", Reason.UNKNOWN, "the ingestion driver has not reported on the table yet")
    acknowledged = losses.acknowledged(observed.annotations.get(names.ACKNOWLEDGE_LOSS))
    offsets, ranges = losses.since(acknowledged)
    if not offsets:
        if losses.newest:
            return Verdict(
                "True", Reason.EVERY_OFFSET, "no offset has passed without landing since the acknowledged loss"
            )
        return Verdict("True", Reason.EVERY_OFFSET, "no offset of the Kafka topic has passed without landing")
    namespace, name = observed.entry.name
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.ACKNOWLEDGE_LOSS}={losses.name}"
    if names.ACKNOWLEDGE_LOSS in observed.annotations and not acknowledged:
        command += f"; annotation {names.ACKNOWLEDGE_LOSS} names no loss of this table"
    return Verdict(
        "False",
        Reason.RECORDS_LOST,
        f"{offsets} offsets are lost: {described(ranges)}; if the log deleted records, raise its retention.ms or the resources of the group,"
        f" then acknowledge the loss: {command}",
    )


def near_retention(topic: TopicState | FirnError | None, lag_seconds: float) -> int | None:
    """Return the log's retention in milliseconds if records have waited for half of it, else None.

    The retention is that of the topic, or the brokers' default.
    """
    if not isinstance(topic, TopicState):
        return None
    configs = {**topic.defaults, **topic.configs}
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return None
    try:
        retention = int(configs.get("retention.ms", KEPT))
    except ValueError:
        return None
    return retention if 0 < retention * WARNED_AT <= lag_seconds * 1000 else None
