"""Connections of a server whose requests a test answers."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

from firn.records.cursor import MalformedError
from firn_broker.network.budget import Budget
from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import Server
from firn_broker.settings import ConnectionSettings
from firn_broker.wire.headers import RequestHeader

PRODUCE, TOLD, OTHER, BAD = 0, 1, 3, 4


class Router:
    """Answers each request with its correlation id when the test releases it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.stalls = 0
        self.cut: list[int] = []
        self.answer = b""
        """The bytes of an answer behind its correlation id."""
        self.closes = False
        """True if a connection is closed after an answer."""

    def reads(self, key: int) -> bool:
        return key == TOLD

    def stalled(self) -> None:
        self.stalls += 1

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        self.begun.append(header.correlation)
        if header.api == BAD:
            raise MalformedError("bad")
        if (gate := self.gates.get(header.correlation)) is not None:
            try:
                await gate.wait()
            except asyncio.CancelledError:
                self.cut.append(header.correlation)
                raise
        client.closing = self.closes
        return [header.correlation.to_bytes(4, "big"), self.answer]

    def hold(self, *numbers: int) -> None:
        self.gates.update({number: asyncio.Event() for number in numbers})

    async def until(self, *numbers: int, pause: float = 0.02) -> None:
        """Wait until exactly these requests have begun, and a while longer."""
        async with asyncio.timeout(60):
            while not set(numbers) <= set(self.begun):
                await asyncio.sleep(0.001)
        await asyncio.sleep(pause)
        assert self.begun == list(numbers)


def request(api: int, number: int, size: int = 20) -> bytes:
    body = api.to_bytes(2, "big") + b"\0\0" + number.to_bytes(4, "big") + b"\xff\xff" + b"x" * (size - 10)
    return len(body).to_bytes(4, "big") + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[int]:
    numbers = []
    for _ in range(count):
        async with asyncio.timeout(60):
            size = int.from_bytes(await reader.readexactly(4), "big")
            numbers.append(int.from_bytes(await reader.readexactly(size), "big"))
    return numbers


async def closed(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(60):
        with suppress(ConnectionResetError):
            assert await reader.read() == b""


async def free(budget: Budget) -> None:
    """Wait until the budget is free and no request waits."""
    async with asyncio.timeout(60):
        while budget.used or budget.waiting:
            await asyncio.sleep(0.001)


async def waiting(budget: Budget, count: int) -> None:
    """Wait until this number of requests wait for memory."""
    await until(lambda: budget.waiting == count)


async def lost(server: Server) -> None:
    """Wait until all connections are lost."""
    await until(lambda: all(connection._lost for connection in server._connections))


async def until(holds: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


async def gone(server: Server, left: int) -> None:
    """Wait until ``left`` connections remain."""
    async with asyncio.timeout(60):
        while len(server._connections) != left:
            await asyncio.sleep(0.001)


@asynccontextmanager
async def serving(router: Router | None = None, **settings: Any) -> AsyncIterator[tuple[Server, Router, int]]:
    server, router = Server(ConnectionSettings(**settings)), router or Router()
    _, port = await server.bind("127.0.0.1", 0)
    await server.accept(router)  # type: ignore[arg-type]
    try:
        yield server, router, port
    finally:
        await server.stop(1, lambda: None)
