"""Condition types and reasons: a closed vocabulary that users and tests rely on (Kubernetes API conventions, kstatus).

`make generate` writes docs/reference/conditions.md from the docstrings of the members. The docstring of a reason starts with the
conditions that use it.
"""

from enum import StrEnum


class ConditionType(StrEnum):
    """Condition types of all kinds of resources, in the order in which status lists them."""

    READY = "Ready"
    """IcebergTopics: topic, table and ingestion are ready. Policies: the operator follows the policy. DeadLetterReplays: the replay has \
ended well. TopicSets: each matched topic has its IcebergTopic. TopicUsers: the user has its credential, all its grants and its quotas."""
    SPEC_VALID = "SpecValid"
    """The spec is valid together with the operator's configuration and the earlier spec."""
    TOPIC_READY = "TopicReady"
    """The Kafka topic exists and agrees with the spec."""
    TABLE_READY = "TableReady"
    """The Iceberg table exists and agrees with the spec."""
    INGESTION_READY = "IngestionReady"
    """The ingestion driver lands records of this topic."""
    ROUTES_READY = "RoutesReady"
    """The IcebergTopics of all tables of `spec.routes` are Ready. The reason is that of the first one that is not. Present only with \
`spec.routes`."""
    FRESH = "Fresh"
    """Records are in the table within `spec.ingestion.freshness`. This condition does not affect Ready."""
    RECORDS_ACCEPTED = "RecordsAccepted"
    """Most of the last 1,000 records fit the schema and the quality rules, and are in the table. This condition does not affect Ready."""
    COMPLETE = "Complete"
    """No record was lost before it landed, and no audit failed. This condition does not affect Ready."""
    PUBLISHED = "Published"
    """Main of the table has the rows that landed on the branch of `spec.quality.publish`, at the latest one interval later. Present only \
with this field. This condition does not affect Ready."""
    SINGLE_COPY = "SingleCopy"
    """The log keeps no copy of records that the table gives back. Present only with `spec.storage.history: Single`. \
This condition does not affect Ready."""
    HISTORY_READABLE = "HistoryReadable"
    """Tags of the table hold the data files of the records that only the table has. Present only with `spec.storage.history: Single`. \
This condition does not affect Ready."""
    SCHEMA_COMPATIBLE = "SchemaCompatible"
    """The table has the columns of the schema. Present only with `spec.schema.registry`, `spec.schema.evolution` or \
`spec.schema.renames`, or after another client has dropped columns."""
    POLICIES_RESOLVED = "PoliciesResolved"
    """The operator knows which policies govern the topic. This condition does not affect Ready."""
    MAINTENANCE_HEALTHY = "MaintenanceHealthy"
    """Maintenance runs start in time and succeed. This condition does not affect Ready."""
    FINISHED = "Finished"
    """DeadLetterReplays: the replay has ended, well or not. Until then, the message says what the replay waits for."""
    TOPICS_LISTED = "TopicsListed"
    """The operator has listed the topics of the profile."""
    CREDENTIALS_READY = "CredentialsReady"
    """The Secret of a TopicUser has a credential that the brokers accept. Present only with a password."""
    GRANTS_APPLIED = "GrantsApplied"
    """The brokers have the ACLs of all grants of a TopicUser. If it is False, they have those of all grants that are not refused."""
    QUOTAS_APPLIED = "QuotasApplied"
    """The brokers have the quotas of a TopicUser."""
    LIMIT_REACHED = "LimitReached"
    """More topics match than `spec.limit` allows. Present only while True."""
    RECONCILING = "Reconciling"
    """The operator works on the resource, or waits for something it needs. Present only while True."""
    STALLED = "Stalled"
    """Retries do not help; a user has to act. Present only while True."""
    PAUSED = "Paused"
    """Reconciliation is paused by an annotation. Present only while True."""
    DELETION_BLOCKED = "DeletionBlocked"
    """The deletion of the resource waits. Present only while True."""


