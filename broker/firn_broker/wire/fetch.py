"""Fetch, versions 4 to 16, by hand: the answer is a list of buffers, and its records are views of cached blocks.

Fields by version: log start offset since 5, sessions since 7, current leader epoch since 9, rack since 11, flexible and
last fetched epoch since 12, topic ids instead of names since 13, replica state as a tagged field since 15; in the
answer the preferred replica since 11."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.records import cursor as fields
from firn.records.cursor import Cursor, MalformedError

FLEXIBLE = 12
TOPIC_IDS = 13
READ_COMMITTED = 1
_PARTITION = struct.Struct(">ihqq")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")
_TOP = struct.Struct(">ihi")
_V4 = struct.Struct(">iqi")
_V5 = struct.Struct(">iqqi")
_V9 = struct.Struct(">iiqqi")
_TAGGED = struct.Struct(">iiqiqi")
_V12 = struct.Struct(">iiqiqib")
"""A partition of a request: index, current leader epoch (since 9), offset, last fetched epoch (since 12), log start of a
follower (since 5), greatest number of bytes; since 12 the number of tagged fields, which is 0."""
ELEMENTS = 50_000
"""Elements of all arrays of one request, and so about the partitions that a consumer reads from one broker. The longest
step of a fetch of this many takes 150 ms."""


@dataclass(frozen=True, slots=True)
class FetchPartition:
    """The place of a consumer in one partition, and the bytes that it accepts."""

    index: int
    leader_epoch: int
    offset: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """The request of a consumer. Topics are named by str, or by UUID since version 13."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation: int
    session_id: int
    session_epoch: int
    topics: list[tuple[str | UUID, list[FetchPartition]]]
    forgotten: list[tuple[str | UUID, int]]
    """Partitions that the consumer removes from its session."""
    names_ids: bool
    """True if the request names topics by their ids."""
    rack: str = ""


@dataclass(slots=True)
class FetchResult:
    """The answer for one partition."""

    index: int
    error: ErrorCode = ErrorCode.none
    high_watermark: int = -1
    log_start: int = -1
    records: Sequence[bytes | memoryview] = ()
    preferred: int = -1
    """The node from which the consumer should fetch; -1 if it should stay with this one."""


def read(frame: memoryview, place: int, version: int) -> FetchRequest:
    """Read the request whose body begins at ``place``. Raises `MalformedError`."""
    cursor = Cursor(frame, place, flexible=version >= FLEXIBLE, limit=ELEMENTS)
    if version < 15:
        cursor.i32()  # replica id: this cluster has no followers
    max_wait_ms, min_bytes, max_bytes, isolation = cursor.i32(), cursor.i32(), cursor.i32(), cursor.i8()
    session_id, session_epoch = (cursor.i32(), cursor.i32()) if version >= 7 else (0, -1)
    topics: list[tuple[str | UUID, list[FetchPartition]]] = []
    for _ in range(cursor.count()):
        topic = _topic(cursor, version)
        topics.append((topic, _partitions(cursor, version)))
        cursor.tags()
    forgotten: list[tuple[str | UUID, int]] = []
    for _ in range(cursor.count() if version >= 7 else 0):
        topic = _topic(cursor, version)
        forgotten += [(topic, cursor.i32()) for _ in range(cursor.count())]
        cursor.tags()
    rack = (cursor.string() or "") if version >= 11 else ""
    cursor.tags()
    return FetchRequest(
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation,
        session_id,
        session_epoch,
        topics,
        forgotten,
        version >= TOPIC_IDS,
        rack,
    )


def epoch_place(body: int, version: int) -> int:
    """Return the place of the session's epoch in a request whose body begins at ``body``; since version 7."""
    # The replica id (until 14), three numbers of 4 bytes, the isolation, and the session's id.
    return body + (4 if version < 15 else 0) + 12 + 1 + 4


def partition_size(version: int) -> int:
    """Return the bytes of a partition of a request."""
    return _layout(version).size


def _layout(version: int) -> struct.Struct:
    if version >= FLEXIBLE:
        return _V12
    if version >= 9:
        return _V9
    return _V5 if version >= 5 else _V4


def _topic(cursor: Cursor, version: int) -> str | UUID:
    topic: str | UUID | None = cursor.uuid() if version >= TOPIC_IDS else cursor.string()
    if topic is None:
        raise MalformedError("a topic of the request has no name")
    return topic


def _partitions(cursor: Cursor, version: int) -> list[FetchPartition]:
    count, begin, layout = cursor.count(), cursor.place, _layout(version)
    if version < FLEXIBLE:
        rows = layout.iter_unpack(cursor.take(layout.size * count))
        if version < 9:
            return [FetchPartition(row[0], -1, row[1], row[-1]) for row in rows]
        return [FetchPartition(row[0], row[1], row[2], row[-1]) for row in rows]
    if begin + layout.size * count <= cursor.end:
        found = list(layout.iter_unpack(cursor.take(layout.size * count)))
        if not any(row[-1] for row in found):
            return [FetchPartition(row[0], row[1], row[2], row[5]) for row in found]
        cursor.place = begin
    # Some partitions have tagged fields.
    partitions = []
    for _ in range(count):
        index, leader_epoch, offset, _, _, most = _TAGGED.unpack(cursor.take(_TAGGED.size))
        partitions.append(FetchPartition(index, leader_epoch, offset, most))
        cursor.tags()
    return partitions


def write(
    version: int,
    isolation: int,
    topics: list[tuple[str | UUID, list[FetchResult]]],
    error: ErrorCode = ErrorCode.none,
    session: int = 0,
) -> list[bytes | memoryview]:
    """Write the body of the answer as buffers. ``session`` is the id of the session, 0 for none."""
    flexible = version >= FLEXIBLE
    tags = b"\0" if flexible else b""
    # Null means "no list of aborted transactions". Like Kafka, the broker sends an empty list to clients that read
    # committed records.
    if isolation == READ_COMMITTED:
        aborted = fields.array(0, flexible=flexible)
    else:
        aborted = b"\0" if flexible else b"\xff\xff\xff\xff"
    out: list[bytes | memoryview] = []
    head = _TOP.pack(0, error, session) if version >= 7 else _I32.pack(0)
    pending = [head, fields.array(len(topics), flexible=flexible)]
    for topic, results in topics:
        if isinstance(topic, UUID):
            pending.append(topic.bytes)
        else:
            pending.append(fields.string(topic, flexible=flexible))
        pending.append(fields.array(len(results), flexible=flexible))
        for result in results:
            pending.append(_PARTITION.pack(result.index, result.error, result.high_watermark, result.high_watermark))
            if version >= 5:
                pending.append(_I64.pack(result.log_start))
            pending.append(aborted)
            if version >= 11:
                pending.append(_I32.pack(result.preferred))
            size = sum(map(len, result.records))
            # An empty answer has length zero: librdkafka rejects null as invalid.
            pending.append(fields.varint(size + 1) if flexible else _I32.pack(size))
            if size:
                out.append(b"".join(pending))
                out.extend(result.records)
                pending = []
            pending.append(tags)
        pending.append(tags)
    pending.append(tags)
    out.append(b"".join(pending))
    return out


def throttled(body: Sequence[bytes | memoryview], throttle_ms: int) -> list[bytes | memoryview]:
    """Return the body of an answer with a throttle time, which is its first field."""
    return [_I32.pack(throttle_ms) + bytes(body[0][_I32.size :]), *body[1:]]
