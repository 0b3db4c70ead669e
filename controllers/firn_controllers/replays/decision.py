"""The decision about one DeadLetterReplay: it waits, starts its run, works, or has ended. Pure.

A replay runs once. Suspending a topic stops ingestion only, so the replay of a suspended topic runs. Pausing the
reconciliation of a topic, or of the replay, holds the replay back.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Config
from firn.model.jobs import IngestJob
from firn.model.maintenance import ReplayReport, ReplayWork
from firn_controllers.cache.replays import KIND, ReplayEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.policies.due import BUSY_RETRY, Due
from firn_controllers.policies.observed import TargetTable
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.policies.runs import EARLIEST, PolicyRun

TROUBLED_AFTER = timedelta(minutes=2)
"""Time that the run's pod may take to start before the status names the cause."""


@dataclass(frozen=True, slots=True)
class ObservedReplay:
    """A replay, its topic and its runs, at one moment."""

    replay: ReplayEntry
    topic: TopicEntry | None
    table: TargetTable | None
    """The topic's table, if runs may work on it."""
    job: IngestJob | None
    """The topic's job contract in force."""
    runs: tuple[PolicyRun, ...]
    """Runs of this replay whose Jobs exist."""
    active: tuple[PolicyRun, ...]
    """Active runs of all policies and replays."""
    claimed: frozenset[str]
    """Uids of topics for whose tables this process is creating a run right now."""
    making: frozenset[str]
    """Names of runs that this process is creating right now."""
    now: datetime


State = Literal["Waiting", "Running", "Succeeded", "Failed"]


@dataclass(frozen=True, slots=True)
class ReplayDecision:
    """The state of a replay, with its reason. ``start`` is the run to create now."""

    state: State
    reason: Reason
    message: str
    run: PolicyRun | None = None
    start: PlannedRun | None = None
    report: ReplayReport | None = None


def decide(observed: ObservedReplay, config: Config) -> ReplayDecision:
    """Decide about a replay whose spec is valid and which has not ended."""
    run = max(observed.runs, key=lambda run: (run.job.created, run.name), default=None)
    if run is not None:
        if not run.settled(observed.now):
            return ReplayDecision("Running", Reason.RUNNING, message=_running(run, observed.now), run=run)
        ended = _ended(observed, run)
        if ended is not None:
            return ended
    waits = _waits(observed, run, config)
    if waits is not None:
        return waits
    topic, table, job, terms = observed.topic, observed.table, observed.job, observed.replay.terms
    assert topic is not None
    assert table is not None
    assert job is not None
    assert terms is not None
    due = DueTable(
        topic,
        table.target,
        table.uuid,
        None,
        Due(observed.now, "a DeadLetterReplay exists"),
        run.name if run is not None else "",
        _work(observed.replay, job),
    )
    start = PlannedRun((due,), terms.size)
    return ReplayDecision("Running", Reason.RUNNING, message="the operator creates the run", run=run, start=start)


def _work(replay: ReplayEntry, job: IngestJob) -> ReplayWork:
    assert replay.resource is not None
    spec = replay.resource.spec
    since = spec.where.since
    return ReplayWork(
        uid=replay.uid,
        enforce=spec.mode == "Enforce",
        job=job,
        codes=spec.where.codes,
        since_ms=round(since.timestamp() * 1000) if since is not None else None,
        generations=spec.where.generations,
        records=spec.limit.records,
    )


def _running(run: PolicyRun, now: datetime) -> str:
    if run.trouble and now >= run.job.created + TROUBLED_AFTER:
        return f"run {run.name} does not start: {run.trouble}"
    return f"run {run.name} works on the dead letters"


def _ended(observed: ObservedReplay, run: PolicyRun) -> ReplayDecision | None:
    """Return the result of a run that ended; None if another run has to follow, because the table was not free."""
    uid = observed.topic.uid if observed.topic is not None else next(iter(run.uids), "")
    report = run.table_report(uid if uid in run.uids else next(iter(run.uids), ""))
    if report.outcome == "Busy":
        return None
    if report.outcome in ("Done", "Nothing") and report.replay is not None:
        text = report.message or result_text(report.replay, dry=run.mark.mode == "DryRun")
        return ReplayDecision("Succeeded", Reason.SUCCEEDED, message=text, run=run, report=report.replay)
    reason = f"{report.reason}: " if report.reason else ""
    text = (
        f"run {run.name}: {reason}{report.message or report.outcome}; a replay that failed has lost no dead letter: create another"
        " DeadLetterReplay to continue"
    )
    return ReplayDecision("Failed", Reason.RUN_FAILED, message=text, run=run)


