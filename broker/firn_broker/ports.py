"""The ports of a broker. The contract suites (tests/contract) test every implementation of a port.

A broker gets storage and order only through these, and time and randomness through `Clock` and `Random`. So it also
runs in memory, under a virtual clock.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from firn.model.errors import UnavailableError
from firn.schema_registry import Registered
from firn_broker.access_types import Access, AccessVersion, Acl, CredentialKey, Entity, ScramCredential
from firn_broker.log_types import (
    LOOKUP_RANGES,
    BatchEntry,
    BatchOutcome,
    BatchRange,
    Commit,
    CommittedOffset,
    DeadBacklog,
    Lease,
    LogState,
    Lookup,
    LookupResult,
    MergeSource,
    Node,
    NodeAddress,
    NodeLease,
    Partition,
    Progress,
    Rewrite,
    SourceRow,
    StoredGroup,
    Topic,
    TopicLag,
    Topics,
    TopicsVersion,
    Unindexed,
)


class WentBackError(UnavailableError):
    """The coordinator lost commits that it had acknowledged, so no broker may serve until that is repaired."""


class ObjectStore(Protocol):
    """Objects by key.

    Raises `UnavailableError` for an error that may pass, and KeyError for an object that does not exist.
    """

    async def put(self, key: str, data: memoryview) -> None:
        """Store ``data`` durably, with one request that stores all of it or nothing."""
        ...

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return the bytes [start, end) of each range. One request may fetch several near ranges."""
        ...

    async def size(self, key: str) -> int:
        """Return the bytes of an object."""
        ...

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; return the keys of those that do not exist any more, or never did."""
        ...

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """Return (key, bytes) of all objects below ``prefix``."""
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...


class SubjectLookup(Protocol):
    """Schema registries by name."""

    async def subjects(self, registry: str, number: int) -> frozenset[str]:
        """Return the subjects with the schema of an id; none if the registry has no such schema.

        Raises a `FirnError` if no usable answer arrives, and for a registry that the settings do not name. It is `RegistryAwayError`
        if the registry answers no request.
        """
        ...

    async def schema(self, registry: str, number: int) -> Registered | None:
        """Return the schema with an id; None if the registry has none. A Protobuf schema has its descriptors.

        Raises as `subjects`, and InvalidSpecError for a Protobuf text that protoc rejects.
        """
        ...

    async def descriptors(self, text: str) -> str:
        """Compile a .proto text into descriptors in base64. Raises InvalidSpecError if protoc rejects it, and NotReadyError."""
        ...

    def close(self) -> None:
        """Start no more requests."""
        ...


class NodeStore(Protocol):
    """Brokers of the cluster: node ids, node leases, named leases, and blocks of producer ids."""

    async def join(self, address: NodeAddress, ttl_ms: int, node_id: int | None = None) -> NodeLease:
        """Register a node for ``ttl_ms`` and return its lease.

        With ``node_id`` the caller takes that id over, and the epoch of its earlier holder ends. Without it the caller
        gets the lowest free id.
        """
        ...

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        """Extend a node lease to ``ttl_ms`` from now and return all live nodes.

        Afterwards no lease lasts longer than its own node requested: a longer one dates from before a wall clock went
        back.
        Raises `FencedError` when the id has a newer holder.
        """
        ...

    async def leave(self, lease: NodeLease) -> None:
        """End a node lease now. Does nothing when it is over already."""
        ...

    async def acquire(self, name: str, lease: NodeLease) -> Lease | None:
        """Acquire the lease ``name``, which ends with the node's own; return None while another live node holds it.

        Acquiring a lease again keeps its epoch. Raises `FencedError` when the node lease is over.
        """
        ...

    async def release(self, held: Lease, lease: NodeLease) -> None:
        """Release a named lease. Does nothing when the caller does not hold it."""
        ...

    async def held(self, lease: NodeLease) -> Sequence[str]:
        """Return the names of the leases that the node holds."""
        ...

    async def allocate_producer_ids(self, count: int) -> int:
        """Allocate ``count`` consecutive producer ids that no other caller gets, and return the first."""
        ...

    async def progress(self) -> Progress:
        """Return the counters of the coordinator, and whether it is stopped."""
        ...

    async def raise_counter(self, name: str, value: int) -> None:
        """Raise a counter to ``value``; never lower it."""
        ...

    async def stop_serving(self, reason: str) -> None:
        """Reject all commits and tell all brokers to stop serving, until `allow_serving`. The first reason stays."""
        ...

    async def stop_idle(self, reason: str) -> bool:
        """Do as `stop_serving`. Return False, and change nothing, while a broker is live."""
        ...

    async def allow_serving(self) -> bool:
        """End `stop_serving`. Return False, and change nothing, while a broker is live: it would stop the others
        again.

        Raises the counter of producer ids by `LOST_PRODUCERS`, and `REPAIRS`."""
        ...


class TopicStore(Protocol):
    """Topics: names, partition counts and configs."""

    async def load_topics(self, known: TopicsVersion | None = None) -> Topics | None:
        """Return the topics that were created, changed or deleted since the version ``known``, and None if there are none.

        Return all topics if ``known`` is None, or if the store has no such version or no longer knows what has changed
        since.
        """
        ...

    async def create_topic(self, topic: Topic) -> bool:
        """Create a topic. Return False when the name is taken."""
        ...

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        """Raise the number of partitions to ``partitions``; never lower it.

        Return False when the topic does not exist.
        """
        ...

    async def configure_topic(self, topic: UUID, expected: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        """Replace the topic's own configs if they equal ``expected``.

        Return False when they differ, or the topic does not exist.
        """
        ...

    async def delete_topic(self, topic: UUID) -> bool:
        """Delete a topic and the offsets that groups committed for it. Return False when it does not exist.

        `RetentionStore.drop_ranges` deletes its batches later, in bounded steps.
        """
        ...


class History(Protocol):
    """The batches whose records lie in tables."""

    async def start(self) -> None:
        """Start processes that do not run, so that no consumer waits for their start. Raises UnavailableError."""
        ...

    async def rebuild(self, ranges: Sequence[BatchRange]) -> list[memoryview]:
        """Return the batches of table ranges of one entry, one buffer for each range.

        Raises CorruptDataError if the table does not give back these batches, and UnavailableError.
        """
        ...

    def close(self) -> None:
        """End all processes."""
        ...


class LogStore(Protocol):
    """Logs of partitions: which offsets batches have, and in which objects they lie."""

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        """Register objects before their upload, so that retention can find each of them.

        Reserving a key again changes nothing.
        """
        ...

    async def adopt(self, lease: NodeLease, keys: Sequence[str]) -> None:
        """Reserve objects for a repair, even if another lease reserved them or the reservation was withdrawn. Change
        nothing for an object with a commit.

        For an object that the store did not know, `RetentionStore.contains` answers no: the store may have gone back."""
        ...

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        """Assign offsets to the batches of a reserved object and return one outcome per batch.

        Idempotent by key: a repeated commit returns the stored outcomes. Raises `FencedError` when the node's epoch is
        over or the reservation was withdrawn: then no batch of the object is committed, now or later. Raises
        `WentBackError` when the store lost earlier commits of the lease, when a required batch would not get its offset, or while it is
        stopped, except for a repair.
        Rejects batches of unknown partitions, and those with a wrong sequence or epoch of their producer. A repair
        appends the latter.
        """
        ...

    async def rewrite(self, rewrite: Rewrite) -> Sequence[bool]:
        """Replace batch ranges by those of a reserved object, which holds the same logs with fewer records, or the same ones.

        Return for each swap whether it took place. It does not when the log does not have the old ranges any more: the
        topic was deleted, or another rewrite was faster. Objects that lose their last range are dead, and so is the new one if
        no swap took place. The bounds of the partitions stay. Idempotent by key. Raises `FencedError` as `commit` does.

        The object may be a history object: then ranges may become table ranges. Call it so only while all live nodes run programs
        that know table ranges. From the first table range on, earlier programs cannot start or renew their node lease. But such a
        broker that runs goes on until its lease expires. A consumer that fetches table ranges from it gets an error, because it
        takes the entry for damaged batches.
        """
        ...

    async def find(self, lookups: Sequence[Lookup], max_ranges: int = LOOKUP_RANGES) -> Sequence[LookupResult]:
        """Find where batches lie, as of now. Return at most ``max_ranges`` batch ranges (1 or more) for each lookup."""
        ...

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        """Return the bounds of partitions, as of now; None for a partition that does not exist."""
        ...

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> BatchRange | None:
        """Find the first batch range that ends at offset ``since`` or later and has a record of ``timestamp`` or later.

        With `MAX_TIMESTAMP`, find the range with the greatest timestamp.
        """
        ...

    async def unindexed(self, topic: UUID, generation: int, tagged: Sequence[int]) -> Unindexed:
        """Return which batches of a topic lie in no history object, which of them data files before ``generation`` give back, and which
        of them data files of other generations than ``tagged`` do."""
        ...

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        """Move the log start up to ``offset``, never down, never past the high watermark.

        Return None for an unknown partition.
        """
        ...


class MergeStore(Protocol):
    """The objects that merges read, by level (`UNMERGED` and above). They have no table ranges, and history objects are none of
    them."""

    async def sources(self, level: int, age_ms: int, limit: int) -> Sequence[MergeSource]:
        """Return up to ``limit`` objects of a level with batch ranges whose commit is at least ``age_ms`` ago, the oldest
        first."""
        ...

    async def rows(self, keys: Sequence[str], after: SourceRow | None, limit: int) -> Sequence[SourceRow]:
        """Return up to ``limit`` rows of batch ranges in these objects, by partition and offset, from the one behind ``after``
        on.

        Rows of deleted topics and below the log start are left out.
        """
        ...

    async def unfinished(self, lease: NodeLease, ending: str) -> Sequence[str]:
        """Return the keys with this ending that the lease has reserved and not committed."""
        ...

    async def finish(self, keys: Sequence[str]) -> None:
        """Give those of the objects that still have batch ranges the level `UNMERGEABLE`."""
        ...


class RetentionStore(Protocol):
    """The bounded steps of maintenance: they delete records past retention, batch ranges, objects, replies and producer
    state, and add time marks."""

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        """Move the log starts of a topic past up to ``limit`` expired batch ranges; return past how many.

        A range expires by age, and while its partition exceeds the size. A bound of -1 means none. The next call
        continues after this one. Size expires no range while ``limit`` ranges of the topic wait for `drop_ranges`.
        """
        ...

    async def drop_ranges(self, limit: int) -> int:
        """Delete up to ``limit`` batch ranges below their log start or of deleted topics; return how many.

        Works in short transactions, between which commits proceed.
        Objects that lose their last range are dead from then on.
        """
        ...

    async def stale_reservations(self, age_ms: int, limit: int) -> Sequence[str]:
        """Return keys of up to ``limit`` reservations older than ``age_ms`` whose node's epoch is over."""
        ...

    async def withdraw_reservations(self, keys: Sequence[str], keep_ms: int | None = 0) -> int:
        """Withdraw those of these reservations whose node's epoch is over; return how many.

        Their objects are dead in ``keep_ms`` from now. With None they are kept: no step deletes them until a later call
        gives them a time.
        """
        ...

    async def contains(self, key: str, batches: Sequence[BatchEntry]) -> Sequence[bool]:
        """Return for each batch whether the log has its records for certain, through other objects than ``key``, which is
        reserved and not committed.

        The answer is no for batches without a producer id, and where the store cannot tell. So it is no for a producer
        id that the store allocated after the reservation: a store that went back would allocate it again.
        """
        ...

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        """Delete up to ``limit`` stored replies to commits that are older than ``age_ms``; return how many.

        Keeps the newest `KEPT_REPLIES` of each node's present epoch, because that node may repeat those commits.
        """
        ...

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        """Delete the state of producers in partitions that they have not written to for ``age_ms``; return how many.

        Each call examines at most ``limit`` producers, starts where the last call ended, and wraps around after the
        last producer.
        """
        ...

    async def mark_times(self, limit: int) -> bool:
        """Read up to ``limit`` batch ranges that `LogStore.find_by_time` would have to compare one by one, and store time
        marks, with which it skips them.

        Each call starts where the last one ended. Return False when it has reached the last partition.
        """
        ...

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        """Return keys of up to ``limit`` objects that have been dead for ``grace_ms``, the oldest first.

        Leaves out objects while they are postponed.
        """
        ...

    async def postpone_objects(self, keys: Sequence[str], most_ms: int) -> None:
        """Postpone the deletion of dead objects by as long as they have been dead, at most by ``most_ms``."""
        ...

    async def dead_backlog(self) -> DeadBacklog:
        """Count the dead objects, those included that are postponed, and the objects that are kept."""
        ...

    async def forget_objects(self, keys: Sequence[str]) -> None:
        """Delete the entries of dead objects after the object store has deleted the objects."""
        ...

    async def list_objects(self, start: str, end: str) -> Mapping[str, tuple[int, int]]:
        """Return the known objects with start <= key < end, by key: (bytes, number of batch ranges).

        Bytes are -1 for an object that is only reserved.
        """
        ...