class Reason(StrEnum):
    """Reasons of conditions, a closed list. A new one is a change of the public interface.

    `Ready` has the reason of the condition that stops it. So each reason of SpecValid, TopicReady, TableReady and IngestionReady can also
    be the reason of Ready.
    """

    ALL_READY = "AllReady"
    """Ready, RoutesReady: IcebergTopics: topic, table and ingestion are ready. Policies: the operator follows the policy. TopicSets: each matched \
topic has its IcebergTopic. TopicUsers: the user has its credential, all its grants and its quotas."""
    SUSPENDED = "Suspended"
    """Ready, IngestionReady: `spec.suspend` is true. Set it to false to continue."""
    INVALID_SPEC = "InvalidSpec"
    """SpecValid, Stalled, DeletionBlocked: The spec is not valid. Correct the field in the message."""
    DELETING = "Deleting"
    """Ready: The resource is being deleted."""
    RESOURCE_CONFLICT = "ResourceConflict"
    """SpecValid: TopicUsers: an older TopicUser has the same ServiceAccount. Others: an \
older IcebergTopic or another Kubernetes cluster owns the Kafka topic or the table, or the table name is reserved. \
Create this IcebergTopic again with another topicName and table.name, or approve the move of the table."""
    PENDING = "Pending"
    """Ready, SpecValid, TopicReady, TableReady, IngestionReady, CredentialsReady, GrantsApplied, QuotasApplied, Finished: Not known yet, \
because an earlier step is missing. Wait, or correct the cause in the message."""
    VALID = "Valid"
    """SpecValid: The spec is valid."""
    PROFILE_NOT_FOUND = "ProfileNotFound"
    """SpecValid, DeletionBlocked: The configuration has no profile of this name. \
Add it to the values, or create the resource again with a profile from the message."""
    GROUP_NOT_FOUND = "GroupNotFound"
    """SpecValid: The configuration has no ingestion group of this name. Choose a group from the message, or add it to the values."""
    CATALOG_NOT_FOUND = "CatalogNotFound"
    """SpecValid: The configuration has no catalog of this name. \
Add it to the values, or create the resource again with a catalog from the message."""
    NOT_ALLOWED = "NotAllowed"
    """SpecValid: The configuration does not allow the profile, group, catalog or schema registry for this namespace, or a name or value. \
Or the profile has no users, or its brokers accept no login of the user. \
Or the configuration does not allow the adoption of an existing topic or table. Follow the message."""
    DEFAULT_CHANGED = "DefaultChanged"
    """SpecValid: The data of a restored resource is under an earlier default profile or catalog. Create the resource again, and name it."""
    BAD_SCHEMA = "BadSchema"
    """SpecValid: A column or a type cannot be read. Correct the field in the message."""
    INCOMPATIBLE_SCHEMA = "IncompatibleSchema"
    """SpecValid, SchemaCompatible: The table cannot change from the earlier schema to this one. Restore the field, \
or create the resource again with another table.name."""
    COMPATIBLE = "Compatible"
    """SchemaCompatible: The table has the columns of the schema."""
    PROPOSED = "Proposed"
    """SchemaCompatible, TableReady: Changes of the table wait for an approval, which `spec.schema.evolution` demands. \
Approve them with the command in the message, or restore the schema."""
    BAD_TRANSFORM = "BadTransform"
    """SpecValid: A term of `partitionBy` or `sortBy` cannot be read or does not fit its column. Correct the term."""
    UNKNOWN_COLUMN = "UnknownColumn"
    """SpecValid: A term or a check names a column that the table does not have. Choose a column from the message."""
    BAD_RULE = "BadRule"
    """SpecValid: A check of `spec.quality` cannot be read, or its types do not fit. Correct the check as the message says."""
    BAD_TOPIC_CONFIG = "BadTopicConfig"
    """SpecValid: The brokers reject a key or a value of `spec.config`. Correct it."""
    BAD_PATTERN = "BadPattern"
    """SpecValid: TopicSets: `match` or `exclude` is no RE2 expression, or the template uses a group that `match` does not have. \
Correct the field in the message."""
    BAD_ROUTE = "BadRoute"
    """SpecValid, RoutesReady: `spec.routes` is not valid, or the operator cannot make an IcebergTopic for a route. With `spec.route`: no \
IcebergTopic has this route. Follow the message."""
    CREATED = "Created"
    """TopicReady, TableReady: Firn created the Kafka topic or the table."""
    ADOPTED = "Adopted"
    """TopicReady, TableReady: The Kafka topic or the table existed before, and Firn manages it now."""
    BROKER_STARTING = "BrokerStarting"
    """TopicReady: The brokers are starting. Wait."""
    TOPIC_GONE = "TopicGone"
    """TopicReady: The Kafka topic of an IcebergTopic that a TopicSet made does not exist. Create the Kafka topic again, or delete the \
IcebergTopic. Ready, Stalled: no topic of the TopicSet exists, so the operator deletes no IcebergTopic. Check the brokers of the profile."""
    OTHER_CLUSTER = "OtherCluster"
    """Ready, Stalled: TopicSets: the brokers of the profile are those of another Kafka cluster, and `removal` is Delete, so the operator \
changes no IcebergTopic. Correct the brokers of the profile, or set `removal` to Keep."""
    BROKER_UNREACHABLE = "BrokerUnreachable"
    """TopicReady, TopicsListed, CredentialsReady, GrantsApplied, QuotasApplied, DeletionBlocked: The brokers do not answer, or a broker cannot run. \
Check the profile's pods, the address and the network."""
    ACCESS_DENIED = "AccessDenied"
    """TopicReady, TableReady, TopicsListed, CredentialsReady, GrantsApplied, QuotasApplied, DeletionBlocked: \
Brokers, catalog, object store or schema registry reject the credentials or the operation. \
Correct the Secret or the grants."""
    PARTITION_DECREASE_REFUSED = "PartitionDecreaseRefused"
    """TopicReady: `spec.partitions` is lower than the topic's number of partitions. Raise it, or remove it."""
    CATALOG_UNREACHABLE = "CatalogUnreachable"
    """TableReady, DeletionBlocked: The catalog or its object store does not answer. Check both, and `catalogs` in the values."""
    FORMAT_UNSUPPORTED = "FormatUnsupported"
    """TableReady: The catalog does not accept tables of this format version. \
Upgrade the catalog, or create the resource again with `spec.table.formatVersion: 2`."""
    REGISTRY_UNREACHABLE = "RegistryUnreachable"
    """TableReady: The schema registry does not answer, or its URL is that of another server. \
Check the registry, the network and `registries` in the values."""
    REGISTRY_NOT_FOUND = "RegistryNotFound"
    """SpecValid: The configuration has no schema registry of this name. Choose one from the message, or add it to the values."""
    SCHEMA_MISSING = "SchemaMissing"
    """TableReady: The subject has no schema yet. Let a producer register one, or correct `spec.schema.registry.subject`."""
    SCHEMA_INCOMPATIBLE = "SchemaIncompatible"
    """TableReady: The existing table has another type or column. Change the schema, or create the resource again with another table.name."""
    WAITING_FOR_DRIVER = "WaitingForDriver"
    """TableReady: The ingestion driver creates or changes this table, because tables with format version 3 need it. Wait."""
    RUNNING = "Running"
    """IngestionReady: The driver lands records. Finished: The maintenance run of the replay is active."""
    CAUGHT_UP = "CaughtUp"
    """IngestionReady: Every record has landed."""
    STARTING = "Starting"
    """IngestionReady: The driver starts, starts work on this topic, or waits for the Kafka topic and the table. \
Check TopicReady and TableReady, then the driver's pod."""
    WAITING_FOR_CONNECTOR = "WaitingForConnector"
    """IngestionReady: The connector that has written the table runs, the driver cannot know exactly where it ended, or the spec \
does not name it. Stop the connector, or follow the message."""
    BACKING_OFF = "BackingOff"
    """IngestionReady: The driver, or its work on this topic, fails and is retried. Read the message, then the pod's log."""
    OUT_OF_MEMORY = "OutOfMemory"
    """IngestionReady: The pod was killed at its memory limit, or the JVM's heap is exhausted. Raise the group's memory. \
If the heap is exhausted, raise heap and memory by the same amount."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """IngestionReady: A node cannot pull the image. Correct `images`, push the image, or add a pull Secret."""
    UNSCHEDULABLE = "Unschedulable"
    """IngestionReady: No node can take the pod. Add resources, or correct `scheduling`."""
    FENCED = "Fenced"
    """IngestionReady: Another driver with a newer epoch writes the table. End the other driver."""
    BAD_RECORD_HALT = "BadRecordHalt"
    """IngestionReady: A record does not fit, and `onBadRecord` is Halt. Or a record fails a quality rule with Halt. Follow the message."""
    WITHIN_TARGET = "WithinTarget"
    """Fresh: Records are in the table within `spec.ingestion.freshness`."""
    BEHIND = "Behind"
    """Fresh: Records wait longer than `spec.ingestion.freshness`. Give the group more resources."""
    RETENTION_NEAR = "RetentionNear"
    """Fresh: Records have waited for more than half of the log's retention, also while ingestion is suspended. Raise it before the log
    deletes them, then find the cause of the lag."""
    BACKFILLING = "Backfilling"
    """Fresh: The driver lands records that were in the log before the table existed. Wait."""
    EVERY_OFFSET = "EveryOffset"
    """Complete: No loss of records is known, or every loss is acknowledged."""
    RECORDS_LOST = "RecordsLost"
    """Complete: The log deleted records before they landed or before a new table had them, or lost its end. Read the message, then
    acknowledge the loss."""
    AUDIT_FAILED = "AuditFailed"
    """Complete: An audit found records without a row, surplus rows, or rows beyond the landed offsets. Read the message,
    then acknowledge the finding."""
    NO_RECORDS = "NoRecords"
    """Fresh, RecordsAccepted: No record has been written to the topic, or none has landed since the driver started."""
    UNKNOWN = "Unknown"
    """Fresh, Complete, RecordsAccepted: The driver has not reported progress, or ingestion is suspended. Check IngestionReady."""
    ALL_ACCEPTED = "AllAccepted"
    """RecordsAccepted: Each of the last 1,000 records is in the table."""
    SOME_REJECTED = "SomeRejected"
    """RecordsAccepted: Up to half of the last 1,000 records do not fit the schema or the quality rules. Read the dead-letter table."""
    SUSPICIOUS_TIMES = "SuspiciousTimes"
    """RecordsAccepted: Most integers of a column are times between 2000 and 2100 only in another unit. \