def result_text(report: ReplayReport, *, dry: bool) -> str:
    """Return the result of a replay as a sentence."""
    if not report.matched:
        if not report.causes:
            return f"no dead letter meets the conditions; the topic has {report.remaining} dead letters"
        known = ", ".join(f"{code} {count}" for code, count in sorted(report.causes.items()))
        return (
            f"no dead letter meets the conditions of spec.where; the topic has {report.remaining} dead letters ({known}): create another"
            " DeadLetterReplay with other conditions to replay them"
        )
    would = "would become" if dry else "became"
    rest = ""
    if report.failed:
        causes = ", ".join(f"{code} {count}" for code, count in sorted(report.failures.items()))
        rest = f"; {report.failed} do not fit the current schema ({causes})"
    return f"{report.landed} of {report.matched} dead letters {would} rows{rest}"


def _waits(observed: ObservedReplay, last: PolicyRun | None, config: Config) -> ReplayDecision | None:
    """Return what the replay waits for; None if its run can start."""

    replay, topic = observed.replay, observed.topic
    assert replay.resource is not None
    name = "/".join((replay.name[0], replay.resource.spec.topic_ref.name))
    if topic is None:
        return _waiting(
            Reason.TOPIC_NOT_FOUND,
            last,
            message=f"IcebergTopic {name} does not exist; create it, or create this DeadLetterReplay again with another topicRef",
        )
    if topic.resource is not None and topic.resource.metadata.annotations.get(names.PAUSE) == "true":
        return _waiting(
            Reason.PENDING,
            last,
            message=f"IcebergTopic {name}: annotation {names.PAUSE} pauses its reconciliation; remove the annotation to continue",
        )
    if observed.table is None:
        return _waiting(
            Reason.PENDING,
            last,
            message=f"IcebergTopic {name} has no table that runs may work on; read its conditions Ready and TableReady",
        )
    if observed.job is None or observed.job.generation < topic.generation:
        return _waiting(
            Reason.PENDING,
            last,
            message=f"IcebergTopic {name}: the operator has not followed generation {topic.generation} of its spec; read its condition Ready",
        )
    keep, terms = observed.job.keep_snapshots_ms, replay.terms
    if keep is not None and terms is not None and keep < terms.deadline.total_seconds() * 1000:
        return _waiting(
            Reason.PENDING,
            last,
            message=f"IcebergTopic {name}: ingestion does not keep snapshots until the deadline of the replay yet; the operator updates"
            " the job contract",
        )
    if last is not None and observed.now < (last.job.finished or EARLIEST) + BUSY_RETRY:
        return _waiting(
            Reason.PENDING, last, message=f"IcebergTopic {name}: another run works on its table; the replay follows it"
        )
    return _no_room(observed, topic, name, config)


def _no_room(observed: ObservedReplay, topic: TopicEntry, name: str, config: Config) -> ReplayDecision | None:
    busy: Collection[str] = observed.claimed.union(*(run.uids for run in observed.active))
    if topic.uid in busy:
        return _waiting(
            Reason.PENDING, None, message=f"IcebergTopic {name}: another run works on its table; the replay follows it"
        )
    at_work = observed.making.union(run.name for run in observed.active)
    if len(at_work) >= config.maintenance.max_runs:
        return _waiting(
            Reason.PENDING,
            None,
            message=f"{len(at_work)} maintenance runs are active, as many as maintenance.maxRuns allows; the replay follows them",
        )
    replays = sum(run.mark.kind == KIND for run in observed.active)
    if replays >= max(1, config.maintenance.max_runs - 1):
        return _waiting(
            Reason.PENDING,
            None,
            message=f"{replays} replays are active, and policies need one of the runs of maintenance.maxRuns; the replay follows them",
        )
    return None


def _waiting(reason: Reason, last: PolicyRun | None, *, message: str) -> ReplayDecision:
    return ReplayDecision("Waiting", reason, message, last)
