"""Kubernetes Events: one for each transition, each with a fixed reason.

They are for people; no code depends on them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal

from firn.model.conditions import ConditionType, Reason


class EventReason(StrEnum):
    """Reasons of Events: a closed list. docs/reference/conditions.md is generated from these docstrings."""

    CREATED = "Created"
    """The operator created the Kafka topic or the table."""
    ADOPTED = "Adopted"
    """The operator manages a Kafka topic or a table that existed before."""
    CHANGED = "Changed"
    """The operator changed the Kafka topic or the table as the spec asks."""
    DRIFT_REPAIRED = "DriftRepaired"
    """Another client changed the Kafka topic's configs; the operator restored them."""
    DATA_DELETED = "DataDeleted"
    """The operator deleted the Kafka topic or the table, because `deletionPolicy` says Delete."""
    DATA_LEFT_BEHIND = "DataLeftBehind"
    """A deletion ended without deleting all data, or all rights of a TopicUser. The message names what stays."""
    READY = "Ready"
    """The resource became Ready."""
    NOT_READY = "NotReady"
    """The resource is no longer Ready. The message names the cause."""
    SPEC_REFUSED = "SpecRefused"
    """The spec is not valid. Correct the field in the message."""
    HALTED = "HaltedAtRecord"
    """Ingestion stopped at a record that does not fit, because `onBadRecord` or a quality rule is Halt."""
    FELL_BEHIND = "FellBehind"
    """Records wait longer than `spec.ingestion.freshness`."""
    CAUGHT_UP = "CaughtUp"
    """Records are in the table within `spec.ingestion.freshness` again."""
    RECORDS_REJECTED = "RecordsRejected"
    """Records do not fit the schema or the quality rules. They are dead letters, or dropped because `onBadRecord` is Skip."""
    SUSPICIOUS_TIMES = "SuspiciousTimes"
    """Most integers of a column are sensible times only in another unit. The message names `epoch` of the field."""
    CHECKS_FAILED = "ChecksFailed"
    """Main of the table does not follow the branch on which rows land. The message names the check, or the cause."""
    PUBLISHED = "Published"
    """Main of the table follows the branch on which rows land again."""
    RECORDS_LOST = "RecordsLost"
    """The log deleted records before they landed, or lost its end. The message names the offsets."""
    AUDIT_FAILED = "AuditFailed"
    """An audit found records without a row, surplus rows, or rows beyond the landed offsets. The message names one of them."""
    RETENTION_NEAR = "RetentionNear"
    """Waiting records have reached half of the log's retention, by time or by bytes. The message names the config to raise."""
    PAUSED = "Paused"
    """The annotation `firn.dev/pause-reconciliation` pauses reconciliation."""
    UNPAUSED = "Unpaused"
    """Reconciliation continues after a pause."""
    DELETION_BLOCKED = "DeletionBlocked"
    """The deletion of the resource waits. The message names the cause."""
    RUN_STARTED = "RunStarted"
    """The operator created the Job of a maintenance run."""
    RUN_FAILED = "RunFailed"
    """A maintenance run failed."""
    RUN_OVERDUE = "RunOverdue"
    """A due run has not started within `run.deadline`."""
    COMPACTED = "Compacted"
    """A run rewrote data files of the table."""
    WOULD_DELETE = "WouldDelete"
    """A run in mode DryRun reports what it would delete."""
    DELETED = "Deleted"
    """A run in mode Enforce deleted data of the table."""
    REPLAYED = "Replayed"
    """A DeadLetterReplay has ended. The message says how many dead letters became rows, or would with mode DryRun."""
    AVAILABLE = "Available"
    """The brokers, the driver or the catalog answer now."""
    UNAVAILABLE = "Unavailable"
    """The brokers, the driver or the catalog do not answer any more."""
    ROLLING_OUT = "RollingOut"
    """The operator replaces brokers or the driver."""
    ROLLED_OUT = "RolledOut"
    """The operator has replaced all brokers of the profile."""
    CERTIFICATE_STAGE = "CertificateStage"
    """All brokers have reached a stage of a change of the source of their certificate. The message names the next step."""
    SCALE_DOWN_REFUSED = "ScaleDownRefused"
    """The configuration has fewer brokers than exist, or another client added brokers. The operator does not reduce their
    number."""
    DEGRADED = "Degraded"
    """A broker does not run, or a change of the profile cannot take effect. The message names the cause."""
    RECOVERED = "Recovered"
    """All brokers of the profile run again."""
    BROKERS_OPEN = "BrokersOpen"
    """Clients without encryption may do everything at brokers of the profile. The message names the cause. The operator repeats the Event
    each hour."""
    UNENCRYPTED_CLIENTS = "UnencryptedClients"
    """Clients connect to brokers with `plaintext: Keep` without encryption. The message names their addresses."""
    ALL_ENCRYPTED = "AllEncrypted"
    """No client has connected to brokers with `plaintext: Keep` without encryption for ten minutes."""
    TOPICS_CHANGED = "TopicsChanged"
    """The operator created, updated or deleted IcebergTopics of a TopicSet."""
    CREDENTIAL_ISSUED = "CredentialIssued"
    """The Secret of a TopicUser has a new credential."""
    NAMESPACE_TAKEN = "NamespaceTaken"
    """Another release manages the resources of a namespace that this release watches, too."""
    FINALIZED = "MetadataVersionFinalised"
    """The operator finalized the metadata version that the profile names. Brokers of an older release can no longer start."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """An Event to record."""

    type: Literal["Normal", "Warning"]
    reason: EventReason
    message: str


Conditions = Mapping[str, Mapping[str, Any]]
"""The conditions of a status by type."""
Rule = Callable[[Conditions, Conditions], Announcement | None]
"""Compares the conditions before and after a change of status."""


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Announcement]:
    """Return the Events of a change of status from ``before`` to ``after``."""
    old = {item["type"]: item for item in before.get("conditions") or []}
    new = {item["type"]: item for item in after.get("conditions") or []}
    announcements = [item for rule in _RULES if (item := rule(old, new)) is not None]
    for section in ("compaction", "retention", "audit"):
        last, earlier = (_last_run(status, section) for status in (after, before))
        if last is not None and (earlier is None or earlier["name"] != last["name"]):
            announcements += run_ended(last)
    return announcements


def _last_run(status: Mapping[str, Any], section: str) -> Mapping[str, Any] | None:
    sections = status if section == "audit" else status.get("maintenance") or {}
    last: Mapping[str, Any] | None = (sections.get(section) or {}).get("lastRun")
    return last


def _turns(
    kind: ConditionType, status: str, type_: Literal["Normal", "Warning"], reason: EventReason, *, only_from: str = ""
) -> Rule:
    """Announce that the condition gets this status, with the condition's message.

    ``only_from``: the status that it had.
    """

    def rule(old: Conditions, new: Conditions) -> Announcement | None:
        now, earlier = new.get(kind), old.get(kind, {}).get("status")
        if now is None or now["status"] != status or earlier == status:
            return None
        if only_from and earlier != only_from:
            return None
        return Announcement(type_, reason, now["message"])

    return rule


def _ready_lost(old: Conditions, new: Conditions) -> Announcement | None:
    ready = new.get(ConditionType.READY)
    if ready is None or ready["status"] == "True" or old.get(ConditionType.READY, {}).get("status") != "True":
        return None
    if ready["reason"] == Reason.DELETING:
        return None  # its user deletes the resource
    # The user asked for a suspension.
    return Announcement(
        "Normal" if ready["reason"] == Reason.SUSPENDED else "Warning", EventReason.NOT_READY, ready["message"]
    )


def _halted(old: Conditions, new: Conditions) -> Announcement | None:
    ingestion, earlier = new.get(ConditionType.INGESTION_READY, {}), old.get(ConditionType.INGESTION_READY, {})
    if ingestion.get("reason") != Reason.BAD_RECORD_HALT:
        return None
    if earlier.get("reason") == Reason.BAD_RECORD_HALT and earlier.get("message") == ingestion["message"]:
        return None
    return Announcement("Warning", EventReason.HALTED, ingestion["message"])


def _rejected(old: Conditions, new: Conditions) -> Announcement | None:
    accepted, earlier = new.get(ConditionType.RECORDS_ACCEPTED, {}), old.get(ConditionType.RECORDS_ACCEPTED, {})
    reason, before = accepted.get("reason"), earlier.get("reason")
    if reason == before:
        return None
    if reason == Reason.SUSPICIOUS_TIMES:
        return Announcement("Warning", EventReason.SUSPICIOUS_TIMES, accepted["message"])
    # From most to some is an improvement.
    if reason == Reason.MOST_REJECTED or (reason == Reason.SOME_REJECTED and before != Reason.MOST_REJECTED):
        return Announcement("Warning", EventReason.RECORDS_REJECTED, accepted["message"])
    return None


def _lost(old: Conditions, new: Conditions) -> Announcement | None:
    complete, earlier = new.get(ConditionType.COMPLETE, {}), old.get(ConditionType.COMPLETE, {})
    reasons = {Reason.RECORDS_LOST: EventReason.RECORDS_LOST, Reason.AUDIT_FAILED: EventReason.AUDIT_FAILED}
    reason = next((event for of, event in reasons.items() if complete.get("reason") == of), None)
    if reason is None or earlier.get("message") == complete["message"]:
        return None
    return Announcement("Warning", reason, complete["message"])


def _fell_behind(old: Conditions, new: Conditions) -> Announcement | None:
    if new.get(ConditionType.FRESH, {}).get("reason") == Reason.RETENTION_NEAR:
        return None  # The freshness may be longer than the retention of the log.
    return _turns(ConditionType.FRESH, "False", "Warning", EventReason.FELL_BEHIND)(old, new)


def _retention_near(old: Conditions, new: Conditions) -> Announcement | None:
    fresh, earlier = new.get(ConditionType.FRESH, {}), old.get(ConditionType.FRESH, {})
    if fresh.get("reason") != Reason.RETENTION_NEAR or earlier.get("reason") == Reason.RETENTION_NEAR:
        return None
    return Announcement("Warning", EventReason.RETENTION_NEAR, fresh["message"])


def _unpaused(old: Conditions, new: Conditions) -> Announcement | None:
    if ConditionType.PAUSED not in old or ConditionType.PAUSED in new:
        return None
    return Announcement("Normal", EventReason.UNPAUSED, "reconciliation continues")


def _overdue(old: Conditions, new: Conditions) -> Announcement | None:
    if new.get(ConditionType.MAINTENANCE_HEALTHY, {}).get("reason") != Reason.RUN_OVERDUE:
        return None
    return _turns(ConditionType.MAINTENANCE_HEALTHY, "False", "Warning", EventReason.RUN_OVERDUE)(old, new)


_RULES: tuple[Rule, ...] = (
    _turns(ConditionType.READY, "True", "Normal", EventReason.READY),
    _ready_lost,
    _turns(ConditionType.SPEC_VALID, "False", "Warning", EventReason.SPEC_REFUSED),
    _halted,
    _fell_behind,
    _retention_near,
    _turns(ConditionType.FRESH, "True", "Normal", EventReason.CAUGHT_UP, only_from="False"),
    _rejected,
    _lost,
    _turns(ConditionType.PUBLISHED, "False", "Warning", EventReason.CHECKS_FAILED),
    _turns(ConditionType.PUBLISHED, "True", "Normal", EventReason.PUBLISHED, only_from="False"),
    _turns(ConditionType.PAUSED, "True", "Normal", EventReason.PAUSED),
    _unpaused,
    _turns(ConditionType.DELETION_BLOCKED, "True", "Warning", EventReason.DELETION_BLOCKED),
    _overdue,
)


def run_ended(run: Mapping[str, Any]) -> list[Announcement]:
    """Return the Events of a maintenance run that ended. ``run`` is the run as status shows it.

    The parts of a run do not depend on each other, so a failed run may have done some of its work: both are announced.
    A run without work is not announced.
    """
    announcements: list[Announcement] = []
    name = f"run {run['name']}"
    if run["result"] == "Failed":
        announcements.append(Announcement("Warning", EventReason.RUN_FAILED, f"{name}: {run.get('message', 'failed')}"))
    if "mode" not in run:
        if run.get("commits"):
            announcements.append(Announcement("Normal", EventReason.COMPACTED, f"{name}: {_compacted(run)}"))
        return announcements
    parts = [
        f"{part['items'] or part['files']} {what} ({part['bytes']} bytes in {part['files']} files)"
        + (f" such as {part['sample'][0]}" if part.get("sample") else "")
        for key, what in _PARTS
        if (part := run.get(key)) and (part["items"] or part["files"])
    ]
    if run["mode"] == "Enforce":
        if parts:
            announcements.append(Announcement("Normal", EventReason.DELETED, f"{name}: deleted {'; '.join(parts)}"))
    elif parts or run["result"] == "Succeeded":
        message = f"{name}, mode DryRun: would delete {'; '.join(parts) or 'nothing'}"
        announcements.append(Announcement("Normal", EventReason.WOULD_DELETE, message))
    return announcements


def _compacted(run: Mapping[str, Any]) -> str:
    """Describe the work of a compaction that committed something.

    Other writers commit at the same time, so a difference between counts of files alone proves nothing.
    """
    parts = []
    manifests = run.get("manifestsBefore", 0), run.get("manifestsAfter", 0)
    if run["bytesRewritten"]:
        # A failed run may end before it counts the files after it.
        counted = run["filesAfter"] or manifests[1]
        files = f"{run['filesBefore']} data files became {run['filesAfter']}, " if counted else ""
        parts.append(f"{files}{run['bytesRewritten']} bytes rewritten")
    if run["deleteFilesRemoved"]:
        parts.append(f"{run['deleteFilesRemoved']} delete files removed")
    if 0 < manifests[1] < manifests[0]:
        parts.append(f"{manifests[0]} manifests became {manifests[1]}")
    return "; ".join(parts) or f"commits: {run['commits']}"


_PARTS = (
    ("rows", "rows"),
    ("snapshots", "snapshots"),
    ("orphanFiles", "orphan files"),
    ("metadataFiles", "metadata files"),
)
