"""Prepare a coordinator that lacks topics for a recovery: `firn-broker fsck --recover --topics FILE`.

A recovery gives lost records the next free offsets, and a new coordinator would begin with 0. So each partition first gets
placeholders: empty batches with the offsets that merged, compacted and restored objects have, and with the offsets between them. Then
`firn_broker.maintenance.recovery` commits the records of all other objects behind them, and lets the objects take the places of the
placeholders. Those that stay are offsets whose records no object gives back. Clients pass over them.
"""

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import NamedTuple
from uuid import UUID

from firn.model.errors import CorruptDataError, InvalidSpecError
from firn.records import record_batch
from firn_broker.log_types import BatchEntry, Commit, LogState, Lookup, NodeAddress, NodeLease, Partition, Topic
from firn_broker.maintenance.compaction import batch_ranges
from firn_broker.maintenance.known_topics import MADE, KnownTopic
from firn_broker.maintenance.merged_objects import MOST_PRODUCERS, MergedObject, read_merged
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal

TTL_MS = 60_000
MOST_OFFSETS = 1 << 28
"""Offsets of a placeholder."""
MOST_PLACEHOLDERS = 10_000
"""Placeholders of an object."""


class Span(NamedTuple):
    """Consecutive offsets of a partition."""

    first: int
    last: int


@dataclass(slots=True)
class FromTables:
    """The topics whose logs have to be made from their tables."""

    waiting: list[KnownTopic]
    """Topics without records."""
    unchanged: list[str] = field(default_factory=list)
    """Names of topics that have records already, from elsewhere."""
    created: list[str] = field(default_factory=list)
    """Names of topics that did not exist."""
    stale: list[str] = field(default_factory=list)
    """Objects of a command that did not end. No record of them is in the log."""


async def begin(
    store: MetadataStore, objects: ObjectStore, topics: Sequence[KnownTopic], keys: Sequence[str]
) -> FromTables:
    """Create the topics whose logs have to be made from their tables. ``keys`` are all objects without a commit.

    A topic that exists without records shows that objects from its table may be incomplete. Raises InvalidSpecError if a name belongs to
    another topic, or if ``keys`` have other records of such a topic. Raises UnavailableError."""
    await _check_ids(store, topics)
    with_table = {topic.id: topic for topic in topics if topic.table is not None}
    existing = await _existing(store)
    waiting = {id: topic for id, topic in with_table.items() if not existing.get(id)}
    found = FromTables(list(waiting.values()))
    for key in keys:
        is_made = wal.id_of(key).hex.startswith(MADE)
        for id in await _topics_of(objects, key) if is_made or waiting else ():
            if not is_made and id in waiting:
                raise InvalidSpecError(
                    f"topic {waiting[id].name}: the bucket has records of it, such as those in {key}, so its log cannot be made from"
                    " the table; leave table out of the file"
                )
            complete = waiting[id].made(key) if id in waiting else existing.get(id, True)
            if is_made and not complete:
                found.stale.append(key)
    for topic in found.waiting:
        if await store.topics.create_topic(Topic(topic.id, topic.name, topic.partitions, topic.configs)):
            found.created.append(topic.name)
    others = [topic for id, topic in with_table.items() if id not in waiting]
    if others:
        committed = [key for part in wal.PARTS for key in await store.retention.list_objects(*part)]
        found.unchanged = [topic.name for topic in others if not any(map(topic.made, [*committed, *keys]))]
    return found


async def _topics_of(objects: ObjectStore, key: str) -> Set[UUID]:
    """Return the topics with records in an object."""
    if key.endswith(wal.PLACEHOLDERS):
        return frozenset()
    try:
        return {batch.partition.topic for batch in await wal.read_batches(objects, key, await objects.size(key))}
    except (CorruptDataError, KeyError):
        # The recovery reports it.
        return frozenset()


async def _existing(store: MetadataStore) -> Mapping[UUID, bool]:
    """Return for each topic whether it has records, or had some."""
    loaded = await store.topics.load_topics()
    found = {}
    for topic in loaded.topics if loaded is not None else ():
        states = await store.log.states([Partition(topic.id, index) for index in range(topic.partitions)])
        found[topic.id] = any(state is not None and state.high_watermark for state in states)
    return found


