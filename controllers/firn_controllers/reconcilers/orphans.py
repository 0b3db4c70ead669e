"""What nobody wants any more: job contracts of resources that were deleted, without a finalizer, while no operator ran; contracts of
maintenance runs whose Jobs are gone; and drivers of ingestion groups that the configuration no longer has. Fleets are no orphans,
whatever the configuration says: they hold data."""

import logging
from collections.abc import Collection, Iterable

from firn.model import names
from firn_controllers.cache.topics import TopicCache
from firn_controllers.children import COMPONENT, Owner
from firn_controllers.ingestion_group.layout import INGESTION_LABELS, group_labels
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.ports import Ports

log = logging.getLogger(__name__)

_GROUP_KINDS = (("apps/v1", "StatefulSet"), ("v1", "Service"), ("v1", "ConfigMap"))


async def prune_groups(ports: Ports, owner: Owner, configured: Iterable[str]) -> bool:
    """Remove the drivers of all groups that are not ``configured``; True while one of them has not ended yet.

    At once, though topics may name such a group: a driver that is told to end finishes its commits. Its Service and settings go after
    it, as its executors find it by that Service until then.
    """
    cluster, waits = ports.cluster, False
    kept = {names.ingestion(group) for group in configured}
    for api_version, kind in _GROUP_KINDS:
        for name in await cluster.list_names(api_version, kind, INGESTION_LABELS):
            if name in kept:
                continue
            group = name.removeprefix(names.ingestion(""))
            if kind != "StatefulSet" and await cluster.pods(group_labels(group)):
                waits = True
                continue
            await cluster.delete(api_version, kind, owner.namespace, name)
            log.info("removed %s %s: the configuration has no ingestion group %s any more", kind, name, group)
    return waits


async def prune_contracts(ports: Ports, owner: Owner, index: TopicCache) -> list[str]:
    """Delete them; their uids. Only with two proofs: the index, complete by now, lacks the uid, and so does a live look."""
    pruned = []
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    prefix = names.job("")
    for name in await ports.cluster.list_names("v1", "ConfigMap", labels):
        uid = name.removeprefix(prefix)
        if not name.startswith(prefix) or index.by_uid(uid) is not None:
            continue
        config_map = await ports.cluster.get("v1", "ConfigMap", owner.namespace, name)
        if config_map is None:
            continue
        found = config_map["metadata"].get("labels") or {}
        topic_namespace, topic = found.get(names.LABEL_TOPIC_NAMESPACE), found.get(names.LABEL_TOPIC)
        if topic_namespace and topic:
            live = await ports.cluster.get(names.API_VERSION, "IcebergTopic", topic_namespace, topic)
            if live is not None and live["metadata"].get("uid") == uid:
                continue
        await ports.cluster.delete("v1", "ConfigMap", owner.namespace, name)
        log.info("removed job contract %s of a deleted IcebergTopic %s/%s", name, topic_namespace, topic)
        pruned.append(uid)
    return pruned


async def prune_runs(ports: Ports, owner: Owner, making: Collection[str]) -> list[str]:
    """Delete the contracts of runs whose Jobs are gone, most by their time to live; their names. ``making``: runs whose contract may be
    there already and whose Job is not yet."""
    labels = {COMPONENT: COMPONENT_RUN}
    pruned = []
    known = await ports.cluster.list_names("v1", "ConfigMap", labels)
    jobs = {job.name for job in await ports.cluster.jobs(labels)}
    for name in known:
        if name in jobs or name in making:
            continue
        if await ports.cluster.get("batch/v1", "Job", owner.namespace, name) is None and name not in making:
            await ports.cluster.delete("v1", "ConfigMap", owner.namespace, name)
            pruned.append(name)
    return pruned
