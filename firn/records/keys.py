"""Records by key, for topics with ``cleanup.policy=compact``: what of consecutive batches stays, and the batches that hold it.

A rewritten batch covers the offsets of what was left out behind its records (its last offset delta says so), and those in front of the first
one, so that batches still follow one another without a gap and consumers pass what is gone. A batch may hold nothing at all.

Tombstones carry the time at which they may go themselves, as with Kafka (KIP-534): a batch with bit 6 of its attributes has that time as its
base timestamp. Nothing else has to remember it.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import cramjam
from crc32c import crc32c
from kio.schema.errors import ErrorCode

from firn.records import record_batch
from firn.records.contents import MAX_TIME, UndecodableError, opened, zigzag
from firn.records.cursor import varint
from firn.records.record_batch import Batch, InvalidBatchError

GZIP = 1
"""What rewritten batches are compressed with if anything was: every client reads it."""
HORIZON_BIT = 0x40
MAX_DELTA = (1 << 31) - 1
"""How far the last offset of a batch may be from its first."""
HELD = 280
"""About what a record takes in memory beside its own bytes."""
_AFTER_CRC = struct.Struct(">hiqqqhii")
_BEFORE_CRC = struct.Struct(">qiibI")


class TooLargeError(Exception):
    """The newest records take more memory than they may."""


class Record(NamedTuple):
    """One record. ``rest`` is all of it from the length of its key on."""

    offset: int
    timestamp: int
    appended: bool
    """Whether the timestamp is that of the append, as of all records of its batch."""
    key: bytes | None
    tombstone: bool
    horizon: int
    """When a tombstone may go; -1 if that was not said yet."""
    rest: bytes


def decode(batch: memoryview) -> list[Record]:
    """The records of a batch whose base offset is written in. Raises UndecodableError."""
    data, places = opened(batch)
    _, attributes, _ = record_batch.header(batch)
    appended = bool(attributes & record_batch.APPEND_TIME_BIT)
    # As far as topics were not compacted yet, what is there may be a producer's.
    horizon = min(int.from_bytes(batch[27:35], "big", signed=True), MAX_TIME) if attributes & HORIZON_BIT else -1
    found = []
    for it in places:
        try:
            length, place = zigzag(data, it.start)
            key = None if length < 0 else data[place : place + length]
            value, place = zigzag(data, place + max(length, 0))
        except IndexError:
            place, value = it.end + 1, 0
        if place + max(value, 0) > it.end:
            raise UndecodableError(f"a record that passes its end at {it.end}")
        rest = data[it.start : it.end]
        found.append(Record(it.offset, it.timestamp, appended, key, value < 0, horizon if value < 0 else -1, rest))
    return found


def require(batch: Batch) -> None:
    """Raises InvalidBatchError for a batch, as it was produced, that could not be compacted later, or with a record that has no key."""
    try:
        found = decode(batch.data)
    except UndecodableError as error:
        raise InvalidBatchError(
            ErrorCode.invalid_record, f"a compacted topic takes only records that the broker can decode: {error}"
        ) from error
    if batch.attributes & HORIZON_BIT:
        raise InvalidBatchError(
            ErrorCode.invalid_record, "when tombstones go is not for producers to say (attribute 6)"
        )
    if any(it.key is None for it in found):
        raise InvalidBatchError(ErrorCode.invalid_record, "a compacted topic takes no record without a key")


class Newest:
    """The newest record of each key, of all that are added in the order of offsets, within ``max_bytes`` of memory. Records without a key
    stay, as nothing says what replaces them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = 0
        self._by_key: dict[bytes, Record] = {}
        self._keyless: list[Record] = []
        self.added = 0

    def add(self, all_: Iterable[Record]) -> None:
        """Add. Raises TooLargeError."""
        for record in all_:
            self.added += 1
            self._held += len(record.rest) + HELD
            if record.key is None:
                self._keyless.append(record)
                continue
            old = self._by_key.get(record.key)
            self._by_key[record.key] = record
            self._held += len(record.key) if old is None else -len(old.rest) - HELD
        if self._held > self._max_bytes:
            raise TooLargeError(f"{self._held} bytes of records in memory, more than {self._max_bytes}")

    def kept(self, now_ms: int, retention_ms: int) -> list[Record]:
        """What stays, in the order of offsets: tombstones for ``retention_ms`` from the first time that this was asked."""
        found = list(self._keyless)
        for it in self._by_key.values():
            if it.tombstone and it.horizon < 0:
                found.append(it._replace(horizon=min(now_ms + retention_ms, MAX_TIME)))
            elif not it.tombstone or it.horizon > now_ms:
                found.append(it)
        return sorted(found, key=lambda it: it.offset)


def next_horizon(kept: Iterable[Record]) -> int:
    """When the first of the tombstones may go; 0 without any."""
    return min((it.horizon for it in kept if it.tombstone and it.key is not None), default=0)


def encode(kept: Sequence[Record], base: int, last: int, *, compressed: bool, batch_bytes: int) -> Iterator[bytearray]:
    """Batches of about ``batch_bytes`` before compression, that hold ``kept`` and cover the offsets from ``base`` to ``last``.

    A batch has one append time, if it has any, and one horizon. What it cannot cover beside its records, batches do that hold nothing.
    """
    groups = list(_groups(kept, batch_bytes)) or [[]]
    for number, group in enumerate(groups):
        end = groups[number + 1][0].offset - 1 if number + 1 < len(groups) else last
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


def _groups(kept: Sequence[Record], batch_bytes: int) -> Iterator[list[Record]]:
    group: list[Record] = []
    size, horizon = 0, -1
    for it in kept:
        own = it.horizon if it.tombstone else -1
        if group and (
            size >= batch_bytes
            or it.offset - group[0].offset > MAX_DELTA
            or it.appended != group[0].appended
            or (it.appended and it.timestamp != group[0].timestamp)
            or (own >= 0 <= horizon and own != horizon)
        ):
            yield group
            group, size, horizon = [], 0, -1
        group.append(it)
        size += len(it.rest) + 12
        horizon = max(horizon, own)
    if group:
        yield group


def _batch(group: Sequence[Record], base: int, last: int, *, compressed: bool) -> bytearray:
    horizon = max((it.horizon for it in group if it.tombstone), default=-1)
    first = horizon if horizon >= 0 else group[0].timestamp if group else -1
    body = bytearray()
    for it in group:
        record = b"\0" + _zigzagged(it.timestamp - first) + _zigzagged(it.offset - base) + it.rest
        body += _zigzagged(len(record)) + record
    compressed = compressed and bool(body)
    data = bytes(cramjam.gzip.compress(bytes(body))) if compressed else bytes(body)
    newest = max((it.timestamp for it in group), default=-1)
    attributes = (
        (GZIP if compressed else 0)
        | (record_batch.APPEND_TIME_BIT if group and group[0].appended else 0)
        | (HORIZON_BIT if horizon >= 0 else 0)
    )
    after = _AFTER_CRC.pack(attributes, last - base, first, newest, -1, -1, -1, len(group)) + data
    return bytearray(_BEFORE_CRC.pack(base, len(after) + 9, 0, 2, crc32c(after)) + after)


def _zigzagged(value: int) -> bytes:
    return varint(value << 1 if value >= 0 else (-value << 1) - 1)