async def prepare(
    store: MetadataStore, objects: ObjectStore, topics: Sequence[KnownTopic], keys: Sequence[str]
) -> list[str]:
    """Create the topics and partitions that do not exist, and placeholders in partitions that have no other ranges.

    ``keys`` are all objects without a commit. Return the names of new topics. A repetition continues. Call it while the coordinator is
    stopped. Raises InvalidSpecError if a name belongs to another topic, FencedError, UnavailableError.
    """
    await _check_ids(store, topics)
    created: list[str] = []
    lease = await store.nodes.join(NodeAddress("", 0), TTL_MS)
    try:
        for topic in topics:
            await store.nodes.renew(lease, TTL_MS)
            if await store.topics.create_topic(Topic(topic.id, topic.name, topic.partitions, topic.configs)):
                created.append(topic.name)
            else:
                # A restored coordinator may know fewer partitions.
                await store.topics.grow_topic(topic.id, topic.partitions)
        partitions = [Partition(topic.id, index) for topic in topics for index in range(topic.partitions)]
        states = zip(partitions, await store.log.states(partitions), strict=True)
        empty: dict[Partition, LogState] = {}
        for each, state in states:
            await store.nodes.renew(lease, TTL_MS)
            if state is not None and await _is_empty(store, each, state):
                empty[each] = state
        covered, producer = await _covered(store, objects, lease, keys, set(empty)) if empty else ({}, -1)
        for partition, state in sorted(empty.items()):
            spans, end = covered.get(partition, []), state.high_watermark
            filled = [Span(max(span.first, end), span.last) for span in _filled(spans) if span.last >= end]
            await fill(store, objects, lease, partition, filled, producer)
            # Without spans, the log is that of a recovery that ended before it moved the log start.
            await store.log.advance_start(partition, spans[0].first if spans else end)
        if producer >= 0 and await _are_all(store, set(empty)):
            # Producers of merged batches may be alive, and the coordinator has no state of them. As after a time without records, they
            # may continue anywhere.
            for _ in range(2):
                while await store.retention.forget_producers(0, MOST_PLACEHOLDERS):
                    await store.nodes.renew(lease, TTL_MS)
    finally:
        await store.nodes.leave(lease)
    return created


async def fill(
    store: MetadataStore,
    objects: ObjectStore,
    lease: NodeLease,
    partition: Partition,
    spans: Sequence[Span],
    producer: int = -1,
) -> None:
    """Commit a placeholder for each of consecutive spans, the first of which begins at the end of the log.

    The first of an object is that of ``producer``. Raises FencedError, UnavailableError."""
    cut = list(_cut(spans))
    for start in range(0, len(cut), MOST_PLACEHOLDERS):
        some = cut[start : start + MOST_PLACEHOLDERS]
        await store.nodes.renew(lease, TTL_MS)
        id = _id(partition, some)
        key = wal.placeholder_key(id)
        batches = [record_batch.rewritten(record_batch.empty(span.last - span.first + 1)) for span in some]
        data, positions = wal.assemble(id, lease.node, lease.epoch, [(partition, batches[::-1])])
        entries = [
            # Ranges whose positions ascend would become one range, and an object may take the place of one of them only.
            BatchEntry(partition, position, len(batch.data), span.last - span.first + 1, -1, append_time=False)
            for span, batch, position in zip(some, batches, positions[::-1], strict=True)
        ]
        if producer >= 0:
            entries[0] = entries[0]._replace(producer_id=producer, producer_epoch=0, base_sequence=0)
        await store.log.adopt(lease, [key])
        await objects.put(key, data)
        await store.log.commit(Commit(lease, key, len(data), entries, repair=True))


async def stored(store: MetadataStore) -> Mapping[str, int]:
    """Return the objects whose placeholders are in the log, and their bytes. Raises UnavailableError."""
    listed = [await store.retention.list_objects(*part) for part in wal.PARTS]
    return {
        key: size
        for part in listed
        for key, (size, ranges) in part.items()
        if ranges and key.endswith(wal.PLACEHOLDERS)
    }


async def gaps(store: MetadataStore, objects: ObjectStore) -> Mapping[str, Sequence[Span]]:
    """Return the placeholders that consumers meet, by "TOPIC/PARTITION". Raises UnavailableError."""
    loaded = await store.topics.load_topics()
    names = {topic.id: topic.name for topic in loaded.topics} if loaded is not None else {}
    partitions: set[Partition] = set()
    for key, size in (await stored(store)).items():
        # `fsck` reports an object that is damaged or gone.
        with suppress(CorruptDataError, KeyError):
            partitions |= {batch.partition for batch in await wal.read_batches(objects, key, size)}
    found: dict[str, Sequence[Span]] = {}
    for partition in sorted(partitions):
        (state,) = await store.log.states([partition])
        if state is not None and (spans := [span async for span in _placeholders(store, partition, state)]):
            found[f"{names[partition.topic]}/{partition.index}"] = spans
    return found


