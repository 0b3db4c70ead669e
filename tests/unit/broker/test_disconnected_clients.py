"""Clients that disconnect while they wait for an answer: the broker cancels their reads, and nothing breaks."""

import asyncio
import io
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer
from kio.static.primitive import i32Timedelta

from firn_broker.log_types import LOOKUP_RANGES, Lookup, LookupResult
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from firn_broker.network.server import Server
from firn_broker.settings import ConnectionSettings
from firn_broker.wire import headers
from tests.unit.broker.connections import until
from tests.unit.broker.whole import Asked, Shared, broker, create, fill

FETCH, JOIN, SYNC, LEAVE = 1, 11, 14, 13
PROTOCOL = {"name": "range", "metadata": b"x"}


def seconds(number: float) -> Any:
    return i32Timedelta.parse(timedelta(seconds=number))


def request(api: int, version: int, **fields: Any) -> bytes:
    schema, buffer = load_request_schema(api, version), io.BytesIO()
    entity_writer(schema)(buffer, fill(schema, fields))
    body = struct.pack(">hhih", api, version, 1, 4) + b"test" + b"\0" * headers.is_flexible(api, version)
    body += buffer.getvalue()
    return len(body).to_bytes(4, "big") + body


def poll() -> bytes:
    """Return a Fetch request that waits while the log is empty."""
    partition = {
        "partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    return request(
        FETCH, 12, replica_id=-1, max_wait=seconds(300), min_bytes=1, max_bytes=1 << 20, session_id=0, session_epoch=-1,
        topics=[{"topic": "t", "partitions": [partition]}], forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


def joins(member: str, group: str = "g") -> bytes:
    return request(
        JOIN, 9, group_id=group, session_timeout=seconds(30), rebalance_timeout=seconds(300), member_id=member,
        group_instance_id=None, protocol_type="consumer", protocols=[PROTOCOL], reason=None,
    )  # fmt: skip


class Client:
    """A client with a socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, frame: bytes) -> None:
        self._writer.write(frame)

    async def receive(self, api: int, version: int) -> Any:
        async with asyncio.timeout(10):
            size = int.from_bytes(await self._reader.readexactly(4), "big")
            answer = await self._reader.readexactly(size)
        reply, _ = entity_reader(load_response_schema(api, version))(answer[4 + headers.is_flexible(api, version) :], 0)
        return reply

    async def ask(self, api: int, version: int, frame: bytes) -> Any:
        self.send(frame)
        return await self.receive(api, version)

    def go(self) -> None:
        self._writer.transport.abort()


Connect = Callable[[], Awaitable[Client]]


@asynccontextmanager
async def serving(
    shared: Shared, authorization: str = "Open", **settings: Any
) -> AsyncIterator[tuple[Asked, Server, Connect]]:
    authorizes = {"type": authorization, "default": "Allow"}
    async with broker(shared, groups={"initial_rebalance_ms": 0}, authorization=authorizes) as asked:
        await create(asked, "t")
        server = Server(ConnectionSettings(drain_seconds=0.05, **settings))
        _, port = await server.bind("127.0.0.1", 0)
        await server.accept(asked.broker.router)

        async def connect() -> Client:
            return Client(*await asyncio.open_connection("127.0.0.1", port))

        yield asked, server, connect
        await server.stop(1, asked.broker.wake)


async def test_long_polls_end_with_their_clients() -> None:
    async with serving(Shared()) as (asked, server, connect):
        tasks = len(asyncio.all_tasks())
        watermarks = asked.broker.watermarks
        clients = [await connect() for _ in range(20)]
        for client in clients:
            client.send(poll() * 4)
        await until(lambda: sum(map(len, watermarks._watches.values())) == len(clients))
        for client in clients:
            client.go()
        await until(lambda: not server._connections)
        assert (watermarks.watched(), len(asyncio.all_tasks())) == ([], tasks)


class Slow(SqliteLog):
    """Lookups of records wait for ``gate``."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared.store.database)
        self.gate = asyncio.Event()
        self.under_way = 0

    async def find(self, wanted: Sequence[Lookup], runs: int = LOOKUP_RANGES) -> Sequence[LookupResult]:
        self.under_way += 1
        try:
            await self.gate.wait()
            return await super().find(wanted, runs)
        finally:
            self.under_way -= 1


async def test_reads_of_a_hanging_coordinator_end_with_their_clients() -> None:
    shared = Shared()
    shared.store.log = slow = Slow(shared)
    async with serving(shared, max_connections=1) as (asked, server, connect):
        for _ in range(3):
            client = await connect()
            client.send(poll())
            await until(lambda: slow.under_way == 1)
            client.go()
            await until(lambda: not server._connections)
            assert slow.under_way == 0
        assert asked.broker.reader.answers.used == 0
        slow.gate.set()


async def test_a_disconnected_member_counts_until_the_rebalance_ends() -> None:
    async with serving(Shared(), max_connections=2) as (asked, server, connect):
        stays, goes = await connect(), await connect()
        first = (await stays.ask(JOIN, 9, joins(""))).member_id
        joined = await stays.ask(JOIN, 9, joins(first))
        second = (await goes.ask(JOIN, 9, joins(""))).member_id
        goes.send(joins(second))
        await until(lambda: asked.broker.groups.counts().get("PreparingRebalance") == 1)
        goes.go()
        await until(lambda: sum(connection._lost for connection in server._connections) == 1)
        # The rebalance waits for the first member, and the second for the rebalance.
        joined = await stays.ask(JOIN, 9, joins(first))
        assert (joined.error_code, len(joined.members)) == (ErrorCode.none, 2)
        await until(lambda: len(server._connections) == 1)
        synced = await stays.ask(
            SYNC, 5,
            request(
                SYNC, 5, group_id="g", generation_id=joined.generation_id, member_id=first, group_instance_id=None,
                protocol_type="consumer", protocol_name="range", assignments=[{"member_id": first, "assignment": b"all"}],
            ),
        )  # fmt: skip
        assert (synced.error_code, synced.assignment) == (ErrorCode.none, b"all")


async def test_a_member_that_leaves_and_disconnects_has_left() -> None:
    async with serving(Shared()) as (asked, server, connect):
        client = await connect()
        member = (await client.ask(JOIN, 9, joins(""))).member_id
        assert not (await client.ask(JOIN, 9, joins(member))).error_code
        client.send(
            poll()
            + request(
                LEAVE, 5, group_id="g", members=[{"member_id": member, "group_instance_id": None, "reason": None}]
            )
        )
        (connection,) = server._connections
        await until(lambda: bool(asked.broker.watermarks.watched()) and connection._requests == 2)
        client.go()
        await until(lambda: not server._connections)
        group = await asked.broker.groups.describe("g")
        assert group is None or group.empty
