"""Ports: the outside world as narrow protocols. ``firn_operator`` has the adapters, the tests have fakes.

Every method may raise `firn.model.errors.UnavailableError` (back off) or `AccessDeniedError` (a condition). Other
errors are named at the method. Methods are safe to repeat: an unknown outcome is resolved by describing again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, Protocol

from firn.model.clock import Clock
from firn.model.jobs import RecordSchema, TableTarget
from firn.model.maintenance import CompactionWork
from firn.model.progress import GroupProgress, Proposal
from firn.schema_registry import Registered
from firn.tables.ownership import Claimant, Ownership

Manifest = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TopicState:
    """A Kafka topic as the broker describes it. ``configs`` holds what was set on the topic itself, not defaults."""

    name: str
    topic_id: str
    partitions: int
    configs: Mapping[str, str]
    defaults: Mapping[str, str] = field(default_factory=dict)
    """The brokers' values of DELETION_CONFIGS that the topic does not set."""

    @property
    def effective(self) -> Mapping[str, str]:
        """The configs of the topic, with the known defaults of the brokers."""
        return {**self.defaults, **self.configs}


@dataclass(frozen=True, slots=True)
class TopicNames:
    """The names of all topics of a profile."""

    names: frozenset[str]
    cluster_id: str = ""
    """Kafka's id of the cluster that answered; empty if it has none."""


DELETION_CONFIGS = ("cleanup.policy", "retention.ms", "retention.bytes")
"""Topic configs that say when the log deletes records."""


@dataclass(frozen=True, slots=True)
class FleetState:
    """A profile's brokers as an admin client sees them."""

    brokers: int
    """Brokers that are not fenced. A broker is fenced until it has the whole metadata log."""
    under_replicated: int
    """Partitions with too few in-sync replicas. 0 if the caller did not ask for them."""
    lagging_topics: tuple[str, ...] = ()
    """Some topics of these partitions, sorted."""


class Topics(Protocol):
    """Kafka's admin side, by profile. Calls of many reconciles are batched behind it."""

    async def describe(self, profile: str, topic: str) -> TopicState | None:
        """Describe the topic; return None if it does not exist."""
        ...

    async def list_names(self, profile: str) -> TopicNames:
        """Return the names of all topics, also of those that Kafka uses itself."""
        ...

    async def create(self, profile: str, topic: str, partitions: int, configs: Mapping[str, str]) -> None:
        """Create the topic. Succeed if it exists already: describe it again. Raises InvalidSpecError (BadTopicConfig)."""
        ...

    async def grow(self, profile: str, topic: str, partitions: int) -> None:
        """Raise the number of partitions."""
        ...

    async def alter_configs(self, profile: str, topic: str, put: Mapping[str, str], remove: Sequence[str]) -> None:
        """Set and unset configs of the topic incrementally. Raises InvalidSpecError (BadTopicConfig) naming the key."""
        ...

    async def delete(self, profile: str, topic: str) -> None:
        """Delete the topic. Succeed if it does not exist."""
        ...

    async def fleet(self, profile: str, *, replicas: bool = False) -> FleetState:
        """Return the number of brokers that answer. With ``replicas``, also return the number of partitions with too few
        in-sync replicas, which takes longer the more topics the brokers have."""
        ...

    async def reload_certificates(self, profile: str) -> None:
        """Let each broker of Apache Kafka read the changed files of its certificate. Nothing changes without a change of a file."""
        ...

    async def certificate_end(self, host: str, port: int) -> datetime:
        """Return when the certificate ends that a broker presents, also if it has ended. Raises UnavailableError."""
        ...


AclResource = Literal["Topic", "Group", "TransactionalId", "Cluster"]
AclPattern = Literal["Literal", "Prefixed"]
AclOperation = Literal["Read", "Write", "Create", "Delete", "Alter", "Describe", "DescribeConfigs", "AlterConfigs"]
CLUSTER = "kafka-cluster"
"""Kafka's name of the resource Cluster in ACLs."""


@dataclass(frozen=True, slots=True)
class AclRule:
    """An ACL without its principal, with Kafka's names. It allows an operation from each host.

    All other ACLs of a principal belong to administrators: those that deny, name a host, or have another resource or operation.
    """

    resource: AclResource
    name: str
    pattern: AclPattern
    operation: AclOperation


