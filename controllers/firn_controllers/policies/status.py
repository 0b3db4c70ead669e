"""The status document of one policy, computed whole from what was observed and decided.

It is written only if it changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.conditions.render import Verdict, paused_over, rendered, timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.policies.decision import PolicyDecision
from firn_controllers.policies.observed import ObservedPolicy
from firn_controllers.policies.outcome import UNFINISHED, PolicyOutcome
from firn_controllers.policies.runs import EARLIEST, PolicyRun, run_status
from firn_controllers.ports import Manifest

TROUBLED_AFTER = timedelta(minutes=2)
"""Time that a run's pod may take to start before the status names the cause."""
LISTED = 20
"""Largest number of topics, and of runs, that a status lists."""
NAMED = 3
"""Largest number of topics in a message of a condition."""


@dataclass(frozen=True, slots=True)
class PolicyReport:
    """The facts from which the status of a policy is computed."""

    observed: ObservedPolicy
    decision: PolicyDecision
    runs: Sequence[PolicyRun]
    """Active and settled runs of this policy, including runs that were just started."""
    now: datetime

    @property
    def policy(self) -> PolicyEntry:
        """The policy."""
        return self.observed.policy

    @property
    def outcomes(self) -> dict[str, PolicyOutcome]:
        """Outcomes by ``NAMESPACE/NAME`` of the topic, for the topics for which the policy is followed."""
        return {"/".join(decision.topic.entry.name): decision.outcome for decision in self.decision.topics}


def policy_status(report: PolicyReport) -> Manifest:
    """Compute the whole status."""
    policy = report.policy
    status: Manifest = {
        "observedGeneration": policy.generation,
        "conditions": rendered(conditions(report), policy.status, policy.generation, report.now),
    }
    if policy.resource is not None:
        status |= _topics(report)
    active = sorted((run for run in report.runs if run.active), key=lambda run: (run.job.created, run.name))
    if active:
        status["activeRuns"] = [run_status(run, []) | {"tables": len(run.uids)} for run in active[:LISTED]]
    request = _answered_request(report)
    if request is not None:
        status["lastRequest"] = request
    last = _last_run(report)
    if last is not None:
        status["lastRun"] = last
    terms = policy.terms
    if terms is not None and terms.slots is not None and not terms.suspended and not terms.idle:
        status["nextRunTime"] = timestamp(terms.windows.first(terms.slots.next(report.now)))
    return status


def paused_status(policy: PolicyEntry, now: datetime) -> Manifest:
    """Compute the status while reconciliation is paused: unchanged, with the condition Paused."""
    message = f"reconciliation is paused while annotation {names.PAUSE} is true, and no run starts; remove the annotation to continue"
    return paused_over(policy.status, policy.generation, message, now)


def ended_run_status(run: PolicyRun) -> Manifest:
    """Return a run that ended as ``status`` lists it, summed over all of its tables."""
    reports = [run.table_report(uid) for uid in sorted(run.uids)]
    status = run_status(run, reports) | {"tables": len(reports)}
    failed = sum(report.outcome == "Failed" for report in reports)
    return status | ({"tablesFailed": failed} if failed else {})


def conditions(report: PolicyReport) -> dict[ConditionType, Verdict]:
    """Compute each condition. Stalled exists only while it is True."""
    policy = report.policy
    if policy.problem is not None:
        message = steady(str(policy.problem))
        reasons = {str(reason): reason for reason in Reason}
        reason = reasons.get(policy.problem.reason, Reason.INVALID_SPEC)
        return {
            ConditionType.READY: Verdict("False", reason, message),
            ConditionType.SPEC_VALID: Verdict("False", reason, message),
            ConditionType.STALLED: Verdict("True", Reason.INVALID_SPEC, message),
        }
    verdicts = {ConditionType.SPEC_VALID: Verdict("True", Reason.VALID, "the spec is valid" + policy.remarks)}
    if policy.terms is not None and policy.terms.suspended:
        verdicts[ConditionType.READY] = Verdict("False", Reason.SUSPENDED, "spec.suspend is true: no run starts")
    elif refused := _refused(report):
        verdicts[ConditionType.READY] = Verdict("False", Reason.REFUSED_FOR_SOME, refused)
        verdicts[ConditionType.STALLED] = Verdict("True", Reason.REFUSED_FOR_SOME, refused)
    else:
        verdicts[ConditionType.READY] = Verdict("True", Reason.ALL_READY, "the operator follows the policy")
    verdicts[ConditionType.MAINTENANCE_HEALTHY] = _maintenance_healthy(report)
    return verdicts


