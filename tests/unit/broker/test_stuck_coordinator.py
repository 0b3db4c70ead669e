"""A coordinator that does not reply: the memory for requests stays within its bound, and all of it is released."""

import asyncio
import io
import struct
import tracemalloc
from collections.abc import Sequence
from datetime import timedelta

from kio.index import load_request_schema
from kio.serial import entity_writer
from kio.static.primitive import i32Timedelta

from firn_broker.log_types import BatchOutcome, Commit
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from firn_broker.network.server import Server
from firn_broker.settings import ConnectionSettings
from tests.unit.broker.batches import raw
from tests.unit.broker.whole import Shared, broker, create, fill

CLIENTS = 50
ROUNDS = 3
BATCH = 60_000
BOUND = 1 << 20


class Stuck(SqliteLog):
    """Commits wait for ``gate``."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.store.database)
        self.gate = asyncio.Event()

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        await self.gate.wait()
        return await super().commit(commit)


def request(number: int) -> bytes:
    """Return a Produce request of version 9 with a batch of one record."""
    schema, buffer = load_request_schema(0, 9), io.BytesIO()
    topics = [{"name": "t", "partition_data": [{"index": 0, "records": bytes(raw(body=b"x" * BATCH))}]}]
    entity_writer(schema)(
        buffer,
        fill(schema, {"acks": -1, "timeout": i32Timedelta.parse(timedelta(minutes=5)), "topic_data": topics}),
    )
    body = struct.pack(">hhih", 0, 9, number, 4) + b"test\0" + buffer.getvalue()
    return len(body).to_bytes(4, "big") + body


async def test_reconnecting_clients_do_not_accumulate_requests() -> None:
    shared = Shared()
    shared.store.log = stuck = Stuck(shared)
    async with broker(shared, writer={"flush_bytes": 1 << 18, "flush_seconds": 0.05}) as asked:
        await create(asked, "t")
        server = Server(ConnectionSettings(buffered_bytes=BOUND, idle_seconds=0.5))
        _, port = await server.bind("127.0.0.1", 0)
        await server.accept(asked.broker.router)
        frame = request(1)
        tracemalloc.start()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(ROUNDS):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CLIENTS)]
            for _, writer in clients:
                writer.write(frame * 5)
            async with asyncio.timeout(60):
                while not server._budget.waiting:
                    await asyncio.sleep(0.001)
            # A connection beyond its share leaves two eighths free.
            assert BOUND * 3 // 4 - len(frame) < server._budget.used <= BOUND
            for _, writer in clients:
                writer.transport.abort()
            async with asyncio.timeout(60):
                while not all(connection._lost for connection in server._connections):
                    await asyncio.sleep(0.001)
            # No request waits in line any more, and the accepted ones are still to be committed.
            assert server._budget.waiting == 0
            assert 0 < server._budget.used <= BOUND
            assert tracemalloc.get_traced_memory()[0] - before < 8 * BOUND, "frames, and objects of them"
        tracemalloc.stop()
        stuck.gate.set()
        async with asyncio.timeout(60):
            while server._budget.used:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(7))
        async with asyncio.timeout(60):
            size = int.from_bytes(await reader.readexactly(4), "big")
            assert int.from_bytes((await reader.readexactly(size))[:4], "big") == 7
        writer.close()
        await server.stop(1, lambda: None)
