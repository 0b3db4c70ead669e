"""What a policy's reconciler finds out of one topic, for the topic's own status; and that status."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from firn.model.conditions import Reason
from firn_controllers.cache.policies import KINDS, Kind, Resolution
from firn_controllers.policies.runs import History, time_text
from firn_controllers.ports import Manifest, TableDebt

SECTIONS: Mapping[Kind, str] = {"CompactionPolicy": "compaction", "RetentionPolicy": "retention"}
FIGURES = (
    "dataFiles",
    "dataBytes",
    "smallFiles",
    "deleteFiles",
    "manifests",
    "snapshots",
    "metadataBytes",
    "oldestUncompactedTime",
)
"""Keys of ``status.maintenance`` that are written at most once a minute."""
UNFINISHED = "a run ended before all of its work was done; the rest is due again"

Said = tuple[Literal["True", "False"], Reason, str]
"""Status, reason and message of a condition."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """One topic under one policy. Equal ones wake nobody."""

    policy: str
    history: History = field(default_factory=History)
    next: datetime | None = None
    overdue: str = ""
    """Why a run that is due has not started for too long."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The policy of one kind, as far as a topic is concerned. ``upkeep`` is None until the policy has been looked at."""

    resolution: Resolution = field(default_factory=Resolution)
    upkeep: Upkeep | None = None


@dataclass(frozen=True, slots=True)
class Maintained:
    """What a topic's status says of its maintenance: by kind of policy, and the table's debt where it was measured."""

    bounds: Mapping[Kind, Bound] = field(default_factory=dict)
    debt: TableDebt | None = None


def document(maintained: Maintained, previous: Mapping[str, Any]) -> Manifest:
    """``status.maintenance``."""
    found: Manifest = {key: previous[key] for key in FIGURES if key in previous}
    debt = maintained.debt
    if debt is not None:
        found = {
            "dataFiles": debt.data_files,
            "dataBytes": debt.data_bytes,
            "smallFiles": debt.small_files,
            "deleteFiles": debt.delete_files,
            "manifests": debt.manifests,
            "snapshots": debt.snapshots,
            "metadataBytes": debt.metadata_bytes,
        }
        governing = maintained.bounds.get("CompactionPolicy", Bound()).resolution
        if debt.oldest_due is not None and governing.policy is not None and governing.followed:
            found["oldestUncompactedTime"] = time_text(max(debt.oldest_due, governing.policy.created))
    for kind, bound in maintained.bounds.items():
        section = _section(bound, previous.get(SECTIONS[kind]) or {})
        if section:
            found[SECTIONS[kind]] = section
    return found


def _section(bound: Bound, before: Mapping[str, Any]) -> Manifest:
    policy = bound.resolution.policy
    if policy is None or bound.resolution.because is None:
        return {}
    found: Manifest = {"policy": policy.name[1], "because": bound.resolution.because}
    upkeep = bound.upkeep
    if upkeep is None or upkeep.policy != policy.name[1]:
        # Not looked at yet. What became of the table stays true, whichever policy it was under.
        kept = History.of(before).section()
        if "nextRunTime" in before and before.get("policy") == policy.name[1]:
            kept["nextRunTime"] = before["nextRunTime"]
        return found | kept
    found |= upkeep.history.section()
    if upkeep.next is not None:
        found["nextRunTime"] = _next_text(upkeep.next)
    return found


def _next_text(moment: datetime) -> str:
    """Whole minutes, rounded up: who reads it has no use for more, and status is written less often."""
    whole = moment.astimezone(UTC).replace(second=0, microsecond=0)
    return time_text(whole if whole == moment else whole + timedelta(minutes=1))


def significant(section: Mapping[str, Any]) -> Manifest:
    """What of ``status.maintenance`` is written at once when it changes: everything but figures, and when a run is next due."""
    return {
        key: {name: it for name, it in value.items() if name != "nextRunTime"} if isinstance(value, Mapping) else value
        for key, value in section.items()
        if key not in FIGURES
    }


def pending(maintained: Maintained) -> bool:
    """A policy governs that has not been looked at yet, or nothing is known of policies at all."""
    return not maintained.bounds or any(
        it.resolution.followed and it.upkeep is None for it in maintained.bounds.values()
    )


def resolved(maintained: Maintained) -> Said | None:
    """What PoliciesResolved says; None while nothing is known."""
    if not maintained.bounds:
        return None
    resolutions = [maintained.bounds[kind].resolution for kind in KINDS]
    for found in resolutions:
        if found.reason is not None:
            return "False", found.reason, found.message
    governing = [found.policy for found in resolutions if found.policy is not None]
    if not governing:
        return "True", Reason.NO_POLICY, "no policy names or selects the topic"
    return "True", Reason.RESOLVED, " and ".join(f"{it.kind} {it.name[1]}" for it in governing) + " governs"


def healthy(maintained: Maintained) -> Said | None:
    """What MaintenanceHealthy says; None where no policy governs, or nothing is known yet."""
    followed = {kind: it for kind, it in maintained.bounds.items() if it.resolution.followed}
    if not followed or pending(maintained):
        return None
    upkeeps = [(SECTIONS[kind], it.upkeep) for kind, it in followed.items() if it.upkeep is not None]
    for part, upkeep in upkeeps:
        if upkeep.history.failures:
            message = upkeep.history.message or "see the Job's log"
            return "False", Reason.RUN_FAILED, f"{part} by policy {upkeep.policy} failed: {message}"
    for part, upkeep in upkeeps:
        if upkeep.overdue:
            return "False", Reason.RUN_OVERDUE, f"{part} by policy {upkeep.policy}: {upkeep.overdue}"
    results = {upkeep.history.result for _, upkeep in upkeeps}
    if "Unfinished" in results:
        return "True", Reason.SUCCEEDED, UNFINISHED
    if "Succeeded" in results:
        return "True", Reason.SUCCEEDED, "the last runs succeeded"
    return "True", Reason.NOT_DUE, "no run has been due yet"
