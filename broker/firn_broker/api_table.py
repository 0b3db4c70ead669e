"""The APIs that are served, which is also what ApiVersions says. A module in ``apis`` that is not here does not exist for clients."""

from functools import partial
from types import ModuleType

from firn_broker.apis import (
    alter_configs,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    fetch,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    outage,
    produce,
    sync_group,
)
from firn_broker.broker import Broker
from firn_broker.network.router import Route

RAW = (produce, fetch, api_versions)
DECODED = (
    list_offsets, metadata, offset_commit, offset_fetch, find_coordinator, join_group, heartbeat, leave_group, sync_group,
    describe_groups, list_groups, create_topics, delete_topics, delete_records, init_producer_id, offset_for_leader_epoch,
    describe_configs, alter_configs, describe_log_dirs, create_partitions, delete_groups, incremental_alter_configs,
    list_partition_reassignments, offset_delete, describe_cluster, consumer_group_heartbeat, consumer_group_describe,
)  # fmt: skip

READING = frozenset(
    (
        fetch, list_offsets, metadata, offset_fetch, find_coordinator, describe_groups, list_groups, offset_for_leader_epoch,
        describe_configs, describe_log_dirs, list_partition_reassignments, describe_cluster, consumer_group_describe,
    )
)  # fmt: skip
"""Nothing depends on their end. Topics that Metadata makes are made or not by one call of the coordinator."""


def routes(broker: Broker) -> list[Route]:
    """All, in the order of their keys."""
    found = [
        Route(api.KEY, _name(api), api.VERSIONS, raw=partial(api.handle, broker), reads=api in READING) for api in RAW
    ]
    for api in DECODED:
        handler = outage.answered(api.KEY, _name(api), partial(api.handle, broker))
        found.append(Route(api.KEY, _name(api), api.VERSIONS, handler=handler, reads=api in READING))
    return sorted(found, key=lambda route: route.key)


def _name(api: ModuleType) -> str:
    return "".join(part.capitalize() for part in api.__name__.rpartition(".")[2].split("_"))
