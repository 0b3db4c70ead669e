"""The reconcile of one policy: observe -> decide -> start -> report, from the top each time."""

from collections.abc import Collection, Sequence
from datetime import datetime

from firn.model import names
from firn_controllers.cache.policies import Kind, PolicyEntry
from firn_controllers.cache.topics import Name
from firn_controllers.policies.decision import PolicyDecision, decide_topics, is_unwanted, planned_runs
from firn_controllers.policies.observed import GovernedTopic, ObservedPolicy
from firn_controllers.policies.runs import PolicyRun
from firn_controllers.policies.status import TROUBLED_AFTER, paused_status
from firn_controllers.ports import NoRunMeter, RunMeter
from firn_controllers.queue import Lane, Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.policy.reporting import PolicyReports
from firn_controllers.reconcilers.policy.runs import PolicyRuns
from firn_controllers.reconcilers.policy.subjects import in_turns, target_table

LISTEN = 1.0
"""Seconds until the next check for the report of a run that ended."""
BLOCKED = 5.0
"""Seconds until the next attempt to start runs that a limit holds back."""
TOPICS_PER_SECOND = 500
"""Topics of a policy's namespace for each second between two reconciles of the policy because of changed topics. So a
bulk of changes costs a small share of the processor."""


class PolicyReconciler:
    """Reconciles policies of both kinds."""

    def __init__(self, context: Context, meter: RunMeter | None = None) -> None:
        self._context = context
        self._reports = PolicyReports(context, meter or NoRunMeter())
        self.runs = PolicyRuns(context)
        self._governed: dict[tuple[Kind, Name], frozenset[str]] = {}
        self._due_since: dict[tuple[Kind, str], datetime] = {}  # by uid of the topic
        self._looked: dict[tuple[Kind, Name], float] = {}

    def pause(self, kind: Kind, name: Name) -> float:
        """Return for how many seconds the policy may ignore that a topic changed."""
        looked = self._looked.get((kind, name))
        if looked is None:
            return 0.0
        pause = len(self._context.topics.in_namespace(name[0])) / TOPICS_PER_SECOND
        return max(0.0, looked + pause - self._context.ports.clock.monotonic())

    async def reconcile(self, kind: Kind, name: Name) -> Outcome:
        """Bring the policy's runs and status closer to its spec."""
        policy = self._context.policies.get(kind, name)
        self._looked[kind, name] = self._context.ports.clock.monotonic()
        runs = await self.runs.read(kind, name)
        if policy is None:
            return await self._end(kind, name, runs)
        self._reports.note_policy(policy)
        # A paused policy starts no run, but it still stops runs that delete data which its spec now wants to keep.
        runs = await self._stop_unwanted(policy, runs)
        if policy.paused:
            await self._reports.write(policy, paused_status(policy, self._context.ports.clock.now()))
            return Outcome()
        begun = self.runs.begun
        observed = await self._observe(policy, runs)
        decision = PolicyDecision(tuple([topic async for topic in in_turns(decide_topics(observed))]))
        await self._publish(policy, decision)
        if self.runs.begun != begun:
            return Outcome(after=LISTEN)  # another policy may work on the same tables now
        planned = planned_runs(observed, decision, self.runs.making, self._context.config)
        started = await self.runs.start(policy, planned)
        if started:
            self._forget_due(kind, [table.topic.uid for run in planned for table in run.tables])
            runs = await self.runs.read(kind, name)
        await self._reports.report(observed, decision, runs, started)
        no_room = sum(len(run.tables) for run in planned) < len(decision.due)
        return self._next_look(decision, runs, blocked=decision.held or no_room)

    async def _end(self, kind: Kind, name: Name, runs: Sequence[PolicyRun]) -> Outcome:
        """Stop the runs of a deleted policy, and forget it."""
        for run in runs:
            await self.runs.stop(run)
        self._release(kind, name, frozenset())
        self._looked.pop((kind, name), None)
        self._reports.forget(kind, name)
        self.runs.forget(kind, name)
        return Outcome()

    async def _stop_unwanted(self, policy: PolicyEntry, runs: Sequence[PolicyRun]) -> list[PolicyRun]:
        """Stop the runs that `is_unwanted` names. Returns the policy's other runs."""
        workable = frozenset[str]()
        if any(run.active and run.mark.mode == "Enforce" for run in runs):
            topics = await self._governed_topics(policy)
            workable = frozenset(topic.entry.uid for topic in topics if topic.followed and topic.table is not None)
        kept = []
        for run in runs:
            # A policy that was deleted and created again under its name has another uid.
            another = run.job.labels.get(names.LABEL_POLICY_UID) != policy.uid
            if run.active and (another or is_unwanted(policy, run, workable)):
                await self.runs.stop(run)
            elif not another:
                kept.append(run)
        return kept

    # Observe

    async def _observe(self, policy: PolicyEntry, runs: Sequence[PolicyRun]) -> ObservedPolicy:
        topics = await self._governed_topics(policy)
        active = await self.runs.active()
        return ObservedPolicy(
            policy=policy,
            topics=tuple(topics),
            runs=tuple(runs),
            active=tuple(active),
            claimed=self.runs.claimed,
            now=self._context.ports.clock.now(),
        )

    async def _governed_topics(self, policy: PolicyEntry) -> list[GovernedTopic]:
        context, board = self._context, self._context.board
        topics = []
        async for entry in in_turns(list(context.topics.in_namespace(policy.name[0]))):
            resolution = context.policies.resolve(policy.kind, entry)
            if resolution.policy is None or resolution.policy.uid != policy.uid:
                continue
            topics.append(
                GovernedTopic(
                    entry=entry,
                    because=str(resolution.because),
                    refusal=resolution.problem,
                    table=target_table(context, entry),
                    debt=board.debts.get(entry.uid),
                    outcome=board.outcomes.get((entry.uid, policy.kind)),
                    due_since=self._due_since.get((policy.kind, entry.uid)),
                )
            )
        return topics

    # Publish

    async def _publish(self, policy: PolicyEntry, decision: PolicyDecision) -> None:
        """Put outcomes on the board, and wake the topics whose outcome changed."""
        board, kind = self._context.board, policy.kind
        self._release(
            kind, policy.name, frozenset(topic_decision.topic.entry.uid for topic_decision in decision.topics)
        )
        async for topic_decision in in_turns(decision.topics):
            entry = topic_decision.topic.entry
            if topic_decision.debt_outdated:
                board.debts.pop(entry.uid, None)
            if topic_decision.due_since is None:
                self._due_since.pop((kind, entry.uid), None)
            else:
                self._due_since[kind, entry.uid] = topic_decision.due_since
            if board.outcomes.get((entry.uid, kind)) != topic_decision.outcome:
                board.outcomes[entry.uid, kind] = topic_decision.outcome
                self._context.wake_topic(entry.name, Lane.DEPENDENCY)

    def _release(self, kind: Kind, name: Name, uids: frozenset[str]) -> None:
        """Forget topics that the policy no longer governs, and remove their outcomes unless another policy has replaced
        them.
        """
        outcomes = self._context.board.outcomes
        released = self._governed.pop((kind, name), frozenset()) - uids
        self._forget_due(kind, released)
        for uid in released:
            outcome = outcomes.get((uid, kind))
            if outcome is not None and outcome.policy == name[1]:
                del outcomes[uid, kind]
        if uids:
            self._governed[kind, name] = uids

    def _forget_due(self, kind: Kind, uids: Collection[str]) -> None:
        for uid in uids:
            self._due_since.pop((kind, uid), None)

    def _next_look(self, decision: PolicyDecision, runs: Sequence[PolicyRun], *, blocked: bool) -> Outcome:
        now = self._context.ports.clock.now()
        times = [self._context.resync().after or 0.0]
        if decision.next is not None:
            # Clocks differ, so a reconcile at the exact time could be too early.
            times.append(max(0.0, (decision.next - now).total_seconds()) + 0.1)
        if blocked:
            times.append(BLOCKED)
        if any(run.trouble for run in runs):
            times.append(TROUBLED_AFTER.total_seconds())
        if any(run.job.finished is not None and not run.settled(now) for run in runs):
            times.append(LISTEN)
        return Outcome(after=min(times))
