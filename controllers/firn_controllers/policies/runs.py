"""Runs as their Jobs and pods show them, and the history of a table, into which the results of runs are folded.

An annotation of the Job carries everything that the operator has to know about its run later. So an operator that
starts finds the tables that runs work on and the requests that they answer.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from pydantic import Field, ValidationError

from firn.model import names
from firn.model.jobs import Contract
from firn.model.maintenance import Removed, RunReport, TableReport, unpack
from firn_controllers.conditions.render import timestamp
from firn_controllers.conditions.stable_text import steady
from firn_controllers.policies import audits
from firn_controllers.ports import JobState, Manifest, PodState

MARK = f"{names.GROUP}/run"
"""Annotation of a run's Job: a `RunMark`."""
COMPONENT_RUN = "maintenance"
"""Value of the label ``app.kubernetes.io/component`` of runs."""
REPORT_GRACE = timedelta(seconds=15)
"""Time after the end of a Job in which its pod's report may still arrive."""
EARLIEST = datetime.min.replace(tzinfo=UTC)
_SETTLED = ("Done", "Nothing", "Gone")


class MarkedTable(Contract):
    """A table of a run, and the slot and requests that the run answers for it."""

    uid: str
    slot: datetime | None = None
    requests: dict[str, str] = Field(default_factory=dict)


class RunMark(Contract):
    """The annotation of a run's Job."""

    kind: str
    mode: Literal["DryRun", "Enforce"] | None = None
    work: str = ""
    """Hash of the data that a run of retention may delete. A run whose policy has another hash is stopped."""
    generation: int = 0
    """Generation of the policy's spec that the run was created for."""
    tables: tuple[MarkedTable, ...] = ()


@dataclass(frozen=True, slots=True)
class PolicyRun:
    """A run of any policy."""

    job: JobState
    mark: RunMark
    reports: Mapping[str, TableReport] = field(default_factory=dict)
    """Reports by uid of the topic, for the tables that the run reported on."""
    reported: bool = False
    """True if the run's report has arrived, or cannot arrive any more."""
    last_words: str = ""
    """Last line of the log of a pod that left no report."""
    uids: frozenset[str] = frozenset()
    """Uids of the topics whose tables the run works on."""
    trouble: str = ""
    """The reason why the run's pod does not start."""

    @property
    def name(self) -> str:
        """Name of the Job."""
        return self.job.name

    @property
    def active(self) -> bool:
        """True if the run has not ended."""
        return self.job.finished is None

    def settled(self, now: datetime) -> bool:
        """Return True if the run ended and its report has arrived or is late."""
        ended = self.job.finished
        return ended is not None and (self.reported or now >= ended + REPORT_GRACE)

    def table_report(self, uid: str) -> TableReport:
        """Return the report on one table.

        A table is Unfinished if some of its work was committed, or if the run worked on other tables until it ended. It
        has failed if the run began it and committed nothing, or did not report on it. All tables have failed if the run
        began none, because the next run would begin none, either.
        """
        report = self.reports.get(uid)
        if report is None:
            return TableReport(uid=uid, outcome="Failed", message=self._silent())
        if report.outcome != "Unfinished":
            return report
        if report.commits:
            message = (
                f"the run made {report.commits} commits before it ended ({report.message}); the table is due again"
            )
        elif not report.begun and any(other.begun for other in self.reports.values()):
            message = "the run ended before it reached this table; the table is due again"
        else:
            message = report.message or self._silent()
            return report.model_copy(update={"outcome": "Failed", "message": message})
        return report.model_copy(update={"message": message})

    def _silent(self) -> str:
        if self.job.succeeded:
            return f"the run's report lacks this table; see the log of Job {self.name}"
        last_words = f" ({self.last_words})" if self.last_words else ""
        return f"the run ended without a report on this table: {self._cause()}{last_words}"

    def _cause(self) -> str:
        match self.job.failure:
            case "DeadlineExceeded":
                return "it took longer than spec.run.deadline"
            case "BackoffLimitExceeded":
                return "it failed more often than spec.run.retries allows"
            case "PodFailurePolicy":
                return "it rejected its configuration or the data that it read"
            case failure:
                return failure or "its pods no longer exist"


