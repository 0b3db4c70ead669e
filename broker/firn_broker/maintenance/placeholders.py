"""Prepare a coordinator that lacks topics for a recovery: `firn-broker fsck --recover --topics FILE`.

A recovery gives lost records the next free offsets, and a new coordinator would begin with 0. So each partition first gets
placeholders: empty batches with the offsets that merged, compacted and restored objects have, and with the offsets between them. Then
`firn_broker.maintenance.recovery` lets the objects take the places of the placeholders, and commits the records of all other objects
behind them. Placeholders that stay are offsets whose records no object gives back. Clients pass over them.
"""

import base64
import binascii
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Annotated, NamedTuple
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, NonNegativeInt, PositiveInt, ValidationError

from firn.model.errors import CorruptDataError, InvalidSpecError
from firn.records import record_batch
from firn_broker.log_types import BatchEntry, Commit, NodeAddress, NodeLease, Partition, Topic
from firn_broker.maintenance.compaction import batch_ranges
from firn_broker.maintenance.merged_objects import read_merged
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal

TTL_MS = 60_000
MOST_OFFSETS = 1 << 28
"""Offsets of a placeholder."""
MOST_PLACEHOLDERS = 10_000
"""Placeholders of an object."""


def _uuid(value: object) -> object:
    """Return the id that Kafka writes in URL-safe base64. Raises ValueError."""
    if not isinstance(value, str):
        return value
    try:
        return UUID(bytes=base64.urlsafe_b64decode(value + "=="))
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"{value!r} is not the id of a Kafka topic") from error


class KnownTopic(BaseModel):
    """A topic that the new coordinator gets."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    id: Annotated[UUID, BeforeValidator(_uuid)]
    """Kafka's id, in URL-safe base64."""
    partitions: PositiveInt
    configs: Mapping[str, str] = Field(default_factory=dict)
    next: Mapping[NonNegativeInt, NonNegativeInt] = Field(default_factory=dict)
    """Partition -> the offset after the last one that landed in the table. New records get no offset before it."""


