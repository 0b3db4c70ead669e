"""Record batches of Fetch answers, cut into `Fetched`: checksum, control batches, aborted transactions, codecs, records.

A batch that is not compressed stays where the socket wrote it. Compressed ones are decompressed side by side into one buffer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from firn.model.errors import CorruptDataError
from firn.records import record_batch
from firn.records.codecs import CodecError, decompress_into
from firn_spark.worker.fetched import Fetched, HeaderPlaces, Numbers, Places
from firn_spark.worker.fetching import kernel
from firn_spark.worker.fetching.buffers import Buffers
from firn_spark.worker.fetching.slices import ObjectRange

BLOCK_RECORDS = 16_384
BLOCK_BYTES = 4 * 1024 * 1024
"""Records and bytes after which a block of records ends, because the memory of a decoder grows with them."""
SPACES = (32 << 20, 128 << 20)
"""Bytes to which a batch may decompress: the next one is tried if the one before is too small. Pages that are not written cost no memory. A few
kilobytes can decompress to a gigabyte."""
MOST_RECORDS = 1 << 20
"""Records that a batch may have. A batch becomes a block as a whole."""
WALK_BATCHES = 1_024


class DamagedError(Exception):
    """Bytes of an object are not the batches that a broker stored there."""


class OldFormatError(Exception):
    """The log has messages of a format before record batches (magic 0 or 1), which Kafka wrote before version 0.11."""


@dataclass(slots=True)
class Position:
    """A range of a partition, and the next offset to read in it."""

    topic: str
    partition: int
    next: int
    end: int

    @property
    def name(self) -> str:
        """Return the words for a message."""
        return f"topic {self.topic}, partition {self.partition}"


@dataclass(frozen=True, slots=True)
class Batches:
    """Wanted batches of one partition in the bytes ``data`` of an answer. ``table`` has the columns of `kernel`."""

    position: str
    topic: str
    data: Numbers
    table: Numbers
    intact: bool = False
    """True if the checksums were compared."""


def wanted(
    position: Position, data: Numbers, first: int, end: int, aborted: Sequence[tuple[int, int]]
) -> Iterator[Batches]:
    """Yield the batches with committed records in ``data[first:end]``, and move the position behind all batches there.

    ``aborted`` lists the producer and the first offset of aborted transactions. Raises CorruptDataError and OldFormatError.
    """
    started = sorted((offset, producer) for producer, offset in aborted)
    dead: set[int] = set()
    while first < end and position.next < position.end:
        table = np.empty((min(WALK_BATCHES, (end - first) // kernel.HEADER + 1), kernel.BATCH_COLUMNS), np.int64)
        count, after = kernel.walk(data, first, end, table)
        if count == kernel.OLD_FORMAT:
            raise OldFormatError(
                f"{position.name}, offset {position.next}: the log has messages in a format before record batches"
            )
        if count < 0:
            raise _corrupt(position.name, position.next, "a record batch has an impossible header")
        if not count:
            return
        table = table[:count]
        useful = _useful(position, table)
        if np.any(table[:, kernel.ATTRIBUTES] & (record_batch.CONTROL_BIT | record_batch.TRANSACTIONAL_BIT)):
            useful &= _committed(data, table, started, dead)
        position.next = max(position.next, min(_last(table) + 1, position.end))
        if useful.any():
            yield Batches(position.name, position.topic, data, table[useful])
        first = after


def stored(position: Position, data: Numbers, first: int, place: ObjectRange) -> Batches | None:
    """Return the wanted batches in the bytes of an object from ``data[first]`` on, and move the position behind all batches there.

    The bytes stay as the producers sent them: the table gets the offsets and the time that the coordinator assigned. Brokers of such
    objects store no transactions. Raises DamagedError, and does not move the position then.
    """
    end, tables, offset = first + place.length, [], place.base
    while first < end:
        table = np.empty((min(WALK_BATCHES, (end - first) // kernel.HEADER + 1), kernel.BATCH_COLUMNS), np.int64)
        count, first = kernel.walk(data, first, end, table)
        if count <= 0:
            raise DamagedError("the bytes are no record batches")
        table = table[:count]
        covered = table[:, kernel.DELTA] + 1
        table[:, kernel.BASE] = offset + np.cumsum(covered) - covered
        offset += int(covered.sum())
        tables.append(table)
    table = np.concatenate(tables)
    if offset != place.last + 1:
        raise DamagedError(f"the batches end at offset {offset - 1}, and not at {place.last}")
    if np.any(table[:, kernel.ATTRIBUTES] & (record_batch.CONTROL_BIT | record_batch.TRANSACTIONAL_BIT)):
        raise DamagedError("the batches belong to a transaction")
    view = memoryview(data)  # type: ignore[arg-type]
    for at, size in table[:, (kernel.PLACE, kernel.SIZE)].tolist():
        if not record_batch.intact(view[at : at + size]):
            raise DamagedError("the checksum of a record batch does not match its records")
    if place.append_ms >= 0:
        table[:, kernel.ATTRIBUTES] |= record_batch.APPEND_TIME_BIT
        table[:, kernel.MAX_TIME] = place.append_ms
    useful = _useful(position, table)
    position.next = max(position.next, min(_last(table) + 1, position.end))
    return Batches(position.name, position.topic, data, table[useful], intact=True) if useful.any() else None


def _useful(position: Position, table: Numbers) -> Numbers:
    """Write into the table which records of its batches are wanted. Return whether each batch may have some."""
    table[:, kernel.PARTITION] = position.partition
    table[:, kernel.FROM] = position.next
    table[:, kernel.TO] = position.end
    last = table[:, kernel.BASE] + table[:, kernel.DELTA]
    wanted_ones: Numbers = (last >= position.next) & (table[:, kernel.BASE] < position.end)
    return wanted_ones


def _last(table: Numbers) -> int:
    """Return the last offset that the batches cover."""
    return int(table[-1, kernel.BASE] + table[-1, kernel.DELTA])


def _committed(data: Numbers, table: Numbers, started: list[tuple[int, int]], dead: set[int]) -> Numbers:
    """Return whether each batch holds records of no aborted transaction. Source: ``CompletedFetch.java``, nextFetchedRecord."""
    committed = np.ones(len(table), bool)
    for number, batch in enumerate(table.tolist()):
        while started and started[0][0] <= batch[kernel.BASE] + batch[kernel.DELTA]:
            dead.add(started.pop(0)[1])
        producer = batch[kernel.PRODUCER]
        if batch[kernel.ATTRIBUTES] & record_batch.CONTROL_BIT:
            committed[number] = False
            if producer in dead and _aborts(data, batch):
                dead.discard(producer)
        elif batch[kernel.ATTRIBUTES] & record_batch.TRANSACTIONAL_BIT and producer in dead:
            committed[number] = False
    return committed


def _aborts(data: Numbers, batch: list[int]) -> bool:
    """Return whether a control batch is the marker of an abort: its record's key has version and type, two bytes each."""
    one = np.array([batch], np.int64)
    one[0, kernel.PLACE] += kernel.HEADER
    one[0, kernel.SIZE] -= kernel.HEADER
    one[0, kernel.FROM], one[0, kernel.TO] = 0, np.iinfo(np.int64).max
    records, present = np.zeros((kernel.RECORD_ROWS, 1), np.int64), np.zeros((2, 1), bool)
    one[0, kernel.COUNT] = min(1, one[0, kernel.COUNT])
    kernel.read(data, one, records, present)
    first, end = int(records[kernel.KEY_FIRST, 0]), int(records[kernel.KEY_END, 0])
    return end - first >= 4 and int.from_bytes(data[first + 2 : first + 4].tobytes(), "big") == 0


