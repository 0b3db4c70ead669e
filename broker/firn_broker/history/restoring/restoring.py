"""Gives the batches of history objects back to the WAL, for a recovery.

A coordinator from a backup does not know the history objects that are newer. The WAL objects that these replaced may be deleted. So their
batches are rebuilt from the table, and uploaded as merged objects. With these, `firn_broker.maintenance.recovery` repairs the log."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from hashlib import blake2b
from itertools import groupby
from uuid import UUID

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.history import entries
from firn_broker.log_types import Partition
from firn_broker.ports import History, ObjectStore
from firn_broker.storage import wal

OBJECT_BYTES = 64 << 20
"""Bytes of the batches of a merged object, unless one batch has more."""


@dataclass(slots=True)
class Restored:
    """The result of `restore`."""

    keys: list[str] = field(default_factory=list)
    """New merged objects."""
    unreadable: dict[str, str] = field(default_factory=dict)
    """History objects of which not all batches could be read, with the reason."""

    def report(self) -> dict[str, object]:
        """Return the result for printing as JSON."""
        return asdict(self)


async def restore(objects: ObjectStore, keys: Sequence[str], history: History) -> Restored:
    """Upload merged objects with the batches of those of these objects that are history objects. Raises UnavailableError.

    A repetition uploads only what is missing."""
    restored = Restored()
    for key in keys:
        if key.endswith(wal.HISTORY):
            try:
                await _restore(objects, key, history, restored.keys)
            except KeyError:
                restored.unreadable[key] = "the object does not exist"
            except CorruptDataError as error:
                restored.unreadable[key] = str(error)
    return restored


async def _restore(objects: ObjectStore, key: str, history: History, made: list[str]) -> None:
    """Upload the batches of a history object. Raises CorruptDataError, KeyError, UnavailableError."""
    size = await objects.size(key)
    (data,) = await objects.get_ranges(key, [(0, size)])
    writer, number = wal.writer(data[: wal.HEAD]), 0
    for partition, batches in _kept(data):
        await _upload(objects, key, number, writer, partition, batches, made)
        number += 1
    for position, content in wal.entries(data):
        entry = entries.decode(content)
        ranges = entry.ranges(key, position, wal.FRAME + len(content))
        batches = [batch for found in await history.rebuild(ranges) for batch in _split(found)]
        await _upload(objects, key, number, writer, entry.partition, batches, made)
        number += 1


def _kept(data: memoryview) -> Iterator[tuple[Partition, Sequence[memoryview]]]:
    """Yield the batches of a history object that lie in it as they came."""
    start, end = wal.index_range(data[-wal.TAIL :], len(data))
    index = wal.read_index(data[start:end], data[-wal.TAIL :])
    for partition, group in groupby(index, key=lambda batch: batch.partition):
        batches, size = list[memoryview](), 0
        for each in group:
            if batches and size + each.length > OBJECT_BYTES:
                yield partition, batches
                batches, size = [], 0
            batches.append(data[each.position : each.position + each.length])
            size += each.length
        yield partition, batches


def _split(batches: memoryview) -> Iterator[memoryview]:
    for start, size, _ in record_batch.walk(batches):
        yield batches[start : start + size]


async def _upload(
    objects: ObjectStore,
    key: str,
    number: int,
    writer: tuple[int, int],
    partition: Partition,
    batches: Sequence[memoryview],
    made: list[str],
) -> None:
    """Upload a part of a history object, unless it is there, and add its key to ``made``."""
    id = _id(key, number)
    copy = wal.merged_key(id)
    try:
        await objects.size(copy)
    except KeyError:
        data, _ = wal.assemble(id, *writer, [(partition, [record_batch.rewritten(batch) for batch in batches])])
        await objects.put(copy, data)
        made.append(copy)


def _id(key: str, number: int) -> UUID:
    """Return the id of a part: the same one for a repetition, and with the time of the history object."""
    time = UUID(key.rpartition("/")[2].partition(".")[0]).bytes[:6]
    return UUID(bytes=time + blake2b(b"%d %s" % (number, key.encode()), digest_size=10).digest())
