"""Ports: the outside world as narrow protocols. ``firn_operator`` has the adapters, the tests have fakes.

Every method may raise `firn.model.errors.UnavailableError` (back off) or `AccessDeniedError` (a condition). Other
errors are named at the method. Methods are safe to repeat: an unknown outcome is resolved by describing again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from firn.model.clock import Clock
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.maintenance import CompactionWork
from firn.model.progress import GroupProgress

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A Kafka topic as the broker describes it. ``configs`` holds what was set on the topic itself, not defaults."""

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FleetState:
    """A profile's brokers as an admin client sees them."""

    brokers: int
    under_replicated: int


class Topics(Protocol):
    """Kafka's admin side, by profile. Calls of many reconciles are batched behind it."""

    async def describe(self, profile: str, topic: str) -> TopicState | None:
        """The topic, or None where there is none."""
        ...

    async def create(self, profile: str, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create the topic; an existing one is no error (describe again). Raises InvalidSpecError (BadTopicConfig)."""
        ...

    async def grow(self, profile: str, topic: str, partitions: int) -> None:
        """Raise the number of partitions."""
        ...

    async def alter_configs(self, profile: str, topic: str, put: Mapping[str, str], remove: Sequence[str]) -> None:
        """Set and unset configs of the topic incrementally. Raises InvalidSpecError (BadTopicConfig) naming the key."""
        ...

    async def delete(self, profile: str, topic: str) -> None:
        """Delete the topic; a missing one is no error."""
        ...

    async def fleet(self, profile: str) -> FleetState:
        """Return the number of brokers that answer, and of partitions with too few in-sync replicas."""
        ...


@dataclass(frozen=True, slots=True)
class TableState:
    """An Iceberg table: identity, and how it differs from what the spec wants (see `Tables.ensure`)."""

    uuid: str
    location: str
    format_version: int
    owner: str | None
    """Property ``firn.owner`` as this call found it: uid of the resource that created or adopted the table before."""
    created: bool = False
    """True when this very call created it."""
    changed: tuple[str, ...] = ()
    """Human-readable changes that this very call made (columns added, partitioning, sort order, properties)."""


class Tables(Protocol):
    """Iceberg catalogs, by name."""

    async def ensure(self, target: TableTarget, schema: RecordSchema, owner: str) -> TableState | None:
        """Make the table exist and agree with the spec: namespace, table, added or widened columns, partition spec,
        sort order, properties, ``firn.owner``; nothing is written where nothing differs. A table of format version 3
        is only looked at, as the ingestion driver creates and evolves it: None while it does not exist. Whose table
        it may be is settled before (older resource wins). Raises InvalidSpecError naming table and column:
        SchemaIncompatible (a table found cannot hold these records), IncompatibleSchema (our own table, a change
        that is not allowed), BadTransform, UnknownColumn.
        """
        ...

    async def drop(self, target: TableTarget, owner: str) -> bool:
        """Drop the table and its dead-letter table, with their files; True when this call did. Missing ones are no
        error; a table whose ``firn.owner`` does not name this resource is left alone.
        """
        ...

    async def check(self, catalog: str) -> None:
        """Return when the catalog answers and accepts these credentials (one cheap call)."""
        ...


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod, reduced to the parts that conditions are made of."""

    name: str
    ready: bool
    running: bool
    """The main container runs now (it may not be ready)."""
    phase: str
    labels: Mapping[str, str]
    template_hash: str | None
    """Annotation ``firn.dev/template-hash`` of the pod, which its template carries."""
    waiting_reason: str | None
    """ImagePullBackOff, CrashLoopBackOff, CreateContainerConfigError, ..."""
    waiting_message: str | None
    unschedulable: str | None
    """The scheduler's message where the pod cannot be placed."""
    last_exit_code: int | None
    last_exit_reason: str | None
    """OOMKilled, Error, ..."""
    restarts: int
    deleting: bool
    node: str | None = None
    created: datetime | None = None
    finished: datetime | None = None
    """When the main container ended, where it does not run any more."""
    message: str = ""
    """The main container's termination message."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job, reduced to its progress and result."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    created: datetime
    finished: datetime | None = None
    """When the Job completed or failed; None while it is active."""
    succeeded: bool = False
    failure: str = ""
    """Kubernetes' word for why it failed: BackoffLimitExceeded, DeadlineExceeded, PodFailurePolicy."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class StatefulSetState:
    """A StatefulSet's progress. ``manifest`` is the live object (metadata and spec; status may be left out)."""

    name: str
    template_hash: str | None
    """Annotation ``firn.dev/template-hash`` of its pod template."""
    replicas: int
    ready: int
    updated: int
    current_revision: str
    update_revision: str
    partition: int
    generation_observed: bool
    manifest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TableDebt:
    """Maintenance debt of a table, from its metadata alone.

    Counts and bytes are of the newest snapshots of the table and of its dead-letter table together, because a run
    maintains both.
    """

    table_uuid: str
    data_files: int = 0
    data_bytes: int = 0
    small_files: int = 0
    """Data files below the size from which a file is left alone (`firn.tables.compaction`)."""
    delete_files: int = 0
    """Position and equality delete files and deletion vectors."""
    manifests: int = 0
    snapshots: int = 0
    metadata_bytes: int = 0
    """Of the newest metadata file and the manifests of the newest snapshot."""
    due_files: int = 0
    """Data files that a compaction would rewrite now: none of those that are too young, or alone in their size."""
    due_bytes: int = 0
    due_for_deletes: int = 0
    """Those of ``due_files`` that are rewritten for their deleted rows alone."""
    oldest_due: datetime | None = None
    """When the oldest due work became due (`firn.tables.compaction.Group`). Compaction lag counts from here."""


class Debts(Protocol):
    """Maintenance debts of tables. Measuring again is cheap: unchanged metadata is not read again."""

    async def measure(self, target: TableTarget, work: CompactionWork) -> TableDebt | None:
        """Return the debt of a table under the settings of its policy, or the defaults without one.

        None if there is no table.
        """
        ...

    def forget(self, target: TableTarget) -> None:
        """Free what is cached about a table that is no longer measured."""
        ...


class Cluster(Protocol):
    """The Kubernetes API, reduced to what the operator does with it."""

    async def apply(self, manifest: Manifest) -> bool:
        """Server-side apply with our field manager, forced; True if the live object changed. Skipped when the
        annotation ``firn.dev/template-hash`` of the live object (metadata, from the watch cache) equals the
        manifest's.
        """
        ...

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """A live object, or None."""
        ...

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete in the background; a missing object is no error."""
        ...

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        """A StatefulSet of the operator's namespace."""
        ...

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """Pods of the operator's namespace with all these labels."""
        ...

    async def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        """Jobs of the operator's namespace with all these labels.

        Those that this process made are among them at once.
        """
        ...

    async def list_names(self, api_version: str, kind: str, labels: Mapping[str, str]) -> Sequence[str]:
        """Return the names of objects of the operator's namespace with all these labels."""
        ...

    async def patch_status(
        self, namespace: str, name: str, status: Manifest, resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """Replace the status of a resource of ours (JSON patch that tests resourceVersion); the object as it is then,
        or None if it is gone. Raises CommitConflictError when it moved on.
        """
        ...

    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str
    ) -> Manifest | None:
        """Replace an IcebergTopic's finalizers; the object as it is then, or None if it is gone. Raises
        CommitConflictError when it moved on.
        """
        ...

    async def event(
        self, namespace: str, name: str, uid: str, kind: str, type_: str, reason: str, message: str
    ) -> None:
        """Record an Event (type Normal or Warning) on an object; repeated ones are aggregated. Never raises."""
        ...


class Progress(Protocol):
    """Progress reports of the ingestion drivers (`/progress`), polled in the background."""

    async def read(self, group: str) -> tuple[GroupProgress, datetime] | None:
        """Return the newest report and when it was read, or None without one."""
        ...


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports that reconcilers use."""

    topics: Topics
    tables: Tables
    cluster: Cluster
    progress: Progress
    clock: Clock


class RunMeter(Protocol):
    """Port for metrics about maintenance runs."""

    def register(self, kind: str, namespace: str, policy: str) -> None:
        """Make the metrics of a policy exist, so that its first failed run is seen as an increase."""
        ...

    def ended(self, kind: str, namespace: str, policy: str, run: Manifest) -> None:
        """Count a run that ended. ``run`` is the run as status shows it."""
        ...


class NoRunMeter:
    """Meter that counts nothing."""

    def register(self, kind: str, namespace: str, policy: str) -> None:
        """Do nothing."""

    def ended(self, kind: str, namespace: str, policy: str, run: Manifest) -> None:
        """Count nothing."""
