"""Makes the log of a topic from the rows of its table, for a recovery without the bucket.

A row has the key, the value, the headers, the offset and the time of a record, but not its batch. So the batches are new ones, without a
producer and without compression. They are uploaded as merged objects, which show offsets. `firn_broker.maintenance.placeholders` puts
them into the log."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog
from crc32c import crc32c

from firn.driver_requests.landed_offsets import DataFile, RecordFields
from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn_broker.history.heads import Heads, assemble
from firn_broker.history.rows import Files, Group, RowReader, groups, ordered
from firn_broker.history.sections import Numbers, Records, encode
from firn_broker.log_types import Partition
from firn_broker.ports import ObjectStore
from firn_broker.storage import wal

log = structlog.get_logger()

BATCH_BYTES = 512 << 10
"""Bytes of the records of a batch, unless one record has more."""
OBJECT_BYTES = 64 << 20
"""Bytes of the batches of an object, and about those of the rows that are read at a time."""
MOST_OFFSETS = 1 << 27
"""Offsets of the records of an object, and of the records that are missing behind them. A placeholder has at most twice as many."""
_RECORD_BYTES = 24
"""Bytes of a record without its key, its value and its headers."""


class Rows(NamedTuple):
    """The rows of a topic: the data files, the columns, and the partitions with the offsets behind the landed records.

    ``seed``: first hexadecimal digits of the ids of the new objects.
    """

    topic: UUID
    files: Sequence[DataFile]
    fields: RecordFields
    partitions: int
    landed: Mapping[int, int]
    seed: str


async def rebuild(objects: ObjectStore, rows: Rows, files: Files) -> list[str]:
    """Upload the records as merged objects, and return their keys. Raises CorruptDataError, UnavailableError.

    A repetition uploads the same objects."""
    found = [group for file in rows.files for group in groups(file, files.open(file), rows.fields)]
    beyond = max((group.partitions[1] for group in found), default=-1)
    if beyond >= rows.partitions:
        raise CorruptDataError(
            f"topic {rows.topic}: the table has rows of partition {beyond}, and the topic has {rows.partitions} partitions;"
            " correct partitions in the file"
        )
    reader, keys = RowReader(files), list[str]()
    for index in range(rows.partitions):
        partition = Partition(rows.topic, index)
        own = [group for group in found if group.has(index, 0, 1 << 62)]
        for number, batches in enumerate(
            _objects(_records(reader, own, rows.fields, index), rows.landed.get(index, 0))
        ):
            id = _id(rows, partition, number)
            segment = [record_batch.rewritten(batch) for batch in record_batch.split(batches)]
            data, _ = wal.assemble(id, 0, 0, [(partition, segment)])
            key = wal.merged_key(id)
            await objects.put(key, data)
            keys.append(key)
            log.info("records of a table are in the bucket", topic=str(rows.topic), partition=index, objects=number + 1)
    return keys


def _id(rows: Rows, partition: Partition, number: int) -> UUID:
    digest = blake2b(f"{partition.topic} {partition.index} {number}".encode(), digest_size=16).hexdigest()
    return UUID(hex=f"{rows.seed}{digest}"[:32])


def _records(reader: RowReader, own: Sequence[Group], fields: RecordFields, partition: int) -> Iterator[Records]:
    """Yield the records of a partition in the order of their offsets, for one object after the other."""
    ascending, active = sorted(own, key=lambda group: group.offsets)[::-1], list[Group]()
    waiting: list[Records] = []
    for first, last in windows(own):
        active = [group for group in active if group.offsets[1] >= first]
        while ascending and ascending[-1].offsets[0] <= last:
            active.append(ascending.pop())
        records = _unique(reader.gather(active, fields, partition, first, last))
        if waiting and sum(each.nbytes for each in (*waiting, records)) > OBJECT_BYTES:
            yield from _cut(ordered(waiting))
            waiting.clear()
        waiting.append(records)
    yield from _cut(ordered(waiting))


def _unique(records: Records) -> Records:
    """Return records without those whose row is in the table twice."""
    again = np.flatnonzero(records.offsets[1:] == records.offsets[:-1]) + 1
    return records.select(np.delete(np.arange(len(records)), again)) if len(again) else records


def _cut(records: Records) -> Iterator[Records]:
    """Yield the records of one object after the other."""
    distances = records.offsets - records.offsets[:1]
    # Dictionaries can make the rows of a row group much larger than the row group.
    numbers = np.stack([np.cumsum(_sizes(records)) // OBJECT_BYTES, distances // MOST_OFFSETS])
    ends = np.diff(numbers).any(axis=0) | (np.diff(distances) > MOST_OFFSETS)
    edges = [0, *(np.flatnonzero(ends) + 1).tolist(), len(records)]
    yield from (records.slice(start, end) for start, end in pairwise(edges) if start < end)


def windows(own: Sequence[Group]) -> Iterator[tuple[int, int]]:
    """Yield ranges of offsets with at most about `OBJECT_BYTES` of rows each.

    The rows of a row group count as if they had equal distances, and those of all partitions count."""
    changes: dict[int, float] = {}
    for group in own:
        first, last = group.offsets
        density = group.size / (last - first + 1)
        changes[first] = changes.get(first, 0.0) + density
        changes[last + 1] = changes.get(last + 1, 0.0) - density
    begin, size, density = -1, 0.0, 0.0
    for (start, change), (end, _) in pairwise(sorted(changes.items())):
        density += change
        if begin < 0:
            begin = start
        while size + density * (end - start) > OBJECT_BYTES:
            last = start + max(int((OBJECT_BYTES - size) / density), 1) - 1
            yield begin, min(last, end - 1)
            begin = start = min(last, end - 1) + 1
            size = 0.0
            if start == end:
                break
        size += density * (end - start)
    if begin >= 0 and size > 0:
        yield begin, max(changes) - 1


def _objects(found: Iterator[Records], landed: int) -> Iterator[memoryview]:
    """Yield the batches of one object after the other. A batch has the offsets up to the next one, so that deleted rows leave no gap."""
    waiting: Records | None = None
    for records in found:
        if waiting is not None:
            yield _batches(waiting, int(records.offsets[0]))
        waiting = records
    if waiting is not None:
        yield _batches(waiting, max(landed, int(waiting.offsets[-1]) + 1))


def _batches(records: Records, following: int) -> memoryview:
    """Return records as batches. ``following`` is the offset of the next one."""
    sizes, offsets = np.cumsum(_sizes(records)), records.offsets
    first, last = int(offsets[0]), int(offsets[-1])
    starts = np.concatenate([[0], np.flatnonzero(np.diff(sizes // BATCH_BYTES)) + 1])
    counts = np.diff(np.concatenate([starts, [len(records)]]))
    owners = np.repeat(np.arange(len(starts)), counts)
    bases = offsets[starts]
    data, places = encode(records, records.times - records.times[starts][owners], offsets - bases[owners])
    edges = places[np.concatenate([starts, [len(records)]])].tolist()
    sections = [data[start:end] for start, end in pairwise(edges)]
    lengths = np.diff(edges)
    none = np.full(len(starts), -1, np.int64)
    made = Heads(
        first,
        spans=np.diff(np.concatenate([bases, [min(following, last + MOST_OFFSETS)]])),
        counts=counts,
        attributes=np.zeros(len(starts), np.int64),
        base_times=records.times[starts],
        max_times=np.maximum.reduceat(records.times, starts),
        producers=none,
        epochs=none,
        sequences=none,
        sizes=lengths,
        checksums=np.array([crc32c(section) for section in sections], np.int64),
        stored=lengths + record_batch.HEADER,
        time_deltas=np.zeros(0, np.int64),
    )
    return assemble(made, sections)


def _sizes(records: Records) -> Numbers:
    """Return about the bytes of each record."""
    found = np.full(len(records), _RECORD_BYTES + records.headers.nbytes // max(len(records), 1), np.int64)
    for array in (records.keys, records.values):
        lengths: pa.Array = pc.call_function("binary_length", [array])
        found += lengths.fill_null(0).to_numpy(zero_copy_only=False)
    return found