@dataclass(slots=True)
class Blocks:
    """Cuts batches into blocks. A block has records of one topic, and their bytes are in one buffer."""

    _topic: str = ""
    _data: Numbers | None = None
    _own: bool = False
    """True if ``_data`` is a buffer for decompressed records. It is filled up to ``_used``."""
    _used: int = 0
    _rows: list[list[int]] = field(default_factory=list)
    _names: list[str] = field(default_factory=list)
    _records: int = 0
    _bytes: int = 0
    _buffers: Buffers = field(default_factory=Buffers)

    def add(self, batches: Batches) -> Iterator[Fetched]:
        """Add batches, and yield the blocks that are complete. Raises CorruptDataError."""
        view = memoryview(batches.data)  # type: ignore[arg-type]
        for row in batches.table.tolist():
            if not batches.intact:
                _check(batches.position, view, row)
            codec = row[kernel.ATTRIBUTES] & record_batch.CODEC_BITS
            first, end = row[kernel.PLACE] + kernel.HEADER, row[kernel.PLACE] + row[kernel.SIZE]
            if codec:
                packed = view[first:end]
                if not self._own or self._topic != batches.topic or not self._decompress(codec, packed, row):
                    yield from self.flush()
                    self._open(batches, codec, packed, row)
            else:
                if self._data is not batches.data or self._topic != batches.topic:
                    yield from self.flush()
                    self._topic, self._data = batches.topic, batches.data
                row[kernel.PLACE], row[kernel.SIZE] = first, end - first
            if row[kernel.COUNT] * kernel.SMALLEST_RECORD > row[kernel.SIZE]:
                raise _corrupt(batches.position, row[kernel.BASE], "a record batch has too few bytes for its records")
            if row[kernel.COUNT] > MOST_RECORDS:
                cause = f"a record batch has {row[kernel.COUNT]} records, more than {MOST_RECORDS}"
                raise _too_large(batches.position, row[kernel.BASE], cause)
            self._rows.append(row)
            self._names.append(batches.position)
            self._records += row[kernel.COUNT]
            self._bytes += row[kernel.SIZE]
            if self._records >= BLOCK_RECORDS or self._bytes >= BLOCK_BYTES:
                yield from self.flush()

    def _open(self, batches: Batches, codec: int, packed: memoryview, row: list[int]) -> None:
        """Begin a block with a compressed batch, in the smallest buffer that has room for it."""
        for size in SPACES:
            self._topic, self._data, self._own = batches.topic, self._buffers.lend(size), True
            if self._decompress(codec, packed, row):
                return
        cause = f"a record batch cannot be decompressed into {SPACES[-1] >> 20} MiB, so it is too large or damaged"
        raise _too_large(batches.position, row[kernel.BASE], cause)

    def _decompress(self, codec: int, packed: memoryview, row: list[int]) -> bool:
        """Decompress a batch behind the others. Return False if it does not fit, or is not valid."""
        space = memoryview(self._data)[self._used :]  # type: ignore[arg-type]
        try:
            size = decompress_into(codec, packed, space)
        except CodecError:
            return False
        row[kernel.PLACE], row[kernel.SIZE] = self._used, size
        self._used += size
        return True

    def flush(self) -> Iterator[Fetched]:
        """Yield the records of the added batches as a block, if there are any. Raises CorruptDataError."""
        if self._rows and self._data is not None:
            data = self._data[: self._used] if self._own else self._data
            data.setflags(write=False)  # decoders are compiled for read-only arrays
            yield _block(self._topic, data, self._rows, self._names)
        self._topic, self._data, self._own, self._used = "", None, False, 0
        self._rows, self._names, self._records, self._bytes = [], [], 0, 0


