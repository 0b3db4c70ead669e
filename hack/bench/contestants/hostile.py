"""Slow and hostile clients of a broker, in a process of their own: ``python -m hack.bench.contestants.hostile KIND HOST:PORT TOPIC``.

They come from another address than the well-behaved clients, and run until the process is killed.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from collections.abc import Awaitable, Callable

from hack.bench.contestants import wire_client
from tests.unit.broker.batches import raw
from tests.unit.broker.test_compaction import batch as keyed

ADDRESS = "127.0.0.2"
CONNECTIONS = 50
DENSE_RECORDS = 10_000
MIB = 1 << 20
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def stay_idle(streams: Streams, _: str) -> None:
    """Send nothing: what changes beside this client is noise of the machine."""
    await streams[0].read()


async def announce(streams: Streams, _: str) -> None:
    """Announce a request of 64 MiB, and send its first bytes only."""
    reader, writer = streams
    writer.write(struct.pack(">i", 64 * MIB) + wire_client.request(wire_client.PRODUCE, b"")[4:])
    await reader.read()


async def write_slowly(streams: Streams, topic: str) -> None:
    """Send requests of 1 MiB at 100 KB/s."""
    _, writer = streams
    frame = wire_client.request(wire_client.PRODUCE, wire_client.produce(topic, 0, bytes(raw(body=bytes(MIB - 200)))))
    while True:
        for start in range(0, len(frame), 10_000):
            writer.write(frame[start : start + 10_000])
            await writer.drain()
            await asyncio.sleep(0.1)


async def read_slowly(streams: Streams, topic: str) -> None:
    """Ask for 50 MiB of history again and again, and read 100 KB/s."""
    reader, writer = streams
    writer.write(5 * wire_client.request(wire_client.FETCH, wire_client.fetch(topic, 0, 0, 50 * MIB)))
    while True:
        if not await reader.read(10_000):
            return
        await asyncio.sleep(0.1)


async def produce_dense(streams: Streams, _: str) -> None:
    """Send batches of many small records for a compacted topic, one after the other."""
    reader, writer = streams
    now = int(time.time() * 1000)
    batch = bytes(keyed(*((b"%d" % number, b"") for number in range(DENSE_RECORDS)), time=now))
    while True:
        writer.write(wire_client.request(wire_client.PRODUCE, wire_client.produce("compacted", 0, batch)))
        error = wire_client.produce_error(await wire_client.answer(reader))
        assert not error, f"Kafka error {error}"


KINDS: dict[str, tuple[int, Callable[[Streams, str], Awaitable[None]]]] = {
    "idle": (1, stay_idle),
    "announcing": (CONNECTIONS, announce),
    "slow_writer": (CONNECTIONS, write_slowly),
    "slow_reader": (CONNECTIONS, read_slowly),
    "dense": (1, produce_dense),
}


async def attack(kind: str, bootstrap: str, topic: str) -> None:
    """Run the clients of a kind. One that the broker disconnects comes again."""
    count, work = KINDS[kind]
    host, port = bootstrap.split(":")

    async def client() -> None:
        while True:
            streams = await asyncio.open_connection(host, int(port), local_addr=(ADDRESS, 0), limit=16_384)
            try:
                await work(streams, topic)
            except OSError:
                pass
            finally:
                streams[1].transport.abort()
            await asyncio.sleep(0.1)

    await asyncio.gather(*(client() for _ in range(count)))


if __name__ == "__main__":
    asyncio.run(attack(*sys.argv[1:]))
