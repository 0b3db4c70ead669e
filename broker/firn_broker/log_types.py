"""Types that the parts of the broker share: topics, batch ranges, commits, nodes, groups.

Ranges of offsets name their first and last offset. Times are milliseconds since 1970. Sizes are bytes.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
"""Timestamps with a special meaning in ListOffsets: the high watermark, the log start, the record with the greatest
timestamp."""

RANGE_BYTES = 1 << 20
"""The bytes of a batch range, unless one batch is larger. A reader loads a whole range, so larger ranges would waste
reads."""


ROW_BYTES = 64 << 20
"""The bytes of batch ranges next to each other that the coordinator stores as one row, when a rewrite replaces them."""

KEPT_REPLIES = 64
"""Replies to the newest commits of a node that the coordinator stores for as long as the node's epoch lasts. A node
commits in order and repeats a commit until it has the reply. So only its last commits may be in doubt: one of its
writer, one of its compaction, one of its merges."""

LOOKUP_RANGES = 256
"""Batch ranges of a partition that one lookup returns at most."""


class Partition(NamedTuple):
    """A partition of an incarnation of a topic."""

    topic: UUID
    index: int  # type: ignore[assignment]  # hides tuple.index, which is not used


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic in the coordinator. A topic that is deleted and created again has another id."""

    id: UUID
    name: str
    partitions: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def partition(self, index: int) -> "Partition | None":
        """Return the partition of that index; None if the topic has no such partition."""
        return Partition(self.id, index) if 0 <= index < self.partitions else None


class TopicsVersion(NamedTuple):
    """A version of the set of topics. A coordinator that went back may give its number to another version, but not its
    mark."""

    number: int
    mark: str
    """Random text; empty for a version that no change of a topic made."""


@dataclass(frozen=True, slots=True)
class Topics:
    """All topics at one version of their set, or those that have changed since an earlier version."""

    version: TopicsVersion
    topics: Sequence[Topic]
    deleted: Sequence[UUID] = ()
    whole: bool = True
    """True if ``topics`` are all topics."""


class Endpoint(NamedTuple):
    """The address of a listener for clients."""

    host: str
    port: int


MAIN, EXTERNAL = "", "external"
"""Names of the first listener and of the external one in `NodeAddress`. Others have their names of the settings."""


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """The address of a broker, its zone ("" if unknown), and its addresses at the external listener (None without one) and
    at others."""

    host: str
    port: int
    zone: str = ""
    external: Endpoint | None = None
    others: Mapping[str, Endpoint] = field(default_factory=dict)

    def endpoint(self, listener: str = MAIN) -> Endpoint | None:
        """Return the address for clients of a listener; None if the broker does not have it."""
        if listener == MAIN:
            return Endpoint(self.host, self.port)
        return self.external if listener == EXTERNAL else self.others.get(listener)


@dataclass(frozen=True, slots=True)
class Node:
    """A live broker."""

    id: int
    address: NodeAddress

    @classmethod
    def from_columns(
        cls, id: int, host: str, port: int, zone: str, external: tuple[str | None, int | None], others: str | None
    ) -> "Node":
        """Create a node from the columns of a metadata store. ``others`` is a JSON object: {name: [host, port]}."""
        host_outside, port_outside = external
        outside = None if host_outside is None or port_outside is None else Endpoint(host_outside, port_outside)
        named = {name: Endpoint(*place) for name, place in json.loads(others or "{}").items()}
        return cls(id, NodeAddress(host, port, zone, outside, named))


@dataclass(frozen=True, slots=True)
class NodeLease:
    """The identity of a process: a node id, and an epoch that the next holder of that id raises."""

    node: int
    epoch: int

    @property
    def commits(self) -> str:
        """Return the name of the counter of this lease's commits with batches."""
        return f"{COMMITS}{self.node}/{self.epoch}"