def read_run(job: JobState, pods: Iterable[PodState]) -> PolicyRun | None:
    """Return the run of a Job with the reports of its pods, oldest first. None if the Job is not one of ours."""
    try:
        mark = RunMark.model_validate_json(job.annotations[MARK])
    except (KeyError, ValidationError):
        return None
    reports: dict[str, TableReport] = {}
    last_words = ""
    ended = sorted((pod for pod in pods if pod.finished is not None), key=lambda pod: (pod.finished, pod.name))
    for pod in ended:
        try:
            report = unpack(pod.message)
        except ValueError:
            last_words = steady(pod.message.strip().rpartition("\n")[2])[:300] or pod.last_exit_reason or ""
            continue
        last_words = ""
        _merge(reports, report)
    running = any(pod.finished is None and not pod.deleting for pod in pods)
    return PolicyRun(
        job,
        mark,
        reports,
        reported=bool(ended) and not running,
        last_words=last_words,
        uids=frozenset(table.uid for table in mark.tables),
    )


def _merge(reports: dict[str, TableReport], report: RunReport) -> None:
    """Merge the report of a later attempt.

    The later report on a table counts, unless the earlier attempt finished the table and the later one had nothing to
    do, or did not begin it.
    """
    for table in report.tables:
        before = reports.get(table.uid)
        done_before = before is not None and before.outcome in _SETTLED
        if before is not None and table.outcome == "Unfinished" and not table.begun:
            continue
        if not done_before or table.outcome == "Done":
            reports[table.uid] = table


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The history of one topic under the policies of one kind, as its status keeps it."""

    last: Manifest | None = None
    """The last run, as ``status`` shows it (`firn.api.v1alpha1.policy.RunStatus`)."""
    failures: int = 0
    generation: int = 0
    """Generation of the policy's spec under which runs failed. A corrected policy is tried at once."""
    slot: datetime | None = None
    """The last slot of ``schedule`` that a run has served, or that was past when the schedule took the topic over."""
    requests: Mapping[str, str] = field(default_factory=dict)
    """Values of ``run-now`` that a run has served."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Values of ``run-now`` whose runs failed since the last success."""
    policy: str = ""
    """Uid of the governing policy, to which failures, slot and request belong."""
    schedule: str = ""
    audit: Mapping[str, Any] = field(default_factory=dict)
    """Findings of audits (`firn_controllers.policies.audits.findings`)."""

    def cause(self) -> str:
        """Return why the last run failed: the message of its report, or the place of its log."""
        return self.message or f"see the log of Job {(self.last or {}).get('name', '')}"

    @classmethod
    def from_status(cls, section: Mapping[str, Any]) -> "RunHistory":
        """Return the history in ``status.maintenance.compaction`` or ``.retention``."""
        slot = section.get("lastScheduleTime")
        return cls(
            section.get("lastRun"),
            section.get("failures", 0),
            section.get("failedGeneration", 0),
            datetime.fromisoformat(slot) if slot else None,
            section.get("lastRequest") or {},
            section.get("failedRequest") or {},
            section.get("policyUid", ""),
            section.get("schedule", ""),
            {key: section[key] for key in audits.FINDINGS if key in section},
        )

    @property
    def finished(self) -> datetime | None:
        """End of the last run."""
        text = (self.last or {}).get("finishTime")
        return datetime.fromisoformat(text) if text else None

    @property
    def result(self) -> str | None:
        """Result of the last run: Succeeded, Failed, Unfinished or Busy."""
        result: str | None = (self.last or {}).get("result")
        return result

    @property
    def message(self) -> str:
        """Message of the last run."""
        message: str = (self.last or {}).get("message", "")
        return message

    def governed_by(self, policy: str, schedule: str, past: datetime | None, answered: str | None) -> "RunHistory":
        """Return the history as it counts under a policy and its schedule, of which slot ``past`` is over.

        A topic that the policy has just taken over ignores past slots, and a request that the policy has ``answered``
        for all topics before. A changed schedule starts at its next slot.
        """
        history = self
        if history.policy != policy:
            theirs = {who: value for who, value in history.requests.items() if who != "policy"}
            requests = theirs if answered is None else {**theirs, "policy": answered}
            history = replace(history.without_failures(), policy=policy, schedule="", slot=None, requests=requests)
        if history.schedule != schedule or (history.slot is None) != (past is None):
            history = replace(history, schedule=schedule, slot=past)
        return history

    def after_run(self, run: PolicyRun, uid: str) -> "RunHistory":
        """Return the history after a run of the table has ended. The same or an older run changes nothing."""
        finished = run.job.finished
        if finished is None:
            return self
        if (finished, run.name) <= (self.finished or EARLIEST, (self.last or {}).get("name", "")):
            return self
        marked = next((table for table in run.mark.tables if table.uid == uid), None)
        if marked is None:
            return self
        report = run.table_report(uid)
        last = run_status(run, [report])
        history = replace(self, last=last)
        if report.audit is not None:
            found = audits.findings(self.audit, report.audit, run.name, last["finishTime"])
            history = replace(history, audit=found)
        if last["result"] == "Busy":
            return history
        if last["result"] == "Unfinished":
            # The slot and the requests of the run are not answered yet.
            return history.without_failures() if report.commits else history
        if last["result"] == "Failed":
            before = self.failures if self.generation == run.mark.generation else 0
            failed = {**self.failed, **marked.requests}
            return replace(history, failures=before + 1, generation=run.mark.generation, failed=failed)
        # A run of an earlier schedule does not answer later slots of this schedule.
        answered = (marked.slot, self.slot) if self.schedule else ()
        slot = max((slot for slot in answered if slot is not None), default=None)
        return replace(history.without_failures(), slot=slot, requests={**self.requests, **marked.requests})

    def without_failures(self) -> "RunHistory":
        """Return the history without the failures."""
        return replace(self, failures=0, generation=0, failed={})

    def to_status(self) -> Manifest:
        """Return the history as ``status`` keeps it."""
        section: Manifest = dict(self.audit)
        if self.last is not None:
            section["lastRun"] = self.last
        if self.failures:
            section["failures"] = self.failures
            section["failedGeneration"] = self.generation
        if self.failed:
            section["failedRequest"] = dict(self.failed)
        if self.policy:
            section["policyUid"] = self.policy
        if self.schedule:
            section["schedule"] = self.schedule
        if self.slot is not None:
            section["lastScheduleTime"] = timestamp(self.slot)
        if self.requests:
            section["lastRequest"] = dict(self.requests)
        return section


