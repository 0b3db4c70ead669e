"""Commit the objects again whose commits the coordinator lost: `firn-broker fsck --recover`.

Each object explains itself: its head names its writer, and its index all its batches. The records get the next free
offsets, so they may have other offsets than the acknowledged ones, and another order between brokers. Records that were
uploaded and never acknowledged are committed too. A producer that is not idempotent and sent them again may have them
twice, as after any retry.

Compactions and merges delete the objects that they replaced. A coordinator from before them refers to these objects, so
the compacted or merged object takes their place again. A merged object may also have batches whose commits were lost.
These are the first batches behind the end of their partition, so they get the same offsets again. Merged objects with the
batches of history objects come from `firn_broker.history.restoring`, before the recovery.

No record leaves the bucket: records of partitions that the coordinator does not know stay in objects without a commit,
which maintenance keeps.

A coordinator that lost everything has placeholders instead (`firn_broker.maintenance.placeholders`).
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import compress, groupby
from types import MappingProxyType
from uuid import UUID

import structlog
from kio.schema.errors import ErrorCode

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.log_types import (
    PRODUCERS,
    BatchEntry,
    BatchRange,
    Commit,
    Lookup,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Swap,
    TableRange,
    Topic,
    WalRange,
)
from firn_broker.maintenance import placeholders, uncommitted
from firn_broker.maintenance.commit_order import Written, commit_order
from firn_broker.maintenance.compaction import batch_ranges, joined
from firn_broker.maintenance.merged_objects import (
    MOST_PRODUCERS,
    LostBatches,
    MergedBatch,
    MergedObject,
    content,
    read_merged,
)
from firn_broker.maintenance.placeholders import Span
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal
from firn_broker.topics.configs import TopicConfigs

log = structlog.get_logger()

TTL_MS = 60_000
ACCEPTED_AT_ONCE = 1_000
"""Objects that one request to the coordinator adopts."""


@dataclass(slots=True)
class Recovered:
    """Counts of a recovery."""

    objects: int = 0
    records: int = 0
    """Records that have an offset now."""
    duplicates: int = 0
    """Records that the log had already, because their producer had sent them again."""
    rejected: dict[str, int] = field(default_factory=dict)
    """Records without an offset, by Kafka's error: their topic or partition does not exist."""
    skipped: list[str] = field(default_factory=list)
    """Objects that are damaged or gone."""
    compacted: list[str] = field(default_factory=list)
    """Compacted and merged objects that took the place of missing ones."""
    kept: list[str] = field(default_factory=list)
    """Objects without a commit that have the rejected records or are damaged, compacted and merged objects that took no place,
    and history objects. Maintenance keeps them."""

    again: list[str] = field(default_factory=list)
    """Partitions, as TOPIC/PARTITION, whose newest records come behind the landed offsets. Those that had landed land again."""

    @property
    def complete(self) -> bool:
        """Return whether all records have an offset, and land once."""
        return not self.rejected and not self.skipped and not self.again

    def report(self) -> dict[str, object]:
        """Return the result for printing as JSON."""
        return asdict(self)


async def recover(
    store: MetadataStore,
    objects: ObjectStore,
    keys: Sequence[str],
    topic_configs: TopicConfigs,
    missing: Collection[str] = (),
    unreadable: Collection[str] = (),
    restored: Collection[str] = (),
    landed: Mapping[Partition, int] = MappingProxyType({}),
) -> Recovered:
    """Commit these objects in the order of their writers and producers, while the coordinator is stopped.

    ``missing`` are the objects with batch ranges that the bucket lacks. ``unreadable`` are history objects that could not be read
    completely, and ``restored`` merged objects with the batches of history objects. ``landed`` are the offsets behind the records that
    are in tables. Raises FencedError, UnavailableError.
    """
    recovery = _Recovery(store, objects, topic_configs, frozenset(restored))
    recovery.result.skipped += unreadable
    return await recovery.run(keys, frozenset(missing), landed)


async def accept(store: MetadataStore, reserved: Sequence[str], newer: Sequence[str], keep_ms: int) -> int:
    """Give objects without a commit up, so that maintenance deletes them ``keep_ms`` from now. Return how many.

    ``newer`` are objects that the coordinator does not know. Give them up only while no broker is live: a live one may
    still repeat their commits. Raises FencedError, UnavailableError.
    """
    if newer:
        lease = await store.nodes.join(NodeAddress("", 0), TTL_MS)
        try:
            for start in range(0, len(newer), ACCEPTED_AT_ONCE):
                await store.nodes.renew(lease, TTL_MS)
                await store.log.adopt(lease, newer[start : start + ACCEPTED_AT_ONCE])
        finally:
            await store.nodes.leave(lease)
    return await store.retention.withdraw_reservations([*reserved, *newer], keep_ms)


