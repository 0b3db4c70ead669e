"""The condition Complete, and the early warning before the log deletes records that have not landed."""

from collections.abc import Mapping

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn.model.errors import FirnError
from firn.model.progress import described
from firn_controllers.conditions.render import Verdict
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.policies.audits import open_finding
from firn_controllers.policies.outcome import audit_section
from firn_controllers.ports import TopicState

KEPT = -1
"""Value of retention.ms and retention.bytes of a log that does not delete records for their age or size."""
WARNED_AT = 0.5
"""Share of the log's retention from which waiting records are near their deletion."""


def complete(observed: ObservedTopic) -> Verdict:
    """Return whether records were lost before they landed, or an audit failed.

    Both stay until an annotation acknowledges them.
    """
    landed = _landed(observed)
    return landed if landed.reason == Reason.RECORDS_LOST else _failed_audit(observed) or landed


def _failed_audit(observed: ObservedTopic) -> Verdict | None:
    status = observed.entry.status
    audit = audit_section(observed.maintenance, status.get("audit") or {})
    failed = open_finding({**status, "audit": audit}, observed.annotations)
    if failed is None:
        return None
    namespace, name = observed.entry.name
    place = f"partition {failed['partition']}, offset {failed['offset']}" if "partition" in failed else "an offset"
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.ACKNOWLEDGE_AUDIT}={failed['run']}"
    return Verdict(
        "False",
        Reason.AUDIT_FAILED,
        f"an audit found {failed['missing']} records without a row, {failed['doubled']} surplus rows and {failed['stray']} rows beyond the"
        f" landed offsets, for example at {place}; see all of them with firn audit {namespace}/{name}, find the writer that changed the table,"
        f" then acknowledge the finding: {command}",
    )


def _landed(observed: ObservedTopic) -> Verdict:
    losses = observed.progress.losses if observed.progress is not None else None
    if losses is None:
        before = next(
            (item for item in observed.entry.status.get("conditions") or [] if item["type"] == ConditionType.COMPLETE),
            None,
        )
        if before is not None and before["reason"] == Reason.RECORDS_LOST:
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


def near_retention(topic: TopicState | FirnError | None, lag_seconds: float, lag_bytes: float) -> str | None:
    """Return the config of the log, and its value, that will delete waiting records, if they are half way to it; else None.

    The config is that of the topic, or the brokers' default. ``lag_bytes`` are those of one partition.
    """
    if not isinstance(topic, TopicState):
        return None
    limits = (
        ("retention.ms", retention_ms(topic.effective), lag_seconds * 1000),
        ("retention.bytes", retention_bytes(topic.effective), lag_bytes),
    )
    near = (f"{key}={limit}" for key, limit, lag in limits if limit is not None and limit * WARNED_AT <= lag)
    return next(near, None)


def retention_ms(configs: Mapping[str, str]) -> int | None:
    """Return the milliseconds after which the log deletes records, None if it does not, or if they are not known."""
    return _retention(configs, "retention.ms")


def retention_bytes(configs: Mapping[str, str]) -> int | None:
    """Return the bytes of a partition above which the log deletes records, None if it does not."""
    return _retention(configs, "retention.bytes")


def _retention(configs: Mapping[str, str], key: str) -> int | None:
    if "delete" not in configs.get("cleanup.policy", "delete"):
        return None
    try:
        limit = int(configs.get(key, KEPT))
    except ValueError:
        return None
    return limit if limit > 0 else None
