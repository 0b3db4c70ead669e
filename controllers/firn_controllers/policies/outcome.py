"""The effect of policies on one topic, and the parts of the topic's status that show it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from firn.model.conditions import Reason
from firn_controllers.cache.policies import KINDS, Kind, Resolution
from firn_controllers.conditions.render import Verdict, timestamp
from firn_controllers.policies.runs import RunHistory
from firn_controllers.ports import Manifest, TableDebt

SECTIONS: Mapping[Kind, str] = {"CompactionPolicy": "compaction", "RetentionPolicy": "retention"}
FIGURES = (
    "dataFiles",
    "dataBytes",
    "smallFiles",
    "dueFiles",
    "deleteFiles",
    "manifests",
    "snapshots",
    "metadataBytes",
    "oldestUncompactedTime",
)
"""Keys of ``status.maintenance`` that are written at most once a minute."""
UNFINISHED = "the last run ended before all of its work was done; the rest is due again"


def recorded(status: Mapping[str, Any], kind: Kind) -> Mapping[str, Any]:
    """Return the history of runs of a kind in a topic's status."""
    if kind == "Audit":
        return status.get("audit") or {}
    return (status.get("maintenance") or {}).get(SECTIONS[kind]) or {}


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """The effect of a policy on one topic. A topic is woken only if it changes."""

    policy: str
    history: RunHistory = field(default_factory=RunHistory)
    next: datetime | None = None
    overdue: str = ""
    """The reason why a due run has not started within the deadline."""


@dataclass(frozen=True, slots=True)
class PolicyBinding:
    """The policy of one kind that governs a topic. ``outcome`` is None until the policy has been reconciled."""

    resolution: Resolution = field(default_factory=Resolution)
    outcome: PolicyOutcome | None = None


@dataclass(frozen=True, slots=True)
class TopicMaintenance:
    """The policies of a topic by kind, and the debt of its table if it was measured."""

    bindings: Mapping[Kind, PolicyBinding] = field(default_factory=dict)
    debt: TableDebt | None = None
    audit: PolicyOutcome | None = None
    """The audits of the topic. None before they were looked at, and without a schedule."""
    replay_ms: int = 0
    """The longest deadline of a replay of the topic's dead letters that has not ended, in milliseconds."""


def audit_section(maintenance: TopicMaintenance, previous: Mapping[str, Any]) -> Manifest:
    """Compute ``status.audit``. Findings stay without a schedule."""
    if maintenance.audit is None:
        return RunHistory.from_status(previous).to_status()
    section = maintenance.audit.history.to_status()
    if maintenance.audit.next is not None:
        section["nextRunTime"] = _next_text(maintenance.audit.next)
    return section


def maintenance_section(maintenance: TopicMaintenance, previous: Mapping[str, Any]) -> Manifest:
    """Compute ``status.maintenance``."""
    status: Manifest = {key: previous[key] for key in FIGURES if key in previous}
    debt = maintenance.debt
    if debt is not None:
        status = {
            "dataFiles": debt.data_files,
            "dataBytes": debt.data_bytes,
            "smallFiles": debt.small_files,
            "dueFiles": debt.due_files,
            "deleteFiles": debt.delete_files,
            "manifests": debt.manifests,
            "snapshots": debt.snapshots,
            "metadataBytes": debt.metadata_bytes,
        }
        governing = maintenance.bindings.get("CompactionPolicy", PolicyBinding()).resolution
        if debt.oldest_due is not None and governing.policy is not None and governing.followed:
            status["oldestUncompactedTime"] = timestamp(max(debt.oldest_due, governing.policy.created))
    for kind, binding in maintenance.bindings.items():
        section = _section(binding, previous.get(SECTIONS[kind]) or {})
        if section:
            status[SECTIONS[kind]] = section
    return status