COMMITS = "commits/"
"""Prefix of the counters of commits. Each lease has its own, so that commits of two brokers do not wait for each
other."""
TOPICS, PRODUCERS, ACCESS = "topics", "producer", "access"
"""Counters of topic changes, of producer ids, and of changes of credentials, ACLs and quotas. They can be raised again
without another repair."""
REPAIRS = "repairs"
"""Counter that the end of a repair raises, at least to the time in milliseconds, so that no two repairs have the same
value."""
LOST_PRODUCERS = 1 << 32
"""Producer ids that the end of a repair leaves out: brokers may have allocated them before the coordinator lost this."""
KEPT_EPOCHS = 8
"""Newest epochs of a node whose counters of commits are kept."""
EPOCH_STEPS = 2048
"""A join raises the epoch of a node by a step from 1 to this number, by the milliseconds of the store's clock. A coordinator that lost
a join would otherwise give the same epoch to another process, and neither process could tell its commits from those of the other.

The epoch has 31 bits, so a node can join two million times.
"""


@dataclass(frozen=True, slots=True)
class Progress:
    """Values that show whether the coordinator went back to an earlier state."""

    counters: Mapping[str, int]
    """Values that never fall: topics, producer ids, access, and the commits of each lease."""
    stopped: str = ""
    """The reason why no broker may serve until an administrator decides; empty if brokers may serve."""


@dataclass(frozen=True, slots=True)
class Lease:
    """The lease ``name``, which is valid until another node holds it with a higher epoch."""

    name: str
    epoch: int


class BatchEntry(NamedTuple):
    """A batch inside a WAL object for its commit. The entries have the order in which producers sent the batches."""

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
    """The request to assign offsets to the batches of one uploaded object. Repeated with the same key, it has the same
    outcome."""

    lease: NodeLease
    key: str
    size: int
    batches: Sequence[BatchEntry]
    after: int = 0
    """The commits with batches that the coordinator has acknowledged to this lease. A coordinator that knows fewer of
    them has lost some."""
    repair: bool = False
    """Commit although the coordinator is stopped. Only a repair does so, while no broker is live.

    A repair rejects no batch for its producer: a batch with a wrong sequence or epoch is appended as if it had no
    producer, and the first batch of a producer may have any sequence."""
    required: Mapping[int, int] = field(default_factory=dict)
    """The base offsets, by index of the batch, without which nothing is committed. These batches were acknowledged before
    the coordinator lost them. An object with a commit is no longer there for a repair, and the counter of its lease would
    hide the loss from all other brokers."""

    def rejected(self, outcomes: "Sequence[BatchOutcome]") -> str | None:
        """Return which required batch is rejected or gets another offset; None if all get their offsets."""
        for index, offset in self.required.items():
            error, now = outcomes[index][:2]
            if not error and now == offset:
                continue
            topic, part = self.batches[index].partition
            return f"records of topic {topic}, partition {part}, were acknowledged at offset {offset}, and " + (
                f"are rejected now: {error.name}" if error else f"would be at {now} now"
            )
        return None


class BatchOutcome(NamedTuple):
    """The outcome for one batch. ``duplicate``: it was committed before, and the offset is that of the first commit."""

    error: ErrorCode
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    duplicate: bool = False

    @property
    def changed(self) -> bool:
        """Return whether the batch changed the log or the state of its producer. A commit with such a batch counts."""
        return not self.duplicate and self.error in (ErrorCode.none, ErrorCode.kafka_storage_error)


class WalRange(NamedTuple):
    """The position of whole batches in a WAL object, or in the part of a history object that has batches as they came."""

    key: str
    position: int
    length: int


class TableRange(NamedTuple):
    """Whole batches that brokers rebuild from data files of a table, by an entry of a history object."""

    key: str
    position: int
    """Bytes of the batches of the entry that come before these."""
    length: int
    """Bytes of the rebuilt batches."""
    entry: int
    """Position of the entry in the object."""
    entry_length: int
    """Bytes of the entry."""
    stored: int
    """Bytes of the batches before they moved to the table. All batches of an entry have at most 256 MiB of them: the
    coordinator counts those of a row in 32 bits."""


class Unindexed(NamedTuple):
    """The first offset of the first batches of each partition that a driver has still to name. Partitions without such batches are absent."""

    waiting: Mapping[int, int]
    """Those that lie in no history object."""
    older: Mapping[int, int]
    """Table ranges of earlier generations."""
    untagged: Mapping[int, int]
    """Table ranges of generations that the driver holds no data files of."""