class KnownTopics(BaseModel):
    """The content of FILE."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    topics: Sequence[KnownTopic]


def read_topics(file: Path) -> Sequence[KnownTopic]:
    """Read FILE. Raises InvalidSpecError."""
    try:
        known = KnownTopics.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise InvalidSpecError(f"{file}: {error}; write the file with `firn recovery-topics`") from error
    for values, what in (
        ({topic.name for topic in known.topics}, "name"),
        ({topic.id for topic in known.topics}, "id"),
    ):
        if len(values) < len(known.topics):
            raise InvalidSpecError(f"{file}: two topics have the same {what}")
    return known.topics


class Span(NamedTuple):
    """Consecutive offsets of a partition."""

    first: int
    last: int


@dataclass(slots=True)
class Prepared:
    """The result of `prepare`."""

    topics: list[str] = field(default_factory=list)
    """Names of the topics that the coordinator did not know."""
    gaps: dict[str, list[Span]] = field(default_factory=dict)
    """Offsets between the objects, which no merged, compacted or restored object has, by "TOPIC/PARTITION"."""
    unplaced: list[str] = field(default_factory=list)
    """Partitions of which no object has offsets, and whose records in the bucket are fewer than those that landed. Their records come
    behind the landed offsets, so that none is lost. Those that had landed land a second time."""

    @property
    def complete(self) -> bool:
        """Return whether every offset is that of its record."""
        return not self.gaps and not self.unplaced

    def report(self) -> dict[str, object]:
        """Return the result for printing as JSON."""
        return asdict(self)


async def prepare(
    store: MetadataStore, objects: ObjectStore, topics: Sequence[KnownTopic], keys: Sequence[str]
) -> Prepared:
    """Create the topics and partitions that do not exist, and placeholders in partitions without offsets.

    ``keys`` are all objects without a commit. A repetition changes nothing. Call it while the coordinator is stopped. Raises
    InvalidSpecError if a name belongs to another topic, FencedError, UnavailableError.
    """
    prepared = Prepared()
    lease = await store.nodes.join(NodeAddress("", 0), TTL_MS)
    try:
        for topic in topics:
            if await store.topics.create_topic(Topic(topic.id, topic.name, topic.partitions, topic.configs)):
                prepared.topics.append(topic.name)
            else:
                # A restored coordinator may know fewer partitions.
                await store.topics.grow_topic(topic.id, topic.partitions)
        await _check_ids(store, topics)
        placeholders = _Placeholders(store, objects, lease)
        partitions = {Partition(topic.id, index): topic for topic in topics for index in range(topic.partitions)}
        states = dict(zip(partitions, await store.log.states(list(partitions)), strict=True))
        empty = {partition for partition, state in states.items() if state is not None and not state.high_watermark}
        if empty:
            covered = await _covered(store, objects, lease, keys, empty)
            records = await _records(objects, keys, empty - covered.keys())
            for partition in sorted(empty):
                topic = partitions[partition]
                spans, landed = covered.get(partition, []), topic.next.get(partition.index, 0)
                name = f"{topic.name}/{partition.index}"
                if gaps := [Span(one.last + 1, other.first - 1) for one, other in _apart(spans)]:
                    prepared.gaps[name] = gaps
                if not spans and records.get(partition, 0) < landed:
                    if records.get(partition):
                        prepared.unplaced.append(name)
                    spans = [Span(landed, landed - 1)]
                await placeholders.put(partition, spans)
    finally:
        await store.nodes.leave(lease)
    return prepared


async def complete(store: MetadataStore, objects: ObjectStore, topics: Sequence[KnownTopic]) -> Mapping[str, Span]:
    """Add placeholders, after the recovery, for landed offsets behind the end of a log. Return these offsets by "TOPIC/PARTITION".

    Otherwise new records would get offsets that the table has already, and ingestion would leave them out. Raises FencedError,
    UnavailableError.
    """
    added: dict[str, Span] = {}
    lease = await store.nodes.join(NodeAddress("", 0), TTL_MS)
    try:
        for topic in topics:
            partitions = [Partition(topic.id, index) for index in range(topic.partitions)]
            for partition, state in zip(partitions, await store.log.states(partitions), strict=True):
                landed = topic.next.get(partition.index, 0)
                if state is not None and state.high_watermark < landed:
                    span = Span(state.high_watermark, landed - 1)
                    await _Placeholders(store, objects, lease).append(partition, [span])
                    added[f"{topic.name}/{partition.index}"] = span
    finally:
        await store.nodes.leave(lease)
    return added


async def _check_ids(store: MetadataStore, topics: Sequence[KnownTopic]) -> None:
    """Check that the names belong to the topics. Raises InvalidSpecError."""
    loaded = await store.topics.load_topics()
    ids = {topic.name: topic.id for topic in loaded.topics} if loaded is not None else {}
    for topic in topics:
        if ids.get(topic.name) != topic.id:
            raise InvalidSpecError(
                f"topic {topic.name}: the coordinator has a topic of this name with another id; brokers have served since the coordinator"
                " was lost. Delete that topic, or leave the topic out of the file"
            )


class _Placeholders:
    """Commits placeholders."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, lease: NodeLease) -> None:
        self._store = store
        self._objects = objects
        self._lease = lease

    async def put(self, partition: Partition, spans: Sequence[Span]) -> None:
        """Fill an empty partition up to the last of the spans, and begin its log with the first."""
        if not spans:
            return
        first, filled = spans[0].first, list[Span]()
        if first:
            filled.append(Span(0, first - 1))
        for number, span in enumerate(spans):
            if number and spans[number - 1].last + 1 < span.first:
                filled.append(Span(spans[number - 1].last + 1, span.first - 1))
            if span.first <= span.last:
                filled.append(span)
        await self.append(partition, filled)
        await self._store.log.advance_start(partition, first)

    async def append(self, partition: Partition, spans: Sequence[Span]) -> None:
        """Commit a placeholder for each of consecutive spans, the first of which begins at the end of the log."""
        cut = list(_cut(spans))
        for start in range(0, len(cut), MOST_PLACEHOLDERS):
            some = cut[start : start + MOST_PLACEHOLDERS]
            await self._store.nodes.renew(self._lease, TTL_MS)
            id = _id(partition, some)
            key = wal.placeholder_key(id)
            batches = [record_batch.rewritten(record_batch.empty(span.last - span.first + 1)) for span in some]
            data, positions = wal.assemble(id, self._lease.node, self._lease.epoch, [(partition, batches[::-1])])
            entries = [
                # Ranges whose positions ascend would become one range, and an object may take the place of one of them only.
                BatchEntry(partition, position, len(batch.data), span.last - span.first + 1, -1, append_time=False)
                for span, batch, position in zip(some, batches, positions[::-1], strict=True)
            ]
            await self._store.log.adopt(self._lease, [key])
            await self._objects.put(key, data)
            await self._store.log.commit(Commit(self._lease, key, len(data), entries, repair=True))


