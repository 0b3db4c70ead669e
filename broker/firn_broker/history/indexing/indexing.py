"""Replaces batch ranges by table ranges: reads batches and data files, and writes a history object.

The batches lie in WAL objects, or data files of an earlier generation give them back. A crash anywhere leaves the old ranges or the new
ones. Batches that the data files do not give back stay as they came. They move to the history object with their neighbours, or stay
where they are if they have none that the files give back."""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby, islice
from uuid import UUID

from firn.driver_requests.landed_offsets import DataFile, Landed
from firn.model.clock import Clock
from firn.model.errors import CorruptDataError, FencedError, UnavailableError
from firn.records import record_batch
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.history import entries, heads
from firn_broker.history.entries import Entry
from firn_broker.history.indexing.building import ENTRY_BYTES, Kept, Known, Table, build
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.rows import Files, RowReader, groups
from firn_broker.history.shapes.choosing import Chooser
from firn_broker.log.blocks import Slot, number_batches, slot_of
from firn_broker.log_types import (
    UNMERGEABLE,
    BatchRange,
    Commit,
    Lookup,
    NodeLease,
    Partition,
    Rewrite,
    Swap,
    TableRange,
    WalRange,
)
from firn_broker.maintenance.compaction import batch_ranges
from firn_broker.ports import MetadataStore, ObjectStore
from firn_broker.storage import wal

KEPT_BYTES = 64 << 20
"""Bytes of batches as they came after which a history object ends."""
MOVED_BYTES = 1 << 30
"""Bytes of batches after which a history object ends, so that an interrupted indexing has done something."""
PROBLEMS = 20
"""Different problems that an indexing names."""