async def _placeholders(store: MetadataStore, partition: Partition, state: LogState) -> AsyncIterator[Span]:
    """Yield the placeholders of a partition from its log start on. Those that follow one another are one."""
    waiting: Span | None = None
    offset = state.log_start
    while offset < state.high_watermark:
        (result,) = await store.log.find([Lookup(partition, offset, 1 << 40)])
        for each in result.ranges:
            if each.place.key.endswith(wal.PLACEHOLDERS):
                first = max(each.base_offset, state.log_start) if waiting is None else waiting.first
                waiting = Span(first, each.last_offset)
            elif waiting is not None:
                yield waiting
                waiting = None
        offset = result.ranges[-1].last_offset + 1
    if waiting is not None:
        yield waiting


async def _is_empty(store: MetadataStore, partition: Partition, state: LogState) -> bool:
    """Return whether a partition has no range, or only the placeholders of a preparation that did not end."""
    if not state.high_watermark:
        return True
    if state.log_start:
        return False
    (result,) = await store.log.find([Lookup(partition, 0, 1)], 1)
    if not result.ranges[0].place.key.endswith(wal.PLACEHOLDERS):
        return False
    return [span async for span in _placeholders(store, partition, state)] == [Span(0, state.high_watermark - 1)]


async def _are_all(store: MetadataStore, partitions: Set[Partition]) -> bool:
    """Return whether a coordinator has no other partitions than these."""
    loaded = await store.topics.load_topics()
    topics = loaded.topics if loaded is not None else ()
    return all(Partition(topic.id, index) in partitions for topic in topics for index in range(topic.partitions))


async def _check_ids(store: MetadataStore, topics: Sequence[KnownTopic]) -> None:
    """Check that no name belongs to another topic. Raises InvalidSpecError."""
    loaded = await store.topics.load_topics()
    ids = {topic.name: topic.id for topic in loaded.topics} if loaded is not None else {}
    for topic in topics:
        if ids.get(topic.name, topic.id) != topic.id:
            raise InvalidSpecError(
                f"topic {topic.name}: the coordinator has a topic of this name with another id, because brokers have served since the"
                " coordinator was lost. Leave the topic out of the file, and repeat the command"
            )


async def _covered(
    store: MetadataStore, objects: ObjectStore, lease: NodeLease, keys: Sequence[str], partitions: set[Partition]
) -> tuple[dict[Partition, list[Span]], int]:
    """Return the offsets that objects give back, in pieces of which one object has all offsets, and the greatest producer id; -1 if there
    is none."""
    greatest = -1
    covered: defaultdict[Partition, list[Span]] = defaultdict(list)
    for key in sorted(keys, key=_precedence, reverse=True):
        await store.nodes.renew(lease, TTL_MS)
        try:
            if key.endswith(wal.WITH_OFFSETS):
                merged = await read_merged(objects, key)
                greatest = max([greatest, *(batch.indexed.producer_id for batch in merged.batches)])
                for partition, span in _merged_spans(merged):
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
    return {partition: spans for partition, spans in covered.items() if spans}, min(greatest, MOST_PRODUCERS)


def _merged_spans(merged: MergedObject) -> Sequence[tuple[Partition, Span]]:
    """Return the runs of consecutive offsets in a merged object."""
    spans: list[tuple[Partition, Span]] = []
    for batch in merged.batches:
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
    if not all(map(record_batch.intact, data)):
        raise CorruptDataError(f"the compacted object {key} is damaged")
    ranges = batch_ranges(key, data, [batch.position for batch in index])
    return index[0].partition, Span(ranges[0].base_offset, ranges[-1].last_offset)


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


def _filled(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans, those between them, and the one before the first."""
    end = 0
    for span in spans:
        if end < span.first:
            yield Span(end, span.first - 1)
        yield span
        end = span.last + 1


def _cut(spans: Sequence[Span]) -> Iterator[Span]:
    """Yield the spans in parts of at most `MOST_OFFSETS`."""
    for span in spans:
        for first in range(span.first, span.last + 1, MOST_OFFSETS):
            yield Span(first, min(first + MOST_OFFSETS - 1, span.last))


def _id(partition: Partition, spans: Sequence[Span]) -> UUID:
    """Return the id of an object with these placeholders: the same one for a repeated recovery."""
    text = f"{partition.topic} {partition.index} {spans[0].first} {spans[-1].last} {len(spans)}"
    return UUID(bytes=blake2b(text.encode(), digest_size=16).digest())


def _precedence(key: str) -> tuple[bool, bool, str]:
    """Return the place of an object among those with the same offsets: a compaction has read merged objects, and a later merge earlier
    ones."""
    return wal.horizon(key) is not None, key.endswith(wal.MERGED), key.rpartition("/")[2]
