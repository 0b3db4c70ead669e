"""Record batches as brokers store them, made record by record."""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import cramjam
from crc32c import crc32c

TRANSACTIONAL, CONTROL, APPEND_TIME = 0x10, 0x20, 0x08
COMPRESS: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda data: bytes(cramjam.gzip.compress(data)),
    2: lambda data: bytes(cramjam.snappy.compress_raw(data)),
    3: lambda data: bytes(cramjam.lz4.compress(data)),
    4: lambda data: bytes(cramjam.zstd.compress(data)),
}


@dataclass(frozen=True)
class Record:
    """A record; ``delta`` is the distance of its offset from that of its batch."""

    delta: int
    value: bytes | None = b"v"
    key: bytes | None = None
    time: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] = ()


@dataclass(frozen=True)
class Batch:
    """A record batch with ``records``, which cover the offsets from ``base`` to ``base + last``."""

    base: int
    records: Sequence[Record]
    last: int | None = None
    codec: int = 0
    attributes: int = 0
    producer: int = -1
    times: tuple[int, int] = (1_700_000_000_000, 1_700_000_001_000)
    body: bytes | None = field(default=None)
    """The bytes of the records, if they are not those of ``records``."""

    def encode(self) -> bytes:
        """Return the bytes in the log."""
        body = COMPRESS[self.codec](b"".join(map(record, self.records)) if self.body is None else self.body)
        last = self.last if self.last is not None else max((one.delta for one in self.records), default=0)
        rest = struct.pack(
            ">hiqqqhii", self.attributes | self.codec, last, *self.times, self.producer, 0, 0, len(self.records)
        )
        rest += body
        return struct.pack(">qiibI", self.base, len(rest) + 9, 0, 2, crc32c(rest)) + rest


def marker(base: int, producer: int, *, aborts: bool) -> Batch:
    """Return the control batch at the end of a transaction."""
    key = struct.pack(">hh", 0, 0 if aborts else 1)
    return Batch(base, [Record(0, b"\0" * 6, key)], attributes=CONTROL | TRANSACTIONAL, producer=producer)


def varint(number: int) -> bytes:
    """Return a zigzag varint."""
    rest, encoded = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def nullable(data: bytes | None) -> bytes:
    """Return the length of bytes and the bytes."""
    return varint(-1) if data is None else varint(len(data)) + data


def record(one: Record) -> bytes:
    """Return the bytes of a record."""
    body = b"\0" + varint(one.time) + varint(one.delta) + nullable(one.key) + nullable(one.value)
    body += varint(len(one.headers)) + b"".join(nullable(name) + nullable(value) for name, value in one.headers)
    return varint(len(body)) + body