@dataclass(frozen=True, slots=True)
class _Run:
    """Ranges of a partition that follow one another, and their batches, with their offsets and append times."""

    ranges: Sequence[BatchRange]
    batches: Sequence[memoryview]
    known: Known | None = None
    """The heads and the shapes of rebuilt batches; None for batches of WAL objects."""
    entry: Entry | None = None
    """The entry of the ranges, if the data files of its rows are still those of the table. Its batches are not read."""


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Old ranges of a partition, and the parts that replace them."""

    partition: Partition
    old: Sequence[BatchRange]
    parts: Sequence[Entry | Kept]

    @property
    def kept(self) -> list[memoryview]:
        """Return the batches that stay as they came."""
        return [batch for part in self.parts if isinstance(part, Kept) for batch in part.batches]


@dataclass(slots=True)
class Indexed:
    """Counts of an indexing."""

    batches: int = 0
    """Batches that data files give back."""
    kept: int = 0
    """Batches that moved to a history object as they came."""
    bytes: int = 0
    """Bytes of batches that data files give back, as their producers sent them."""
    kept_bytes: int = 0
    left: int = 0
    """Batches that stay where they are, because the data files give back none of their neighbours either."""
    left_bytes: int = 0
    objects: int = 0
    refused: int = 0
    """Swaps that did not take place, because the log has changed."""
    problems: dict[str, int] = field(default_factory=dict)
    """Files and objects that cannot be read, by message."""

    def report(self) -> dict[str, object]:
        """Return the counts by name."""
        return asdict(self)

    def count(self, stretch: _Stretch, *, done: bool) -> None:
        """Count the batches of a stretch that was swapped, or stays where it is."""
        if not done:
            self.refused += 1
            return
        self.kept += len(stretch.kept)
        self.kept_bytes += sum(map(len, stretch.kept))
        for part in stretch.parts:
            if isinstance(part, Entry):
                self.batches += len(part.heads)
                self.bytes += int(part.heads.stored.sum())

    def note(self, problem: Exception) -> None:
        """Count a problem."""
        text = str(problem)
        if text not in self.problems and len(self.problems) >= PROBLEMS:
            text = "others"
        self.problems[text] = self.problems.get(text, 0) + 1


class Indexing:
    """Writes history objects. Several processes may do so for one topic: a swap takes place once."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, identifiers: Identifiers, files: Files, clock: Clock
    ) -> None:
        self._clock = clock
        self._log = store.log
        self._merges = store.merges
        self._objects = objects
        self._identifiers = identifiers
        self._files = files
        self._tables = Rebuilder(objects, files)

    async def index(self, lease: NodeLease, landed: Landed) -> Indexed:
        """Index offsets of a topic. Raises UnavailableError and FencedError.

        The caller runs one indexing of a lease at a time."""
        for key in await self._merges.unfinished(lease, wal.HISTORY):
            # A process that indexed for this broker was killed.
            await self._log.commit(Commit(lease, key, 0, ()))
        counts = Indexed()
        table, files = self._table(landed, counts), frozenset(landed.files)
        reader = RowReader(self._files)
        waiting, kept, size = list[_Stretch](), 0, 0
        for index, (first, last) in _bounds(landed).items():
            partition = Partition(landed.topic, index)
            while first <= last and self._clock.now().timestamp() * 1000 <= landed.until_ms:
                old = await self._next(partition, first, last, landed.generation)
                if not old:
                    break
                first = old[-1].last_offset + 1
                for run in await self._read(old, files, counts):
                    if run.entry is not None:
                        parts: list[Entry | Kept] = [run.entry]
                    else:
                        parts = build(partition, run.batches, table, reader, run.known)
                    stretch = _Stretch(partition, run.ranges, parts)
                    if run.known is None and run.entry is None and not any(isinstance(part, Entry) for part in parts):
                        # A copy would free nothing.
                        counts.left += len(run.batches)
                        counts.left_bytes += sum(map(len, run.batches))
                        continue
                    waiting.append(stretch)
                    kept += sum(map(len, stretch.kept))
                size += sum(each.stored for each in old)
                if waiting and (kept >= KEPT_BYTES or size >= MOVED_BYTES):
                    await self._move(lease, landed, waiting, counts)
                    waiting, kept, size = [], 0, 0
        if waiting:
            await self._move(lease, landed, waiting, counts)
        return counts

    def _table(self, landed: Landed, counts: Indexed) -> Table:
        chooser = None
        if landed.fields.value is None:
            chooser = Chooser({(each.parent, each.name): each.field for each in landed.members})
        found, members = [], [] if chooser is None else chooser.columns
        for file in landed.files:
            try:
                found += groups(file, self._files.open(file), landed.fields, members)
            except CorruptDataError as error:
                counts.note(error)
        return Table(found, landed.fields, chooser)

    async def _next(self, partition: Partition, first: int, last: int, generation: int) -> list[BatchRange]:
        """Return the next ranges between two offsets that follow one another, of about `ENTRY_BYTES`, without those of ``generation``."""
        found, size, offset = list[BatchRange](), 0, first
        while offset <= last:
            (result,) = await self._log.find([Lookup(partition, offset, ENTRY_BYTES)])
            if offset < result.log_start <= last:
                # Records were deleted since. The range with the first one that is left may begin before it.
                if found:
                    return found
                offset = result.log_start
                continue
            for each in result.ranges:
                older = isinstance(each.place, WalRange) or wal.generation(each.place.key) < generation
                wanted = older and each.base_offset >= first and each.last_offset <= last
                if size >= ENTRY_BYTES or (found and not wanted):
                    return found
                if wanted:
                    found.append(each)
                    size += each.place.length
            if not result.ranges:
                break
            offset = result.ranges[-1].last_offset + 1
        return found

    async def _read(self, ranges: Sequence[BatchRange], files: Set[DataFile], counts: Indexed) -> list[_Run]:
        """Read ranges, and return those that follow one another. Ranges that cannot be read are left out.

        Entries whose rows are all in ``files`` stay as they are."""
        read = await self._stored([each for each in ranges if isinstance(each.place, WalRange)], counts)
        runs = []
        for (_, entry), some in groupby(ranges, key=_entry):
            run = list(some)
            if entry is not None:
                try:
                    runs.append(await self._moving(run, files))
                except CorruptDataError as error:
                    counts.note(error)
                continue
            for readable, part in groupby(run, key=lambda each: slot_of(each) in read):
                if readable:
                    found = list(part)
                    runs.append(_Run(found, [batch for each in found for batch in read[slot_of(each)]]))
        return runs

    async def _moving(self, ranges: Sequence[BatchRange], files: Set[DataFile]) -> _Run:
        """Return table ranges of one entry that move. Raises CorruptDataError and UnavailableError."""
        places = [each.place for each in ranges if isinstance(each.place, TableRange)]
        entry = await self._tables.entry(places[0])
        known = heads.joined([await self._tables.heads(place) for place in places])
        if files >= set(entry.files):
            return _Run(ranges, [], entry=replace(entry, heads=known))
        rebuilt = await self._tables.rebuild(ranges)
        return _Run(
            ranges, [batch for data in rebuilt for batch in record_batch.split(data)], Known(known, entry.shapes)
        )

    async def _stored(self, ranges: Sequence[BatchRange], counts: Indexed) -> dict[Slot, Sequence[memoryview]]:
        """Return the batches of ranges of WAL objects, without those that cannot be read."""
        by_object: defaultdict[str, list[BatchRange]] = defaultdict(list)
        for each in ranges:
            by_object[each.place.key].append(each)
        read: dict[Slot, Sequence[memoryview]] = {}
        for key, some in by_object.items():
            spans = [(each.place.position, each.place.position + each.place.length) for each in some]
            try:
                contents = await self._objects.get_ranges(key, spans)
            except KeyError:
                counts.note(CorruptDataError(f"object {key} does not exist"))
                continue
            for each, data in zip(some, contents, strict=True):
                try:
                    read[slot_of(each)] = record_batch.split(number_batches(each, data).whole(each))
                except CorruptDataError as error:
                    counts.note(error)
        return read

    async def _move(self, lease: NodeLease, landed: Landed, stretches: Sequence[_Stretch], counts: Indexed) -> None:
        """Write one object, and swap the ranges of the stretches, which are ordered by partition and offset."""
        uuid = self._identifiers.uuid7()
        key = wal.history_key(uuid, landed.generation)
        await self._log.reserve(lease, [key])
        try:
            data, swaps = _assemble(lease, uuid, key, stretches)
            await self._objects.put(key, data)
        except (UnavailableError, FencedError):
            # An empty commit gives the key up.
            await self._log.commit(Commit(lease, key, 0, ()))
            raise
        swapped = await self._log.rewrite(Rewrite(lease, key, len(data), swaps, UNMERGEABLE))
        counts.objects += any(swapped)
        for done, stretch in zip(swapped, stretches, strict=True):
            counts.count(stretch, done=done)