@dataclass(frozen=True, slots=True)
class PrincipalState:
    """The access of a principal as the brokers describe it."""

    acls: frozenset[AclRule] = frozenset()
    quotas: Mapping[str, float] = field(default_factory=dict)
    """Quotas of the user by Kafka's keys, such as ``producer_byte_rate``, without those for some of its client ids."""
    credential: bool = False
    """True if the user has a credential of SCRAM-SHA-512."""
    last_used: datetime | None = field(default=None, compare=False)
    """Last use of this credential, to the minute, and 1970 if there was none. None: the brokers do not describe it."""


class Access(Protocol):
    """The principals of Kafka's users, by profile. ``user`` is the name without ``User:``.

    The brokers may describe a change some time after its call.

    Each method raises InvalidSpecError if the brokers of the profile lack an authorizer or one of the APIs.
    """

    async def describe(self, profile: str, users: Sequence[str]) -> Mapping[str, PrincipalState]:
        """Return the state of each user. Unknown users have the empty state. Calls of many reconciles are batched."""
        ...

    async def describe_acls(self, profile: str, users: Sequence[str]) -> Mapping[str, frozenset[AclRule]]:
        """Return the ACLs of each user. Rights to describe passwords and quotas are not necessary."""
        ...

    async def put_credential(self, profile: str, user: str, password: str) -> None:
        """Create or replace the credential of SCRAM-SHA-512."""
        ...

    async def remove_credential(self, profile: str, user: str) -> None:
        """Delete the credential of SCRAM-SHA-512. Succeed if there is none."""
        ...

    async def change_acls(self, profile: str, user: str, add: frozenset[AclRule], remove: frozenset[AclRule]) -> None:
        """Create ACLs, then delete ACLs. Succeed if they exist already, or no longer."""
        ...

    async def change_quotas(self, profile: str, user: str, quotas: Mapping[str, float | None]) -> None:
        """Set quotas by Kafka's keys, and remove those whose value is None. The others stay.

        Raises InvalidSpecError for a key or value that the brokers refuse.
        """
        ...


@dataclass(frozen=True, slots=True)
class UserRef:
    """A TopicUser as the owner of its Secret, in whose namespace it is."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ClientSecret:
    """The metadata of a Secret that belongs to a TopicUser."""

    uid: str
    revision: str
    """Revision of the credential in it; empty if it has none."""


class ClientSecrets(Protocol):
    """Secrets with the connection of a TopicUser. No method reads the content of a Secret."""

    async def look(self, namespace: str, name: str, owner: UserRef) -> ClientSecret | None:
        """Return the metadata of the Secret; None if it does not exist. Raises ConflictError if ``owner`` does not own it."""
        ...

    async def write(
        self,
        namespace: str,
        name: str,
        owner: UserRef,
        data: Mapping[str, str],
        revision: str,
        expected_uid: str | None,
    ) -> str:
        """Create or update the Secret, and return its uid. ``expected_uid`` is the result of the call before, if any.

        The Secret gets the revision as an annotation. Keys that other clients added stay. A Secret that ``owner`` does not own stays as it
        is: the call raises ConflictError.
        """
        ...


@dataclass(frozen=True, slots=True)
class CertificateSecret:
    """A Secret of the signer."""

    data: Mapping[str, str] = field(repr=False)
    version: str
    """Changes with each write of any client."""
    own: bool
    """True if a signer created it."""


class CertificateSecrets(Protocol):
    """Secrets with CAs and with certificates of servers, in the operator's namespace. Only the signer has this port."""

    async def read(self, name: str) -> CertificateSecret | None:
        """Return the Secret; None if it does not exist."""
        ...

    async def create(self, name: str, profile: str | None, data: Mapping[str, str]) -> None:
        """Create the Secret; of a store, without a profile. Raises ConflictError if another client has created one with other values."""
        ...

    async def update(self, name: str, data: Mapping[str, str | None], version: str) -> None:
        """Set keys, and remove those whose value is None. Raises ConflictError if the Secret has another version, or is deleted."""
        ...


