"""DescribeLogDirs (35), versions 1 to 4: one directory, the object store, with the bytes of the partitions that this
broker leads."""

from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.access_types import CLUSTER_NAME, Operation, ResourceType
from firn_broker.broker import Broker
from firn_broker.log_types import Partition
from firn_broker.network.router import Call
from firn_broker.wire.requests import DescribeLogDirsRequest

KEY = 35
VERSIONS = (1, 4)
DIRECTORY = "/objects"


async def handle(broker: Broker, request: DescribeLogDirsRequest, call: Call) -> Fields:
    """Report the bytes of the partitions that this broker leads."""
    if broker.authorizer.forbids(call.client, Operation.DESCRIBE, ResourceType.CLUSTER, CLUSTER_NAME):
        return {"error_code": ErrorCode.cluster_authorization_failed, "results": ()}
    await broker.topic_metadata.refresh()
    requested = None if request.topics is None else {topic.topic: set(topic.partitions) for topic in request.topics}
    node = broker.membership.lease.node
    topics = []
    for topic in broker.topic_metadata.by_name.values():
        if requested is not None and topic.name not in requested:
            continue
        places = [
            Partition(topic.id, index)
            for index in range(topic.partitions)
            if (requested is None or index in requested[topic.name])
            # One broker reports each partition, so that sums over brokers are right.
            and broker.membership.leader(Partition(topic.id, index), "").id == node
        ]
        states = await broker.metadata_store.log.states(places)
        partitions = [
            {"partition_index": place.index, "partition_size": state.size, "offset_lag": 0, "is_future_key": False}
            for place, state in zip(places, states, strict=True)
            if state is not None
        ]
        if partitions:
            topics.append({"name": topic.name, "partitions": partitions})
    return answer(ErrorCode.none, topics)


def answer(error: ErrorCode, topics: Sequence[Fields]) -> Fields:
    """Return the answer for the one directory, with its topics or an error."""
    directory = {"error_code": error, "log_dir": DIRECTORY, "topics": topics, "total_bytes": -1, "usable_bytes": -1}
    return {"error_code": ErrorCode.none, "results": [directory]}
