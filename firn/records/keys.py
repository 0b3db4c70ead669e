"""Records by key, for topics with ``cleanup.policy=compact``: which records stay, and the batches that hold them.

A rewritten batch covers the offsets of removed records behind its own (by its last offset delta) and in front of the
first one. So batches follow one another without a gap, and consumers pass the removed offsets. A batch may hold no
record.

Tombstones carry the time at which they may be removed, as with Kafka (KIP-534): a batch with bit 6 of its attributes
has that time as its base timestamp. No other state is needed."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, islice
from typing import NamedTuple

import cramjam
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn.records import record_batch
from firn.records.contents import MAX_RECORDS as MAX_OPENED
from firn.records.contents import MAX_TIME, UndecodableError, open_batch, zigzag
from firn.records.cursor import varint
from firn.records.record_batch import Batch, InvalidBatchError

GZIP = 1
"""The codec of rewritten batches if any old one was compressed: every client can read gzip."""
HORIZON_BIT = 0x40
MAX_DELTA = (1 << 31) - 1
"""The greatest distance between the first and the last offset of a batch."""
MAX_RECORDS = 10_000
"""Records of a batch that a compacted topic accepts."""
HELD = 280
"""Approximate bytes that a record takes in memory besides its own."""
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")


class TooLargeError(Exception):
    """The newest records exceed the memory bound."""


class Record(NamedTuple):
    """A record. ``rest`` are its bytes from the length of its key on."""

    offset: int
    timestamp: int
    appended: bool
    """True if the timestamp is the append time of the batch."""
    key: bytes | None
    tombstone: bool
    horizon: int
    """The time when a tombstone may be removed; -1 if it is not set yet."""
    rest: bytes


def decode(batch: memoryview) -> list[Record]:
    """Decode the records of a batch with an assigned base offset. Raises UndecodableError."""
    return next(decode_parts(batch, MAX_OPENED))


def decode_parts(batch: memoryview, records: int) -> Iterator[list[Record]]:
    """Do as `decode`, for ``records`` records at a time. The last part may be empty."""
    _, attributes, _ = record_batch.header(batch)
    appended = bool(attributes & record_batch.APPEND_TIME_BIT)
    # In a topic that was not compacted before, the bit may come from a producer.
    horizon = min(int.from_bytes(batch[27:35], "big", signed=True), MAX_TIME) if attributes & HORIZON_BIT else -1
    for data, places in open_batch(batch, records):
        decoded = []
        for record in places:
            try:
                length, place = zigzag(data, record.start)
                key = None if length < 0 else data[place : place + length]
                value, place = zigzag(data, place + max(length, 0))
            except IndexError:
                place, value = record.end + 1, 0
            if place + max(value, 0) > record.end:
                raise UndecodableError(f"a record does not end at {record.end}")
            rest = data[record.start : record.end]
            own_horizon = horizon if value < 0 else -1
            decoded.append(Record(record.offset, record.timestamp, appended, key, value < 0, own_horizon, rest))
        yield decoded


def require(batch: Batch) -> None:
    """Check that a produced batch can be compacted. Raises InvalidBatchError, also for a record without a key."""
    if batch.records > MAX_RECORDS:
        raise InvalidBatchError(
            ErrorCode.message_too_large,
            f"the batch has {batch.records} records, more than the {MAX_RECORDS} that a compacted topic accepts in one batch",
        )
    try:
        decoded = decode(batch.data)
    except UndecodableError as error:
        raise InvalidBatchError(
            ErrorCode.invalid_record, f"a compacted topic accepts only records that the broker can decode: {error}"
        ) from error
    if batch.attributes & HORIZON_BIT:
        raise InvalidBatchError(ErrorCode.invalid_record, "a producer must not set the delete horizon (attribute 6)")
    if any(record.key is None for record in decoded):
        raise InvalidBatchError(ErrorCode.invalid_record, "a compacted topic accepts no record without a key")


class Newest:
    """Collects the newest record of each key within ``max_bytes`` of memory.

    Records are added in the order of their offsets. Records without a key stay, because no later record replaces them.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        self._by_key: dict[bytes, Record] = {}
        self._keyless: list[Record] = []
        self.added = 0

    def add(self, records: Iterable[Record]) -> None:
        """Add records. Raises TooLargeError."""
        for record in records:
            self.added += 1
            self._held += len(record.rest) + HELD
            if record.key is None:
                self._keyless.append(record)
                continue
            # Without the removal, the record would take the place of the old one in the order of the dict.
            old = self._by_key.pop(record.key, None)
            self._by_key[record.key] = record
            self._held += len(record.key) if old is None else -len(old.rest) - HELD
        if self._held > self._max_bytes:
            raise TooLargeError(f"the newest records take {self._held} bytes of memory, more than {self._max_bytes}")

    def kept(self, now_ms: int, retention_ms: int, records: int = MAX_RECORDS) -> Iterator[list[Record]]:
        """List the records that stay, by offset, in parts that examine ``records`` records each.

        A tombstone stays for ``retention_ms`` after its first compaction."""
        by_offset = merge(self._by_key.values(), self._keyless, key=lambda record: record.offset)
        while examined := list(islice(by_offset, records)):
            part = []
            for record in examined:
                if not record.tombstone or record.key is None or record.horizon > now_ms:
                    part.append(record)
                elif record.horizon < 0:
                    part.append(record._replace(horizon=min(now_ms + retention_ms, MAX_TIME)))
            yield part


