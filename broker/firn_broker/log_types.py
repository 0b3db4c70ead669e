"""Nouns that brokers and coordinators share: topics, where batches lie, what a commit asks and answers, nodes, groups.

Offsets are Kafka's; ranges of offsets name their first and last offset. Times are milliseconds since 1970. Sizes are bytes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Timestamps that mean something else (ListOffsets): the high watermark, the log start, the record with the greatest timestamp."""

RANGE_BYTES = 1 << 20
"""A run of batches ends before it grows past this, so that a reader need not load much more than it wants."""


KEPT_REPLIES = 64
"""Replies to the newest commits of a node that are kept for as long as its epoch lasts. It commits in order and asks again until it is
answered, so that only its last ones may be in doubt: one of its writer, one of its compaction."""

LOOKUP_RANGES = 256
"""Runs of a partition that one look gives at most, if it does not ask for fewer."""


class Partition(NamedTuple):
    """One partition of one incarnation of a topic."""

    topic: UUID
    index: int  # type: ignore[assignment]  # hides the tuple's search, which nobody needs here


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic as the coordinator has it. A topic that is made anew under its old name has another id."""

    id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def partition(self, index: int) -> "Partition | None":
        """Return the partition of that index; None if the topic has no such partition."""
        return Partition(self.id, index) if 0 <= index < self.partitions else None


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics at one version of the whole."""

    version: int
    topics: Sequence[Topic]


class Endpoint(NamedTuple):
    """Where clients of one listener connect."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """How clients reach a broker, the zone that it is in ("" if unknown), and how those outside reach it (None if they cannot)."""

    host: str
    port: int
    zone: str = ""
    external: Endpoint | None = None

    def endpoint(self, *, external: bool) -> Endpoint | None:
        """For clients of the external listener, or of the other."""
        return self.external if external else Endpoint(self.host, self.port)


@dataclass(frozen=True, slots=True)
class Node:
    """A live broker."""

    id: int
    address: NodeAddress

    @classmethod
    def from_columns(
        cls, id: int, host: str, port: int, zone: str, external_host: str | None, external_port: int | None
    ) -> "Node":
        """From the columns of a coordinator."""
        external = None if external_host is None or external_port is None else Endpoint(external_host, external_port)
        return cls(id, NodeAddress(host, port, zone, external))


@dataclass(frozen=True, slots=True)
class NodeLease:
    """Who a process is: a node id, and an epoch that the next holder of that id will raise."""

    node: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to do what ``name`` stands for, until somebody else has a higher epoch."""

    name: str
    epoch: int


class BatchEntry(NamedTuple):
    """One batch inside a WAL object that is about to be committed, in the order in which producers sent them."""

    partition: Partition
    position: int
    length: int
    records: int
    max_timestamp: int
    append_time: bool
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1


@dataclass(frozen=True, slots=True)
class Commit:
    """Give offsets to the batches of one uploaded object. Asking again with the same key answers the same."""

    lease: NodeLease
    key: str
    size: int
    batches: Sequence[BatchEntry]


class BatchOutcome(NamedTuple):
    """What became of one batch. ``duplicate``: it was there already, and the offset is the first one's."""

    error: ErrorCode
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    duplicate: bool = False


class WalRange(NamedTuple):
    """A run of whole batches in a WAL object."""

    key: str
    position: int
    length: int


class BatchRange(NamedTuple):
    """Consecutive batches of one partition that lie together. ``place`` may later be a range of a data file instead."""

    base_offset: int
    last_offset: int
    place: WalRange
    max_timestamp: int
    append_ms: int
    """-1, or the time that all records of the run have (LogAppendTime)."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """Put the runs of one uploaded object in the place of ``old``, all runs of ``partition`` from the first to the last of them. ``new``
    covers the same offsets, without a gap. Asking again with the same key answers the same."""

    lease: NodeLease
    key: str
    size: int
    partition: Partition
    old: Sequence[BatchRange]
    new: Sequence[BatchRange]

    def __post_init__(self) -> None:
        """Offsets that nothing covers could never be passed by a consumer."""
        for runs in (self.old, self.new):
            if not runs or any(one.last_offset + 1 != next.base_offset for one, next in pairwise(runs)):
                raise ValueError(f"runs of {self.partition} with a gap, or none")
        if (self.old[0].base_offset, self.old[-1].last_offset) != (self.new[0].base_offset, self.new[-1].last_offset):
            raise ValueError(f"{self.partition}: the new runs cover other offsets than the old ones")


class Lookup(NamedTuple):
    """Find batches of ``partition`` from ``offset`` on, until their bytes pass ``max_bytes`` (one run at least)."""

    partition: Partition
    offset: int
    max_bytes: int


class LookupResult(NamedTuple):
    """The state of a partition, and where the wanted batches lie, by offset."""

    error: ErrorCode
    log_start: int = -1
    high_watermark: int = -1
    ranges: Sequence[BatchRange] = ()


class LogState(NamedTuple):
    """A partition's bounds and its bytes."""

    log_start: int
    high_watermark: int
    size: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has come in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class TopicLag(NamedTuple):
    """How many records of a topic a group has not come to, over the partitions for which it committed offsets."""

    group: str
    topic: UUID
    records: int


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """A group as it was last saved: an opaque document (JSON) and its version."""

    name: str
    version: int
    state: str