def run_status(run: PolicyRun, reports: Sequence[TableReport]) -> Manifest:
    """Return a run as ``status`` shows it, summed over these tables."""
    failed = [report for report in reports if report.outcome == "Failed"]
    unfinished = [report for report in reports if report.outcome == "Unfinished"]
    status: Manifest = {"name": run.name, "startTime": timestamp(run.job.created)}
    if run.mark.mode is not None:
        status["mode"] = run.mark.mode
    if run.job.finished is None:
        return status | {"result": "Running"} | ({"message": run.trouble} if run.trouble else {})
    status["finishTime"] = timestamp(run.job.finished)
    busy = all(report.outcome == "Busy" for report in reports)
    status["result"] = "Failed" if failed else "Unfinished" if unfinished else "Busy" if busy else "Succeeded"
    reported = failed or unfinished or [report for report in reports if report.message]
    if reported and (message := _sentence(reported[0])):
        status["message"] = message
    elif status["result"] == "Succeeded" and {report.outcome for report in reports} == {"Nothing"}:
        status |= {"message": _no_work(run)}
    if run.mark.kind == "CompactionPolicy":
        status["commits"] = sum(report.commits for report in reports)
        status["filesBefore"] = sum(report.files_before for report in reports)
        status["filesAfter"] = sum(report.files_after for report in reports)
        status["bytesRewritten"] = sum(report.bytes_rewritten for report in reports)
        status["deleteFilesRemoved"] = sum(report.delete_files_removed for report in reports)
        status["manifestsBefore"] = sum(report.manifests_before for report in reports)
        status["manifestsAfter"] = sum(report.manifests_after for report in reports)
    else:
        parts = (
            ("rows", "rows"),
            ("snapshots", "snapshots"),
            ("orphanFiles", "orphans"),
            ("metadataFiles", "metadata"),
        )
        for key, name in parts:
            removed: list[Removed] = [part for report in reports if (part := getattr(report, name)) is not None]
            if removed:
                status[key] = _removed(removed)
    return status


def _no_work(run: PolicyRun) -> str:
    if run.mark.kind == "CompactionPolicy":
        return (
            "there was nothing to do: small files wait until a partition has four or more of similar size, or enough bytes for the"
            " target size, and a file younger than openGrace waits, too"
        )
    return "there was nothing to do: no row, snapshot or file is older than the policy allows"


def _sentence(report: TableReport) -> str:
    reason = f"{report.reason}: " if report.reason and report.message else report.reason
    return steady(f"{reason}{report.message}")


def _removed(parts: Sequence[Removed]) -> Manifest:
    removed: Manifest = {
        "items": sum(part.items for part in parts),
        "files": sum(part.files for part in parts),
        "bytes": sum(part.bytes for part in parts),
    }
    sample = [item[:1024] for part in parts for item in part.sample][:5]
    return removed | ({"sample": sample} if sample else {})
