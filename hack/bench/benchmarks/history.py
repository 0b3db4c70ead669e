"""Read history from a table, and from WAL objects as a topic has them that keeps its copy.

One process does the work of a broker and its workers, without a network. The records are JSON of flights, or long texts, and the producer
compresses nothing, lz4, or zstd. The rate counts the bytes that a consumer gets, by CPU time of one core."""

import asyncio
import io
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq
from aiokafka.record.default_records import DefaultRecordBatchBuilder

from firn.driver_requests.landed_offsets import RECORD, DataFile, MemberField, RecordFields
from firn.records import record_batch
from firn_broker.history import entries
from firn_broker.history.entries import Entry
from firn_broker.history.indexing.building import Table, build
from firn_broker.history.rebuilding.rebuilder import rebuild
from firn_broker.history.rows import RowReader, groups
from firn_broker.log.blocks import number_batches
from firn_broker.log_types import BatchRange, Partition, TableRange, WalRange
from firn_broker.maintenance.compaction import batch_ranges
from firn_broker.storage import wal
from firn_broker.storage.objects import DirectoryObjects
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options

PARTITION = Partition(UUID(int=1), 0)
FIELDS = RecordFields(partition=4, offset=5, time=6, key=7, value=2, headers=8)
MEMBERS = RecordFields(partition=4, offset=5, time=6, key=7, value=None, headers=8)
"""The columns of a topic whose values lie in columns of their members."""
MEMBER_NAMES = tuple(
    MemberField(RECORD, name, 20 + place) for place, name in enumerate(("id", "origin", "dest", "delay", "note"))
)
"""The columns of the values that `values_of` makes."""
MEGABYTES = 100
"""Bytes of the records of a case, in millions."""
ROW_GROUP_BYTES = 64 << 20
COPY = "copy in the log"
CODECS = {"none": 0, "lz4": 3, "zstd": 4}
"""Codecs of producers, by Kafka's numbers."""


@dataclass(frozen=True, slots=True)
class Case:
    """Records of a size, in batches of about ``batch`` bytes."""

    name: str
    record: int
    batch: int


class Row(NamedTuple):
    """A record without key and headers. ``time`` is in milliseconds since 1970."""

    offset: int
    time: int
    value: bytes


CASES = (Case("small", 168, 16 << 10), Case("large", 1_000, 1 << 20))


def measure(options: Options) -> Iterator[Figure]:
    """Measure each case with each codec."""
    for case in CASES:
        values = values_of(case.record, MEGABYTES)
        rows = [Row(offset, time_of(offset), value) for offset, value in enumerate(values)]
        file = write_table(options.directory / f"{case.name}.parquet", rows, PARTITION.index, ROW_GROUP_BYTES)
        for codec, number in CODECS.items():
            batches = batches_of(case, values, number)
            yield from _figures(options.directory / f"{case.name}-{codec}", f"{case.name}_{codec}", batches, file)


def _figures(directory: Path, name: str, batches: Sequence[memoryview], file: DataFile) -> Iterator[Figure]:
    served = sum(map(len, batches))
    files = Files()
    table = Table(groups(file, files.open(file), FIELDS), FIELDS)
    started = time.process_time()
    parts = build(PARTITION, batches, table, RowReader(files))
    compared = time.process_time() - started
    found = [part for part in parts if isinstance(part, Entry)]
    served = sum(each.place.length for entry in found for each in entry.ranges("key", 0, 0))
    files.read = 0
    seconds = min(rebuilt(found, files) for _ in range(3))
    kept, copied = asyncio.run(_copy(directory, batches))
    described = sum(len(entries.encode(entry)) for entry in found)
    yield Figure(
        f"history_{name}",
        served / seconds / 1e6,
        "MB/s of records read on one core",
        "higher",
        COPY,
        served / kept / 1e6,
    )
    yield Figure(f"history_compare_{name}", served / compared / 1e6, "MB/s of records compared on one core", "higher")
    stored = file.size + described
    yield Figure(
        f"history_stored_{name}",
        stored / served,
        "bytes stored per byte of records",
        "lower",
        COPY,
        (file.size + copied) / served,
    )
    yield Figure(f"history_read_{name}", files.read / 3 / file.size, "bytes read per byte of the data file", "lower")
    yield Figure(f"history_entry_{name}", described / len(batches), "bytes of an entry per batch", "lower")


def rebuilt(found: Sequence[Entry], files: "Files") -> float:
    """Read all batches as a consumer does, and return the seconds of CPU time."""
    reader, started = RowReader(files), time.process_time()
    for entry in found:
        for each in entry.ranges("key", 0, 0):
            assert isinstance(each.place, TableRange)
            rebuild(entry, each.place.position, each.place.length, reader)
    return time.process_time() - started


