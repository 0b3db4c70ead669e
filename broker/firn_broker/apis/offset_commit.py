"""OffsetCommit (8), versions 2 to 9: by a member of the present generation, or by any client (generation -1) while the
group is empty.

In a KIP-848 group the generation is the member's epoch: STALE_MEMBER_EPOCH if it is not the present one.

Metadata is stored unchanged, up to 4,096 characters. A zero byte in it is INVALID_REQUEST, because PostgreSQL cannot
store one; so is an offset below 0. Retention times of the request are ignored: offsets stay until they, their group or
their topic are deleted, or until the group has been empty for `GroupSettings.offsets_seconds`."""

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.groups.group import GroupError
from firn_broker.log_types import CommittedOffset, Partition
from firn_broker.network.router import Call
from firn_broker.wire.requests import OffsetCommitRequest

KEY = 8
VERSIONS = (2, 9)
METADATA_LIMIT = 4096


async def handle(broker: Broker, request: OffsetCommitRequest, call: Call) -> Fields:
    """Store the offsets of a group."""
    if broker.authorizer.forbids(call.client, Operation.READ, ResourceType.GROUP, request.group_id):
        return _refused(request, ErrorCode.group_authorization_failed)
    denied = broker.authorizer.forbidden(
        call.client, Operation.READ, ResourceType.TOPIC, (topic.name for topic in request.topics)
    )
    offsets: dict[Partition, CommittedOffset] = {}
    answers: list[tuple[str, list[tuple[int, ErrorCode]]]] = []
    for topic in request.topics:
        stored = None if topic.name in denied else await broker.topic_metadata.find(topic.name)
        of_topic: list[tuple[int, ErrorCode]] = []
        for entry in topic.partitions:
            place = None if stored is None else stored.partition(entry.partition_index)
            metadata = entry.committed_metadata or ""
            error = ErrorCode.none
            if topic.name in denied:
                error = ErrorCode.topic_authorization_failed
            elif place is None:
                error = ErrorCode.unknown_topic_or_partition
            elif len(metadata) > METADATA_LIMIT:
                error = ErrorCode.offset_metadata_too_large
            elif entry.committed_offset < 0 or "\0" in metadata:
                error = ErrorCode.invalid_request
            else:
                offsets[place] = CommittedOffset(entry.committed_offset, entry.committed_leader_epoch, metadata)
            of_topic.append((entry.partition_index, error))
        answers.append((topic.name, of_topic))
    try:
        result = await broker.groups.commit(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            offsets,
        )
    except GroupError as refused:
        result = refused.code
    return {
        "topics": [
            {
                "name": name,
                "partitions": [{"partition_index": index, "error_code": error or result} for index, error in of_topic],
            }
            for name, of_topic in answers
        ]
    }


def _refused(request: OffsetCommitRequest, error: ErrorCode) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": entry.partition_index, "error_code": error} for entry in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }
