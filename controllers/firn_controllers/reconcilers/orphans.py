"""Removes objects that nothing refers to any more.

These are job contracts of resources that were deleted, without a finalizer, while no operator ran; contracts of
maintenance runs whose Jobs are gone; and drivers of ingestion groups that the configuration no longer has, with their
ACLs. Fleets are never removed: they hold data.
"""

import logging

from firn.model import names
from firn.model.errors import AccessDeniedError
from firn_controllers.children import COMPONENT
from firn_controllers.iceberg_topic.observed import LiveJob
from firn_controllers.ingestion_group import settings
from firn_controllers.ingestion_group.layout import INGESTION_LABELS, group_labels
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.queue import Outcome
from firn_controllers.reconcilers.context import Context
from firn_controllers.reconcilers.policy.runs import PolicyRuns
from firn_controllers.reconcilers.topic.kept_topics import KeptTopics

log = logging.getLogger(__name__)

ENDING = 5.0
"""Seconds between two checks of drivers that are terminating."""
_GROUP_KINDS = (("apps/v1", "StatefulSet"), ("v1", "Service"), ("v1", "ConfigMap"))


class OrphanReconciler:
    """Removes orphans of every kind."""

    def __init__(self, context: Context, runs: PolicyRuns) -> None:
        self._context = context
        self._cluster = context.ports.cluster
        self._namespace = context.owner.namespace
        self._runs = runs
        self._kept = KeptTopics(context)

    async def reconcile(self) -> Outcome:
        """Remove all orphans. A kind that fails delays no other kind; its first error is raised at the end."""
        ending, failures = False, list[Exception]()
        for prune in (self._prune_job_contracts, self._prune_run_contracts, self._prune_groups):
            try:
                ending = bool(await prune()) or ending
            except Exception as error:
                log.warning("removal of orphans failed and is retried: %s", error)
                failures.append(error)
        if failures:
            raise failures[0]
        return Outcome(after=ENDING if ending else self._context.resync_interval)

    async def _prune_groups(self) -> bool:
        """Delete the drivers of groups that are not configured. Returns whether a driver has not ended yet.

        A driver is deleted although topics may still name its group, because a terminating driver finishes its commits.
        Its Service and settings are deleted after it, because its executors find it by that Service until then. Its settings name its
        users in Kafka, so they are deleted after the ACLs of these users.
        """
        waits = False
        kept = {names.ingestion(group) for group in self._context.config.groups}
        for api_version, kind in _GROUP_KINDS:
            for name in await self._cluster.list_names(api_version, kind, INGESTION_LABELS):
                if name in kept:
                    continue
                group = name.removeprefix(names.ingestion(""))
                if kind != "StatefulSet" and await self._cluster.pods(group_labels(group)):
                    waits = True
                    continue
                if kind == "ConfigMap":
                    noted = settings.read_users(await self._cluster.get(api_version, kind, self._namespace, name))
                    if await self._context.rights.revoke(noted):
                        waits = True
                        continue
                await self._cluster.delete(api_version, kind, self._namespace, name)
                log.info("removed %s %s: the configuration no longer has ingestion group %s", kind, name, group)
        return waits

    async def _prune_job_contracts(self) -> None:
        """Remove the contracts of deleted topics: those that both the complete cache and a live read lack.

        It also removes contracts of namespaces that the operator no longer watches, because nothing manages their
        topics any more. Their data stays, and ingestion continues at the landed offsets if the namespace comes back.
        A contract whose topic cannot be read stays.
        """
        labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
        prefix = names.job("")
        for name in await self._cluster.list_names("v1", "ConfigMap", labels):
            uid = name.removeprefix(prefix)
            if not name.startswith(prefix) or self._context.topics.by_uid(uid) is not None:
                continue
            config_map = await self._cluster.get("v1", "ConfigMap", self._namespace, name)
            if config_map is None:
                continue
            marks = config_map["metadata"].get("labels") or {}
            topic_namespace, topic = marks.get(names.LABEL_TOPIC_NAMESPACE), marks.get(names.LABEL_TOPIC)
            cause = "the IcebergTopic is deleted"
            if topic_namespace and topic:
                if not self._context.config.watches(topic_namespace):
                    cause = "watchNamespaces no longer has the namespace"
                elif await self._lives(topic_namespace, topic, uid):
                    continue
            job = LiveJob.read(config_map)
            if job is not None:
                await self._kept.keep(job.job)
            await self._cluster.delete("v1", "ConfigMap", self._namespace, name)
            log.info("removed job contract %s of IcebergTopic %s/%s: %s", name, topic_namespace, topic, cause)

    async def _lives(self, namespace: str, name: str, uid: str) -> bool:
        """Return whether the IcebergTopic exists, or the operator cannot know."""
        try:
            live = await self._cluster.get(names.API_VERSION, "IcebergTopic", namespace, name)
        except AccessDeniedError as error:
            log.warning(
                "job contract of IcebergTopic %s/%s stays, because the operator cannot read the resource: %s",
                namespace,
                name,
                error,
            )
            return True
        return live is not None and live["metadata"].get("uid") == uid

    async def _prune_run_contracts(self) -> None:
        """Remove the contracts of runs without a Job. Kubernetes deletes most Jobs after their time to live."""
        labels = {COMPONENT: COMPONENT_RUN}
        contracts = await self._cluster.list_names("v1", "ConfigMap", labels)
        jobs = {job.name for job in await self._cluster.jobs(labels)}
        for name in contracts:
            # The contract of a run that is being made exists before its Job.
            if name in jobs or name in self._runs.making:
                continue
            if (
                await self._cluster.get("batch/v1", "Job", self._namespace, name) is None
                and name not in self._runs.making
            ):
                await self._cluster.delete("v1", "ConfigMap", self._namespace, name)
