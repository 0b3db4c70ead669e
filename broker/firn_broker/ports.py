"""What a broker needs of the outside. Whoever implements a port names its promises in the contract suites (tests/contract).

The broker asks only these for time, chance, storage and order, so that it runs as well under a virtual clock over memory.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol
from uuid import UUID

from firn_broker.log_types import (
    FOUND_RUNS,
    BatchOutcome,
    Commit,
    CommittedOffset,
    Found,
    Lease,
    LogState,
    Node,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Run,
    StoredGroup,
    Topic,
    TopicLag,
    Topics,
    Wanted,
)


class ObjectStore(Protocol):
    """Objects by key. Raises `UnavailableError` for whatever may work later, and KeyError for an object that is not there."""

    async def put(self, key: str, data: memoryview) -> None:
        """Store ``data`` whole and durably, in one request."""
        ...

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The bytes [start, end) of each range; near ones are fetched together."""
        ...

    async def delete(self, keys: Sequence[str]) -> list[str]:
        """Delete objects; those that are gone now (or were never there)."""
        ...

    async def list(self, prefix: str) -> list[tuple[str, int]]:
        """(key, size) of all objects below ``prefix``."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...


class Coordinator(Protocol):
    """The one place with an order: topics, offsets, where batches lie, who is who, and what groups remember.

    Each call is atomic and durable when it returns. Raises `UnavailableError` when it may or may not have happened, or cannot now;
    `FencedError` when the caller's lease is not the newest. Calls that would change something twice say how they tell.
    """

    async def start(self) -> None:
        """Connect, and bring the schema to this version. One that was made to change nothing (``migrates=False``) raises `InvalidSpecError`
        instead when it has another."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...

    async def cluster_id(self) -> str:
        """The name that the whole has had since it began."""
        ...

    # Nodes and leases

    async def join(self, address: NodeAddress, ttl_ms: int, wanted: int | None = None) -> NodeLease:
        """Become a node for ``ttl_ms``: node ``wanted``, whoever was it (its epoch is over), or the lowest free one."""
        ...

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        """Stay for another ``ttl_ms``; all live nodes. Nobody's lease is longer than that afterwards: one that is was given before a wall
        clock went back. Raises `FencedError` when the id has a newer holder."""
        ...

    async def leave(self, lease: NodeLease) -> None:
        """Be gone at once. Nothing happens when the lease is over already."""
        ...

    async def take(self, name: str, lease: NodeLease) -> Lease | None:
        """The right called ``name``, which ends with the node's own lease; None while another live node has it. Taking again what one
        has keeps its epoch."""
        ...

    async def release(self, held: Lease, lease: NodeLease) -> None:
        """Give a right back, if one still has it."""
        ...

    # Topics

    async def topics(self, known: int = -1) -> Topics | None:
        """All topics, or None when ``known`` is their version."""
        ...

    async def create_topic(self, topic: Topic) -> bool:
        """Make it; False when the name is taken."""
        ...

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        """Have at least so many partitions; False when there is no such topic."""
        ...

    async def configure_topic(self, topic: UUID, known: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        """Replace the topic's own configs if they are as ``known``; False when they are others, or there is no such topic."""
        ...

    async def delete_topic(self, topic: UUID) -> bool:
        """Forget it; False when there is no such topic. Its batches go in rounds of `drop_runs`, its groups' offsets at once."""
        ...

    # The log

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        """Announce objects before they are uploaded, so that none is ever lost sight of. The same keys may be announced again."""
        ...

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        """Offsets for the batches of a reserved object, one outcome a batch. Idempotent by key: what was answered is answered again.
        Raises `FencedError` when the node's epoch is over or the reservation was withdrawn: then nothing of it was, or will be,
        committed."""
        ...

    async def rewrite(self, rewrite: Rewrite) -> bool:
        """Swap runs for those of a reserved object, which hold the same log with less in it; objects that lose their last run are dead.
        False, and the new object is dead, when the runs there are not the old ones any more (the topic is gone, others were quicker).
        Bounds of the partition stay. Idempotent by key. Raises `FencedError` as `commit` does."""
        ...

    async def find(self, wanted: Sequence[Wanted], runs: int = FOUND_RUNS) -> Sequence[Found]:
        """Where batches lie, read now; ``runs`` of each at most, which is one or more."""
        ...

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        """Bounds of partitions, read now; None for one that does not exist."""
        ...

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> Run | None:
        """The first run that ends at offset ``since`` or later and has a record of this time or later; with `MAX_TIMESTAMP` the one with the
        greatest timestamp."""
        ...

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        """Move the log start up to ``offset``, never down, never past the high watermark; None for an unknown partition."""
        ...

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        """Move the log starts of a topic past up to ``limit`` runs that are too old or too many (-1: no bound); past how many. The next call
        goes on where this one ended. None is too many while ``limit`` runs of the topic wait to be dropped."""
        ...

    async def drop_runs(self, limit: int) -> int:
        """Forget up to ``limit`` runs that lie below their log start or belong to deleted topics; how many. Objects without runs are
        dead from then on."""
        ...

    async def abandon(self, age_ms: int, limit: int) -> int:
        """Withdraw reservations that are older than ``age_ms`` and whose node's epoch is over; how many."""
        ...

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        """Forget up to ``limit`` replies to commits that are older than ``age_ms``, save the newest `KEPT_REPLIES` of each node's present
        epoch, as these may be asked for again; how many."""
        ...

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        """Keys of objects that have been dead for ``grace_ms``."""
        ...

    async def forget_objects(self, keys: Sequence[str]) -> None:
        """Forget dead objects that are deleted in the store."""
        ...

    async def objects(self) -> Mapping[str, tuple[int, int]]:
        """All objects that are known: key -> (size, number of runs); size -1 for one that is only reserved."""
        ...

    # Producers and groups

    async def producer_ids(self, count: int) -> int:
        """The first of ``count`` producer ids that nobody else is given."""
        ...

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        """Forget what is known of producers in partitions to which they sent nothing for ``age_ms``; how many. Each call looks at ``limit``
        producers at most, where the last one ended, and begins anew after the last of all."""
        ...

    async def groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        """Groups with a saved state, of one shard or all."""
        ...

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        """Keep a group's state, unless a newer version of it is kept. Raises `FencedError`."""
        ...

    async def delete_group(self, held: Lease, name: str) -> None:
        """Forget a group's state and offsets. Raises `FencedError`."""
        ...

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset]
    ) -> None:
        """Keep offsets of a group, save those of topics that do not exist. Raises `FencedError`."""
        ...

    async def offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        """All committed offsets of a group."""
        ...

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        """Forget offsets of a group. Raises `FencedError`."""
        ...

    async def offset_groups(self) -> Sequence[str]:
        """Names of all groups with committed offsets."""
        ...

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        """Of these groups the ``limit`` that are farthest behind in a topic, the farthest first."""
        ...
