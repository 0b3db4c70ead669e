"""The status document of one policy, computed whole from what was observed, written only when it says something new."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.conditions.render import Verdict, paused_over, rendered
from firn_controllers.conditions.stable_text import steady
from firn_controllers.policies.outcome import UNFINISHED, PolicyOutcome
from firn_controllers.policies.runs import EARLIEST, PolicyRun, run_status, time_text
from firn_controllers.ports import Manifest

TROUBLED_AFTER = timedelta(minutes=2)
"""So long a run's pod may take to start before the policy says why it does not."""


@dataclass(frozen=True, slots=True)
class Observed:
    """One policy and what it came to, at one moment."""

    policy: PolicyEntry
    governed: Mapping[str, PolicyOutcome]
    """By ``namespace/name`` of the topic; those for which the policy is followed."""
    bound: Mapping[str, str]
    """By name of the topic, of all that it governs: because of what."""
    refused: int
    """Topics that it governs but does not fit."""
    runs: Sequence[PolicyRun]
    """Of this policy, those whose Jobs are still there, and that either work or have said their last word."""
    now: datetime


def of(observed: Observed) -> Manifest:
    """The whole status."""
    policy = observed.policy
    previous = policy.status
    found: Manifest = {
        "observedGeneration": policy.generation,
        "conditions": rendered(conditions(observed), previous, policy.generation, observed.now),
    }
    if policy.resource is not None:
        found["topics"] = len(observed.bound)
        if observed.bound:
            first = sorted(observed.bound.items())[:20]
            found["governs"] = [{"topic": name, "because": because} for name, because in first]
        if observed.refused:
            found["topicsRefused"] = observed.refused
    active = sorted((it for it in observed.runs if it.active), key=lambda it: (it.job.created, it.name))
    if active:
        found["activeRuns"] = [run_status(it, []) | {"tables": len(it.uids)} for it in active[:20]]
    request = _answered(observed)
    if request is not None:
        found["lastRequest"] = request
    last = _last_run(observed)
    if last is not None:
        found["lastRun"] = last
    terms = policy.terms
    if terms is not None and terms.slots is not None and not terms.suspended and not terms.idle:
        found["nextRunTime"] = time_text(terms.windows.first(terms.slots.next(observed.now)))
    return found


def paused(policy: PolicyEntry, now: datetime) -> Manifest:
    """The status while reconciliation is paused: as it was, and that it is paused."""
    message = f"nothing is looked at or started while annotation {names.PAUSE} is true"
    return paused_over(policy.status, policy.generation, message, now)


def _answered(observed: Observed) -> str | None:
    """The last value of run-now that was answered for every topic governed then: who comes later has no part in it. One that nobody
    was there for is for who comes first, as topics may be made after their policy."""
    policy = observed.policy
    answers = {outcome.history.requests.get("policy") for outcome in observed.governed.values()}
    if policy.request is not None and answers == {policy.request}:
        return policy.request
    before: str | None = policy.status.get("lastRequest")
    return before


def _last_run(observed: Observed) -> Manifest | None:
    """The run that ended last: of those that are there, or the one that status remembers."""
    previous: Manifest | None = observed.policy.status.get("lastRun")
    ended = [it for it in observed.runs if it.job.finished is not None]
    if not ended:
        return previous
    newest = max(ended, key=lambda it: (it.job.finished or EARLIEST, it.name))
    assert newest.job.finished is not None
    if previous is not None and previous.get("finishTime", "") > time_text(newest.job.finished):
        return previous
    return run(newest)


def run(ended: PolicyRun) -> Manifest:
    """A run that ended as status has it, all of its tables together."""
    reports = [ended.outcome(uid) for uid in sorted(ended.uids)]
    found = run_status(ended, reports) | {"tables": len(reports)}
    failed = sum(report.outcome == "Failed" for report in reports)
    return found | ({"tablesFailed": failed} if failed else {})


def conditions(observed: Observed) -> dict[ConditionType, Verdict]:
    """What each condition says; Stalled is there only while True."""
    policy = observed.policy
    if policy.problem is not None:
        message = steady(str(policy.problem))
        known = {str(reason): reason for reason in Reason}
        return {
            ConditionType.READY: Verdict("False", Reason.INVALID_SPEC, message),
            ConditionType.SPEC_VALID: Verdict("False", known.get(policy.problem.reason, Reason.INVALID_SPEC), message),
            ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
        }
    found = {ConditionType.SPEC_VALID: Verdict("True", Reason.VALID, "the spec can be followed")}
    if policy.terms is not None and policy.terms.suspended:
        found[ConditionType.READY] = Verdict("False", Reason.SUSPENDED, "spec.suspend is true: no run starts")
    else:
        found[ConditionType.READY] = Verdict("True", Reason.ALL_READY, "the policy is followed")
    found[ConditionType.MAINTENANCE_HEALTHY] = _healthy(observed)
    return found


def _healthy(observed: Observed) -> Verdict:
    for it in observed.runs:
        if it.active and it.trouble and observed.now >= it.job.created + TROUBLED_AFTER:
            return Verdict("False", Reason.RUN_OVERDUE, f"run {it.name} does not start: {it.trouble}")
    failing = sorted(name for name, outcome in observed.governed.items() if outcome.history.failures)
    if failing:
        message = observed.governed[failing[0]].history.message or "see the Job's log"
        return Verdict("False", Reason.RUN_FAILED, f"{_some(failing)}: {message}")
    overdue = sorted(name for name, outcome in observed.governed.items() if outcome.overdue)
    if overdue:
        return Verdict("False", Reason.RUN_OVERDUE, f"{_some(overdue)}: {observed.governed[overdue[0]].overdue}")
    results = {outcome.history.result for outcome in observed.governed.values()}
    if "Unfinished" in results:
        return Verdict("True", Reason.SUCCEEDED, UNFINISHED)
    if "Succeeded" in results:
        return Verdict("True", Reason.SUCCEEDED, "the last runs succeeded")
    return Verdict("True", Reason.NOT_DUE, "no run has been due yet")


def _some(topics: Sequence[str]) -> str:
    return f"topic {topics[0]}" if len(topics) == 1 else f"topic {topics[0]} and others"
