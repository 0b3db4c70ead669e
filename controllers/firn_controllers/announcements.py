"""Kubernetes Events: transitions only, each with one fixed reason. They are for people; nothing depends on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from firn.model.conditions import ConditionType, Reason


class EventReason(StrEnum):
    """Every reason an Event of ours can have."""

    # An IcebergTopic: what was done
    CREATED = "Created"
    ADOPTED = "Adopted"
    CHANGED = "Changed"
    DRIFT_REPAIRED = "DriftRepaired"
    DATA_DELETED = "DataDeleted"
    DATA_LEFT_BEHIND = "DataLeftBehind"
    # An IcebergTopic: what its conditions came to
    READY = "Ready"
    NOT_READY = "NotReady"
    SPEC_REFUSED = "SpecRefused"
    HALTED = "HaltedAtRecord"
    FELL_BEHIND = "FellBehind"
    CAUGHT_UP = "CaughtUp"
    PAUSED = "Paused"
    UNPAUSED = "Unpaused"
    DELETION_BLOCKED = "DeletionBlocked"
    # Policies and their topics
    RUN_STARTED = "RunStarted"
    RUN_FAILED = "RunFailed"
    RUN_OVERDUE = "RunOverdue"
    COMPACTED = "Compacted"
    WOULD_DELETE = "WouldDelete"
    DELETED = "Deleted"
    # Fleets, groups and catalogs
    AVAILABLE = "Available"
    UNAVAILABLE = "Unavailable"
    ROLLING_OUT = "RollingOut"
    ROLLED_OUT = "RolledOut"
    SCALE_DOWN_REFUSED = "ScaleDownRefused"
    DEGRADED = "Degraded"
    RECOVERED = "Recovered"
    FINALISED = "MetadataVersionFinalised"


@dataclass(frozen=True, slots=True)
class Announcement:
    """One Event to record."""

    type: Literal["Normal", "Warning"]
    reason: EventReason
    message: str


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Announcement]:
    """What to announce when a status goes from ``before`` to ``after``."""
    old = {item["type"]: item for item in before.get("conditions") or []}
    new = {item["type"]: item for item in after.get("conditions") or []}

    def flipped(kind: ConditionType, status: str) -> str | None:
        now = new.get(kind)
        if now is None or now["status"] != status or old.get(kind, {}).get("status") == status:
            return None
        message: str = now["message"]
        return message

    found: list[Announcement] = []
    if (message := flipped(ConditionType.READY, "True")) is not None:
        found.append(Announcement("Normal", EventReason.READY, message))
    was_ready = old.get(ConditionType.READY, {}).get("status") == "True"
    ready = new.get(ConditionType.READY)
    if was_ready and ready is not None and ready["status"] != "True":
        found.append(Announcement("Warning", EventReason.NOT_READY, ready["message"]))
    if (message := flipped(ConditionType.SPEC_VALID, "False")) is not None:
        found.append(Announcement("Warning", EventReason.SPEC_REFUSED, message))
    ingestion, earlier = new.get(ConditionType.INGESTION_READY), old.get(ConditionType.INGESTION_READY, {})
    if (
        ingestion is not None
        and ingestion["reason"] == Reason.BAD_RECORD_HALT
        and (earlier.get("reason") != Reason.BAD_RECORD_HALT or earlier.get("message") != ingestion["message"])
    ):
        found.append(Announcement("Warning", EventReason.HALTED, ingestion["message"]))
    if (message := flipped(ConditionType.FRESH, "False")) is not None:
        found.append(Announcement("Warning", EventReason.FELL_BEHIND, message))
    was_behind = old.get(ConditionType.FRESH, {}).get("status") == "False"
    if was_behind and (message := flipped(ConditionType.FRESH, "True")) is not None:
        found.append(Announcement("Normal", EventReason.CAUGHT_UP, message))
    if (message := flipped(ConditionType.PAUSED, "True")) is not None:
        found.append(Announcement("Normal", EventReason.PAUSED, message))
    if ConditionType.PAUSED in old and ConditionType.PAUSED not in new:
        found.append(Announcement("Normal", EventReason.UNPAUSED, "reconciliation goes on"))
    if (message := flipped(ConditionType.DELETION_BLOCKED, "True")) is not None:
        found.append(Announcement("Warning", EventReason.DELETION_BLOCKED, message))
    healthy = new.get(ConditionType.MAINTENANCE_HEALTHY, {})
    if (message := flipped(ConditionType.MAINTENANCE_HEALTHY, "False")) and healthy["reason"] == Reason.RUN_OVERDUE:
        found.append(Announcement("Warning", EventReason.RUN_OVERDUE, message))
    for section in ("compaction", "retention"):
        last, earlier_run = (
            ((it.get("maintenance") or {}).get(section) or {}).get("lastRun") for it in (after, before)
        )
        if last is not None and (earlier_run is None or earlier_run["name"] != last["name"]):
            found += run_ended(last)
    return found


def run_ended(run: Mapping[str, Any]) -> list[Announcement]:
    """What to announce of a maintenance run that ended (``run`` as status has it): nothing where there was nothing to do."""
    if run["result"] == "Failed":
        return [Announcement("Warning", EventReason.RUN_FAILED, f"run {run['name']}: {run.get('message', 'failed')}")]
    if run["result"] not in ("Succeeded", "Unfinished"):
        return []
    if "mode" not in run:
        if not run.get("commits"):
            return []
        message = f"{run['filesBefore']} data files became {run['filesAfter']}, {run['bytesRewritten']} bytes rewritten"
        return [Announcement("Normal", EventReason.COMPACTED, f"run {run['name']}: {message}")]
    parts = [
        f"{part['items'] or part['files']} {what} ({part['bytes']} bytes in {part['files']} files)"
        + (f" such as {part['sample'][0]}" if part.get("sample") else "")
        for key, what in _PARTS
        if (part := run.get(key)) and (part["items"] or part["files"])
    ]
    if run["mode"] == "DryRun":
        if run["result"] != "Succeeded":
            return []
        message = f"would delete {'; '.join(parts)}" if parts else "would delete nothing"
        return [Announcement("Normal", EventReason.WOULD_DELETE, f"run {run['name']}, mode DryRun: {message}")]
    if not parts:
        return []
    return [Announcement("Normal", EventReason.DELETED, f"run {run['name']}: deleted {'; '.join(parts)}")]


_PARTS = (
    ("rows", "rows"),
    ("snapshots", "snapshots"),
    ("orphanFiles", "orphan files"),
    ("metadataFiles", "metadata files"),
)
