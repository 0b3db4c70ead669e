"""Commit the objects again whose commits the coordinator lost: `firn-broker fsck --recover`.

Each object explains itself: its head names its writer, and its index all its batches. The records get the next free
offsets, so they may have other offsets than the acknowledged ones, and another order between brokers. Records that were
uploaded and never acknowledged are committed too; a producer that sent them again may have them twice, as after any
retry of a producer that is not idempotent.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.model.errors import CorruptDataError
from firn_broker.log_types import BatchEntry, Commit, NodeAddress, Partition, Topic
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal
from firn_broker.topics.configs import TopicConfigs

TTL_MS = 60_000


@dataclass(slots=True)
class Recovered:
    """Counts of a recovery."""

    objects: int = 0
    records: int = 0
    """Records that have an offset now."""
    duplicates: int = 0
    """Records that the log had already, because their producer had sent them again."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Records without an offset, by Kafka's error: their topic does not exist, or a later batch of their producer is in
    the log."""
    skipped: list[str] = field(default_factory=list)
    """Objects that are damaged or gone."""

    def report(self) -> dict[str, object]:
        """Return the result for printing as JSON."""
        return asdict(self)


class _Found(NamedTuple):
    """An object to commit again."""

    writer: tuple[int, int]
    id: UUID
    key: str
    size: int
    batches: list[wal.IndexedBatch]


async def recover(
    store: MetadataStore, objects: ObjectStore, keys: Sequence[str], topic_configs: TopicConfigs
) -> Recovered:
    """Commit these objects in the order of their writers and producers, while the coordinator is stopped.

    Raises FencedError, UnavailableError.
    """
    recovered = Recovered()
    found: list[_Found] = []
    for key in keys:
        # Compaction copied the records of such an object from committed objects.
        if wal.horizon(key) is not None:
            continue
        try:
            size = await objects.size(key)
            batches = await wal.read_batches(objects, key, size)
            (head,) = await objects.get_ranges(key, [(0, wal.HEAD)])
            found.append(_Found(wal.writer(head), wal.id_of(key), key, size, batches))
        except (KeyError, CorruptDataError):
            recovered.skipped.append(key)
    loaded = await store.topics.load_topics()
    topics = {topic.id: topic for topic in loaded.topics} if loaded is not None else {}
    lease = await store.nodes.join(NodeAddress("", 0), TTL_MS)
    rejected: Counter[str] = Counter()
    try:
        for _, _, key, size, batches in _in_order(found):
            await store.nodes.renew(lease, TTL_MS)
            await store.log.adopt(lease, [key])
            entries = [_entry(batch, topics.get(batch.partition.topic), topic_configs) for batch in batches]
            outcomes = await store.log.commit(Commit(lease, key, size, entries, repair=True))
            recovered.objects += 1
            for entry, outcome in zip(entries, outcomes, strict=True):
                if outcome.error is not ErrorCode.none:
                    rejected[outcome.error.name] += entry.records
                elif outcome.duplicate:
                    recovered.duplicates += entry.records
                else:
                    recovered.records += entry.records
    finally:
        await store.nodes.leave(lease)
    recovered.rejected = dict(rejected)
    return recovered


def _in_order(found: Sequence[_Found]) -> Iterator[_Found]:
    """Yield objects by writer and age, but those with earlier batches of a producer first.

    A producer may have sent its batches to several brokers. The coordinator rejects a batch before its predecessor.
    """
    objects = sorted(found, key=lambda object: (object.writer, object.id))
    before = _predecessors(objects)
    after: dict[int, list[int]] = {number: [] for number in before}
    for number, earlier in before.items():
        for other in earlier:
            after[other].append(number)
    ready = [number for number, earlier in before.items() if not earlier]
    while before:
        # Objects wait for one another only if no broker acknowledged some of their batches.
        number = heapq.heappop(ready) if ready else min(before)
        del before[number]
        yield objects[number]
        for other in after[number]:
            if other in before:
                before[other].discard(number)
                if not before[other]:
                    heapq.heappush(ready, other)


def _predecessors(objects: Sequence[_Found]) -> dict[int, set[int]]:
    """Return the numbers of the objects with the next earlier batch of a producer, by the number of each object."""
    sequences: dict[tuple[Partition, int, int], list[tuple[int, int]]] = {}
    for number, object in enumerate(objects):
        for batch in object.batches:
            if batch.producer_id >= 0:
                producer = batch.partition, batch.producer_id, batch.producer_epoch
                sequences.setdefault(producer, []).append((batch.base_sequence, number))
    before: dict[int, set[int]] = {number: set() for number in range(len(objects))}
    for sent in sequences.values():
        newest = max(sent)[0]
        # 0 follows 2,147,483,647.
        sent.sort(key=lambda batch: (batch[0] + (1 << 31 if newest - batch[0] > 1 << 30 else 0), batch[1]))
        for (_, earlier), (_, later) in pairwise(sent):
            if earlier != later:
                before[later].add(earlier)
    return before


def _entry(batch: wal.IndexedBatch, topic: Topic | None, topic_configs: TopicConfigs) -> BatchEntry:
    return BatchEntry(
        batch.partition, batch.position, batch.length, batch.records, batch.max_timestamp,
        topic is not None and topic_configs.append_time(topic), batch.producer_id, batch.producer_epoch,
        batch.base_sequence,
    )  # fmt: skip
