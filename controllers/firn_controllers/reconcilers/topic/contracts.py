"""Job contracts of topics, as ConfigMaps ``firn-job-<uid>``, with a cache of those in force."""

from firn.model import names
from firn_controllers.iceberg_topic import plan
from firn_controllers.iceberg_topic.observed import LiveJob
from firn_controllers.reconcilers.context import Context


class JobContracts:
    """Reads, applies and removes job contracts by the uid of their topic."""

    def __init__(self, context: Context) -> None:
        self._cluster = context.ports.cluster
        self._owner = context.owner
        self._in_force: dict[str, LiveJob] = {}

    async def read(self, uid: str, *, cached: bool) -> LiveJob | None:
        """Return the contract in force, or None.

        ``cached`` trusts the contract that this process read or applied last.
        """
        if cached and uid in self._in_force:
            return self._in_force[uid]
        config_map = await self._cluster.get("v1", "ConfigMap", self._owner.namespace, names.job(uid))
        job = LiveJob.read(config_map)
        if job is not None:
            self._in_force[uid] = job
        return job

    async def apply(self, job: LiveJob) -> None:
        """Put a contract into force."""
        await self._cluster.apply(plan.config_map(job, self._owner))
        self._in_force[job.job.uid] = job

    async def remove(self, uid: str) -> None:
        """Delete the contract; a missing one is no error."""
        await self._cluster.delete("v1", "ConfigMap", self._owner.namespace, names.job(uid))
        self._in_force.pop(uid, None)
