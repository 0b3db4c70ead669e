"""The audit of every topic, as a policy that the configuration makes, and the findings of its runs. No I/O."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from firn.model import durations, names
from firn.model.config import Config
from firn.model.maintenance import ANY_PARTITION, AuditReport, OffsetRange
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.topics import EPOCH
from firn_controllers.specs.calendar import CronExpression, Slots, Windows
from firn_controllers.specs.terms import PolicyTerms

NAME = "audit"
RETRIES = 1
_GATHERINGS = 16
"""Number of times to gather topics in the time over which audits are spread."""
_RANGES = {
    "missingRanges": "missing_ranges",
    "surplusRanges": "surplus_ranges",
    "unsearchedRanges": "unsearched_ranges",
}
"""Keys of ``status.audit`` with ranges of offsets, and their fields in the report."""
FINDINGS = ("time", "result", "topicId", "offsets", "missing", "doubled", "stray", "unproved", "failed", *_RANGES)
"""Keys of ``status.audit`` with the findings of audits. The other keys are those of every history of runs."""


def audit_policy(config: Config) -> PolicyEntry | None:
    """Return the policy of the audits; None without a schedule. Raises InvalidSpecError if the schedule is not valid."""
    audit = config.maintenance.audit
    if not audit.schedule.strip():
        return None
    cron = CronExpression.parse(audit.schedule, audit.time_zone, "maintenance.audit")
    spread = timedelta(milliseconds=durations.milliseconds(audit.spread))
    terms = PolicyTerms(
        slots=Slots(cron, spread, NAME),
        windows=Windows(),
        triggers=None,
        max_concurrent=audit.max_concurrent,
        deadline=timedelta(milliseconds=durations.milliseconds(audit.deadline)),
        retries=RETRIES,
        size=audit.size,
        suspended=False,
        idle=False,
    )
    return PolicyEntry(
        kind="Audit",
        name=(config.namespace, NAME),
        uid=NAME,
        created=EPOCH,
        generation=1,
        resource_version="",
        status={},
        request=None,
        paused=False,
        resource=None,
        terms=terms,
        problem=None,
        remarks="",
        trigger=(),
    )


def spread_over_topics(policy: PolicyEntry, uid: str) -> PolicyEntry:
    """Return the policy with the times of one topic: audits are spread over topics, and runs of policies are not."""
    terms = policy.terms
    if policy.kind != "Audit" or terms is None or terms.slots is None:
        return policy
    return replace(policy, terms=replace(terms, slots=replace(terms.slots, seed=uid)))


def gathering(policy: PolicyEntry) -> timedelta:
    """Return the time that a due topic may wait for others with which it can share a run."""
    terms = policy.terms
    return terms.slots.jitter / _GATHERINGS if terms is not None and terms.slots is not None else timedelta()


def open_finding(status: Mapping[str, Any], annotations: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the failed audit in a topic's status, unless it is acknowledged, or about an earlier topic of that name."""
    failed: Mapping[str, Any] = (status.get("audit") or {}).get("failed") or {}
    if not failed or failed["run"] == annotations.get(names.ACKNOWLEDGE_AUDIT):
        return None
    return failed if failed["topicId"] == status.get("topicId") else None


def findings(before: Mapping[str, Any], report: AuditReport, run: str, time: str) -> dict[str, Any]:
    """Return the findings in ``status.audit`` after the audit of a ``run`` that ended at ``time``.

    A failed audit stays in ``failed``. The finding keeps its name until it is worse than in the audit ``before``. So
    it is acknowledged once, although its counts fall with the start of the log.
    """
    result = "Failed" if report.wrong else "Unproved" if report.unproved else "Exact"
    figures = report.model_dump(include={"offsets", "missing", "doubled", "stray", "unproved"})
    found: dict[str, Any] = {"time": time, "result": result, "topicId": report.topic_id, **figures}
    failed = before.get("failed") or {}
    for key, part in _RANGES.items():
        if ranges := getattr(report, part):
            found[key] = [_text(own) for own in ranges]
    if report.wrong and _is_worse(before, report):
        parts = {"missing", "doubled", "stray", "partition", "offset"}
        wrong = report.model_dump(exclude_none=True, include=parts)
        failed = {"run": run, "time": time, "topicId": report.topic_id, **wrong}
    if failed and failed["topicId"] == report.topic_id:
        found["failed"] = dict(failed)
    return found


def _is_worse(before: Mapping[str, Any], report: AuditReport) -> bool:
    """Return whether an audit found wrong offsets that the audit ``before`` neither found nor left out.

    The counts also show further rows of the same offsets, and offsets within a range that covers several. The ranges do
    not show these.
    """
    if before.get("topicId") != report.topic_id:
        return True
    missing, surplus, unsearched = ([_range(text) for text in before.get(key, ())] for key in _RANGES)
    return (
        not all(own.within([*missing, *unsearched]) for own in report.missing_ranges)
        or not all(own.within(surplus) for own in report.surplus_ranges)
        or report.missing > before["missing"] + before["unproved"]
        or report.doubled + report.stray > before["doubled"] + before["stray"]
    )


def _text(own: OffsetRange) -> str:
    """Return a range as ``status.audit`` shows it: partition, first and last offset."""
    partition = "*" if own.partition == ANY_PARTITION else own.partition
    return f"{partition}:{own.start}-{own.end - 1}"


def _range(text: str) -> OffsetRange:
    partition, _, offsets = text.partition(":")
    first, _, last = offsets.partition("-")
    return OffsetRange(ANY_PARTITION if partition == "*" else int(partition), int(first), int(last) + 1)
