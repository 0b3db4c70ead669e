"""OffsetFetch (9), versions 1 to 9: committed offsets of a group, of several since 8; -1 where there is none. All partitions since 2.

Since 9 a member of a KIP-848 group says its epoch: STALE_MEMBER_EPOCH when that is not its present one.
"""

from collections.abc import Mapping

from kio.schema.errors import ErrorCode

from firn_broker import catalogue
from firn_broker.broker import Broker
from firn_broker.coordinates import CommittedOffset, Partition
from firn_broker.groups.coordinator import GroupError
from firn_broker.router import Call
from firn_broker.wire.messages import Fields

KEY = 9
VERSIONS = (1, 9)
NONE = CommittedOffset(-1)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    if call.version < 8:
        return await _group(broker, request.group_id, request.topics)  # type: ignore[attr-defined]
    groups = [
        await _group(broker, it.group_id, it.topics, getattr(it, "member_id", None), getattr(it, "member_epoch", -1))
        for it in request.groups  # type: ignore[attr-defined]
    ]
    return {"groups": groups}


async def _group(broker: Broker, group: str, topics: object, member: str | None = None, epoch: int = -1) -> Fields:
    error = ErrorCode.none
    offsets: Mapping[Partition, CommittedOffset] = {}
    try:
        offsets = await broker.groups.offsets(group, member, epoch)
    except GroupError as refused:
        error = refused.code
        if error is ErrorCode.coordinator_not_available:
            # Java before 3.9 takes that for fatal here, and looks for the group again after this.
            error = ErrorCode.not_coordinator
    found: list[Fields] = []
    if topics is None:
        by_topic: dict[str, list[Fields]] = {}
        for partition, offset in sorted(offsets.items()):
            if (topic := broker.catalogue.by_id.get(partition.topic)) is not None:
                by_topic.setdefault(topic.name, []).append(_partition(partition.index, offset, error))
        found = [{"name": name, "partitions": partitions} for name, partitions in by_topic.items()]
    else:
        for wanted in topics:  # type: ignore[attr-defined]
            known = await broker.catalogue.find(wanted.name)
            partitions = []
            for index in wanted.partition_indexes:
                place = None if known is None else catalogue.partition(known, index)
                partitions.append(_partition(index, offsets.get(place, NONE) if place else NONE, error))
            found.append({"name": wanted.name, "partitions": partitions})
    return {"group_id": group, "topics": found, "error_code": error}


def _partition(index: int, offset: CommittedOffset, error: ErrorCode) -> Fields:
    return {
        "partition_index": index, "committed_offset": offset.offset, "committed_leader_epoch": offset.leader_epoch,
        "metadata": offset.metadata, "error_code": error,
    }  # fmt: skip
