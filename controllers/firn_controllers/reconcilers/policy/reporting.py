"""Writes the statuses of policies, announces what their runs did, and counts runs that ended."""

from collections.abc import Sequence

from firn_controllers.cache.policies import Kind, PolicyEntry, policy_entry
from firn_controllers.cache.topics import Name
from firn_controllers.conditions import announcements
from firn_controllers.conditions.announcements import Announcement, EventReason
from firn_controllers.policies.decision import PolicyDecision
from firn_controllers.policies.observed import ObservedPolicy
from firn_controllers.policies.runs import PolicyRun
from firn_controllers.policies.status import PolicyReport, ended_run_status, policy_status
from firn_controllers.ports import Manifest, RunMeter
from firn_controllers.reconcilers.context import Context


class EndedRuns:
    """Counts each run that ended since this process started once."""

    def __init__(self, context: Context, meter: RunMeter) -> None:
        self._meter = meter
        # The times of Jobs have whole seconds, so a run may end after this moment and bear an earlier time.
        self._started = context.ports.clock.now().replace(microsecond=0)
        self._counted: dict[tuple[Kind, Name], frozenset[str]] = {}

    def note_policy(self, policy: PolicyEntry) -> None:
        """Make the policy's metrics exist before its first run ends."""
        self._meter.register(policy.kind, *policy.name)

    def count(self, policy: PolicyEntry, ended: Sequence[PolicyRun]) -> list[PolicyRun]:
        """Count runs of a policy. Returns those that were not among the runs of the call before."""
        key = (policy.kind, policy.name)
        counted = self._counted.get(key, frozenset())
        self._counted[key] = frozenset(run.name for run in ended)
        new = [run for run in ended if run.name not in counted]
        for run in new:
            if self.is_ours(run):
                self._meter.ended(policy.kind, *policy.name, ended_run_status(run))
        return new

    def is_ours(self, run: PolicyRun) -> bool:
        """Return whether the run ended since this process started."""
        return run.job.finished is not None and run.job.finished >= self._started

    def forget(self, kind: Kind, name: Name) -> None:
        """Forget a deleted policy, and remove its metrics."""
        self._counted.pop((kind, name), None)
        self._meter.forget(kind, *name)


class PolicyReports:
    """Reports each change once: to the API server, in Events and in metrics."""

    def __init__(self, context: Context, meter: RunMeter) -> None:
        self._context = context
        self._runs = EndedRuns(context, meter)

    def note_policy(self, policy: PolicyEntry) -> None:
        """Make the policy's metrics exist before its first run ends."""
        self._runs.note_policy(policy)

    async def report(
        self, observed: ObservedPolicy, decision: PolicyDecision, runs: Sequence[PolicyRun], started: Sequence[str]
    ) -> None:
        """Write the status if it changed, and announce and count the runs that started or ended."""
        policy, now = observed.policy, self._context.ports.clock.now()
        reported = [run for run in runs if run.active or run.settled(now)]
        status = policy_status(PolicyReport(observed, decision, reported, now))
        namespace = self._context.owner.namespace
        done = [Announcement("Normal", EventReason.RUN_STARTED, f"created Job {namespace}/{name}") for name in started]
        done += self._ended(policy, [run for run in reported if not run.active])
        await self.write(policy, status, done)

    async def write(self, policy: PolicyEntry, status: Manifest, done: Sequence[Announcement] = ()) -> None:
        """Write the status if it differs, and announce ``done`` and the transitions."""
        cluster, policies = self._context.ports.cluster, self._context.policies
        # They are true whether or not the status can be written, and the next reconcile does not find them again.
        await self._announce(policy, done)
        if status != policy.status:
            live = await cluster.patch_status(*policy.name, status, policy.resource_version, policy.kind)
            if live is not None:
                policies.put(policy_entry(live, self._context.config))
            else:
                policies.remove(policy.kind, policy.name, policy.uid)
            await self._announce(policy, announcements.transitions(policy.status, status))

    async def _announce(self, policy: PolicyEntry, items: Sequence[Announcement]) -> None:
        cluster = self._context.ports.cluster
        for item in items:
            await cluster.event(*policy.name, policy.uid, policy.kind, item.type, str(item.reason), item.message)

    def forget(self, kind: Kind, name: Name) -> None:
        """Forget a deleted policy, and remove its metrics."""
        self._runs.forget(kind, name)

    def _ended(self, policy: PolicyEntry, ended: Sequence[PolicyRun]) -> list[Announcement]:
        """Count the runs that ended since this process started, and return the Events of those that neither status
        shows nor this process has announced.
        """
        last = policy.status.get("lastRun") or {}
        done = []
        for run in self._runs.count(policy, ended):
            status = ended_run_status(run)
            # Runs may end in the second of the last one, or be settled only after a run that ended later.
            late = self._runs.is_ours(run) or status["finishTime"] >= last.get("finishTime", "")
            if late and run.name != last.get("name"):
                done += announcements.run_ended(status)
        return done
