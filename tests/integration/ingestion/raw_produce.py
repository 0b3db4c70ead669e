"""Produce records that no client library allows: a Produce request with record batch version 2 and any timestamp."""

import socket
import struct
from collections.abc import Sequence

_POLYNOMIAL = 0x82F63B78
PRODUCE, VERSION = 0, 3


def crc32c(data: bytes) -> int:
    """Return Castagnoli's checksum, computed bit by bit."""
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def varint(number: int) -> bytes:
    """Return a zigzag varint with seven bits a byte."""
    rest, encoded = number << 1 if number >= 0 else (-number << 1) - 1, bytearray()
    while rest > 0x7F:
        encoded.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([*encoded, rest])


def record_batch(values: Sequence[bytes], timestamp_ms: int, header: bytes | None = None) -> bytes:
    """Return a batch of records without keys, all with one timestamp, and with one header of this name or none."""
    headers = varint(0) if header is None else varint(1) + varint(len(header)) + header + varint(1) + b"v"
    records = b""
    for offset, value in enumerate(values):
        body = b"\0" + varint(0) + varint(offset) + varint(-1) + varint(len(value)) + value + headers
        records += varint(len(body)) + body
    last = len(values) - 1
    checked = struct.pack(">hiqqqhii", 0, last, timestamp_ms, timestamp_ms, -1, -1, -1, len(values)) + records
    rest = struct.pack(">ibI", -1, 2, crc32c(checked)) + checked
    return struct.pack(">qi", 0, len(rest)) + rest


def produce(
    bootstrap: str, topic: str, values: Sequence[bytes], timestamp_ms: int, header: bytes | None = None
) -> None:
    """Produce to partition 0 of a topic, whose leader is the broker at ``bootstrap``, and wait for the reply.

    Raises ValueError with Kafka's error code."""
    batch, name = record_batch(values, timestamp_ms, header), topic.encode()
    header = struct.pack(">hhih", PRODUCE, VERSION, 1, -1)
    body = struct.pack(f">hhiih{len(name)}siii", -1, -1, 30_000, 1, len(name), name, 1, 0, len(batch)) + batch
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">i", len(header + body)) + header + body)
        (size,) = struct.unpack(">i", answers.read(4))
        answer = answers.read(size)
    # Correlation id, then one topic with its name, then one partition with its number.
    (code,) = struct.unpack_from(">h", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    if code != 0:
        raise ValueError(f"Kafka's error code {code}")