@dataclass(frozen=True, slots=True)
class CertificateState:
    """A Certificate of cert-manager as its controller reports it."""

    ready: bool
    message: str = ""
    """The message of its condition Ready; empty before cert-manager has reported one."""
    ends: datetime | None = None
    """When the issued certificate ends; None before the first one."""


class BrokerCertificates(Protocol):
    """Certificates of cert-manager."""

    async def apply(self, manifest: Manifest) -> CertificateState:
        """Apply a Certificate server-side, and return its state. Raises NotReadyError if the cluster has no cert-manager, and
        InvalidSpecError if the API server refuses the Certificate."""
        ...


class Authorities(Protocol):
    """Certificates of the authorities that the brokers of a profile have."""

    async def certificates(self, profile: str) -> str:
        """Return the certificates as PEM; empty if the configuration of the profile names none. Raises NotReadyError."""
        ...

    async def of_sources(self, profile: str) -> Sequence[str]:
        """Return the certificates of each source, the present one first. The text of a source without certificates is empty."""
        ...


@dataclass(frozen=True, slots=True)
class TableState:
    """An Iceberg table after `Tables.ensure`: its identity, and the changes of the call."""

    uuid: str
    location: str
    format_version: int
    owner: str | None
    """Property ``firn.owner`` before the call: uid of the resource that created or adopted the table."""
    created: bool = False
    """True if the call created the table."""
    changed: tuple[str, ...] = ()
    """Changes that the call made, as texts for users: added columns, partitioning, sort order, properties."""
    proposed: Proposal | None = None
    """Changes of columns that wait for an approval. The call changed nothing then."""
    gone: tuple[str, ...] = ()
    """Columns that the schema no longer has, and that the driver drops after an approval."""
    droppable: Proposal | None = None
    """The drop of these columns, if it waits for an approval. Nothing else waits for it."""
    dropped: tuple[str, ...] = ()
    """Paths of columns that another client dropped. Their fields are left out."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """A table that was dropped from its catalog."""

    files_kept: bool = False
    """True if files stay, because the table has ``gc.enabled=false`` or the catalog has references of its own."""
    left: tuple[str, ...] = ()
    """Metadata files that could not be deleted after the table left the catalog."""
    problems: tuple[str, ...] = ()
    """Why files may stay that no metadata of the table names."""


@dataclass(frozen=True, slots=True)
class FoundTable:
    """A table that exists before its resource is reconciled for the first time."""

    ownership: Ownership
    """The owner that its properties name."""
    topic_id: str = ""
    """Kafka's id of the topic whose records the table has; empty before the first record, and for a shared table."""
    topic_ids: frozenset[str] = frozenset()
    """Kafka's ids of the topics of a shared table."""


class Tables(Protocol):
    """Iceberg catalogs, by name."""

    async def ensure(self, target: TableTarget, schema: RecordSchema, claimant: Claimant) -> TableState | None:
        """Create the table, or bring it into agreement with the spec.

        The call changes namespace, columns, partition spec, sort order, properties and owner, and writes only
        differences. It does not change a table of format version 3, which the ingestion driver creates and evolves: it
        returns None while that table does not exist. The caller has checked that no older resource owns the table.

        Raises InvalidSpecError that names table and column: SchemaIncompatible (an existing table cannot hold these
        records), IncompatibleSchema (a change of our own table that is not allowed), BadTransform, UnknownColumn.
        Raises ConflictError if the table belongs to another control plane.
        """
        ...

    async def found(self, target: TableTarget) -> FoundTable | None:
        """Return owner and topic of a table before it is adopted; None if it does not exist."""
        ...

    async def drop(self, target: TableTarget, owner: str) -> Dropped | None:
        """Drop the table and its dead-letter table, with their files. Return None if the call dropped none.

        Tables that do not exist are no error. A table whose ``firn.owner`` does not name this resource stays. The files of
        a table with ``gc.enabled=false`` stay, because they may belong to other tables or branches.
        """
        ...

    async def check(self, catalog: str) -> None:
        """Check with one cheap call that the catalog answers and accepts the credentials."""
        ...