async def _covered(
    store: MetadataStore, objects: ObjectStore, lease: NodeLease, keys: Sequence[str], partitions: set[Partition]
) -> dict[Partition, list[Span]]:
    """Return the offsets that objects give back, in pieces of which one object has all offsets."""
    covered: defaultdict[Partition, list[Span]] = defaultdict(list)
    for key in sorted(keys, key=_time, reverse=True):
        await store.nodes.renew(lease, TTL_MS)
        try:
            if key.endswith(wal.MERGED):
                for partition, span in await _merged_spans(objects, key):
                    if partition in partitions:
                        covered[partition] = sorted([*covered[partition], *_without(span, covered[partition])])
            elif wal.horizon(key) is not None:
                partition, span = await _compacted_span(objects, key)
                # It takes the place of all its offsets or of none.
                if partition in partitions and list(_without(span, covered[partition])) == [span]:
                    covered[partition] = sorted([*covered[partition], span])
        except (CorruptDataError, KeyError):
            # The recovery reports it.
            continue
    return {partition: spans for partition, spans in covered.items() if spans}


async def _merged_spans(objects: ObjectStore, key: str) -> Sequence[tuple[Partition, Span]]:
    """Return the runs of consecutive offsets in a merged object. Raises CorruptDataError, KeyError, UnavailableError."""
    spans: list[tuple[Partition, Span]] = []
    for batch in (await read_merged(objects, key)).batches:
        partition, span = batch.indexed.partition, Span(batch.base_offset, batch.last_offset)
        if spans and spans[-1][0] == partition and spans[-1][1].last + 1 == span.first:
            span = Span(spans.pop()[1].first, span.last)
        spans.append((partition, span))
    return spans


async def _compacted_span(objects: ObjectStore, key: str) -> tuple[Partition, Span]:
    """Return the offsets of a compacted object. Raises CorruptDataError, KeyError, UnavailableError."""
    index = await wal.read_batches(objects, key, await objects.size(key))
    if not index:
        raise CorruptDataError(f"the compacted object {key} has no batches")
    data = await objects.get_ranges(key, [(batch.position, batch.position + batch.length) for batch in index])
    ranges = batch_ranges(key, data, [batch.position for batch in index])
    return index[0].partition, Span(ranges[0].base_offset, ranges[-1].last_offset)


async def _records(objects: ObjectStore, keys: Sequence[str], partitions: set[Partition]) -> Mapping[Partition, int]:
    """Return the records of partitions in objects that show no offsets."""
    records: defaultdict[Partition, int] = defaultdict(int)
    for key in keys if partitions else ():
        if not wal.is_copy(key):
            try:
                batches = await wal.read_batches(objects, key, await objects.size(key))
            except (CorruptDataError, KeyError):
                continue
            for batch in batches:
                if batch.partition in partitions:
                    records[batch.partition] += batch.records
    return records


def _without(span: Span, others: Sequence[Span]) -> Iterator[Span]:
    """Yield the parts of a span that no other span has. The others have an order and do not overlap."""
    first = span.first
    for other in others:
        if other.last < first or other.first > span.last:
            continue
        if first < other.first:
            yield Span(first, other.first - 1)
        first = other.last + 1
    if first <= span.last:
        yield Span(first, span.last)


def _apart(spans: Sequence[Span]) -> Iterator[tuple[Span, Span]]:
    """Yield spans that follow one another with other offsets between them."""
    for one, other in pairwise(spans):
        if one.last + 1 < other.first:
            yield one, other


def _cut(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans in parts of at most `MOST_OFFSETS`."""
    for span in spans:
        for first in range(span.first, span.last + 1, MOST_OFFSETS):
            yield Span(first, min(first + MOST_OFFSETS - 1, span.last))


def _id(partition: Partition, spans: Sequence[Span]) -> UUID:
    """Return the id of an object with these placeholders: the same one for a repeated recovery."""
    text = f"{partition.topic} {partition.index} {spans[0].first} {spans[-1].last} {len(spans)}"
    return UUID(bytes=blake2b(text.encode(), digest_size=16).digest())


def _time(key: str) -> str:
    return key.rpartition("/")[2]
