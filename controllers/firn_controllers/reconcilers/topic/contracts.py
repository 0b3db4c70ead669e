"""Job contracts of topics, as ConfigMaps ``firn-job-<uid>``, with a cache of those in force."""

import asyncio

from firn.model import names
from firn.model.jobs import IngestJob
from firn_controllers.iceberg_topic import plan
from firn_controllers.iceberg_topic.observed import LiveJob
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.topic.kept_topics import KeptTopics


class JobContracts:
    """Reads, applies and removes job contracts by the uid of their topic."""

    def __init__(self, context: Context) -> None:
        self._cluster = context.ports.cluster
        self._owner = context.owner
        self._kept = KeptTopics(context)
        self._shared = context.board.contracts
        self._clock = context.ports.clock
        self._in_force: dict[str, LiveJob] = {}
        self._present: set[str] = set()
        """Names of the ConfigMaps that earlier processes left."""
        self._retired: set[str] = set()
        """Uids of resources that are being deleted, whose contracts this process deleted."""
        self._listing: asyncio.Task[None] | None = None
        self._edited: set[str] = set()
        """Uids of contracts whose labels or owner are not those that the operator sets."""

    async def read(self, uid: str, *, cached: bool, new: bool = False) -> LiveJob | None:
        """Return the contract in force, or None.

        ``cached`` trusts the contract that this process read or applied last. A ``new`` topic, which has no status, has no
        contract if there was none when this process started and this process wrote none: no other process writes contracts.
        """
        if uid in self._retired:
            return None
        if uid in self._in_force:
            if cached:
                return self._in_force[uid]
        elif new and names.job(uid) not in await self._left():
            self._share(uid, None)
            return None
        config_map = await self._cluster.get("v1", "ConfigMap", self._owner.namespace, names.job(uid))
        job = LiveJob.read(config_map)
        self._share(uid, job.job if job is not None else None)
        if job is not None and config_map is not None:
            self._in_force[uid] = job
            right, live = plan.config_map(job, self._owner)["metadata"], config_map["metadata"]
            labels_kept = right["labels"].items() <= (live.get("labels") or {}).items()
            owners = {owner["uid"] for owner in live.get("ownerReferences") or ()}
            if labels_kept and self._owner.uid in owners:
                self._edited.discard(uid)
            else:
                self._edited.add(uid)
        return job

    def holder(self, topic_id: str) -> str | None:
        """Return the uid of a resource whose contract, as this process knows it, is about the Kafka topic with this id."""
        return next((uid for uid, live in self._in_force.items() if live.job.topic_id == topic_id), None)

    async def _left(self) -> set[str]:
        """Return the names of the ConfigMaps that existed when this process asked first."""
        if self._listing is None or (self._listing.done() and self._listing.exception() is not None):
            self._listing = asyncio.create_task(self._list())
        await asyncio.shield(self._listing)
        return self._present

    async def _list(self) -> None:
        labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
        self._present = set(await self._cluster.list_names("v1", "ConfigMap", labels))

    def edited(self, uid: str) -> bool:
        """Return whether labels or owner of the contract were not the operator's when it was read last."""
        return uid in self._edited

    def _share(self, uid: str, job: IngestJob | None) -> None:
        self._shared.put(uid, job, self._clock.monotonic())

    async def apply(self, job: LiveJob) -> None:
        """Put a contract into force."""
        # The caller has compared the content, which another client may have edited without changing the hash.
        await self._cluster.apply(plan.config_map(job, self._owner), always=True)
        self._in_force[job.job.uid] = job
        self._share(job.job.uid, job.job)
        self._edited.discard(job.job.uid)

    async def retire(self, uid: str) -> None:
        """Delete the contract of a resource that ends and keeps its Kafka topic, and remember which namespace made it."""
        if uid not in self._retired:
            job = await self.read(uid, cached=True)
            if job is not None:
                await self._kept.keep(job.job)
        # Again even if this process deleted it: a late request of the previous process may have restored it.
        await self.remove(uid)
        self._retired.add(uid)

    def forget(self, uid: str) -> None:
        """Forget a resource that was deleted."""
        self._retired.discard(uid)
        self._shared.forget(uid)

    async def remove(self, uid: str) -> None:
        """Delete the contract; a missing one is no error."""
        await self._cluster.delete("v1", "ConfigMap", self._owner.namespace, names.job(uid))
        self._in_force.pop(uid, None)
        self._share(uid, None)
        self._present.discard(names.job(uid))
        self._edited.discard(uid)
