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
    """What to announce of a maintenance run that ended (``run`` as status has it): that it failed, and what it did all the same, as its
    parts do not depend on each other; nothing where there was nothing to do."""
    found: list[Announcement] = []
    name = f"run {run['name']}"
    if run["result"] == "Failed":
        found.append(Announcement("Warning", EventReason.RUN_FAILED, f"{name}: {run.get('message', 'failed')}"))
    if "mode" not in run:
        if run.get("commits"):
            found.append(Announcement("Normal", EventReason.COMPACTED, f"{name}: {_compacted(run)}"))
        return found
    parts = [
        f"{part['items'] or part['files']} {what} ({part['bytes']} bytes in {part['files']} files)"
        + (f" such as {part['sample'][0]}" if part.get("sample") else "")
        for key, what in _PARTS
        if (part := run.get(key)) and (part["items"] or part["files"])
    ]
    if run["mode"] == "Enforce":
        if parts:
            found.append(Announcement("Normal", EventReason.DELETED, f"{name}: deleted {'; '.join(parts)}"))
    elif parts or run["result"] == "Succeeded":
        message = f"{name}, mode DryRun: would delete {'; '.join(parts) or 'nothing'}"
        found.append(Announcement("Normal", EventReason.WOULD_DELETE, message))
    return found


def _compacted(run: Mapping[str, Any]) -> str:
    """What a compaction that committed something did. Others write to the table meanwhile, so that counts differ says nothing alone."""
    found = []
    manifests = run.get("manifestsBefore", 0), run.get("manifestsAfter", 0)
    if run["bytesRewritten"]:
        # A run that failed may not have come to count what is there after it.
        counted = run["filesAfter"] or manifests[1]
        files = f"{run['filesBefore']} data files became {run['filesAfter']}, " if counted else ""
        found.append(f"{files}{run['bytesRewritten']} bytes rewritten")
    if run["deleteFilesRemoved"]:
        found.append(f"{run['deleteFilesRemoved']} delete files removed")
    if 0 < manifests[1] < manifests[0]:
        found.append(f"{manifests[0]} manifests became {manifests[1]}")
    return "; ".join(found) or f"{run['commits']} commits"


_PARTS = (
    ("rows", "rows"),
    ("snapshots", "snapshots"),
    ("orphanFiles", "orphan files"),
    ("metadataFiles", "metadata files"),
)
