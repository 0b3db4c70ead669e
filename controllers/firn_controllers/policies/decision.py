"""Decisions about one policy: which tables are due, which are overdue, and what its runs did. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from firn.model.config import Config
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.policies import audits, plan, runs
from firn_controllers.policies.due import TableDecision, decide_table
from firn_controllers.policies.observed import GovernedTopic, ObservedPolicy
from firn_controllers.policies.outcome import PolicyOutcome, recorded
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.policies.runs import PolicyRun, RunHistory
from firn_controllers.ports import TableDebt


@dataclass(frozen=True, slots=True)
class TopicDecision:
    """The decision about one topic for which the policy is followed."""

    topic: GovernedTopic
    outcome: PolicyOutcome
    due: DueTable | None = None
    """Its table, if a run is due and no other run works on the table."""
    due_since: datetime | None = None
    """Time since which a run is due that has not started."""
    held: bool = False
    """True if a run is due, but a run of another policy works on the table."""
    deadline: datetime | None = None
    """Time at which the due run is overdue."""
    debt_outdated: bool = False
    """True if the debt was measured before a run that ended since. It is no reason for another run then."""


@dataclass(frozen=True, slots=True)
class PolicyDecision:
    """The decisions about all topics for which the policy is followed."""

    topics: tuple[TopicDecision, ...]

    @property
    def due(self) -> tuple[DueTable, ...]:
        """Tables that a run may start on now."""
        return tuple(topic.due for topic in self.topics if topic.due is not None)

    @property
    def held(self) -> bool:
        """True if a run of another policy works on a table that is due."""
        return any(topic.held for topic in self.topics)

    @property
    def next(self) -> datetime | None:
        """Time at which the next table may be due or overdue."""
        times = [topic.outcome.next for topic in self.topics] + [topic.deadline for topic in self.topics]
        return min((time for time in times if time is not None), default=None)


def decide_topics(observed: ObservedPolicy) -> Iterator[TopicDecision]:
    """Decide about every topic for which the policy is followed, one after the other."""
    ended = _ended_runs(observed)
    unsettled = [run for run in observed.runs if not run.settled(observed.now)]
    own = frozenset[str]().union(*(run.uids for run in unsettled))
    busy = own.union(observed.claimed, *(run.uids for run in observed.active))
    for topic in observed.topics:
        if topic.followed:
            policy = audits.spread_over_topics(observed.policy, topic.entry.uid)
            yield _decide_topic(replace(observed, policy=policy), topic, ended.get(topic.entry.uid, ()), own, busy)


def planned_runs(
    observed: ObservedPolicy, decision: PolicyDecision, making: frozenset[str], config: Config
) -> list[PlannedRun]:
    """Choose the runs to start now, within the limits of the policy and of the configuration.

    ``making``: names of runs being made.
    """
    terms = observed.policy.terms
    if terms is None or not decision.due:
        return []
    at_work = making.union(run.name for run in observed.active)
    planned = plan.planned_runs(observed.policy, decision.due, config, len(decision.due))
    if observed.policy.kind == "Audit":
        planned = [run for run in planned if audit_start(observed.policy, run) <= observed.now]
    own_room = terms.max_concurrent - sum(run.active for run in observed.runs)
    room = min(own_room, config.maintenance.max_runs - len(at_work))
    return planned[: max(0, room)]


def audit_start(policy: PolicyEntry, run: PlannedRun) -> datetime:
    """Return when a run of audits may start: at once if it is full, else when its topics had time to gather.

    Audits are not urgent, and topics are due one after the other. Without a pause each topic would have its own JVM.
    """
    since = min(table.due.since for table in run.tables)
    return since + audits.gathering(policy) if run.room else since


def is_unwanted(policy: PolicyEntry, run: PolicyRun, workable: frozenset[str]) -> bool:
    """Return True if an active run of the policy has to be stopped.

    Deleting data needs an explicit spec. So a run that deletes is stopped as soon as the spec names other data, or the
    policy no longer governs all tables of the run. Its other tables have not failed: they are due again at once.
    ``workable``: uids of the topics that the policy governs and whose tables runs may work on.
    """
    if policy.terms is not None and policy.terms.suspended:
        return True
    if run.mark.mode != "Enforce":
        return False
    return run.mark.work != plan.work_hash(policy) or not run.uids <= workable


def _ended_runs(observed: ObservedPolicy) -> Mapping[str, Sequence[PolicyRun]]:
    """Return the settled runs of each topic, by uid, in the order in which they ended."""
    ended: defaultdict[str, list[PolicyRun]] = defaultdict(list)
    settled = [run for run in observed.runs if run.settled(observed.now)]
    for run in sorted(settled, key=lambda run: (run.job.finished, run.name)):
        for uid in run.uids:
            ended[uid].append(run)
    return ended


def _decide_topic(
    observed: ObservedPolicy,
    topic: GovernedTopic,
    ended: Sequence[PolicyRun],
    own: frozenset[str],
    busy: frozenset[str],
) -> TopicDecision:
    """Decide about one topic.

    ``own`` and ``busy``: uids of topics that a run of this policy, or any run, has not finished with.
    """
    policy, uid, now = observed.policy, topic.entry.uid, observed.now
    history = _history(policy, topic, now)
    for run in ended:
        history = history.after_run(run, uid)
    outdated = topic.outcome is not None and topic.outcome.history.finished != history.finished
    debt = None if outdated else topic.debt
    decision, table = _decide_table(policy, topic, history, debt, now)
    outcome = PolicyOutcome(policy.name[1], history, decision.next)
    if table is None or policy.terms is None or uid in own:
        return TopicDecision(topic, outcome, debt_outdated=outdated)
    held = uid in busy
    since = topic.due_since or now
    deadline = since + policy.terms.deadline
    late = now > deadline
    if late:
        cause = (
            "other runs work on the table; wait, or choose a schedule that does not overlap with theirs"
            if held
            else "too many other runs are active; raise spec.run.maxConcurrent, or maintenance.maxRuns of the configuration"
        )
        outcome = replace(
            outcome, overdue=f"a run is due, but has not started within spec.run.deadline, because {cause}"
        )
    return TopicDecision(
        topic,
        outcome,
        due=None if held else table,
        due_since=since,
        held=held,
        deadline=None if late else deadline,
        debt_outdated=outdated,
    )


def _decide_table(
    policy: PolicyEntry, topic: GovernedTopic, history: RunHistory, debt: TableDebt | None, now: datetime
) -> tuple[TableDecision, DueTable | None]:
    """Return when the topic's table is due, and the table if that is now."""
    terms, table = policy.terms, topic.table
    if terms is None or table is None:
        return TableDecision(), None
    decision = decide_table(
        terms,
        now,
        history=history,
        generation=policy.generation,
        debt=debt if debt is not None and debt.table_uuid == table.uuid else None,
        requests=plan.run_requests(policy, topic.entry),
    )
    if decision.due is None:
        return decision, None
    last_run = (history.last or {}).get("name", "")
    due = DueTable(topic.entry, table.target, table.uuid, debt, decision.due, last_run, sharers=table.sharers)
    return decision, due


def _history(policy: PolicyEntry, topic: GovernedTopic, now: datetime) -> RunHistory:
    """Return the topic's history as it counts under the policy.

    It is the newer one of status and of the last reconcile's outcome, because the status may not be written yet.
    """
    history = RunHistory.from_status(recorded(topic.entry.status, policy.kind))
    if topic.outcome is not None:
        last = topic.outcome.history
        if (last.finished or runs.EARLIEST) >= (history.finished or runs.EARLIEST):
            history = last
    slots = policy.terms.slots if policy.terms is not None else None
    request = plan.run_requests(policy, topic.entry).get("policy")
    answered = request if request == policy.status.get("lastRequest") else None
    if slots is None:
        return history.governed_by(policy.uid, "", None, answered)
    return history.governed_by(policy.uid, slots.cron.text, slots.last(now), answered)
