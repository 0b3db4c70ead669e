"""The table of all Kafka APIs that this broker serves.

To add an API: write a module in ``apis`` with ``KEY``, ``VERSIONS`` and ``handle``, write its request record in
``wire/requests.py``, and add its row to `APIS`. ApiVersions advertises exactly the rows of this table."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any, Protocol, TypeVar

import structlog

from firn.model.errors import UnavailableError
from firn.records.message_writer import Fields
from firn_broker import metrics, outage
from firn_broker.apis import (
    alter_client_quotas,
    alter_configs,
    alter_user_scram_credentials,
    api_versions,
    consumer_group_describe,
    consumer_group_heartbeat,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_client_quotas,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_user_scram_credentials,
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
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
)
from firn_broker.broker import Broker
from firn_broker.network.router import Buffers, Call, Handler, Route
from firn_broker.wire import requests

log = structlog.get_logger()
R = TypeVar("R")


class InOutage(Enum):
    """Reasons why a row has no answer for an outage of the coordinator."""

    HANDLER = "the handler answers each part of the request as far as it can"
    UNAFFECTED = "the handler answers from this broker's memory"


@dataclass(frozen=True, slots=True)
class Api:
    """An API as the broker serves it."""

    key: int
    name: str
    versions: tuple[int, int]
    """Advertised versions, lowest and highest."""
    request: type | None
    """The record into which the request is decoded; None if the handler reads the frame."""
    handle: Callable[..., Awaitable[Any]]
    """Called with (broker, request, call), or with (broker, call) if the handler reads the frame."""
    reads: bool
    """True if the request changes nothing. The broker cancels it when its client disconnects."""
    outage: Callable[[Any], Fields] | InOutage
    """The broker's answer while the coordinator cannot be reached."""


class _Module(Protocol):
    __name__: str
    KEY: int
    VERSIONS: tuple[int, int]


def _decoded(
    module: _Module,
    request: type[R],
    handle: Callable[[Broker, R, Call], Awaitable[Fields]],
    *,
    reads: bool,
    outage: Callable[[R], Fields] | InOutage,
) -> Api:
    return Api(module.KEY, _name(module), module.VERSIONS, request, handle, reads, outage)


def _raw(
    module: _Module,
    handle: Callable[[Broker, Call], Awaitable[Buffers | None]],
    *,
    reads: bool,
    outage: InOutage = InOutage.HANDLER,
) -> Api:
    return Api(module.KEY, _name(module), module.VERSIONS, None, handle, reads, outage)


def _name(module: _Module) -> str:
    return "".join(part.capitalize() for part in module.__name__.rpartition(".")[2].split("_"))


