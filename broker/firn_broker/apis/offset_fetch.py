"""OffsetFetch (9), versions 1 to 9: committed offsets of a group, of several since 8; -1 for a partition without one.
All partitions since 2. A partition that is requested more than once is answered once.

Since 9 a member of a KIP-848 group sends its epoch: STALE_MEMBER_EPOCH if it is not the present one.

The broker never answers with NOT_COORDINATOR or COORDINATOR_NOT_AVAILABLE. After them librdkafka 2.16 leaves the
partitions without an offset, and so without records, until the next rebalance, and Java before 3.9 treats the latter as
fatal. Clients that request stable offsets (KIP-447) get UNSTABLE_OFFSET_COMMIT and retry. Others get
COORDINATOR_LOAD_IN_PROGRESS and retry. A member whose group has moved to another broker learns it from its heartbeat.
"""

from collections.abc import Collection, Mapping

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records.cursor import MalformedError
from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.log_types import CommittedOffset, Partition
from firn_broker.network.router import Call, Client
from firn_broker.wire.requests import OffsetFetchGroup, OffsetFetchRequest

log = structlog.get_logger()

KEY = 9
VERSIONS = (1, 9)
NONE = CommittedOffset(-1)
_LATER = {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.coordinator_load_in_progress}


async def handle(broker: Broker, request: OffsetFetchRequest, call: Call) -> Fields:
    """Report the committed offsets of each requested group."""
    stable = request.require_stable
    if call.version < 8:
        return await _group(broker, OffsetFetchGroup(request.group_id, request.topics), stable, call)
    groups: dict[str, OffsetFetchGroup] = {}
    for group in request.groups:
        if groups.setdefault(group.group_id, group) != group:
            raise MalformedError(f"the request names group {group.group_id} twice, with different fields")
    return {"groups": [await _group(broker, group, stable, call) for group in groups.values()]}


async def _group(broker: Broker, requested: OffsetFetchGroup, stable: bool, call: Call) -> Fields:
    group = requested.group_id
    topics = _topics(requested)
    answers: list[Fields] = []
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.GROUP, group):
        return _refused(group, topics, ErrorCode.group_authorization_failed, stable)
    hidden = broker.authorizer.forbidden(call.client, Operation.DESCRIBE, ResourceType.TOPIC, topics or ())
    try:
        offsets = await broker.groups.offsets(group, requested.member_id, requested.member_epoch)
        if topics is None:
            answers = _all(broker, offsets, call.client)
        else:
            for name, indexes in topics.items():
                if name in hidden:
                    answers.append(_failed(name, indexes, ErrorCode.topic_authorization_failed))
                    continue
                topic = await broker.topic_metadata.find(name)
                partitions = [
                    _partition(index, offsets.get(Partition(topic.id, index), NONE) if topic else NONE)
                    for index in indexes
                ]
                answers.append({"name": name, "partitions": partitions})
    except UnavailableError as error:
        log.warning(
            "the coordinator cannot be reached: the client has to retry",
            api="OffsetFetch",
            client=call.client.id,
            error=str(error),
        )
        return _refused(group, topics, ErrorCode.coordinator_not_available, stable)
    except GroupError as refused:
        return _refused(group, topics, refused.code, stable)
    return {"group_id": group, "topics": answers, "error_code": ErrorCode.none}


def _topics(requested: OffsetFetchGroup) -> Mapping[str, Collection[int]] | None:
    """List the requested partitions by topic, each once; None for all partitions with an offset."""
    if requested.topics is None:
        return None
    indexes: dict[str, dict[int, None]] = {}
    for topic in requested.topics:
        indexes.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return indexes


def _all(broker: Broker, offsets: Mapping[Partition, CommittedOffset], client: Client) -> list[Fields]:
    by_topic: dict[str, list[Fields]] = {}
    for partition, offset in sorted(offsets.items()):
        if (topic := broker.topic_metadata.by_id.get(partition.topic)) is not None:
            by_topic.setdefault(topic.name, []).append(_partition(partition.index, offset))
    hidden = broker.authorizer.forbidden(client, Operation.DESCRIBE, ResourceType.TOPIC, by_topic, audited=False)
    return [{"name": name, "partitions": partitions} for name, partitions in by_topic.items() if name not in hidden]


def _refused(group: str, topics: Mapping[str, Collection[int]] | None, error: ErrorCode, stable: bool) -> Fields:
    of_group = error
    if error in _LATER and stable and topics is not None:
        error, of_group = ErrorCode.unstable_offset_commit, ErrorCode.none
    elif error in _LATER:
        error = of_group = ErrorCode.coordinator_load_in_progress
    answers = [_failed(name, indexes, error) for name, indexes in (topics or {}).items()]
    return {"group_id": group, "topics": answers, "error_code": of_group}


def _failed(name: str, indexes: Collection[int], error: ErrorCode) -> Fields:
    return {"name": name, "partitions": [_partition(index, NONE, error) for index in indexes]}


def _partition(index: int, offset: CommittedOffset, error: ErrorCode = ErrorCode.none) -> Fields:
    return {
        "partition_index": index, "committed_offset": offset.offset, "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata, "error_code": error,
    }  # fmt: skip