Set `epoch` of the field as the message says."""
    MOST_REJECTED = "MostRejected"
    """RecordsAccepted: More than half of the last 1,000 records do not fit the schema or the quality rules. \
Correct the producer, the schema or the rules."""
    CHECKS_PASSED = "ChecksPassed"
    """Published: Main follows the branch after each interval."""
    CHECKS_FAILED = "ChecksFailed"
    """Published: A check of `spec.quality.publish` failed and `onFail` is Hold, or the checks have no result. Main stays, and records land on \
the branch. Correct the data or the check, or publish the rows with the command in the message."""
    PUBLISHED_UNCHECKED = "PublishedUnchecked"
    """Published: A check of `spec.quality.publish` failed, and `onFail` is Publish. Main has the rows."""
    MAIN_MOVED = "MainMoved"
    """Published, IngestionReady: Another writer changed main of the table, so main cannot follow the branch. \
Roll main back to a snapshot of the branch, and make the change on the branch."""
    BRANCH_REFUSED = "BranchRefused"
    """Published, IngestionReady: The catalog refuses the branch of `spec.quality.publish`, or another writer made a branch of this name. \
Name another branch, or remove `publish`."""
    HISTORY_IN_TABLE = "HistoryInTable"
    """SingleCopy: The brokers compare the log with the table from time to time, and delete batches that the table gives back."""
    HISTORY_IN_LOG = "HistoryInLog"
    """SingleCopy: The driver could not name data files of the table to the brokers, so the log keeps its records. Follow the message."""
    TAGS_HOLD = "TagsHold"
    """HistoryReadable: Tags of the table hold the data files, so an expiry of snapshots does not delete them."""
    TAG_MISSING = "TagMissing"
    """HistoryReadable: A tag of the driver was dropped while records were only in its data files. The brokers move the records that newer \
