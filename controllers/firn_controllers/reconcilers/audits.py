"""The reconcile of all audits: due topics, their runs, and the findings of the runs.

Audits work as a policy that governs every topic (`firn_controllers.policies.audits`). They share the limit of active
runs with the policies, and a table has one run at a time. Their results go to the statuses of the topics.
"""

from collections.abc import Collection, Sequence
from datetime import datetime

from firn.model.errors import FirnError
from firn.model.jobs import RecordSchema
from firn.tables import rows
from firn_controllers.cache.policies import PolicyEntry
from firn_controllers.cache.topics import TopicEntry
from firn_controllers.iceberg_topic.observed import schema_of
from firn_controllers.policies.audits import NAME, audit_policy, gathering
from firn_controllers.policies.decision import PolicyDecision, decide_topics, planned_runs
from firn_controllers.policies.observed import GovernedTopic, ObservedPolicy
from firn_controllers.policies.runs import PolicyRun
from firn_controllers.ports import NoRunMeter, RunMeter
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.policy.reconciler import LISTEN
from firn_controllers.reconcilers.policy.reporting import EndedRuns
from firn_controllers.reconcilers.policy.runs import PolicyRuns
from firn_controllers.reconcilers.policy.subjects import in_turns, target_table
from firn_controllers.specs.policy_fit import unreadable_column

LEAST = 15.0
"""Least seconds until the next topic is due. In a large installation a topic is due each second."""
BLOCKED = 30.0
"""Seconds until the next attempt to start runs that the runs of policies hold back. Each attempt checks all topics."""


class AuditReconciler:
    """Starts the audits of all topics. Raises InvalidSpecError if their schedule is not valid."""

    def __init__(self, context: Context, runs: PolicyRuns, meter: RunMeter | None = None) -> None:
        self._context = context
        self._runs = runs
        self._ended = EndedRuns(context, meter or NoRunMeter())
        self._policy = audit_policy(context.config)
        self._name = (context.config.namespace, NAME)

    async def reconcile(self) -> Outcome:
        """Start the runs that are due, and publish the results of those that ended."""
        runs = await self._runs.read("Audit", self._name)
        if self._policy is None:
            for run in runs:
                await self._runs.stop(run)
            return self._context.resync()
        now = self._context.ports.clock.now()
        self._ended.note_policy(self._policy)
        self._ended.count(self._policy, [run for run in runs if not run.active and run.settled(now)])
        begun = self._runs.begun
        observed = await self._observe(self._policy, runs)
        decision = PolicyDecision(tuple([topic async for topic in in_turns(decide_topics(observed))]))
        await self._publish(decision)
        if self._runs.begun != begun:
            return Outcome(after=LISTEN)  # a policy may work on the same tables now
        planned = planned_runs(observed, decision, self._runs.making, self._context.config)
        await self._runs.start(self._policy, planned)
        started = {table.topic.uid for run in planned for table in run.tables}
        left = [table.due.since for table in decision.due if table.topic.uid not in started]
        free = sum(run.active for run in runs) + len(planned) < self._context.config.maintenance.audit.max_concurrent
        return self._next_look(self._policy, decision, runs, retry=free, oldest=min(left, default=None))

    async def _observe(self, policy: PolicyEntry, runs: Sequence[PolicyRun]) -> ObservedPolicy:
        ours = await self._own_namespaces({entry.name[0] for entry in self._context.topics.all()})
        topics = [
            GovernedTopic(entry=entry, because="Selected", table=table, debt=self._context.board.debts.get(entry.uid))
            async for entry in in_turns(list(self._context.topics.all()))
            if entry.name[0] in ours
            and self._has_landed(entry)
            and not self._excluded(entry)
            and (table := target_table(self._context, entry, of_topic=True)) is not None
        ]
        return ObservedPolicy(
            policy=policy,
            topics=tuple(topics),
            runs=tuple(runs),
            active=tuple(await self._runs.active()),
            claimed=self._runs.claimed,
            now=self._context.ports.clock.now(),
        )

    async def _own_namespaces(self, namespaces: Collection[str]) -> frozenset[str]:
        """Return the namespaces whose resources this release manages, as far as it can know."""
        ours = set()
        for namespace in namespaces:
            try:
                if await self._context.ports.cluster.rival(namespace) is None:
                    ours.add(namespace)
            except FirnError:
                continue  # the next reconcile knows more
        return frozenset(ours)

    def _has_landed(self, entry: TopicEntry) -> bool:
        """Return whether records of the topic may be in its table."""
        if entry.parent is not None or entry.profile not in self._context.config.profiles:
            return False  # the audit of the parent reads the tables of its routes, too
        tables = [entry.status.get("ingestion") or {}, *(entry.status.get("tables") or ())]
        return any(table.get("lastCommitTime") for table in tables)

    def _excluded(self, entry: TopicEntry) -> bool:
        """Return whether no run can read the table. The status of the topic says so."""
        schema: object = self._context.board.schemas.get(entry.uid)
        if schema is None and entry.resource is not None:
            schema = schema_of(entry.resource)
        return isinstance(schema, RecordSchema) and unreadable_column(rows.schema_columns(schema)) is not None

    async def _publish(self, decision: PolicyDecision) -> None:
        """Put the results on the board, and wake the topics whose results changed."""
        outcomes = self._context.board.outcomes
        known = {topic.topic.entry.uid for topic in decision.topics}
        for uid in [uid for uid, kind in outcomes if kind == "Audit" and uid not in known]:
            del outcomes[uid, "Audit"]
        async for topic in in_turns(decision.topics):
            entry = topic.topic.entry
            if outcomes.get((entry.uid, "Audit")) != topic.outcome:
                outcomes[entry.uid, "Audit"] = topic.outcome
                self._context.wake_topic(entry.name, Lane.DEPENDENCY)

    def _next_look(
        self,
        policy: PolicyEntry,
        decision: PolicyDecision,
        runs: Sequence[PolicyRun],
        *,
        retry: bool,
        oldest: datetime | None,
    ) -> Outcome:
        """Return the time of the next reconcile. ``oldest``: the time since which a due topic has waited for a run."""
        now = self._context.ports.clock.now()
        times = [self._context.resync().after or 0.0]
        if decision.next is not None:
            # Clocks differ, so a reconcile at the exact time could be too early.
            times.append(max(LEAST, (decision.next - now).total_seconds() + 0.1))
        if oldest is not None and retry:
            gathered = oldest + gathering(policy)
            times.append(BLOCKED if gathered <= now else max(LEAST, (gathered - now).total_seconds() + 0.1))
        elif decision.held and retry:
            times.append(BLOCKED)
        if any(run.job.finished is not None and not run.settled(now) for run in runs):
            times.append(LISTEN)
        return Outcome(after=min(times))