def _refused(report: PolicyReport) -> str:
    """Return the message that names topics which the policy does not fit, and why; empty if it fits all."""
    topics = report.observed.topics
    refused = sorted((topic.entry.name[1], steady(topic.refusal)) for topic in topics if not topic.followed)
    if not refused:
        return ""
    named = "; ".join(f"{name} ({cause})" for name, cause in refused[:NAMED])
    followed = len(topics) - len(refused)
    message = f"the operator follows the policy for {followed} of {len(topics)} topics; refused: {named}"
    return f"{message}; and {len(refused) - NAMED} more" if len(refused) > NAMED else message


def _topics(report: PolicyReport) -> Manifest:
    topics = sorted(report.observed.topics, key=lambda topic: topic.entry.name)
    status: Manifest = {"topics": len(topics)}
    if topics:
        status["governs"] = [{"topic": topic.entry.name[1], "because": topic.because} for topic in topics[:LISTED]]
    refused = sum(not topic.followed for topic in topics)
    return status | ({"topicsRefused": refused} if refused else {})


def _answered_request(report: PolicyReport) -> str | None:
    """Return the last value of ``firn.dev/run-now`` that was answered for every topic governed at that time.

    A topic that comes later has no part in it. A request made while the policy governed no topic waits for the first
    topic, because a policy may be created before its topics.
    """
    policy = report.policy
    answers = {outcome.history.requests.get("policy") for outcome in report.outcomes.values()}
    if policy.request is not None and answers == {policy.request}:
        return policy.request
    before: str | None = policy.status.get("lastRequest")
    return before


def _last_run(report: PolicyReport) -> Manifest | None:
    """Return the run that ended last, of those whose Jobs exist and the one in status."""
    previous: Manifest | None = report.policy.status.get("lastRun")
    ended = [run for run in report.runs if run.job.finished is not None]
    if not ended:
        return previous
    newest = max(ended, key=lambda run: (run.job.finished or EARLIEST, run.name))
    assert newest.job.finished is not None
    if previous is not None and previous.get("finishTime", "") > timestamp(newest.job.finished):
        return previous
    return ended_run_status(newest)


def _maintenance_healthy(report: PolicyReport) -> Verdict:
    for run in report.runs:
        if run.active and run.trouble and report.now >= run.job.created + TROUBLED_AFTER:
            return Verdict("False", Reason.RUN_OVERDUE, f"run {run.name} does not start: {run.trouble}")
    outcomes = report.outcomes
    failing = sorted(name for name, outcome in outcomes.items() if outcome.history.failures)
    if failing:
        return Verdict("False", Reason.RUN_FAILED, f"{_named(failing)}: {outcomes[failing[0]].history.cause()}")
    overdue = sorted(name for name, outcome in outcomes.items() if outcome.overdue)
    if overdue:
        return Verdict("False", Reason.RUN_OVERDUE, f"{_named(overdue)}: {outcomes[overdue[0]].overdue}")
    results = {outcome.history.result for outcome in outcomes.values()}
    if "Unfinished" in results:
        return Verdict("True", Reason.SUCCEEDED, UNFINISHED)
    if "Succeeded" in results:
        return Verdict("True", Reason.SUCCEEDED, "the last runs succeeded")
    return Verdict("True", Reason.NOT_DUE, "no run has been due yet")


def _named(topics: Sequence[str]) -> str:
    return f"topic {topics[0]}" if len(topics) == 1 else f"topic {topics[0]} (and {len(topics) - 1} others)"
