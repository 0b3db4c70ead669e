"""Requests as typed records, one for each API that is decoded by Kafka's definitions, with the fields that the broker
uses.

Field names are those of the newest version (Kafka's, in snake case); a field of older versions only keeps its own name.
A default stands in for a field that a version lacks. It is Kafka's default if Kafka has one."""

from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID


@dataclass(frozen=True, slots=True)
class ListOffsetsPartition:
    partition_index: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ListOffsetsTopic:
    name: str
    partitions: tuple[ListOffsetsPartition, ...]


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    topics: tuple[ListOffsetsTopic, ...]


@dataclass(frozen=True, slots=True)
class MetadataTopic:
    name: str | None
    topic_id: UUID | None = None
    """Since version 10."""


@dataclass(frozen=True, slots=True)
class MetadataRequest:
    topics: tuple[MetadataTopic, ...] | None
    """None for all topics, as is an empty list in version 0."""
    allow_auto_topic_creation: bool = True
    """Since version 4."""
    include_cluster_authorized_operations: bool = False
    """In versions 8 to 10."""
    include_topic_authorized_operations: bool = False
    """Since version 8."""


@dataclass(frozen=True, slots=True)
class OffsetCommitPartition:
    partition_index: int
    committed_offset: int
    committed_metadata: str | None
    committed_leader_epoch: int = -1
    """Since version 6."""


