"""The condition Published and ``status.publish``: how far main of a table is behind the branch on which rows land."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from firn.model import names
from firn.model.conditions import Reason
from firn.model.progress import CheckResult, PublishProgress
from firn_controllers.conditions.render import Verdict, timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.iceberg_topic.observed import ObservedTopic
from firn_controllers.ports import Manifest

MOST_VALUES = 1024
_COUNTS = ("waitingRows", "waitingSince", "heldSnapshot")
"""Fields whose change alone causes no write. If a check failed, the message has the snapshot, too, and its change causes a write."""


def digest(progress: PublishProgress | None) -> tuple[object, ...]:
    """Return the parts of a report that can change the condition."""
    if progress is None:
        return ()
    return progress.branch, progress.state, progress.snapshot, progress.checks, steady(progress.message)


def published(observed: ObservedTopic) -> Verdict | None:
    """Return the verdict, None if the driver has not reported on the branch of the spec."""
    report, progress = _report(observed), observed.progress
    if progress is not None and observed.group.heard and progress.reason == Reason.BRANCH_REFUSED:
        return Verdict("False", Reason.BRANCH_REFUSED, steady(progress.message))
    if report is None:
        return None
    if report.state == "MainMoved":
        return Verdict("False", Reason.MAIN_MOVED, steady(report.message))
    failed = [check for check in report.checks if not check.passed]
    if report.state == "Held":
        return Verdict("False", Reason.CHECKS_FAILED, _held(observed, report, failed))
    if failed:
        return Verdict(
            "True",
            Reason.PUBLISHED_UNCHECKED,
            f"main follows branch {report.branch}, because onFail is Publish, although the last checks failed: {_described(failed)}",
        )
    spec = observed.resource.spec.quality
    every = spec.publish.every if spec is not None and spec.publish is not None else ""
    return Verdict(
        "True", Reason.CHECKS_PASSED, f"main follows branch {report.branch} within {every} after a row lands there"
    )


def section(observed: ObservedTopic, previous: Mapping[str, Any]) -> Manifest:
    """Return ``status.publish``; without a report, as it was."""
    publish, report = observed.resource.publish, _report(observed)
    if publish is None:
        return {}
    if report is None:
        return dict(previous.get("publish") or {})
    found: Manifest = {"branch": report.branch, "waitingRows": report.rows}
    if report.since is not None:
        found["waitingSince"] = timestamp(datetime.fromtimestamp(report.since, UTC))
    if report.state == "Held" and report.snapshot is not None:
        found["heldSnapshot"] = str(report.snapshot)
    results = {check.name: check for check in report.checks}
    found["checks"] = [_check(check.name, results.get(check.name), report) for check in publish.checks]
    return found


def significant(publish: Mapping[str, Any]) -> Manifest:
    """Return the parts of ``status.publish`` that are written as soon as they change."""
    kept = {key: value for key, value in publish.items() if key not in _COUNTS}
    checks = [{key: value for key, value in check.items() if key != "failed"} for check in publish.get("checks") or ()]
    return {**kept, "checks": checks}


def _report(observed: ObservedTopic) -> PublishProgress | None:
    progress, publish = observed.progress, observed.resource.publish
    report = progress.publish if progress is not None and observed.group.heard else None
    return report if report is not None and publish is not None and report.branch == publish.branch else None


def _held(observed: ObservedTopic, report: PublishProgress, failed: list[CheckResult]) -> str:
    namespace, name = observed.entry.name
    command = f"kubectl -n {namespace} annotate --overwrite itopic {name} {names.PUBLISH}"
    if report.message:
        # Rows continue to land, so the number of the snapshot would change this message with each attempt.
        return (
            f"main stays, and rows land on branch {report.branch}, because the checks have no result: {steady(report.message)}; or publish the"
            f" rows without checks: {command}=SNAPSHOT, where SNAPSHOT is status.publish.heldSnapshot"
        )
    return (
        f"main stays, and rows land on branch {report.branch}, because a check failed: {_described(failed)}; publish the rows that were checked:"
        f" {command}={report.snapshot}; or correct the rows on the branch, or the check"
    )


def _described(failed: list[CheckResult]) -> str:
    return "; ".join(f"check {check.name}: {check.values}" for check in failed)


def _check(name: str, result: CheckResult | None, report: PublishProgress) -> Manifest:
    found: Manifest = {"check": name}
    if result is not None:
        found |= {"passed": result.passed, "values": result.values[:MOST_VALUES]}
    return {**found, "failed": report.failures.get(name, 0)}