class GroupStore(Protocol):
    """Consumer groups: their saved states and committed offsets. Every write names the lease of the group's shard."""

    async def load_groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        """Return the groups with a saved state, of one shard or of all."""
        ...

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        """Save a group's state, unless a newer version is saved already. Raises `FencedError`."""
        ...

    async def delete_group(self, held: Lease, name: str, unused_ms: int | None = None) -> bool:
        """Delete a group's state and its offsets. Raises `FencedError`.

        With ``unused_ms``: return False, and delete nothing, if either was saved within that time by the store's clock.
        """
        ...

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset], shard: int | None = None
    ) -> None:
        """Save offsets of a group of ``shard``, except those of topics that do not exist. Raises `FencedError`."""
        ...

    async def load_offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        """Return all committed offsets of a group."""
        ...

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        """Delete offsets of a group. Raises `FencedError`."""
        ...

    async def groups_with_offsets(self, shard: int | None = None) -> Sequence[str]:
        """Return the names of the groups with committed offsets, of one shard or of all.

        Version 0.2.0 and earlier ones save no shard. Groups with such offsets are in each answer.
        """
        ...

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        """Return the ``limit`` greatest lags of these groups by topic, the greatest first."""
        ...


class AccessStore(Protocol):
    """Credentials, ACLs and quotas of the cluster. Every call that changes something makes a new version, even if it changes
    nothing."""

    async def load_access(self, known: AccessVersion | None = None) -> Access | None:
        """Return what has changed since the version ``known``, and None if nothing has.

        Return all if ``known`` is None, or if the store has no such version or no longer knows what has changed since.
        What has changed is whole by user, by principal and by entity.
        """
        ...

    async def change_credentials(
        self, put: Sequence[ScramCredential], delete: Sequence[CredentialKey] = ()
    ) -> Sequence[CredentialKey]:
        """Store credentials in place of those with the same key, and delete others. Return the keys to delete that did not
        exist."""
        ...

    async def create_acls(self, acls: Sequence[Acl], most: int) -> bool:
        """Store ACLs. Return False, and change nothing, if the cluster would have more than ``most``."""
        ...

    async def delete_acls(self, acls: Sequence[Acl]) -> None:
        """Delete ACLs. Do nothing for those that do not exist."""
        ...

    async def change_quotas(self, changes: Mapping[Entity, Mapping[str, float | None]]) -> None:
        """Store quotas by entity and name. None deletes a quota."""
        ...

    async def note_uses(self, keys: Sequence[CredentialKey], used_ms: int) -> None:
        """Store that credentials were used at this time, if they exist and no later use is stored. Makes no version."""
        ...

    async def last_uses(self, users: Sequence[str]) -> Mapping[CredentialKey, int]:
        """Return the last use of each credential of the users, in milliseconds, if it was used since its last change."""
        ...

    async def secret(self, new: bytes) -> bytes:
        """Return the secret that all brokers of the cluster share. The first call stores ``new``. Makes no version."""
        ...