def _entry(each: BatchRange) -> tuple[str, int | None]:
    """Return the key and the position of a table range's entry; ("", None) for a range of a WAL object."""
    place = each.place
    return (place.key, place.entry) if isinstance(place, TableRange) else ("", None)


def _bounds(landed: Landed) -> Mapping[int, tuple[int, int]]:
    """Return the first and the last offset of each partition, in order. Offsets between two ranges do no harm: they are compared."""
    bounds: dict[int, tuple[int, int]] = {}
    for index, first, last in sorted(landed.ranges):
        known = bounds.get(index, (first, last))
        bounds[index] = min(known[0], first), max(known[1], last)
    return bounds


def _assemble(lease: NodeLease, id: UUID, key: str, stretches: Sequence[_Stretch]) -> tuple[memoryview, list[Swap]]:
    """Return the bytes of a history object, and the swaps."""
    segments = [
        (partition, [record_batch.rewritten(batch) for stretch in some for batch in stretch.kept])
        for partition, some in groupby(stretches, key=lambda stretch: stretch.partition)
    ]
    framed = [
        wal.framed(entries.encode(part)) for stretch in stretches for part in stretch.parts if isinstance(part, Entry)
    ]
    filled = [(partition, batches) for partition, batches in segments if batches]
    data, positions = wal.assemble(id, lease.node, lease.epoch, filled, framed)
    of_batches = iter(positions[: len(positions) - len(framed)])
    of_entries = zip(positions[len(positions) - len(framed) :], map(len, framed), strict=True)
    swaps = []
    for stretch in stretches:
        new = list[BatchRange]()
        for part in stretch.parts:
            if isinstance(part, Entry):
                new += part.ranges(key, *next(of_entries))
            else:
                new += batch_ranges(key, part.batches, list(islice(of_batches, len(part.batches))))
        swaps.append(Swap(stretch.partition, stretch.old, new))
    return data, swaps