def next_horizon(kept: Iterable[Record], before: int = 0) -> int:
    """Return the time when the first tombstone may be removed; 0 without tombstones.

    ``before`` is the answer for earlier records."""
    horizons = (record.horizon for record in kept if record.tombstone and record.key is not None)
    return min(chain(horizons, filter(None, [before])), default=0)


def encode(kept: Iterable[Record], base: int, last: int, *, compressed: bool, batch_bytes: int) -> Iterator[bytearray]:
    """Write ``kept`` into batches of about ``batch_bytes`` before compression, which cover the offsets from ``base`` to
    ``last``. Each step reads the records of one more batch.

    A batch has one append time at most, and one horizon. Empty batches cover the offsets that no other batch can cover.
    """
    groups = _groups(kept, batch_bytes)
    following: list[Record] | None = next(groups, [])
    while following is not None:
        group, following = following, next(groups, None)
        end = following[0].offset - 1 if following is not None else last
        if group and group[-1].offset - base > MAX_DELTA:
            yield from _empty(base, group[0].offset - 1)
            base = group[0].offset
        covered = min(end, base + MAX_DELTA)
        yield _batch(group, base, covered, compressed=compressed)
        yield from _empty(covered + 1, end)
        base = end + 1


def _empty(base: int, last: int) -> Iterator[bytearray]:
    while base <= last:
        end = min(last, base + MAX_DELTA)
        yield _batch([], base, end, compressed=False)
        base = end + 1


def _groups(kept: Iterable[Record], batch_bytes: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    size, horizon = 0, -1
    for record in kept:
        own = record.horizon if record.tombstone else -1
        if group and (
            size >= batch_bytes
            or record.offset - group[0].offset > MAX_DELTA
            or record.appended != group[0].appended
            or (record.appended and record.timestamp != group[0].timestamp)
            or (own >= 0 <= horizon and own != horizon)
        ):
            yield group
            group, size, horizon = [], 0, -1
        group.append(record)
        size += len(record.rest) + 12
        horizon = max(horizon, own)
    if group:
        yield group


def _batch(group: Sequence[Record], base: int, last: int, *, compressed: bool) -> bytearray:
    horizon = max((record.horizon for record in group if record.tombstone), default=-1)
    first = horizon if horizon >= 0 else group[0].timestamp if group else -1
    body = bytearray()
    for record in group:
        data = b"\0" + _zigzagged(record.timestamp - first) + _zigzagged(record.offset - base) + record.rest
        body += _zigzagged(len(data)) + data
    compressed = compressed and bool(body)
    contents = bytes(cramjam.gzip.compress(bytes(body))) if compressed else bytes(body)
    newest = max((record.timestamp for record in group), default=-1)
    attributes = (
        (GZIP if compressed else 0)
        | (record_batch.APPEND_TIME_BIT if group and group[0].appended else 0)
        | (HORIZON_BIT if horizon >= 0 else 0)
    )
    after = _AFTER_CRC.pack(attributes, last - base, first, newest, -1, -1, -1, len(group)) + contents
    return bytearray(_BEFORE_CRC.pack(base, len(after) + 9, 0, 2, crc32c(after)) + after)


def _zigzagged(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