class MetadataStore(Protocol):
    """The coordinator: the one place that orders commits, and keeps all metadata of a cluster.

    A caller takes only the port that it needs. Every call of a port is atomic, and durable when it returns. A call
    raises `UnavailableError` when it may or may not have happened, or cannot happen now, and `FencedError` when the
    caller's lease is not the newest. Calls that are idempotent say by what.
    """

    @property
    def nodes(self) -> NodeStore:
        """The port for nodes and leases."""
        ...

    @property
    def topics(self) -> TopicStore:
        """The port for topics."""
        ...

    @property
    def log(self) -> LogStore:
        """The port for logs of partitions."""
        ...

    @property
    def merges(self) -> MergeStore:
        """The port for the objects that merges read."""
        ...

    @property
    def retention(self) -> RetentionStore:
        """The port for the steps that delete data."""
        ...

    @property
    def groups(self) -> GroupStore:
        """The port for groups and their offsets."""
        ...

    @property
    def access(self) -> AccessStore:
        """The port for credentials, ACLs and quotas."""
        ...

    async def start(self) -> None:
        """Connect, and migrate the schema to this version.

        A store that was created with ``migrates=False`` changes nothing: it raises `InvalidSpecError` when the schema
        has another version.
        """
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...

    async def cluster_id(self) -> str:
        """Return the cluster's id, which never changes."""
        ...