async def _copy(directory: Path, batches: Sequence[memoryview]) -> tuple[float, int]:
    """Store the batches as a merge does. Return the seconds of CPU time of a consumer's read, and the bytes of the object."""
    objects, key = DirectoryObjects(directory), wal.merged_key(UUID(int=1))
    data, positions = wal.assemble(
        UUID(int=1), 0, 1, [(PARTITION, [record_batch.rewritten(batch) for batch in batches])]
    )
    await objects.put(key, data)
    ranges = batch_ranges(key, batches, positions)
    best = float("inf")
    for _ in range(3):
        started = time.process_time()
        for each in ranges:
            await _read(objects, each)
        best = min(best, time.process_time() - started)
    return best, len(data)


async def _read(objects: DirectoryObjects, each: BatchRange) -> None:
    assert isinstance(each.place, WalRange)
    span = (each.place.position, each.place.position + each.place.length)
    (data,) = await objects.get_ranges(each.place.key, [span])
    number_batches(each, data).whole(each)


class Files:
    """Data files of a directory. ``read`` counts the bytes of the columns that were read."""

    def __init__(self) -> None:
        self.read = 0

    def open(self, file: DataFile) -> pq.ParquetFile:
        """Open a file."""
        return pq.ParquetFile(_Counted(file.path, self), pre_buffer=True)


class _Counted(io.FileIO):
    """A file that counts the bytes that are read from it."""

    def __init__(self, path: str, files: Files) -> None:
        super().__init__(path)
        self._files = files

    def read(self, size: int | None = -1) -> bytes:
        """Read bytes, and count them."""
        data = super().read(-1 if size is None else size)
        self._files.read += len(data)
        return data


def values_of(size: int, megabytes: int) -> list[bytes]:
    """Return JSON of about ``size`` bytes, so many megabytes in all."""
    chance = random.Random(1)
    airports, words = ["JFK", "SFO", "LAX", "BOS", "ORD"], [f"word{number}" for number in range(2_000)]
    pad = size - 90
    return [
        json.dumps(
            {
                "id": number, "origin": chance.choice(airports), "dest": chance.choice(airports),
                "delay": chance.randrange(600), "note": " ".join(chance.choices(words, k=max(0, pad) // 8)),
            }
        ).encode()
        for number in range(megabytes * 1_000_000 // size)
    ]  # fmt: skip


def batches_of(case: Case, values: Sequence[bytes], codec: int) -> list[memoryview]:
    """Return the batches of a producer, with the offsets of the log."""
    batches, offset, each = list[memoryview](), 0, max(1, case.batch // case.record)
    while offset < len(values):
        some = values[offset : offset + each]
        builder = DefaultRecordBatchBuilder(
            magic=2, compression_type=codec, is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
            batch_size=1 << 30,
        )  # fmt: skip
        for place, value in enumerate(some):
            builder.append(place, timestamp=time_of(offset + place), key=None, value=value, headers=[])
        batch = memoryview(bytearray(builder.build()))
        record_batch.number(batch, 0, offset)
        batches.append(batch)
        offset += len(some)
    return batches


def time_of(offset: int) -> int:
    """Return the time of a record in milliseconds since 1970."""
    return 1_700_000_000_000 + offset


def write_table(
    path: Path,
    rows: Sequence[Row],
    partition: int,
    group_bytes: int,
    members: Mapping[pa.Field, pa.ChunkedArray] | None = None,
) -> DataFile:
    """Write the data file of a topic with the rows of a partition, in row groups of about ``group_bytes`` in memory.

    A file of a JSON topic has the columns ``members`` instead of the raw values of ``rows``."""
    count = len(rows)
    header = pa.struct([_field(10, "key", pa.string()), _field(11, "value", pa.binary())])
    kafka = {
        _field(4, "partition", pa.int32()): pa.array([partition] * count, pa.int32()),
        _field(5, "offset", pa.int64()): pa.array([row.offset for row in rows], pa.int64()),
        _field(6, "timestamp_ms", pa.int64()): pa.array([row.time for row in rows], pa.int64()),
        _field(7, "key", pa.binary()): pa.nulls(count, pa.binary()),
        _field(8, "headers", pa.list_(_field(9, "element", header))): pa.nulls(
            count, pa.list_(_field(9, "element", header))
        ),
    }
    struct = pa.StructArray.from_arrays(list(kafka.values()), fields=list(kafka))
    values = members or {_field(2, "value", pa.binary()): pa.array([row.value for row in rows], pa.binary())}
    schema = pa.schema([*values, _field(3, "_kafka", struct.type)])
    table = pa.table([*values.values(), struct], schema=schema)
    group = max(1, group_bytes * count // table.nbytes)
    pq.write_table(table, path, compression="zstd", row_group_size=group, use_dictionary=False)
    return DataFile(str(path), path.stat().st_size)


def members_of(rows: Sequence[Row]) -> Mapping[pa.Field, pa.ChunkedArray]:
    """Return the columns of the members of JSON values that `values_of` made."""
    table = pa.Table.from_pylist([json.loads(row.value) for row in rows])
    return {_field(each.field, each.name, table[each.name].type): table[each.name] for each in MEMBER_NAMES}


def _field(number: int, name: str, kind: pa.DataType) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
