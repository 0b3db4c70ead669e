"""The condition Complete, and the early warning before the log deletes records that have not landed."""

from collections.abc import Mapping

from firn.model import names
from firn.model.conditions import Reason
from firn.model.progress import described, is_part_of
from firn_controllers.conditions.render import Verdict
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.policies.audits import open_finding
from firn_controllers.policies.outcome import audit_section
from firn_controllers.ports import Manifest

KEPT = -1
"""Value of retention.ms and retention.bytes of a log that does not delete records for their age or size."""
WARNED_AT = 0.5
"""Share of the log's retention from which waiting records are near their deletion."""

LISTED = 8
"""Number of tables whose losses the status lists. The offsets of earlier ones are added to the next."""


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
    if names.ACKNOWLEDGE_AUDIT in observed.annotations:
        command += f"; annotation {names.ACKNOWLEDGE_AUDIT} names another finding"
    return Verdict(
        "False",
        Reason.AUDIT_FAILED,
        f"an audit found {failed['missing']} records without a row, {failed['doubled']} surplus rows and {failed['stray']} rows beyond the"
        f" landed offsets, for example at {place}; see all of them with firn audit {namespace}/{name}, find the writer that changed the table,"
        f" then acknowledge the finding: {command}",
    )


def unacknowledged(observed: ObservedTopic) -> list[Manifest]:
    """Return the losses that no annotation acknowledges, by table, oldest first, as the status keeps them.

    A table that was dropped or replaced took its record of losses with it. So the status keeps them.
    """
    name = observed.annotations.get(names.ACKNOWLEDGE_LOSS)
    kept: list[Manifest] = list(observed.entry.status.get("losses") or [])
    # A name acknowledges all earlier losses, too.
    kept = kept[next((number for number, item in enumerate(kept, 1) if item["name"] == name), 0) :]
    losses = observed.progress.losses if observed.progress is not None else None
    if losses is None:
        return kept
    acknowledged = losses.acknowledged(name)
    if acknowledged:
        kept = []
    offsets, ranges = losses.since(acknowledged)
    kept = [item for item in kept if not losses.covers(item["name"])]
    # If a user restores earlier metadata, the table does not have its newest losses.
    restored = any(is_part_of(losses.name, item["name"]) for item in kept)
    if offsets and not restored:
        kept.append({"name": losses.name, "offsets": offsets, "ranges": described(ranges)})
    while len(kept) > LISTED:
        kept[:2] = [{**kept[1], "offsets": kept[0]["offsets"] + kept[1]["offsets"]}]
    return kept


def _landed(observed: ObservedTopic) -> Verdict:
    found = unacknowledged(observed)
    progress, annotation = observed.progress, observed.annotations.get(names.ACKNOWLEDGE_LOSS)
    if not found:
        if progress is None or progress.losses is None:
            return Verdict("Unknown", Reason.UNKNOWN, "the ingestion driver has not reported on the table yet")
        if progress.losses.newest or annotation is not None:
            return Verdict("True", Reason.EVERY_OFFSET, "no loss of records is known after the acknowledged loss")
        return Verdict("True", Reason.EVERY_OFFSET, "no loss of records is known")
    namespace, name = observed.entry.name
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.ACKNOWLEDGE_LOSS}={found[-1]['name']}"
    if annotation is not None and not any(is_part_of(annotation, item["name"]) for item in found):
        command += f"; annotation {names.ACKNOWLEDGE_LOSS} names no loss of this table"
    return Verdict(
        "False",
        Reason.RECORDS_LOST,
        f"{sum(item['offsets'] for item in found)} offsets are lost: {'; '.join(item['ranges'] for item in found)}; if the log deleted"
        f" records, raise its retention.ms or the resources of the group, then acknowledge the loss: {command}",
    )


def near_retention(configs: Mapping[str, str], lag_seconds: float | None, lag_bytes: float | None) -> str | None:
    """Return the config of the log, and its value, that will delete waiting records, if they are half way to it; else None.

    ``configs``: those of the Kafka topic, with the brokers' defaults. ``lag_bytes`` are those of one partition.
    """
    limits = (
        ("retention.ms", retention_ms(configs), (lag_seconds or 0.0) * 1000),
        ("retention.bytes", retention_bytes(configs), lag_bytes or 0.0),
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
