"""A Kafka client that writes its requests by hand, so that it can also misbehave."""

from __future__ import annotations

import asyncio
import struct

RECORD_BYTES = 1000
PRODUCE, FETCH = (0, 7), (1, 11)
_HEAD = struct.Struct(">ihhih")


def request(api: tuple[int, int], body: bytes, number: int = 0) -> bytes:
    """Return the frame of a request without a client id."""
    return _HEAD.pack(len(body) + 10, *api, number, -1) + body


def produce(topic: str, partition: int, batch: bytes) -> bytes:
    """Return the body of a Produce request (version 7) with one batch, acks=all."""
    name = topic.encode()
    return (
        struct.pack(">hhiih", -1, -1, 30_000, 1, len(name))
        + name
        + struct.pack(">iii", 1, partition, len(batch))
        + batch
    )


def fetch(topic: str, partition: int, offset: int, most: int, wait_ms: int = 500) -> bytes:
    """Return the body of a Fetch request (version 11) of at most ``most`` bytes."""
    name = topic.encode()
    return (
        struct.pack(">iiiibiiih", -1, wait_ms, 1, most, 0, 0, -1, 1, len(name))
        + name
        + struct.pack(">iiiqqiih", 1, partition, -1, offset, -1, most, 0, 0)
    )


def produce_error(answer: bytes) -> int:
    """Return the error of the first partition in an answer to `produce`."""
    (length,) = struct.unpack_from(">h", answer, 8)
    (error,) = struct.unpack_from(">h", answer, 10 + length + 8)
    return int(error)


async def answer(reader: asyncio.StreamReader) -> bytes:
    """Read the next answer."""
    (size,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(size)