class BatchRange(NamedTuple):
    """Consecutive batches of one partition that lie next to each other in an object, or in an entry of a history object.

    ``length`` of the place is what a fetch reads, ``stored`` what the size of the log counts."""

    base_offset: int
    last_offset: int
    place: WalRange | TableRange
    max_timestamp: int
    append_ms: int
    """The append time of all records (LogAppendTime); -1 if they have their own timestamps."""

    @property
    def stored(self) -> int:
        """Return the bytes that the size of the log counts: those of the batches before they moved to a table."""
        return self.place.stored if isinstance(self.place, TableRange) else self.place.length


@dataclass(frozen=True, slots=True)
class Swap:
    """Batch ranges of ``partition``, and those that take their place.

    ``old`` are all ranges from the first to the last of them. ``new`` covers the same offsets without a gap."""

    partition: Partition
    old: Sequence[BatchRange]
    new: Sequence[BatchRange]

    def __post_init__(self) -> None:
        """Check the ranges: a consumer could never pass offsets that no range covers."""
        for ranges in (self.old, self.new):
            if not ranges or any(first.last_offset + 1 != second.base_offset for first, second in pairwise(ranges)):
                raise ValueError(f"{self.partition}: no batch ranges, or a gap between them")
        if (self.old[0].base_offset, self.old[-1].last_offset) != (self.new[0].base_offset, self.new[-1].last_offset):
            raise ValueError(f"{self.partition}: the new batch ranges cover other offsets than the old ones")

    @property
    def added(self) -> int:
        """Return by how many bytes the new ranges increase the size of the log."""
        return sum(new.stored for new in self.new) - sum(old.stored for old in self.old)


UNMERGED, UNMERGEABLE = 0, 127
"""Levels of objects: that of brokers' objects, and that of objects that no merge reads."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """The request to replace batch ranges by those of one uploaded object.

    Each swap takes place or not, whatever becomes of the others. No two swaps share offsets. Repeated with the same
    key, the request has the same outcome."""

    lease: NodeLease
    key: str
    size: int
    swaps: Sequence[Swap]
    level: int = UNMERGEABLE
    """The level of the new object."""
    made_ms: int | None = None
    """The age of records without a timestamp counts from here; None for now."""


class MergeSource(NamedTuple):
    """An object of which a merge may copy the batch ranges.

    ``made_ms`` is the time of its commit, or that of the newest object that it replaced."""

    key: str
    size: int
    rows: int
    """Rows of batch ranges in the coordinator."""
    made_ms: int


class SourceRow(NamedTuple):
    """Batch ranges in a source of a merge that the coordinator stores as one row. None is a table range."""

    partition: Partition
    made_ms: int
    """That of the source."""
    ranges: Sequence[BatchRange]

    @property
    def size(self) -> int:
        """Return the bytes of the ranges."""
        first, last = self.ranges[0].place, self.ranges[-1].place
        return last.position + last.length - first.position


class Lookup(NamedTuple):
    """The request for batch ranges of ``partition`` from ``offset`` on, up to ``max_bytes`` (one range at least)."""

    partition: Partition
    offset: int
    max_bytes: int


class LookupResult(NamedTuple):
    """The state of a partition, and the requested batch ranges by offset."""

    error: ErrorCode
    log_start: int = -1
    high_watermark: int = -1
    ranges: Sequence[BatchRange] = ()


class LogState(NamedTuple):
    """The first offset, the high watermark and the bytes (`BatchRange.stored`) of a partition."""

    log_start: int
    high_watermark: int
    size: int


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The committed offset of a group in one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


class DeadBacklog(NamedTuple):
    """The dead objects of the cluster, for how long the oldest has been dead, and how many of them are postponed.

    ``kept`` counts the objects of withdrawn reservations that are kept. They are not dead."""

    objects: int
    oldest_ms: int
    postponed: int
    kept: int


class TopicLag(NamedTuple):
    """The lag of a group in a topic: records behind its committed offsets, in all partitions with a committed
    offset."""

    group: str
    topic: UUID
    records: int


@dataclass(frozen=True, slots=True)
class StoredGroup:
    """The stored state of a group (JSON) and its version."""

    name: str
    version: int
    state: str