def _section(binding: PolicyBinding, before: Mapping[str, Any]) -> Manifest:
    policy = binding.resolution.policy
    if policy is None or binding.resolution.because is None:
        return {}
    if not binding.resolution.followed:
        return RunHistory.from_status(before).to_status()  # the history of the table stays true without a policy
    section: Manifest = {"policy": policy.name[1], "because": binding.resolution.because}
    outcome = binding.outcome
    if outcome is None or outcome.policy != policy.name[1]:
        # The policy has not been reconciled yet. The history of the table stays true under any policy.
        kept = RunHistory.from_status(before).to_status()
        if "nextRunTime" in before and before.get("policy") == policy.name[1]:
            kept["nextRunTime"] = before["nextRunTime"]
        return section | kept
    section |= outcome.history.to_status()
    if outcome.next is not None:
        section["nextRunTime"] = _next_text(outcome.next)
    return section


def _next_text(moment: datetime) -> str:
    """Return a time in whole minutes, rounded up. Users need no more, and status is written less often."""
    whole = moment.astimezone(UTC).replace(second=0, microsecond=0)
    return timestamp(whole if whole == moment else whole + timedelta(minutes=1))


def significant_section(section: Mapping[str, Any]) -> Manifest:
    """Return the parts of ``status.maintenance`` that are written as soon as they change: all but figures and the time
    of the next run.
    """
    return {
        key: _without_next_run(value) if isinstance(value, Mapping) else value
        for key, value in section.items()
        if key not in FIGURES
    }


def _without_next_run(part: Mapping[str, Any]) -> Manifest:
    return {name: value for name, value in part.items() if name != "nextRunTime"}


def awaits_policy(maintenance: TopicMaintenance) -> bool:
    """Return whether a governing policy has not been reconciled yet, or nothing is known of policies at all."""
    return not maintenance.bindings or any(
        binding.resolution.followed and binding.outcome is None for binding in maintenance.bindings.values()
    )


def policies_resolved(maintenance: TopicMaintenance) -> Verdict | None:
    """Return the verdict of PoliciesResolved; None while nothing is known."""
    if not maintenance.bindings:
        return None
    resolutions = [maintenance.bindings[kind].resolution for kind in KINDS]
    for resolution in resolutions:
        if resolution.reason is not None:
            return Verdict("False", resolution.reason, resolution.message)
    governing = [resolution.policy for resolution in resolutions if resolution.policy is not None]
    if not governing:
        return Verdict("True", Reason.NO_POLICY, "no policy names or selects the topic")
    verb = "governs" if len(governing) == 1 else "govern"
    policies = " and ".join(f"{policy.kind} {policy.name[1]}" for policy in governing)
    return Verdict("True", Reason.RESOLVED, f"{policies} {verb} the topic")


def maintenance_healthy(maintenance: TopicMaintenance) -> Verdict | None:
    """Return the verdict of MaintenanceHealthy; None if no policy governs the topic, or nothing is known yet."""
    followed = {kind: binding for kind, binding in maintenance.bindings.items() if binding.resolution.followed}
    if not followed or awaits_policy(maintenance):
        return None
    outcomes = [(SECTIONS[kind], binding.outcome) for kind, binding in followed.items() if binding.outcome is not None]
    for part, outcome in outcomes:
        if outcome.history.failures:
            return Verdict(
                "False", Reason.RUN_FAILED, f"{part} by policy {outcome.policy} failed: {outcome.history.cause()}"
            )
    for part, outcome in outcomes:
        if outcome.overdue:
            return Verdict("False", Reason.RUN_OVERDUE, f"{part} by policy {outcome.policy}: {outcome.overdue}")
    results = {outcome.history.result for _, outcome in outcomes}
    if "Unfinished" in results:
        return Verdict("True", Reason.SUCCEEDED, UNFINISHED)
    if "Succeeded" in results:
        return Verdict("True", Reason.SUCCEEDED, "the last runs succeeded")
    return Verdict("True", Reason.NOT_DUE, "no run has been due yet")
