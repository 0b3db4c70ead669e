"""Answers of APIs while the coordinator cannot be reached, so that clients retry instead of losing their connection.

Each code makes Java clients and librdkafka retry by themselves, or report an error that their program may retry:

- partitions: KAFKA_STORAGE_ERROR, after which a client reloads the metadata and retries;
- CreateTopics, DeleteTopics, CreatePartitions, AlterUserScramCredentials: NOT_CONTROLLER, the only code for which the
  Java client repeats the request;
- groups: COORDINATOR_NOT_AVAILABLE;
- InitProducerId: COORDINATOR_LOAD_IN_PROGRESS, for which an idempotent producer retries. Other codes make it look for
  the coordinator of transactions;
- configs, ACLs and quotas, and descriptions of users: REQUEST_TIMED_OUT, as from a Kafka cluster without a controller.

The whole request gets this answer, although a part of it may have been carried out. A client that repeats the request
learns from the answer which part that was."""

from collections.abc import Sequence
from typing import Protocol

from kio.schema.errors import ErrorCode

from firn.records.message_writer import Fields
from firn_broker.apis import alter_client_quotas as changes_of_quotas
from firn_broker.apis import alter_user_scram_credentials as changes_of_users
from firn_broker.apis import create_acls as creation_of_acls
from firn_broker.apis import delete_acls as deletion_of_acls
from firn_broker.apis import describe_acls as acls
from firn_broker.apis import describe_client_quotas as quotas
from firn_broker.apis import describe_log_dirs as log_dirs
from firn_broker.apis import describe_user_scram_credentials as users
from firn_broker.wire import requests

MESSAGE = "The cluster's coordinator cannot be reached now: try again."


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...


class _Topic(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[_Partition]: ...


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


def list_offsets(request: requests.ListOffsetsRequest) -> Fields:
    """Answer for each partition."""
    return _partitions(request.topics, ErrorCode.kafka_storage_error, timestamp=-1, offset=-1, leader_epoch=-1)


def delete_records(request: requests.DeleteRecordsRequest) -> Fields:
    """Answer for each partition."""
    return _partitions(request.topics, ErrorCode.kafka_storage_error, low_watermark=-1)


def offset_commit(request: requests.OffsetCommitRequest) -> Fields:
    """Answer for each partition."""
    return _partitions(request.topics, ErrorCode.coordinator_not_available)


def _partitions(topics: Sequence[_Topic], error: ErrorCode, **rest: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {"partition_index": partition.partition_index, "error_code": error, **rest}
                    for partition in topic.partitions
                ],
            }
            for topic in topics
        ]
    }


def offset_for_leader_epoch(request: requests.OffsetForLeaderEpochRequest) -> Fields:
    """Answer for each partition."""
    topics = [
        {
            "topic": topic.topic,
            "partitions": [
                {
                    "partition": partition.partition, "error_code": ErrorCode.kafka_storage_error, "leader_epoch": -1,
                    "end_offset": -1,
                }
                for partition in topic.partitions
            ],
        }
        for topic in request.topics
    ]  # fmt: skip
    return {"topics": topics}


def offset_delete(request: requests.OffsetDeleteRequest) -> Fields:
    """Answer for the group."""
    return {"error_code": ErrorCode.coordinator_not_available, "topics": ()}


def init_producer_id(request: requests.InitProducerIdRequest) -> Fields:
    """Answer without an id."""
    return {"error_code": ErrorCode.coordinator_load_in_progress, "producer_id": -1, "producer_epoch": -1}


def create_topics(request: requests.CreateTopicsRequest) -> Fields:
    """Answer for each topic."""
    topics = [
        {
            "name": topic.name, "topic_id": None, "error_code": ErrorCode.not_controller, "error_message": MESSAGE,
            "num_partitions": -1, "replication_factor": -1, "configs": (),
        }
        for topic in request.topics
    ]  # fmt: skip
    return {"topics": topics}


def delete_topics(request: requests.DeleteTopicsRequest) -> Fields:
    """Answer for each topic."""
    topics = [(topic.name, topic.topic_id) for topic in request.topics]
    topics += [(name, None) for name in request.topic_names]
    responses = [
        {"name": name, "topic_id": id, "error_code": ErrorCode.not_controller, "error_message": MESSAGE}
        for name, id in topics
    ]
    return {"responses": responses}


def create_partitions(request: requests.CreatePartitionsRequest) -> Fields:
    """Answer for each topic."""
    results = [
        {"name": topic.name, "error_code": ErrorCode.not_controller, "error_message": MESSAGE}
        for topic in request.topics
    ]
    return {"results": results}


def describe_configs(request: requests.DescribeConfigsRequest) -> Fields:
    """Answer for each resource."""
    return {"results": _resources(request.resources)}


def alter_configs(request: requests.AlterConfigsRequest | requests.IncrementalAlterConfigsRequest) -> Fields:
    """Answer for each resource."""
    return {"responses": _resources(request.resources)}


def _resources(resources: Sequence[_Resource]) -> Sequence[Fields]:
    return [
        {
            "error_code": ErrorCode.request_timed_out, "error_message": MESSAGE, "resource_type": resource.resource_type,
            "resource_name": resource.resource_name, "configs": (),
        }
        for resource in resources
    ]  # fmt: skip


def describe_log_dirs(request: requests.DescribeLogDirsRequest) -> Fields:
    """Answer for the only directory."""
    return log_dirs.answer(ErrorCode.kafka_storage_error, ())


def describe_acls(request: requests.DescribeAclsRequest) -> Fields:
    """Answer without ACLs."""
    return acls.failed(request, ErrorCode.request_timed_out, MESSAGE)


def create_acls(request: requests.CreateAclsRequest) -> Fields:
    """Answer for each ACL."""
    return creation_of_acls.failed(request, ErrorCode.request_timed_out, MESSAGE)


def delete_acls(request: requests.DeleteAclsRequest) -> Fields:
    """Answer for each filter."""
    return deletion_of_acls.failed(request, ErrorCode.request_timed_out, MESSAGE)


def describe_client_quotas(request: requests.DescribeClientQuotasRequest) -> Fields:
    """Answer without entities."""
    return quotas.failed(request, ErrorCode.request_timed_out, MESSAGE)


def alter_client_quotas(request: requests.AlterClientQuotasRequest) -> Fields:
    """Answer for each entity."""
    return changes_of_quotas.failed(request, ErrorCode.request_timed_out, MESSAGE)


def describe_user_scram_credentials(request: requests.DescribeUserScramCredentialsRequest) -> Fields:
    """Answer without users."""
    return users.failed(request, ErrorCode.request_timed_out, MESSAGE)


def alter_user_scram_credentials(request: requests.AlterUserScramCredentialsRequest) -> Fields:
    """Answer for each user."""
    return changes_of_users.failed(request, ErrorCode.not_controller, MESSAGE)