@dataclass(frozen=True, slots=True)
class OffsetCommitTopic:
    name: str
    partitions: tuple[OffsetCommitPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetCommitRequest:
    group_id: str
    generation_id_or_member_epoch: int
    member_id: str
    topics: tuple[OffsetCommitTopic, ...]
    group_instance_id: str | None = None
    """Since version 7."""


@dataclass(frozen=True, slots=True)
class OffsetFetchTopic:
    name: str
    partition_indexes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OffsetFetchGroup:
    group_id: str
    topics: tuple[OffsetFetchTopic, ...] | None
    """None for all partitions with an offset."""
    member_id: str | None = None
    """Since version 9."""
    member_epoch: int = -1
    """Since version 9."""


@dataclass(frozen=True, slots=True)
class OffsetFetchRequest:
    groups: tuple[OffsetFetchGroup, ...] = ()
    """Since version 8."""
    require_stable: bool = False
    """Since version 7."""
    group_id: str = ""
    """Until version 7."""
    topics: tuple[OffsetFetchTopic, ...] | None = None
    """Until version 7."""


@dataclass(frozen=True, slots=True)
class FindCoordinatorRequest:
    key_type: int = 0
    """Since version 1."""
    coordinator_keys: tuple[str, ...] = ()
    """Since version 4."""
    key: str = ""
    """Until version 3."""


@dataclass(frozen=True, slots=True)
class JoinGroupProtocol:
    name: str
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinGroupRequest:
    group_id: str
    session_timeout: timedelta
    member_id: str
    protocol_type: str
    protocols: tuple[JoinGroupProtocol, ...]
    rebalance_timeout: timedelta = timedelta(milliseconds=-1)
    """Since version 1."""
    group_instance_id: str | None = None
    """Since version 5."""


@dataclass(frozen=True, slots=True)
class HeartbeatRequest:
    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None = None
    """Since version 3."""


@dataclass(frozen=True, slots=True)
class LeaveGroupMember:
    member_id: str
    group_instance_id: str | None


@dataclass(frozen=True, slots=True)
class LeaveGroupRequest:
    group_id: str
    members: tuple[LeaveGroupMember, ...] = ()
    """Since version 3."""
    member_id: str = ""
    """Until version 2."""


@dataclass(frozen=True, slots=True)
class SyncGroupAssignment:
    member_id: str
    assignment: bytes


@dataclass(frozen=True, slots=True)
class SyncGroupRequest:
    group_id: str
    generation_id: int
    member_id: str
    assignments: tuple[SyncGroupAssignment, ...]
    group_instance_id: str | None = None
    """Since version 3."""
    protocol_type: str | None = None
    """Since version 5."""
    protocol_name: str | None = None
    """Since version 5."""


@dataclass(frozen=True, slots=True)
class DescribeGroupsRequest:
    groups: tuple[str, ...]
    include_authorized_operations: bool = False
    """Since version 3."""


@dataclass(frozen=True, slots=True)
class ListGroupsRequest:
    states_filter: tuple[str, ...] = ()
    """Since version 4."""
    types_filter: tuple[str, ...] = ()
    """Since version 5."""


@dataclass(frozen=True, slots=True)
class SaslHandshakeRequest:
    mechanism: str


@dataclass(frozen=True, slots=True)
class SaslAuthenticateRequest:
    auth_bytes: bytes


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    client_software_name: str = ""
    """Since version 3."""
    client_software_version: str = ""
    """Since version 3."""


@dataclass(frozen=True, slots=True)
class CreateTopicsAssignment:
    partition_index: int


@dataclass(frozen=True, slots=True)
class CreateTopicsConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class CreateTopicsTopic:
    name: str
    num_partitions: int
    assignments: tuple[CreateTopicsAssignment, ...]
    configs: tuple[CreateTopicsConfig, ...]


@dataclass(frozen=True, slots=True)
class CreateTopicsRequest:
    topics: tuple[CreateTopicsTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class DeleteTopicsTopic:
    name: str | None
    topic_id: UUID | None


@dataclass(frozen=True, slots=True)
class DeleteTopicsRequest:
    topics: tuple[DeleteTopicsTopic, ...] = ()
    """Since version 6."""
    topic_names: tuple[str, ...] = ()
    """Until version 5."""


@dataclass(frozen=True, slots=True)
class DeleteRecordsPartition:
    partition_index: int
    offset: int


@dataclass(frozen=True, slots=True)
class DeleteRecordsTopic:
    name: str
    partitions: tuple[DeleteRecordsPartition, ...]


@dataclass(frozen=True, slots=True)
class DeleteRecordsRequest:
    topics: tuple[DeleteRecordsTopic, ...]


@dataclass(frozen=True, slots=True)
class InitProducerIdRequest:
    transactional_id: str | None
    producer_id: int = -1
    """Since version 3."""
    producer_epoch: int = -1
    """Since version 3."""


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochPartition:
    partition: int
    current_leader_epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochTopic:
    topic: str
    partitions: tuple[OffsetForLeaderEpochPartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    topics: tuple[OffsetForLeaderEpochTopic, ...]


@dataclass(frozen=True, slots=True)
class DescribeAclsRequest:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class AclCreation:
    resource_type: int
    resource_name: str
    resource_pattern_type: int
    principal: str
    host: str
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class CreateAclsRequest:
    creations: tuple[AclCreation, ...]


@dataclass(frozen=True, slots=True)
class DeleteAclsFilter:
    resource_type_filter: int
    resource_name_filter: str | None
    pattern_type_filter: int
    principal_filter: str | None
    host_filter: str | None
    operation: int
    permission_type: int


@dataclass(frozen=True, slots=True)
class DeleteAclsRequest:
    filters: tuple[DeleteAclsFilter, ...]


@dataclass(frozen=True, slots=True)
class DescribeConfigsResource:
    resource_type: int
    resource_name: str
    configuration_keys: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class DescribeConfigsRequest:
    resources: tuple[DescribeConfigsResource, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsConfig:
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class AlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[AlterConfigsConfig, ...]


@dataclass(frozen=True, slots=True)
class AlterConfigsRequest:
    resources: tuple[AlterConfigsResource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class DescribeLogDirsTopic:
    topic: str
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DescribeLogDirsRequest:
    topics: tuple[DescribeLogDirsTopic, ...] | None
    """None for all topics."""


@dataclass(frozen=True, slots=True)
class CreatePartitionsAssignment:
    broker_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CreatePartitionsTopic:
    name: str
    count: int
    assignments: tuple[CreatePartitionsAssignment, ...] | None


@dataclass(frozen=True, slots=True)
class CreatePartitionsRequest:
    topics: tuple[CreatePartitionsTopic, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class DeleteGroupsRequest:
    groups_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsConfig:
    name: str
    config_operation: int
    value: str | None


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsResource:
    resource_type: int
    resource_name: str
    configs: tuple[IncrementalAlterConfigsConfig, ...]


@dataclass(frozen=True, slots=True)
class IncrementalAlterConfigsRequest:
    resources: tuple[IncrementalAlterConfigsResource, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class ListPartitionReassignmentsRequest:
    pass


@dataclass(frozen=True, slots=True)
class OffsetDeletePartition:
    partition_index: int


@dataclass(frozen=True, slots=True)
class OffsetDeleteTopic:
    name: str
    partitions: tuple[OffsetDeletePartition, ...]


@dataclass(frozen=True, slots=True)
class OffsetDeleteRequest:
    group_id: str
    topics: tuple[OffsetDeleteTopic, ...]


@dataclass(frozen=True, slots=True)
class QuotaFilterComponent:
    entity_type: str
    match_type: int
    match: str | None


@dataclass(frozen=True, slots=True)
class DescribeClientQuotasRequest:
    components: tuple[QuotaFilterComponent, ...]
    strict: bool


@dataclass(frozen=True, slots=True)
class QuotaEntityPart:
    entity_type: str
    entity_name: str | None
    """None for the default of the type."""


@dataclass(frozen=True, slots=True)
class QuotaOperation:
    key: str
    value: float
    remove: bool


@dataclass(frozen=True, slots=True)
class QuotaChange:
    entity: tuple[QuotaEntityPart, ...]
    ops: tuple[QuotaOperation, ...]


@dataclass(frozen=True, slots=True)
class AlterClientQuotasRequest:
    entries: tuple[QuotaChange, ...]
    validate_only: bool


@dataclass(frozen=True, slots=True)
class ScramUser:
    name: str


@dataclass(frozen=True, slots=True)
class DescribeUserScramCredentialsRequest:
    users: tuple[ScramUser, ...] | None
    """None for all users, as is an empty list."""


@dataclass(frozen=True, slots=True)
class ScramCredentialDeletion:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class ScramCredentialUpsertion:
    name: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class AlterUserScramCredentialsRequest:
    deletions: tuple[ScramCredentialDeletion, ...]
    upsertions: tuple[ScramCredentialUpsertion, ...]


@dataclass(frozen=True, slots=True)
class DescribeClusterRequest:
    include_cluster_authorized_operations: bool
    endpoint_type: int = 1
    """Since version 1."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatPartitions:
    topic_id: UUID | None
    partitions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ConsumerGroupHeartbeatRequest:
    group_id: str
    member_id: str
    member_epoch: int
    instance_id: str | None
    rack_id: str | None
    rebalance_timeout: timedelta
    subscribed_topic_names: tuple[str, ...] | None
    server_assignor: str | None
    topic_partitions: tuple[ConsumerGroupHeartbeatPartitions, ...] | None
    subscribed_topic_regex: str | None = None
    """Since version 1."""


@dataclass(frozen=True, slots=True)
class ConsumerGroupDescribeRequest:
    group_ids: tuple[str, ...]
    include_authorized_operations: bool