data files have. If the reason stays for two hours, others are lost: follow the message."""
    RESOLVED = "Resolved"
    """PoliciesResolved: The policies in the message govern the topic."""
    NO_POLICY = "NoPolicy"
    """PoliciesResolved: No policy names or selects the topic."""
    REFUSED_FOR_SOME = "RefusedForSome"
    """Ready, GrantsApplied, Reconciling, Stalled: Policies: the policy does not fit some of its topics, which the message names. \
Correct the policy, its selector or the topics. TopicSets: some matched topics get no IcebergTopic, or their IcebergTopic cannot follow \
the template. GrantsApplied: a TopicUser does not get some roles on topics. Follow the message, and `status.refused`."""
    ISSUED = "Issued"
    """CredentialsReady: The brokers accept the credential in the Secret."""
    SECRET_NAME_TAKEN = "SecretNameTaken"
    """CredentialsReady, Stalled: A Secret of this name exists, and does not belong to the TopicUser. Delete the Secret, or create the \
TopicUser again with another `authentication.secretName`."""
    APPLIED = "Applied"
    """GrantsApplied, QuotasApplied: The brokers have the ACLs, or the quotas, of the TopicUser."""
    LISTED = "Listed"
    """TopicsListed: The operator has listed the topics of the profile."""
    LIMIT_REACHED = "LimitReached"
    """Ready, LimitReached, Stalled: TopicSets: more topics match than `spec.limit` allows. Raise the limit, or narrow `match`."""
    MAKING_TOPICS = "MakingTopics"
    """Ready, Reconciling: TopicSets: the operator creates, updates or deletes IcebergTopics. Wait."""
    POLICY_NOT_FOUND = "PolicyNotFound"
    """PoliciesResolved: The topic names a policy that its namespace does not have. Create it, or correct the reference."""
    POLICY_INVALID = "PolicyInvalid"
    """PoliciesResolved: A policy governs the topic, but is not valid for it. Correct the policy."""
    SUCCEEDED = "Succeeded"
    """MaintenanceHealthy: The last runs succeeded. Ready, Finished: The replay has succeeded."""
    NOT_DUE = "NotDue"
    """MaintenanceHealthy: No run has been due yet."""
    RUN_FAILED = "RunFailed"
    """MaintenanceHealthy, Finished, Stalled: The last run failed. Read the message, then the log of its Job."""
    RUN_OVERDUE = "RunOverdue"
    """MaintenanceHealthy: A due run has not started within `run.deadline`, or its pod cannot start. \
Add resources, or raise the limits in the message."""
    TOPIC_NOT_FOUND = "TopicNotFound"
    """Finished: The namespace has no IcebergTopic of this name. Create the replay again with another `topicRef`, or create the topic."""
    ROLLING_OUT = "RollingOut"
    """Reconciling: Brokers or the driver are being replaced. Wait."""
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    """Reconciling: A broker, the catalog or the driver is not ready. Check the condition in the message."""
    FAST_FAILURES = "FastFailures"
    """Stalled: A pod, or the work on this topic, failed five times, or a pod cannot run with its configuration or data. \
Read the logs that the message names."""
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    """Paused: The annotation `firn.dev/pause-reconciliation` is `"true"`. Remove it to continue."""
    RUNS_ACTIVE = "RunsActive"
    """DeletionBlocked: A maintenance run or the ingestion driver still uses the data. Wait."""