# fmt: off
APIS: Sequence[Api] = (
    _raw(produce, produce.handle, reads=False),
    _raw(fetch, fetch.handle, reads=True),
    _decoded(list_offsets, requests.ListOffsetsRequest, list_offsets.handle, reads=True, outage=outage.list_offsets),
    # A topic that Metadata creates on demand is created by one call of the coordinator, so the rest may be cancelled.
    _decoded(metadata, requests.MetadataRequest, metadata.handle, reads=True, outage=InOutage.HANDLER),
    _decoded(offset_commit, requests.OffsetCommitRequest, offset_commit.handle, reads=False, outage=outage.offset_commit),
    _decoded(offset_fetch, requests.OffsetFetchRequest, offset_fetch.handle, reads=True, outage=InOutage.HANDLER),
    _decoded(find_coordinator, requests.FindCoordinatorRequest, find_coordinator.handle, reads=True, outage=InOutage.UNAFFECTED),
    _decoded(join_group, requests.JoinGroupRequest, join_group.handle, reads=False, outage=InOutage.HANDLER),
    _decoded(heartbeat, requests.HeartbeatRequest, heartbeat.handle, reads=False, outage=InOutage.HANDLER),
    _decoded(leave_group, requests.LeaveGroupRequest, leave_group.handle, reads=False, outage=InOutage.HANDLER),
    _decoded(sync_group, requests.SyncGroupRequest, sync_group.handle, reads=False, outage=InOutage.HANDLER),
    _decoded(describe_groups, requests.DescribeGroupsRequest, describe_groups.handle, reads=True, outage=InOutage.HANDLER),
    _decoded(list_groups, requests.ListGroupsRequest, list_groups.handle, reads=True, outage=InOutage.HANDLER),
    _decoded(sasl_handshake, requests.SaslHandshakeRequest, sasl_handshake.handle, reads=True, outage=InOutage.UNAFFECTED),
    _raw(api_versions, api_versions.handle, reads=True, outage=InOutage.UNAFFECTED),
    _decoded(create_topics, requests.CreateTopicsRequest, create_topics.handle, reads=False, outage=outage.create_topics),
    _decoded(delete_topics, requests.DeleteTopicsRequest, delete_topics.handle, reads=False, outage=outage.delete_topics),
    _decoded(delete_records, requests.DeleteRecordsRequest, delete_records.handle, reads=False, outage=outage.delete_records),
    _decoded(
        init_producer_id, requests.InitProducerIdRequest, init_producer_id.handle, reads=False, outage=outage.init_producer_id
    ),
    _decoded(
        offset_for_leader_epoch, requests.OffsetForLeaderEpochRequest, offset_for_leader_epoch.handle, reads=True,
        outage=outage.offset_for_leader_epoch,
    ),
    _decoded(describe_acls, requests.DescribeAclsRequest, describe_acls.handle, reads=True, outage=outage.describe_acls),
    _decoded(create_acls, requests.CreateAclsRequest, create_acls.handle, reads=False, outage=outage.create_acls),
    _decoded(delete_acls, requests.DeleteAclsRequest, delete_acls.handle, reads=False, outage=outage.delete_acls),
    _decoded(
        describe_configs, requests.DescribeConfigsRequest, describe_configs.handle, reads=True, outage=outage.describe_configs
    ),
    _decoded(alter_configs, requests.AlterConfigsRequest, alter_configs.handle, reads=False, outage=outage.alter_configs),
    _decoded(
        describe_log_dirs, requests.DescribeLogDirsRequest, describe_log_dirs.handle, reads=True, outage=outage.describe_log_dirs
    ),
    # It changes nothing but the connection. If the client disconnects, the check of its password is cancelled.
    _decoded(
        sasl_authenticate, requests.SaslAuthenticateRequest, sasl_authenticate.handle, reads=True, outage=InOutage.UNAFFECTED
    ),
    _decoded(
        create_partitions, requests.CreatePartitionsRequest, create_partitions.handle, reads=False,
        outage=outage.create_partitions,
    ),
    _decoded(delete_groups, requests.DeleteGroupsRequest, delete_groups.handle, reads=False, outage=InOutage.HANDLER),
    _decoded(
        incremental_alter_configs, requests.IncrementalAlterConfigsRequest, incremental_alter_configs.handle, reads=False,
        outage=outage.alter_configs,
    ),
    _decoded(
        list_partition_reassignments, requests.ListPartitionReassignmentsRequest, list_partition_reassignments.handle,
        reads=True, outage=InOutage.UNAFFECTED,
    ),
    _decoded(offset_delete, requests.OffsetDeleteRequest, offset_delete.handle, reads=False, outage=outage.offset_delete),
    _decoded(
        describe_client_quotas, requests.DescribeClientQuotasRequest, describe_client_quotas.handle, reads=True,
        outage=outage.describe_client_quotas,
    ),
    _decoded(
        alter_client_quotas, requests.AlterClientQuotasRequest, alter_client_quotas.handle, reads=False,
        outage=outage.alter_client_quotas,
    ),
    _decoded(
        describe_user_scram_credentials, requests.DescribeUserScramCredentialsRequest, describe_user_scram_credentials.handle,
        reads=True, outage=outage.describe_user_scram_credentials,
    ),
    _decoded(
        alter_user_scram_credentials, requests.AlterUserScramCredentialsRequest, alter_user_scram_credentials.handle, reads=False,
        outage=outage.alter_user_scram_credentials,
    ),
    _decoded(describe_cluster, requests.DescribeClusterRequest, describe_cluster.handle, reads=True, outage=InOutage.UNAFFECTED),
    _decoded(
        consumer_group_heartbeat, requests.ConsumerGroupHeartbeatRequest, consumer_group_heartbeat.handle, reads=False,
        outage=InOutage.HANDLER,
    ),
    _decoded(
        consumer_group_describe, requests.ConsumerGroupDescribeRequest, consumer_group_describe.handle, reads=True,
        outage=InOutage.HANDLER,
    ),
)
"""All served APIs, in the order of their keys."""
# fmt: on


def routes(broker: Broker) -> list[Route]:
    """Bind the handlers of all APIs to the broker."""
    return [_route(api, broker) for api in APIS]


def _route(api: Api, broker: Broker) -> Route:
    if api.request is None:
        return Route(api.key, api.name, api.versions, raw=partial(api.handle, broker), reads=api.reads)
    handler = _answered_in_outage(api, partial(api.handle, broker))
    return Route(api.key, api.name, api.versions, request=api.request, handler=handler, reads=api.reads)


def _answered_in_outage(api: Api, handler: Handler) -> Handler:
    answer = api.outage
    if isinstance(answer, InOutage):
        return handler

    async def answering(request: Any, call: Call) -> Fields:
        try:
            return await handler(request, call)
        except UnavailableError as error:
            metrics.REQUEST_ERRORS.labels(api.name).inc()
            log.warning(
                "the coordinator cannot be reached: the client has to retry",
                api=api.name,
                client=call.client.id,
                error=str(error),
            )
            return answer(request)

    return answering
