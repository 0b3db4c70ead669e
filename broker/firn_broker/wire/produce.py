"""Produce, versions 0 to 11, by hand: records stay views of the frame, and the answer is one join.

Fields by version: transactional id since 3, flexible since 9; in the answer the log append time since 2, throttle time
since 1, log start offset since 5, record errors and message since 8."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from firn.records import cursor as fields
from firn.records.cursor import Cursor, MalformedError

FLEXIBLE = 9
_PARTITION = struct.Struct(">ihq")
_I64 = struct.Struct(">q")
_I32 = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class ProducePartition:
    """Records for one partition; None where the client sent null."""

    index: int
    records: memoryview | None


@dataclass(frozen=True, slots=True)
class ProduceRequest:
    """A produce request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[tuple[str, list[ProducePartition]]]
    elements: int
    """Topics and partitions, and whatever else there is many of in it."""


@dataclass(frozen=True, slots=True)
class ProduceResult:
    """The result of a partition's batch. Missing offsets and times are -1."""

    index: int
    error: ErrorCode = ErrorCode.none
    base_offset: int = -1
    append_ms: int = -1
    log_start: int = -1
    message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    """Index in the batch, and the reason, of each record for which the batch was rejected."""


def read(frame: memoryview, place: int, version: int) -> ProduceRequest:
    """Read the request whose body begins at ``place``. Raises `MalformedError`."""
    cursor = Cursor(frame, place, flexible=version >= FLEXIBLE)
    transactional_id = cursor.string() if version >= 3 else None
    acks, timeout_ms = cursor.i16(), cursor.i32()
    topics = []
    for _ in range(cursor.count()):
        name = cursor.string()
        if name is None:
            raise MalformedError("a topic of the request has no name")
        partitions = []
        for _ in range(cursor.count()):
            index = cursor.i32()
            partitions.append(ProducePartition(index, cursor.view()))
            cursor.tags()
        cursor.tags()
        topics.append((name, partitions))
    cursor.tags()
    return ProduceRequest(transactional_id, acks, timeout_ms, topics, cursor.elements)


def write(version: int, topics: list[tuple[str, list[ProduceResult]]], throttle_ms: int = 0) -> bytes:
    """Write the body of the answer."""
    flexible = version >= FLEXIBLE
    out = [fields.array(len(topics), flexible=flexible)]
    for name, results in topics:
        out += (fields.string(name, flexible=flexible), fields.array(len(results), flexible=flexible))
        for result in results:
            out.append(_PARTITION.pack(result.index, result.error, result.base_offset))
            if version >= 2:
                out.append(_I64.pack(result.append_ms))
            if version >= 5:
                out.append(_I64.pack(result.log_start))
            if version >= 8:
                out.append(fields.array(len(result.record_errors), flexible=flexible))
                for place, why in result.record_errors:
                    out += (_I32.pack(place), fields.string(why, flexible=flexible), b"\0" if flexible else b"")
                out.append(fields.string(result.message, flexible=flexible))
            if flexible:
                out.append(b"\0")
        if flexible:
            out.append(b"\0")
    if version >= 1:
        out.append(_I32.pack(throttle_ms))
    if flexible:
        out.append(b"\0")
    return b"".join(out)