class _Recovery:
    """Commits lost objects, and counts the records."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, topic_configs: TopicConfigs, restored: frozenset[str]
    ) -> None:
        self._restored = restored
        self._store = store
        self._objects = objects
        self._configs = topic_configs
        self._topics: dict[UUID, Topic] = {}
        self._rejected: Counter[str] = Counter()
        self._committed: set[tuple[Partition, int, int, int, int] | None] = set()
        """`_identity` of the batches that this recovery has committed."""
        self.result = Recovered()
        self._lost = LostBatches()

    async def run(self, keys: Sequence[str], missing: frozenset[str], landed: Mapping[Partition, int]) -> Recovered:
        # Other objects take the places of placeholders as those of missing objects.
        missing |= (await placeholders.stored(self._store)).keys()
        found = await self._read(keys)
        loaded = await self._store.topics.load_topics()
        self._topics = {topic.id: topic for topic in loaded.topics} if loaded is not None else {}
        # A recovery that did not end left copies of records that the objects still have.
        copies = {_copy_key(item) for item in found}
        lease = await self._store.nodes.join(NodeAddress("", 0), TTL_MS)
        try:
            await self._find_committed(lease, found)
            # A later compaction or merge has all records of an earlier one.
            newest_first = sorted(keys, key=_time, reverse=True)
            merged_keys = [key for end in wal.WITH_OFFSETS for key in newest_first if key.endswith(end)]
            restorable = [each for key in merged_keys if (each := await self._examine(lease, key, missing)) is not None]
            # A recovery of another new coordinator left them.
            await self._store.log.adopt(lease, [key for key in keys if key.endswith(wal.PLACEHOLDERS)])
            # The batches of such an object are in merged objects now.
            self.result.kept += (key for key in keys if key.endswith(wal.HISTORY))
            greatest = max(_greatest_producer(found), min(self._lost.greatest_producer, MOST_PRODUCERS))
            await self._store.nodes.raise_counter(PRODUCERS, greatest + 1)
            await self._store.log.adopt(lease, self.result.kept)
            # Before the objects take a place: a recovery that ends early finds the batches again.
            async for item in self._lost.copies(self._objects, self._ends):
                await self._store.nodes.renew(lease, TTL_MS)
                await self._store.log.adopt(lease, [item.key])
                if not await self._has_commit(item.key):
                    await self._commit(lease, item, lost=True)
            # Before the swaps: without these objects, a recovery that ends early could not tell which batches the log has.
            ordered = commit_order([item for item in found if item.key not in copies])
            await self._reserve_landed(lease, ordered, landed)
            for item in ordered:
                await self._store.nodes.renew(lease, TTL_MS)
                await self._commit(lease, item)
            for key, swaps, size in restorable:
                await self._store.nodes.renew(lease, TTL_MS)
                if any(await self._store.log.rewrite(Rewrite(lease, key, size, swaps))):
                    self.result.compacted.append(key)
            for key in (key for key in newest_first if wal.horizon(key) is not None):
                await self._store.nodes.renew(lease, TTL_MS)
                await self._replace_or_keep(lease, key, missing)
        finally:
            await self._store.nodes.leave(lease)
        await self._store.retention.withdraw_reservations(self.result.kept, None)
        self.result.rejected = dict(self._rejected)
        return self.result

    async def _read(self, keys: Sequence[str]) -> list[Written]:
        found = []
        for key in keys:
            if wal.is_copy(key):
                continue
            try:
                found.append(await self._read_one(key))
            except KeyError:
                self.result.skipped.append(key)
            except CorruptDataError:
                self.result.skipped.append(key)
                self.result.kept.append(key)
        return found

    async def _read_one(self, key: str) -> Written:
        size, batches = await uncommitted.read_index(self._objects, key)
        (head,) = await self._objects.get_ranges(key, [(0, wal.HEAD)])
        return Written(*wal.writer(head), wal.id_of(key), key, size, batches)

    async def _find_committed(self, lease: NodeLease, found: Sequence[Written]) -> None:
        """Find batches that the log has through other objects. Afterwards, repaired producers may have gaps."""
        for item in found:
            await self._store.nodes.renew(lease, TTL_MS)
            await self._note_committed(item.key, item.batches)

    async def _note_committed(self, key: str, batches: Sequence[wal.IndexedBatch]) -> None:
        """Note which batches of a reserved object the log has through other objects."""
        asked = {
            identity: batch
            for batch in batches
            if (identity := _identity(batch)) is not None
            and identity not in self._committed
            and batch.partition.topic in self._topics
        }
        if asked:
            known = await self._store.retention.contains(key, [self._entry(batch) for batch in asked.values()])
            self._committed.update(compress(asked, known))

    async def _commit(self, lease: NodeLease, item: Written, *, lost: bool = False) -> None:
        """Commit the batches of partitions that exist, after a copy of the others. ``lost``: they come from merged objects."""
        await self._store.log.adopt(lease, [item.key])
        unknown = self._unknown(item)
        left_out = set(unknown)
        for batch in unknown:
            self._rejected[ErrorCode.unknown_topic_or_partition.name] += batch.records
        if unknown:
            copy = _copy_key(item) if len(unknown) < len(item.batches) else item.key
            self.result.kept.append(copy)
            if copy == item.key:
                return
            await self._store.log.adopt(lease, [copy])
            await self._objects.put(copy, await self._copied(item, unknown))
        # A producer sends a batch without an answer again, so several objects may have it.
        again = {batch for batch in item.batches if await self._is_there(item.key, batch, lost=lost)}
        self.result.duplicates += sum(batch.records for batch in again - left_out)
        left_out |= again
        batches = [batch for batch in item.batches if batch not in left_out]
        entries = [self._entry(batch) for batch in batches]
        outcomes = await self._store.log.commit(Commit(lease, item.key, item.size, entries, repair=True))
        self.result.objects += 1
        self._committed |= {
            identity
            for batch, outcome in zip(batches, outcomes, strict=True)
            if outcome.error is ErrorCode.none and (identity := _identity(batch)) is not None
        }
        for entry, outcome in zip(entries, outcomes, strict=True):
            if outcome.error is not ErrorCode.none:
                self._rejected[outcome.error.name] += entry.records
            elif outcome.duplicate:
                self.result.duplicates += entry.records
            else:
                self.result.records += entry.records

    async def _ends(self, partitions: Collection[Partition]) -> Mapping[Partition, int]:
        """Return the high watermarks of partitions that exist."""
        asked = list(partitions)
        states = zip(asked, await self._store.log.states(asked), strict=True)
        return {partition: state.high_watermark for partition, state in states if state is not None}

    async def _is_there(self, key: str, batch: wal.IndexedBatch, *, lost: bool) -> bool:
        """Return whether the log has a batch through another object. ``lost``: it comes from a merged object."""
        identity = _identity(batch)
        if identity is not None and identity in self._committed:
            return True
        return not lost and await self._lost.has(self._objects, key, batch)

    async def _reserve_landed(
        self, lease: NodeLease, ordered: Sequence[Written], landed: Mapping[Partition, int]
    ) -> None:
        """Let records without known offsets begin behind the landed ones, unless they certainly get their former offsets.

        Otherwise a record that has not landed could get an offset that has landed, and ingestion would leave it out. The former offsets
        are certain if one broker wrote all records behind the known ones, and none of these is gone. Without a known offset, the log may
        have begun anywhere."""
        states = await self._store.log.states(list(landed))
        ends = {
            partition: state.high_watermark
            for partition, state in zip(landed, states, strict=True)
            if state is not None and state.high_watermark < landed[partition]
        }
        if not ends:
            return
        tails, nodes = Counter[Partition](), defaultdict[Partition, set[int]](set)
        with self._lost.trial():
            for item in ordered:
                for batch in item.batches:
                    if batch.partition in ends and not await self._is_there(item.key, batch, lost=False):
                        tails[batch.partition] += batch.records
                        nodes[batch.partition].add(item.node)
        for partition, end in ends.items():
            if not end or len(nodes[partition]) != 1 or end + tails[partition] < landed[partition]:
                span = Span(end, landed[partition] - 1)
                await placeholders.fill(self._store, self._objects, lease, partition, [span])
                if not end:
                    # No object shows an offset, so retention has deleted the first records, or all.
                    await self._store.log.advance_start(partition, landed[partition])
                if tails[partition]:
                    self.result.again.append(f"{self._topics[partition.topic].name}/{partition.index}")

    async def _has_commit(self, key: str) -> bool:
        listed = await self._store.retention.list_objects(key, f"{key}0")
        return listed.get(key, (-1, 0))[0] >= 0

    async def _replace_or_keep(self, lease: NodeLease, key: str, missing: frozenset[str]) -> None:
        """Let a compacted object take the place of missing ones, or keep it: it may have the only copy of records that
        it read after the backup."""
        await self._store.log.adopt(lease, [key])
        try:
            replaced = bool(missing) and await self._replace(lease, key, missing)
        except KeyError:
            self.result.skipped.append(key)
            return
        except CorruptDataError:
            self.result.skipped.append(key)
            replaced = False
        (self.result.compacted if replaced else self.result.kept).append(key)

    async def _examine(
        self, lease: NodeLease, key: str, missing: frozenset[str]
    ) -> tuple[str, Sequence[Swap], int] | None:
        """Note the batches of a merged object that the log lost. Return its key, its size, and the swaps with which it takes the
        place of missing objects; None if there are none."""
        await self._store.nodes.renew(lease, TTL_MS)
        await self._store.log.adopt(lease, [key])
        try:
            merged = await read_merged(self._objects, key)
        except KeyError:
            self.result.skipped.append(key)
            return None
        except CorruptDataError:
            self.result.skipped.append(key)
            self.result.kept.append(key)
            return None
        if merged.damaged:
            self.result.skipped.append(key)
        swaps: list[Swap] = []
        covered = not merged.damaged
        for partition, group in groupby(merged.batches, key=lambda batch: batch.indexed.partition):
            by_offset = {batch.base_offset: batch for batch in group}
            covered &= await self._compare(merged, partition, by_offset, missing, swaps)
        if not covered and not swaps:
            self.result.kept.append(key)
        return (key, swaps, merged.size) if swaps else None

    async def _compare(
        self,
        merged: MergedObject,
        partition: Partition,
        by_offset: Mapping[int, MergedBatch],
        missing: frozenset[str],
        swaps: list[Swap],
    ) -> bool:
        """Note the batches that the log lost, and add the swaps. Return False if the object lacks some batches of a missing object."""
        (state,) = await self._store.log.states([partition])
        start, end = (0, 0) if state is None else (state.log_start, state.high_watermark)
        lost = {offset for offset in by_offset if offset >= end}
        inside = [batch for offset, batch in by_offset.items() if offset < end and batch.last_offset >= start]
        covered = True
        for old in await self._ranges(partition, inside[0].base_offset, inside[-1].last_offset) if inside else ():
            place = old.place.key
            if wal.horizon(place) is not None:
                # Compaction removed or replaced some of these records.
                continue
            if place not in missing and (differing := await self._differing(merged.key, old, by_offset)) is not None:
                lost |= differing
                if place.endswith(wal.RECOVERED):
                    # An earlier recovery that did not end has committed these.
                    self._lost.place(each for each in _inside(inside, old) if each.base_offset not in differing)
            elif (swap := _swap(merged, partition, old, by_offset)) is None:
                covered &= place.endswith(wal.PLACEHOLDERS)
            elif merged.key in self._restored or place.endswith(wal.PLACEHOLDERS):
                # Another object may take the place of some of these ranges first.
                swaps.append(swap)
                if place.endswith(wal.PLACEHOLDERS):
                    self._lost.place(_inside(inside, old))
            else:
                _extend(swaps, swap)
        lost_batches = [by_offset[offset] for offset in sorted(lost)]
        self._lost.add(merged, lost_batches)
        await self._note_committed(merged.key, [batch.indexed for batch in lost_batches])
        return covered

    async def _differing(self, key: str, old: BatchRange, by_offset: Mapping[int, MergedBatch]) -> set[int] | None:
        """Return the offsets of batches that are others in the log than in the merged object ``key``; None if the object of the log is gone
        or damaged. Raises UnavailableError."""
        place, differing, offset = old.place, set[int](), old.base_offset
        if isinstance(place, TableRange):
            # The object has no batches to compare. Only ranges of the log become table ranges, and these may become WAL ranges
            # again, which a merge copied. The data files of an earlier generation may be gone, so a restored copy takes their place.
            return None if key in self._restored else differing
        try:
            if await self._objects.size(place.key) < place.position + place.length:
                return None
            (data,) = await self._objects.get_ranges(place.key, [(place.position, place.position + place.length)])
            for start, size, offsets in record_batch.walk(data):
                batch = by_offset.get(offset)
                if batch is not None and batch.content != content(data[start : start + size]):
                    differing.add(offset)
                offset += offsets
        except (KeyError, ValueError):
            return None
        return differing

    async def _replace(self, lease: NodeLease, key: str, missing: frozenset[str]) -> bool:
        """Let a compacted object take the place of batch ranges with missing objects, if it has all their offsets.

        Return whether it did. Raises CorruptDataError, KeyError."""
        size = await self._objects.size(key)
        index = await wal.read_batches(self._objects, key, size)
        batches = await self._objects.get_ranges(
            key, [(batch.position, batch.position + batch.length) for batch in index]
        )
        if not index or not all(map(record_batch.intact, batches)):
            raise CorruptDataError(f"the compacted object {key} is damaged")
        partition = index[0].partition
        new = batch_ranges(key, batches, [batch.position for batch in index])
        old = await self._ranges(partition, new[0].base_offset, new[-1].last_offset)
        if missing.isdisjoint(batch_range.place.key for batch_range in old):
            return False
        try:
            swap = Swap(partition, old, new)
        except ValueError as error:
            log.warning("the compacted object has not all offsets of the missing ones", key=key, error=str(error))
            return False
        (replaced,) = await self._store.log.rewrite(Rewrite(lease, key, size, [swap]))
        return replaced

    async def _ranges(self, partition: Partition, first: int, last: int) -> Sequence[BatchRange]:
        """Return the batch ranges from offset ``first`` to ``last``, as far as the log has them."""
        (state,) = await self._store.log.states([partition])
        found: list[BatchRange] = []
        offset = first if state is None else max(first, state.log_start)
        while state is not None and offset <= min(last, state.high_watermark - 1):
            (result,) = await self._store.log.find([Lookup(partition, offset, 1 << 40)])
            found += (batch_range for batch_range in result.ranges if batch_range.base_offset <= last)
            offset = result.ranges[-1].last_offset + 1
        return found

    def _unknown(self, item: Written) -> Sequence[wal.IndexedBatch]:
        """Return the batches of partitions that do not exist."""
        return [
            batch
            for batch in item.batches
            if (topic := self._topics.get(batch.partition.topic)) is None
            or topic.partition(batch.partition.index) is None
        ]

    async def _copied(self, item: Written, batches: Sequence[wal.IndexedBatch]) -> memoryview:
        """Return an object of the same writer with these batches only."""
        data = await self._objects.get_ranges(
            item.key, [(batch.position, batch.position + batch.length) for batch in batches]
        )
        pairs = zip(batches, data, strict=True)
        segments = [
            (partition, [record_batch.rewritten(data) for _, data in group])
            for partition, group in groupby(pairs, key=lambda pair: pair[0].partition)
        ]
        copy, _ = wal.assemble(_copy_id(item), item.node, item.epoch, segments)
        return copy

    def _entry(self, batch: wal.IndexedBatch) -> BatchEntry:
        append_time = self._configs.append_time(self._topics[batch.partition.topic])
        return uncommitted.entry(batch, append_time=append_time)


def _greatest_producer(found: Sequence[Written]) -> int:
    return max((min(batch.producer_id, MOST_PRODUCERS) for item in found for batch in item.batches), default=-1)


def _inside(batches: Sequence[MergedBatch], old: BatchRange) -> Iterator[MergedBatch]:
    return (each for each in batches if old.base_offset <= each.base_offset <= old.last_offset)


def _swap(
    merged: MergedObject, partition: Partition, old: BatchRange, by_offset: Mapping[int, MergedBatch]
) -> Swap | None:
    """Return the swap of a range for the batches of a merged object with the same offsets; None if it lacks some."""
    ranges, offset = list[BatchRange](), old.base_offset
    while offset <= old.last_offset:
        if (batch := by_offset.get(offset)) is None:
            return None
        place = WalRange(merged.key, batch.indexed.position, batch.indexed.length)
        ranges.append(BatchRange(batch.base_offset, batch.last_offset, place, batch.newest, -1))
        offset = batch.last_offset + 1
    return Swap(partition, [old], joined([], ranges)) if offset == old.last_offset + 1 else None


def _extend(swaps: list[Swap], swap: Swap) -> None:
    """Join a swap to the last one if it follows."""
    if swaps and swaps[-1].partition == swap.partition and swaps[-1].old[-1].last_offset + 1 == swap.old[0].base_offset:
        last = swaps.pop()
        new = joined(list(last.new), swap.new) if _adjacent(last.new[-1], swap.new[0]) else [*last.new, *swap.new]
        swap = Swap(swap.partition, [*last.old, *swap.old], new)
    swaps.append(swap)


def _adjacent(first: BatchRange, second: BatchRange) -> bool:
    return first.place.position + first.place.length == second.place.position


def _time(key: str) -> str:
    return key.rpartition("/")[2]


def _copy_id(item: Written) -> UUID:
    # The same one for a repeated recovery, and next to the object in the order of ids.
    return UUID(int=item.id.int + 1)


def _copy_key(item: Written) -> str:
    return wal.key(_copy_id(item))


def _identity(batch: wal.IndexedBatch) -> tuple[Partition, int, int, int, int] | None:
    """Return what all copies of a batch of an idempotent producer have in common; None for another producer."""
    if batch.producer_id < 0:
        return None
    return batch.partition, batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.records
