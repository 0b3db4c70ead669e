"""CreateTopics (19), versions 2 to 7.

- Any replication factor is taken, as the object store keeps the copies; 1 is told. Replica assignments only say how many partitions.
- The answer has the topic's configs since version 5. A name twice in a request is INVALID_REQUEST for both.
"""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from kio.schema.errors import ErrorCode

from firn.records.messages import Fields
from firn_broker.broker import Broker
from firn_broker.log_types import Topic
from firn_broker.network.router import Call
from firn_broker.topics.creation import TopicError

KEY = 19
VERSIONS = (2, 7)


async def handle(broker: Broker, request: object, call: Call) -> Fields:
    """Answer."""
    wanted = request.topics  # type: ignore[attr-defined]
    names = Counter(one.name for one in wanted)
    topics = []
    for one in wanted:
        try:
            if names[one.name] > 1:
                raise TopicError(ErrorCode.invalid_request, f"Duplicate topic name: {one.name}")
            topic = await broker.topics.create(
                one.name,
                _partitions(one),
                {config.name: config.value for config in one.configs},
                validate_only=request.validate_only,  # type: ignore[attr-defined]
            )
        except TopicError as error:
            topics.append(_refused(one.name, error))
        else:
            topics.append(_made(broker, topic))
    return {"topics": topics}


def _partitions(wanted: object) -> int:
    number: int = wanted.num_partitions  # type: ignore[attr-defined]
    assigned = [it.partition_index for it in wanted.assignments]  # type: ignore[attr-defined]
    if not assigned:
        return number
    if number != -1 or sorted(assigned) != list(range(len(assigned))):
        raise TopicError(ErrorCode.invalid_replica_assignment, "partitions have to be assigned from 0 on without a gap")
    return len(assigned)


def _refused(name: str, error: TopicError) -> Fields:
    return {
        "name": name, "topic_id": None, "error_code": error.code, "error_message": str(error), "num_partitions": -1,
        "replication_factor": -1, "configs": (),
    }  # fmt: skip


def _made(broker: Broker, topic: Topic) -> Fields:
    return {
        "name": topic.name, "topic_id": topic.id, "error_code": ErrorCode.none, "error_message": None,
        "num_partitions": topic.partitions, "replication_factor": 1,
        "configs": partial(_configs, broker, topic),
    }  # fmt: skip


def _configs(broker: Broker, topic: Topic) -> Sequence[Fields]:
    return [
        {"name": name, "value": value, "read_only": False, "config_source": source, "is_sensitive": False}
        for name, value, source, _ in broker.configs.described(topic)
    ]
