"""Cached batches: bytes of WAL objects, and the offsets of their batches, so that a fetch only slices.

Objects that this broker wrote have the offsets in their bytes. Objects from the store with large batches stay as they
are. Each of their batches has a head of its own, which a fetch sends in place of the batch's first bytes.

The tail has the objects that this broker wrote, which most consumers read. The history has objects from the store, for
consumers that are behind. Both have separate budgets. So a backfill cannot evict the tail."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.log_types import BatchRange, TableRange

Slot = tuple[str, int, int]
"""Key of an object, position of a batch range in it, and base offset of the range; -1 twice for the whole object. Positions of table
ranges are those in their entry, so the key contains the place of the entry. After the coordinator has lost a commit, the same bytes
may get another offset."""
LARGE = 1 << 14
"""Average bytes of batches from which heads cost less than a copy of the batches."""


class Block:
    """Batches in ``data``, which begins at position ``origin`` of its object. Offsets increase inside each batch
    range."""

    __slots__ = ("bases", "data", "ends", "heads", "origin", "positions")

    def __init__(
        self,
        origin: int,
        data: memoryview,
        positions: Sequence[int],
        ends: Sequence[int],
        bases: Sequence[int],
        heads: Sequence[bytes] = (),
    ) -> None:
        self.origin = origin
        self.data = data
        self.positions = positions
        self.ends = ends
        self.bases = bases
        self.heads = heads
        """The first bytes of each batch, with its offset; empty if ``data`` has the offsets."""

    def has(self, batch_range: BatchRange) -> bool:
        """Return whether the block has the batches of a range, with its offsets."""
        place = bisect_left(self.positions, batch_range.place.position)
        return place < len(self.bases) and self.bases[place] == batch_range.base_offset

    def slice(
        self, batch_range: BatchRange, offset: int, max_bytes: int, *, at_least_one: bool
    ) -> list[bytes | memoryview]:
        """Return buffers with whole batches of ``batch_range`` from the batch with ``offset`` on, within ``max_bytes``.

        With ``at_least_one`` the first batch is part of the slice whatever its size.
        """
        low = bisect_left(self.positions, batch_range.place.position)
        high = bisect_left(self.positions, batch_range.place.position + batch_range.place.length, low)
        first = max(bisect_right(self.bases, offset, low, high) - 1, low)
        start = self.positions[first]
        last = bisect_right(self.ends, start + max_bytes, first, high)
        if last == first:
            if not at_least_one:
                return []
            last = first + 1
        if not self.heads:
            return [self.data[start - self.origin : self.ends[last - 1] - self.origin]]
        buffers: list[bytes | memoryview] = []
        for number in range(first, last):
            head = self.heads[number]
            body = self.positions[number] + len(head)
            buffers += head, self.data[body - self.origin : self.ends[number] - self.origin]
        return buffers

    def whole(self, batch_range: BatchRange) -> memoryview:
        """Return all batches of ``batch_range`` in one buffer."""
        buffers = self.slice(batch_range, batch_range.base_offset, len(self.data), at_least_one=True)
        return memoryview(buffers[0] if len(buffers) == 1 else b"".join(buffers))


def slot_of(batch_range: BatchRange) -> Slot:
    """Return the slot of a batch range."""
    place = batch_range.place
    key = f"{place.key}#{place.entry}" if isinstance(place, TableRange) else place.key
    return key, place.position, batch_range.base_offset


def number_batches(batch_range: BatchRange, data: memoryview) -> Block:
    """Give the batches of a range their offsets. ``data`` is the range as the object store returned it.

    Raises CorruptDataError if the bytes are not its batches, or a batch does not match its checksum. A new checksum
    for the append time would hide the damage from consumers.
    """
    positions, ends, bases, heads = [], [], [], []
    offset = batch_range.base_offset
    try:
        batches = record_batch.walk(data)
    except ValueError as error:
        raise CorruptDataError(f"{batch_range.place}: {error}") from error
    if data.readonly and (batch_range.append_ms >= 0 or len(data) < LARGE * len(batches)):
        data = memoryview(bytearray(data))
    for place, size, count in batches:
        if not record_batch.intact(data[place : place + size]):
            raise CorruptDataError(f"{batch_range.place}: the batch at byte {place} does not match its checksum")
        if batch_range.append_ms >= 0:
            record_batch.stamp(data[place : place + size], batch_range.append_ms)
        if data.readonly:
            heads.append(record_batch.head(size, offset))
        else:
            record_batch.number(data, place, offset)
        positions.append(batch_range.place.position + place)
        ends.append(batch_range.place.position + place + size)
        bases.append(offset)
        offset += count
    if offset != batch_range.last_offset + 1:
        raise CorruptDataError(f"{batch_range.place}: its records end at {offset}, not {batch_range.last_offset + 1}")
    return Block(batch_range.place.position, data, positions, ends, bases, heads)


class Lru:
    """Keeps blocks within ``budget`` bytes and evicts the least recently used first."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.used = 0
        self._blocks: OrderedDict[Slot, Block] = OrderedDict()

    def get(self, slot: Slot) -> Block | None:
        """Return the block, and mark it as the most recently used."""
        block = self._blocks.get(slot)
        if block is not None:
            self._blocks.move_to_end(slot)
        return block

    def put(self, slot: Slot, block: Block) -> None:
        """Keep the block, unless it is larger than the whole budget."""
        size = len(block.data)
        if size > self.budget:
            return
        if (old := self._blocks.pop(slot, None)) is not None:
            self.used -= len(old.data)
        self._blocks[slot] = block
        self.used += size
        while self.used > self.budget:
            _, old = self._blocks.popitem(last=False)
            self.used -= len(old.data)


class BlockCache:
    """The caches of the tail and of the history."""

    def __init__(self, tail_bytes: int, history_bytes: int) -> None:
        self.tail = Lru(tail_bytes)
        self.history = Lru(history_bytes)
        self.hits = 0
        self.misses = 0

    def get(self, batch_range: BatchRange) -> Block | None:
        """Return the block with this batch range; None if it is not cached."""
        block = self.tail.get((batch_range.place.key, -1, -1))
        if block is None or not block.has(batch_range):
            block = self.tail.get(slot_of(batch_range)) or self.history.get(slot_of(batch_range))
        if block is None:
            self.misses += 1
        else:
            self.hits += 1
        return block

    def put_written(self, key: str, block: Block) -> None:
        """Cache an object that this broker just committed."""
        self.tail.put((key, -1, -1), block)

    def put_read(self, batch_range: BatchRange, block: Block, *, recent: bool) -> None:
        """Cache a batch range that was read from the store: in the tail if it is ``recent``, else in the history."""
        (self.tail if recent else self.history).put(slot_of(batch_range), block)