@dataclass(frozen=True, slots=True)
class PodState:
    """A pod, reduced to the parts that conditions are made of."""

    name: str
    ready: bool
    running: bool
    """True if the main container runs, ready or not."""
    phase: str
    labels: Mapping[str, str]
    template_hash: str | None
    """Annotation ``firn.dev/template-hash`` of the pod, which its template carries."""
    waiting_reason: str | None
    """ImagePullBackOff, CrashLoopBackOff, CreateContainerConfigError, ..."""
    waiting_message: str | None
    unschedulable: str | None
    """The scheduler's message if no node can take the pod."""
    last_exit_code: int | None
    last_exit_reason: str | None
    """OOMKilled, Error, ..."""
    restarts: int
    """Number of restarts since the last run of ten minutes or longer."""
    deleting: bool
    node: str | None = None
    created: datetime | None = None
    finished: datetime | None = None
    """Time when the main container ended; None while it runs."""
    message: str = ""
    """The main container's termination message."""
    ports: frozenset[str] = frozenset()
    """Names of the main container's ports that have one."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job, reduced to its progress and result."""

    name: str
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    created: datetime
    finished: datetime | None = None
    """Time when the Job completed or failed; None while it is active."""
    succeeded: bool = False
    failure: str = ""
    """Kubernetes' reason for the failure: BackoffLimitExceeded, DeadlineExceeded, PodFailurePolicy."""
    deleting: bool = False


@dataclass(frozen=True, slots=True)
class StatefulSetState:
    """A StatefulSet's progress. ``manifest`` is the live object; it may lack the status."""

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
    """Data files that are small (`firn.tables.compaction.is_small`)."""
    delete_files: int = 0
    """Position and equality delete files and deletion vectors."""
    manifests: int = 0
    snapshots: int = 0
    metadata_bytes: int = 0
    """Bytes of the newest metadata file and of the manifests of the newest snapshot."""
    due_files: int = 0
    """Data files that a compaction would rewrite now."""
    due_bytes: int = 0
    due_for_deletes: int = 0
    """Files among ``due_files`` that would be rewritten only for their deleted rows."""
    oldest_due: datetime | None = None
    """Time when the oldest due work became due (`firn.tables.compaction.Group`), from which compaction lag counts."""


class Debts(Protocol):
    """Maintenance debts of tables. Measuring again is cheap: unchanged metadata is not read again."""

    async def measure(self, target: TableTarget, work: CompactionWork) -> TableDebt | None:
        """Return the debt of a table under the settings of its policy, or the defaults without one.

        None if there is no table.
        """
        ...

    def forget(self, target: TableTarget) -> None:
        """Drop the cached data of a table that is no longer measured."""
        ...


