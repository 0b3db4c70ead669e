"""Requests and answers of the simulation's clients: Produce and Fetch by hand because they are frequent, all others through kio."""

import io
import struct
from functools import cache
from typing import Any, NamedTuple

from crc32c import crc32c
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from firn.records import record_batch
from firn_broker.network.router import Client
from tests.simulation.broker.history import Batch
from tests.simulation.broker.world import Dead, Host, World
from tests.unit.broker.batches import raw
from tests.unit.broker.whole import fill

PRODUCE, FETCH = 0, 1
_request, _response = cache(load_request_schema), cache(load_response_schema)
_IDENTITY = struct.Struct(">ii")


def batch(number: int, sender: int, count: int, padding: int, **more: int) -> memoryview:
    """Build a batch whose bytes name its producer and its number."""
    return raw(count, body=_IDENTITY.pack(sender, number) + bytes(max(padding, 7 * count)), **more)


def batches(data: memoryview) -> list[Batch]:
    """Read the batches of a reply, and check their checksums and bytes."""
    batches = []
    for place, size, count in record_batch.walk(data):
        batch = data[place : place + size]
        assert crc32c(batch[21:]) == int.from_bytes(batch[17:21], "big"), (
            f"the checksum at {place} does not match the batch"
        )
        assert not any(batch[record_batch.HEADER + _IDENTITY.size :]), f"the batch at {place} has other bytes than sent"
        (base,) = struct.unpack_from(">q", data, place)
        batches.append(Batch(base, count, *_IDENTITY.unpack_from(data, place + record_batch.HEADER)))
    return batches


async def produce(
    world: World,
    host: Host,
    client: Client,
    topic: str,
    partition: int,
    data: memoryview,
    *,
    acks: int = -1,
    seconds: float = 4.0,
) -> tuple[int, int]:
    """Produce a batch and return (error, base offset). With ``acks`` 0 there is no reply. Raises Dead."""
    name = topic.encode()
    body = struct.pack(f">hhiih{len(name)}siii", -1, acks, 1000, 1, len(name), name, 1, partition, len(data))
    reply = await world.ask(host, client, PRODUCE, 7, body + bytes(data), seconds=seconds)
    if acks == 0:
        return 0, -1
    error, offset = struct.unpack_from(">hq", reply, 4 + 2 + len(name) + 4 + 4)
    return error, offset


class Fetched(NamedTuple):
    """The reply to a fetch of one partition."""

    error: int
    start: int
    high: int
    batches: list[Batch]


async def fetch(
    world: World, host: Host, client: Client, topic: str, partition: int, offset: int, *, wait_ms: int = 0
) -> Fetched:
    """Fetch one partition with version 11. Raises Dead."""
    error, start, high, data = await fetch_bytes(world, host, client, topic, partition, offset, wait_ms=wait_ms)
    return Fetched(error, start, high, batches(data))


async def fetch_bytes(
    world: World, host: Host, client: Client, topic: str, partition: int, offset: int, *, wait_ms: int = 0
) -> tuple[int, int, int, memoryview]:
    """Fetch, and return (error, log start, high watermark, batches as bytes). Raises Dead."""
    reply = await world.ask(host, client, FETCH, 11, _fetch_body(topic, partition, offset, wait_ms, 0, -1))
    return _fetched_bytes(reply, topic)


class Session(NamedTuple):
    """A fetch session (KIP-227) as the consumer knows it."""

    id: int = 0
    epoch: int = 0
    offset: int = -1
    """The offset in the last request that named the partition."""
    bounds: tuple[int, int] | None = None
    """Log start and high watermark in the last answer that had the partition; None after an error."""


async def fetch_in(
    world: World, host: Host, client: Client, topic: str, partition: int, offset: int, *, wait_ms: int, session: Session
) -> tuple[Fetched, Session]:
    """Fetch one partition in a session, and return what the consumer knows then. Raises Dead."""
    named = offset != session.offset
    body = _fetch_body(topic, partition, offset, wait_ms, session.id, session.epoch, named=named)
    reply = await world.ask(host, client, FETCH, 11, body)
    error, id, topics = struct.unpack_from(">hii", reply, 4)
    assert not error, f"error {error} for {session}"
    if not topics:
        assert session.bounds is not None, f"the answer lacks the partition: {session}"
        return Fetched(0, *session.bounds, []), session._replace(epoch=session.epoch + 1)
    problem, start, high, data = _fetched_bytes(reply, topic)
    after = Session(id, session.epoch + 1, offset, None if problem else (start, high)) if id else Session()
    return Fetched(problem, start, high, batches(data)), after


def _fetch_body(
    topic: str, partition: int, offset: int, wait_ms: int, session: int, epoch: int, *, named: bool = True
) -> bytes:
    """Return a fetch of one partition, or of all partitions of the session if it is not ``named``."""
    name = topic.encode()
    head = struct.pack(">iiiibii", -1, wait_ms, 1 if wait_ms else 0, 1 << 16, 0, session, epoch)
    if not named:
        return head + bytes(10)
    return head + struct.pack(
        f">ih{len(name)}siiiqqiih", 1, len(name), name, 1, partition, -1, offset, -1, 1 << 16, 0, 0
    )


def _fetched_bytes(reply: bytes, topic: str) -> tuple[int, int, int, memoryview]:
    """Return (error, log start, high watermark, batches as bytes) of an answer."""
    place = 4 + 2 + 4 + 4 + 2 + len(topic.encode()) + 4 + 4
    error, high, _, start, _, _, size = struct.unpack_from(">hqqqiii", reply, place)
    place += struct.calcsize(">hqqqiii")
    return error, start, high, memoryview(reply)[place : place + size]


async def call(
    world: World, host: Host, api: int, version: int, *, seconds: float = 4.0, client: str = "", **fields: Any
) -> Any:
    """Send any other request, on a connection of its own. Raises Dead."""
    buffer = io.BytesIO()
    schema = _request(api, version)
    entity_writer(schema)(buffer, fill(schema, fields))
    reply = await world.ask(host, Client("peer"), api, version, buffer.getvalue(), name=client, seconds=seconds)
    if not reply:
        raise Dead
    answer, _ = entity_reader(_response(api, version))(reply, 0)
    return answer
