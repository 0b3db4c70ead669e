"""Condition types and reasons: a closed vocabulary that users and tests rely on (Kubernetes API conventions, kstatus)."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Condition types of IcebergTopics and policies, in the order in which status lists them."""

    READY = "Ready"
    SPEC_VALID = "SpecValid"
    TOPIC_READY = "TopicReady"
    TABLE_READY = "TableReady"
    INGESTION_READY = "IngestionReady"
    FRESH = "Fresh"
    POLICIES_RESOLVED = "PoliciesResolved"
    MAINTENANCE_HEALTHY = "MaintenanceHealthy"
    # Present only while True.
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    PAUSED = "Paused"
    DELETION_BLOCKED = "DeletionBlocked"


class Reason(StrEnum):
    """Reasons of conditions: a closed list. A new one is a change of the public surface."""

    # Ready
    ALL_READY = "AllReady"
    SUSPENDED = "Suspended"
    INVALID_SPEC = "InvalidSpec"
    NOT_READY = "NotReady"
    STALLED = "Stalled"
    DELETING = "Deleting"
    RESOURCE_CONFLICT = "ResourceConflict"
    PENDING = "Pending"
    # SpecValid
    VALID = "Valid"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    GROUP_NOT_FOUND = "GroupNotFound"
    CATALOG_NOT_FOUND = "CatalogNotFound"
    NOT_ALLOWED = "NotAllowed"
    BAD_SCHEMA = "BadSchema"
    INCOMPATIBLE_SCHEMA = "IncompatibleSchema"
    BAD_TRANSFORM = "BadTransform"
    UNKNOWN_COLUMN = "UnknownColumn"
    BAD_TOPIC_CONFIG = "BadTopicConfig"
    # TopicReady, TableReady
    CREATED = "Created"
    ADOPTED = "Adopted"
    BROKER_STARTING = "BrokerStarting"
    BROKER_UNREACHABLE = "BrokerUnreachable"
    ACCESS_DENIED = "AccessDenied"
    PARTITION_DECREASE_REFUSED = "PartitionDecreaseRefused"
    CATALOG_UNREACHABLE = "CatalogUnreachable"
    SCHEMA_INCOMPATIBLE = "SchemaIncompatible"
    WAITING_FOR_DRIVER = "WaitingForDriver"
    # IngestionReady
    RUNNING = "Running"
    CAUGHT_UP = "CaughtUp"
    STARTING = "Starting"
    BACKING_OFF = "BackingOff"
    OUT_OF_MEMORY = "OutOfMemory"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    UNSCHEDULABLE = "Unschedulable"
    FENCED = "Fenced"
    BAD_RECORD_HALT = "BadRecordHalt"
    # Fresh
    WITHIN_TARGET = "WithinTarget"
    BEHIND = "Behind"
    BACKFILLING = "Backfilling"
    NO_RECORDS = "NoRecords"
    UNKNOWN = "Unknown"
    # PoliciesResolved
    RESOLVED = "Resolved"
    NO_POLICY = "NoPolicy"
    POLICY_NOT_FOUND = "PolicyNotFound"
    POLICY_INVALID = "PolicyInvalid"
    # MaintenanceHealthy
    SUCCEEDED = "Succeeded"
    NOT_DUE = "NotDue"
    RUN_FAILED = "RunFailed"
    RUN_OVERDUE = "RunOverdue"
    # Reconciling, Stalled, Paused
    ROLLING_OUT = "RollingOut"
    WAITING_FOR_DEPENDENCY = "WaitingForDependency"
    FAST_FAILURES = "FastFailures"
    PAUSED_BY_ANNOTATION = "PausedByAnnotation"
    # DeletionBlocked, beside BrokerUnreachable and CatalogUnreachable
    RUNS_ACTIVE = "RunsActive"
