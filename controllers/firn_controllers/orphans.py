"""ConfigMaps that nobody wants any more: job contracts of resources that were deleted, without a finalizer, while no operator ran, and
contracts of maintenance runs whose Jobs are gone."""

import logging
from collections.abc import Collection

from firn.model import names
from firn_controllers.iceberg_topic.index import Index
from firn_controllers.manifests import COMPONENT, Owner
from firn_controllers.policies.runs import COMPONENT_RUN
from firn_controllers.ports import Ports

log = logging.getLogger(__name__)


async def prune(ports: Ports, owner: Owner, index: Index) -> list[str]:
    """Delete them; their uids. Only with two proofs: the index, complete by now, lacks the uid, and so does a live look."""
    pruned = []
    labels = {names.LABEL_MANAGED_BY: names.MANAGED_BY}
    prefix = names.job("")
    for name in await ports.cluster.list_names("v1", "ConfigMap", labels):
        uid = name.removeprefix(prefix)
        if not name.startswith(prefix) or index.with_uid(uid) is not None:
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
