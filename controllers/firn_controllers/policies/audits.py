"""The audit of every topic, as a policy that the configuration makes, and what its runs have found. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from firn.model import durations, names
from firn.model.config import Config
from firn.model.maintenance import AuditReport
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.topics import EPOCH
from firn_controllers.specs.calendar import CronExpression, Slots, Windows
from firn_controllers.specs.terms import PolicyTerms

NAME = "audit"
RETRIES = 1
FINDINGS = ("time", "result", "topicId", "offsets", "missing", "doubled", "stray", "unproved", "failed")
"""Keys of ``status.audit`` with what the audits found. The others are those of every history of runs."""
_WRONG = ("topicId", "missing", "doubled", "stray", "partition", "offset")


def audit_policy(config: Config) -> PolicyEntry | None:
    """Return the policy of the audits; None without a schedule. Raises InvalidSpecError if the schedule is not valid.

    One run audits at a time, because it has up to ``tablesPerRun`` topics and leaves room for the runs of policies.
    """
    audit = config.maintenance.audit
    if not audit.schedule.strip():
        return None
    cron = CronExpression.parse(audit.schedule, audit.time_zone, "maintenance.audit")
    spread = timedelta(milliseconds=durations.milliseconds(audit.spread))
    terms = PolicyTerms(
        slots=Slots(cron, spread, NAME),
        windows=Windows(),
        triggers=None,
        max_concurrent=1,
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


def open_finding(status: Mapping[str, Any], annotations: Mapping[str, str]) -> Mapping[str, Any] | None:
    """Return the failed audit in a topic's status, unless it is acknowledged, or about an earlier topic of that name."""
    failed: Mapping[str, Any] = (status.get("audit") or {}).get("failed") or {}
    if not failed or failed["run"] == annotations.get(names.ACKNOWLEDGE_AUDIT):
        return None
    return failed if failed["topicId"] == status.get("topicId") else None


def findings(before: Mapping[str, Any], report: AuditReport, run: str, time: str) -> dict[str, Any]:
    """Return what ``status.audit`` shows after the audit of a ``run`` that ended at ``time``.

    A failed audit stays in ``failed``. The same finding again keeps its name, so that it is acknowledged once.
    """
    result = "Failed" if report.wrong else "Unproved" if report.unproved else "Exact"
    figures = report.model_dump(by_alias=False, exclude={"topic_id", "partition", "offset"})
    found: dict[str, Any] = {"time": time, "result": result, "topicId": report.topic_id, **figures}
    failed = before.get("failed") or {}
    if report.wrong:
        wrong = {
            "topicId": report.topic_id,
            **report.model_dump(exclude_none=True, exclude={"topic_id", "offsets", "unproved"}),
        }
        same = {key: failed[key] for key in _WRONG if key in failed} == wrong
        failed = failed if same else {"run": run, "time": time, **wrong}
    if failed and failed["topicId"] == report.topic_id:
        found["failed"] = dict(failed)
    return found