class Cluster(Protocol):
    """The Kubernetes API, reduced to what the operator does with it."""

    async def apply(self, manifest: Manifest, *, always: bool = False) -> bool:
        """Apply the object server-side, forced, with our field manager; return True if the live object changed.

        The call may be skipped if the annotation ``firn.dev/template-hash`` of the live object equals the manifest's and
        no other client has edited the object since. Edits are known from watches and from lists at intervals.
        ``always`` never skips the call.
        """
        ...

    async def get(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return a live object; None if it does not exist."""
        ...

    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> None:
        """Delete an object in the background. Succeed if it does not exist."""
        ...

    async def token_keys(self) -> str:
        """Return the public keys of the tokens of ServiceAccounts, as a JSON Web Key Set."""
        ...

    async def stateful_set(self, name: str) -> StatefulSetState | None:
        """Return a StatefulSet of the operator's namespace."""
        ...

    async def pods(self, labels: Mapping[str, str]) -> Sequence[PodState]:
        """Return the pods of the operator's namespace with all these labels."""
        ...

    async def pod_log(self, name: str, seconds: int) -> str:
        """Return what the only container of a pod of the operator's namespace has logged in the last ``seconds``.

        Raises AccessDeniedError and UnavailableError.
        """
        ...

    async def jobs(self, labels: Mapping[str, str]) -> Sequence[JobState]:
        """Return the Jobs of the operator's namespace with all these labels.

        Jobs that this process created are among them at once.
        """
        ...

    async def list_names(self, api_version: str, kind: str, labels: Mapping[str, str]) -> Sequence[str]:
        """Return the names of objects of the operator's namespace with all these labels."""
        ...

    async def patch_status(
        self, namespace: str, name: str, status: Manifest, resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """Replace the status of a resource, if it still has this resourceVersion.

        Returns the object after the change, or None if it was deleted. Raises CommitConflictError if it has changed.
        """
        ...

    async def apply_topic(self, manifest: Manifest, *, create: bool) -> Manifest:
        """Apply an IcebergTopic server-side, with the field manager of TopicSets. Returns the live object.

        ``create``: only if no object has the name. Otherwise only if the live object has the uid of the manifest, and
        with force. Raises ConflictError, and InvalidSpecError if the API server refuses the object.
        """
        ...

    async def delete_topic(self, namespace: str, name: str, uid: str) -> None:
        """Delete an IcebergTopic if it still has this uid."""
        ...

    async def set_finalizers(
        self, namespace: str, name: str, finalizers: Sequence[str], resource_version: str, kind: str = "IcebergTopic"
    ) -> Manifest | None:
        """Replace the finalizers of a resource, if it still has this resourceVersion.

        Returns the object after the change, or None if it was deleted. Raises CommitConflictError if it has changed.
        """
        ...

    async def rival(self, namespace: str) -> str | None:
        """Claim the resources of a namespace for this release.

        Returns the namespace of the release that has claimed them, or None if it is this release.
        """
        ...

    async def event(
        self, namespace: str, name: str, uid: str, kind: str, type_: str, reason: str, message: str
    ) -> None:
        """Record an Event (type Normal or Warning) on an object. Repeated Events raise a count. Never raises."""
        ...


class Progress(Protocol):
    """Progress reports of the ingestion drivers (`/progress`)."""

    async def read(self, group: str, max_age: float) -> tuple[GroupProgress, float] | None:
        """Return a report and the monotonic time when it was read; None if there is no report.

        The driver is asked if the last attempt is ``max_age`` seconds ago or longer.
        """
        ...


class Schemas(Protocol):
    """Schema registries by name, and the compiler of Protobuf texts."""

    async def latest(self, registry: str, subject: str) -> Registered | None:
        """Return the latest schema of a subject, as the registry answered at most a minute ago. None if it has none."""
        ...

    async def descriptors(self, text: str, references: Mapping[str, str]) -> bytes:
        """Compile a .proto text into a serialized ``FileDescriptorSet``, with all files that the text imports.

        ``references`` are further texts by the names of their imports. Raises InvalidSpecError (BadSchema), and
        NotReadyError if the compiler does not answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class UserPorts:
    """The ports that only TopicUsers need."""

    access: Access
    secrets: ClientSecrets
    authorities: Authorities


@dataclass(frozen=True, slots=True)
class Ports:
    """All ports that reconcilers use."""

    topics: Topics
    tables: Tables
    cluster: Cluster
    progress: Progress
    schemas: Schemas
    clock: Clock
    users: UserPorts | None = None
    """None if the configuration has no TopicUsers."""
    certificates: BrokerCertificates | None = None
    """Required if a profile has a certificate of cert-manager."""
    rights: Access | None = None
    """The principals of drivers and maintenance runs; None if no profile has ``access``."""
    authorities: Authorities | None = None
    """Required if a profile has ``access``."""


class RunMeter(Protocol):
    """Port for metrics about maintenance runs."""

    def forget(self, kind: str, namespace: str, policy: str) -> None:
        """Remove the metrics of a deleted policy."""
        ...

    def register(self, kind: str, namespace: str, policy: str) -> None:
        """Create the metrics of a policy with value 0, so that its first failed run is an increase."""
        ...

    def ended(self, kind: str, namespace: str, policy: str, run: Manifest) -> None:
        """Count a run that ended. ``run`` is the run as status shows it."""
        ...


class NoRunMeter:
    """Meter that counts nothing."""

    def forget(self, kind: str, namespace: str, policy: str) -> None:
        """Do nothing."""

    def register(self, kind: str, namespace: str, policy: str) -> None:
        """Do nothing."""

    def ended(self, kind: str, namespace: str, policy: str, run: Manifest) -> None:
        """Count nothing."""