def _check(position: str, view: memoryview, row: Sequence[int]) -> None:
    first, end = row[kernel.PLACE], row[kernel.PLACE] + row[kernel.SIZE]
    if not record_batch.intact(view[first:end]):
        raise _corrupt(position, row[kernel.BASE], "the checksum of a record batch does not match its records")


def _block(topic: str, data: Numbers, rows: Sequence[Sequence[int]], names: Sequence[str]) -> Fetched:
    table = np.array(rows, np.int64)
    total = int(table[:, kernel.COUNT].sum())
    records, present = np.empty((kernel.RECORD_ROWS, total), np.int64), np.empty((2, total), bool)
    count, whole = kernel.read(data, table, records, present)
    if whole < len(rows):
        raise _corrupt(names[whole], rows[whole][kernel.BASE], "a record batch has a malformed record")
    headers = _headers(data, records, count)
    if headers is None:
        raise _corrupt(names[0], rows[0][kernel.BASE], "a record has malformed headers")
    records, present = records[:, :count], present[:, :count]
    return Fetched(
        topic,
        records[kernel.OWNER].astype(np.int32),
        records[kernel.OFFSET],
        records[kernel.TIME],
        records[kernel.TIME_TYPE].astype(np.int32),
        Places(data, records[kernel.KEY_FIRST], records[kernel.KEY_END], present[0]),
        Places(data, records[kernel.VALUE_FIRST], records[kernel.VALUE_END], present[1]),
        headers,
    )


def _headers(data: Numbers, records: Numbers, count: int) -> HeaderPlaces | None:
    """Return the headers of the first ``count`` records, or None if they are malformed."""
    starts = np.zeros(count + 1, np.int64)
    np.cumsum(records[kernel.HEADERS, :count], out=starts[1:])
    total = int(starts[-1])
    places, present = np.empty((kernel.HEADER_ROWS, total), np.int64), np.empty(total, bool)
    if total and kernel.read_headers(data, records, count, places, present) != total:
        return None
    names = Places(data, places[kernel.NAME_FIRST], places[kernel.NAME_END], np.ones(total, bool))
    contents = Places(data, places[kernel.CONTENT_FIRST], places[kernel.CONTENT_END], present)
    return HeaderPlaces(starts, np.ones(count, bool), _readable(names), contents)


def _readable(names: Places) -> Places:
    """Return names as UTF-8. Invalid bytes become U+FFFD, as in Java's client: Kafka accepts any bytes."""
    try:
        names.to_arrow(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        texts = [(name or b"").decode(errors="replace") for name in names.to_list()]
        return Places.from_arrow(pa.array(texts, pa.string()))
    return names


def _corrupt(position: str, offset: int, cause: str) -> CorruptDataError:
    return CorruptDataError(
        f"{position}, offset {offset}: {cause}; check the disks of the brokers. kafka-delete-records skips the batch, and "
        "Complete then lists its offsets as lost"
    )


def _too_large(position: str, offset: int, cause: str) -> CorruptDataError:
    return CorruptDataError(
        f"{position}, offset {offset}: {cause}; skip the batch with kafka-delete-records, and let the producer send smaller batches. "
        "The condition Complete then lists its offsets as lost"
    )
