"""What APIs answer while the coordinator cannot be reached, so that clients try again instead of losing their connection.

The codes are those that clients (Java's and librdkafka) try again for by themselves, or tell their program as what may work later:

- partitions: KAFKA_STORAGE_ERROR, after which a client asks for metadata and tries again;
- CreateTopics, DeleteTopics, CreatePartitions: NOT_CONTROLLER, the one code of a topic for which Java repeats the request;
- groups: COORDINATOR_NOT_AVAILABLE;
- InitProducerId: COORDINATOR_LOAD_IN_PROGRESS, for which an idempotent producer asks again; others send it to look for the coordinator of
  transactions;
- configs: REQUEST_TIMED_OUT, as with a Kafka whose controller is not there.

The whole request is answered so, though some of it may have happened: whoever repeats it learns that. Metadata, Produce, Fetch, OffsetFetch
and requests about whole groups tell outages themselves, as they still have something to say.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn.records.messages import Fields
from firn_broker import metrics
from firn_broker.apis import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_records,
    delete_topics,
    describe_configs,
    describe_log_dirs,
    incremental_alter_configs,
    init_producer_id,
    list_offsets,
    offset_commit,
    offset_delete,
    offset_for_leader_epoch,
)
from firn_broker.network.router import Call, Handler

log = structlog.get_logger()

MESSAGE = "The cluster's coordination cannot be reached now: try again."


def answered(key: int, name: str, handler: Handler) -> Handler:
    """The handler of an API, with an answer for outages if it has one here."""
    answer = _ANSWERS.get(key)
    if answer is None:
        return handler

    async def answering(request: Any, call: Call) -> Fields:
        try:
            return await handler(request, call)
        except UnavailableError as error:
            metrics.REQUEST_ERRORS.labels(name).inc()
            log.warning("client told to try again", api=name, client=call.client.id, error=str(error))
            return answer(request)

    return answering


def _partitions(error: ErrorCode, **rest: int) -> Callable[[Any], Sequence[Fields]]:
    """Answers for all partitions of the request, by topic."""

    def topics(request: Any) -> Sequence[Fields]:
        return [
            {
                "name": it.name,
                "partitions": [
                    {"partition_index": one.partition_index, "error_code": error, **rest} for one in it.partitions
                ],
            }
            for it in request.topics
        ]

    return topics


_LISTED = _partitions(ErrorCode.kafka_storage_error, timestamp=-1, offset=-1, leader_epoch=-1)
_DELETED = _partitions(ErrorCode.kafka_storage_error, low_watermark=-1)
_COMMITTED = _partitions(ErrorCode.coordinator_not_available)


def _of_epochs(request: Any) -> Fields:
    topics = [
        {
            "topic": it.topic,
            "partitions": [
                {
                    "partition": one.partition, "error_code": ErrorCode.kafka_storage_error, "leader_epoch": -1,
                    "end_offset": -1,
                }
                for one in it.partitions
            ],
        }
        for it in request.topics
    ]  # fmt: skip
    return {"topics": topics}


def _created(request: Any) -> Fields:
    topics = [
        {
            "name": it.name, "topic_id": None, "error_code": ErrorCode.not_controller, "error_message": MESSAGE,
            "num_partitions": -1, "replication_factor": -1, "configs": (),
        }
        for it in request.topics
    ]  # fmt: skip
    return {"topics": topics}


def _removed(request: Any) -> Fields:
    topics = [(it.name, it.topic_id) for it in getattr(request, "topics", ())]
    topics += [(name, None) for name in getattr(request, "topic_names", ())]
    responses = [
        {"name": name, "topic_id": id, "error_code": ErrorCode.not_controller, "error_message": MESSAGE}
        for name, id in topics
    ]
    return {"responses": responses}


def _grown(request: Any) -> Fields:
    results = [
        {"name": it.name, "error_code": ErrorCode.not_controller, "error_message": MESSAGE} for it in request.topics
    ]
    return {"results": results}


def _resources(request: Any) -> Sequence[Fields]:
    return [
        {
            "error_code": ErrorCode.request_timed_out, "error_message": MESSAGE, "resource_type": it.resource_type,
            "resource_name": it.resource_name, "configs": (),
        }
        for it in request.resources
    ]  # fmt: skip


_ANSWERS: Mapping[int, Callable[[Any], Fields]] = {
    list_offsets.KEY: lambda request: {"topics": _LISTED(request)},
    offset_for_leader_epoch.KEY: _of_epochs,
    delete_records.KEY: lambda request: {"topics": _DELETED(request)},
    offset_commit.KEY: lambda request: {"topics": _COMMITTED(request)},
    offset_delete.KEY: lambda request: {"error_code": ErrorCode.coordinator_not_available, "topics": ()},
    init_producer_id.KEY: lambda request: {
        "error_code": ErrorCode.coordinator_load_in_progress,
        "producer_id": -1,
        "producer_epoch": -1,
    },
    create_topics.KEY: _created,
    delete_topics.KEY: _removed,
    create_partitions.KEY: _grown,
    describe_configs.KEY: lambda request: {"results": _resources(request)},
    alter_configs.KEY: lambda request: {"responses": _resources(request)},
    incremental_alter_configs.KEY: lambda request: {"responses": _resources(request)},
    describe_log_dirs.KEY: lambda request: describe_log_dirs.answer(ErrorCode.kafka_storage_error, ()),
}
