"""Maintenance runs of policies in Kubernetes: reads, starts and stops their Jobs.

Runs are known by their Jobs alone. A run that an earlier process started is found among them, and the name of a run is
the same for the same tables after the same runs. So no table is given to two runs, even if the operator restarts.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from firn.model import names
from firn_controllers.cache.policies import Kind, PolicyEntry
from firn_controllers.cache.topics import Name
from firn_controllers.children import COMPONENT
from firn_controllers.conditions import pods as pod_troubles
from firn_controllers.policies import plan
from firn_controllers.policies.plan import PlannedRun
from firn_controllers.policies.runs import COMPONENT_RUN, PolicyRun, read_run
from firn_controllers.ports import PodState
from firn_controllers.reconcilers.context import Context


class PolicyRuns:
    """All runs of one operator process."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster = context.ports.cluster
        self.begun = 0
        """Number of times that this process has begun to create runs."""
        self._making: set[str] = set()
        self._claimed: set[str] = set()
        self._settled: dict[tuple[Kind, Name], dict[str, PolicyRun]] = {}

    @property
    def making(self) -> frozenset[str]:
        """Names of runs whose ConfigMap may exist and whose Job may not exist yet."""
        return frozenset(self._making)

    @property
    def claimed(self) -> frozenset[str]:
        """Uids of the topics of the runs that are being made."""
        return frozenset(self._claimed)

    async def read(self, kind: Kind, name: Name) -> list[PolicyRun]:
        """Return the runs of a policy whose Jobs exist, with the reports of their pods."""
        labels = plan.run_labels(kind, *name)
        by_run: defaultdict[str, list[PodState]] = defaultdict(list)
        for pod in await self._cluster.pods(labels):
            by_run[pod.labels.get(names.LABEL_RUN, "")].append(pod)
        # A report is unpacked once: a policy may have hundreds of runs within an hour.
        settled = self._settled.get((kind, name), {})
        runs: dict[str, PolicyRun] = {}
        for job in await self._cluster.jobs(labels):
            run = settled.get(job.name) or read_run(job, by_run[job.name])
            if run is not None:
                runs[job.name] = self._with_trouble(run, by_run[job.name])
        self._settled[kind, name] = {key: run for key, run in runs.items() if run.reported and not run.active}
        return list(runs.values())

    async def active(self) -> list[PolicyRun]:
        """Return the active runs of all policies."""
        jobs = await self._cluster.jobs({COMPONENT: COMPONENT_RUN})
        runs = (read_run(job, ()) for job in jobs)
        return [run for run in runs if run is not None and run.active]

    async def start(self, policy: PolicyEntry, planned: Sequence[PlannedRun]) -> list[str]:
        """Create ConfigMap and Job of each run. Returns the names of the runs."""
        context = self._context
        uids = {table.topic.uid for run in planned for table in run.tables}
        making = {plan.run_name(policy, run) for run in planned}
        # While this awaits, reconciles of other policies must not use these tables or exceed the limit of all runs.
        self._claimed |= uids
        self._making |= making
        self.begun += bool(planned)
        started = []
        try:
            for run in planned:
                contract = plan.contract(policy, run, context.config, context.ports.clock.now())
                await self._cluster.apply(plan.config_map(policy, contract, context.owner))
                await self._cluster.apply(plan.job(policy, run, contract, context.config, context.owner))
                started.append(contract.name)
        finally:
            self._claimed -= uids
            self._making -= making
        return started

    async def stop(self, run: PolicyRun) -> None:
        """Delete the Job of an active run."""
        if run.active and not run.job.deleting:
            await self._cluster.delete("batch/v1", "Job", self._context.owner.namespace, run.name)

    def forget(self, kind: Kind, name: Name) -> None:
        """Forget a deleted policy."""
        self._settled.pop((kind, name), None)

    def _with_trouble(self, run: PolicyRun, pods: Sequence[PodState]) -> PolicyRun:
        """Return an active run with the reason why its pod does not start, if there is one."""
        if not run.active:
            return run
        config = self._context.config
        image = (config.maintenance.image or config.images.spark).image
        waiting = [pod for pod in pods if not pod.running and pod.finished is None]
        trouble = pod_troubles.worst_trouble(waiting, image, self._context.owner.namespace)
        return replace(run, trouble=trouble.message) if trouble is not None else run
