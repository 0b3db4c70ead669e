"""Gives the batches of history objects back to the WAL, for a recovery.

A coordinator from a backup does not know the history objects that are newer. The WAL objects that these replaced may be deleted. So their
batches are rebuilt from the table, and uploaded as merged objects. With these, `firn_broker.maintenance.recovery` repairs the log."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple
from uuid import UUID

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.history import entries
from firn_broker.log_types import RANGE_BYTES, BatchRange, Partition
from firn_broker.ports import History, ObjectStore
from firn_broker.storage import wal

OBJECT_BYTES = 64 << 20
"""Bytes of the batches of a merged object, unless one batch has more."""
SHARED_BYTES = 2 * RANGE_BYTES
"""Bytes of batches that consecutive merged objects share: the last ones of an object are the first ones of the next. Without them, a
batch range that the history object replaced could be split between two objects."""


@dataclass(slots=True)
class Restored:
    """The result of `restore`."""

    keys: list[str] = field(default_factory=list)
    """New merged objects."""
    copies: list[str] = field(default_factory=list)
    """All merged objects with batches of the history objects, also those of an earlier attempt."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """History objects of which not all batches could be read, with the reason."""

    def report(self) -> dict[str, object]:
        """Return the result for printing as JSON."""
        return asdict(self)


async def restore(objects: ObjectStore, keys: Sequence[str], history: History) -> Restored:
    """Upload the batches of the history objects among ``keys`` as merged objects. Raises UnavailableError.

    A repetition uploads only what is missing."""
    restored = Restored()
    for key in keys:
        if key.endswith(wal.HISTORY):
            try:
                await _Restoring(objects, key, history, restored).run()
            except KeyError:
                restored.unreadable[key] = "the object does not exist"
            except CorruptDataError as error:
                restored.unreadable[key] = str(error)
    return restored


class _Piece(NamedTuple):
    """Batches of a history object: as they came, or those of a table range."""

    partition: Partition
    offset: int
    length: int
    place: int | BatchRange
    """Position of a batch, or the range."""


class _Restoring:
    """The work on one history object."""

    def __init__(self, objects: ObjectStore, key: str, history: History, restored: Restored) -> None:
        self._objects = objects
        self._key = key
        self._history = history
        self._restored = restored
        self._data = memoryview(b"")

    async def run(self) -> None:
        """Upload the batches of each partition in the order of their offsets. Raises CorruptDataError, KeyError, UnavailableError."""
        size = await self._objects.size(self._key)
        (self._data,) = await self._objects.get_ranges(self._key, [(0, size)])
        pieces = sorted([*self._kept(), *self._in_tables()], key=lambda piece: piece[:2])
        number = 0
        for _, group in groupby(pieces, key=lambda piece: piece.partition):
            for some in _portions(list(group)):
                await self._upload(number, some)
                number += 1

    def _kept(self) -> Iterator[_Piece]:
        """Yield the batches that lie in the object as they came."""
        start, end = wal.index_range(self._data[-wal.TAIL :], len(self._data))
        for each in wal.read_index(self._data[start:end], self._data[-wal.TAIL :]):
            offset = int.from_bytes(self._data[each.position : each.position + 8], "big")
            yield _Piece(each.partition, offset, each.length, each.position)

    def _in_tables(self) -> Iterator[_Piece]:
        """Yield the batches of entries, range by range."""
        for position, content in wal.entries(self._data):
            entry = entries.decode(content)
            for each in entry.ranges(self._key, position, wal.FRAME + len(content)):
                yield _Piece(entry.partition, each.base_offset, each.place.length, each)

    async def _upload(self, number: int, pieces: Sequence[_Piece]) -> None:
        """Upload an object with these batches, unless it is there. Raises UnavailableError."""
        id = _id(self._key, number)
        if await self._is_there(id):
            return
        found = [await self._batches(piece) for piece in pieces]
        if not all(found):
            # The object of a complete attempt must not seem to be there when the data files can be read again.
            id = _id(self._key, number, [piece.offset for piece, batches in zip(pieces, found, strict=True) if batches])
            if not any(found) or await self._is_there(id):
                return
        segments = [(pieces[0].partition, [record_batch.rewritten(batch) for batches in found for batch in batches])]
        data, _ = wal.assemble(id, *wal.writer(self._data[: wal.HEAD]), segments)
        copy = wal.merged_key(id)
        await self._objects.put(copy, data)
        self._restored.keys.append(copy)
        self._restored.copies.append(copy)

    async def _is_there(self, id: UUID) -> bool:
        """Return whether an earlier attempt has uploaded an object, and note it then."""
        copy = wal.merged_key(id)
        try:
            await self._objects.size(copy)
        except KeyError:
            return False
        self._restored.copies.append(copy)
        return True

    async def _batches(self, piece: _Piece) -> list[memoryview]:
        """Return the batches of a piece; none if the data files do not give them back, which the result notes."""
        if isinstance(piece.place, int):
            return [self._data[piece.place : piece.place + piece.length]]
        try:
            (found,) = await self._history.rebuild([piece.place])
        except CorruptDataError as error:
            self._restored.unreadable[self._key] = str(error)
            return []
        return record_batch.split(found)


def _portions(pieces: Sequence[_Piece]) -> Iterator[Sequence[_Piece]]:
    """Yield the pieces of a partition for one object after the other. The last ones of an object are also the first of the next."""
    first, size = 0, 0
    for number, piece in enumerate(pieces):
        if size + piece.length > OBJECT_BYTES and number > first:
            yield pieces[first:number]
            size = 0
            while number > first + 1 and size + pieces[number - 1].length <= SHARED_BYTES:
                number -= 1
                size += pieces[number].length
            first = number
        size += piece.length
    yield pieces[first:]


def _id(key: str, number: int, offsets: Sequence[int] = ()) -> UUID:
    """Return the id of a part: the same one for a repetition, and with the time of the history object.

    ``offsets``: those of the pieces that it has, if it lacks others."""
    time = wal.id_of(key).bytes[:6]
    name = f"{number} {key} {' '.join(map(str, offsets))}"
    return UUID(bytes=time + blake2b(name.encode(), digest_size=10).digest())
