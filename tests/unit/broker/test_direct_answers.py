"""Answers that come without a task: sent at once and in the order of the requests, whatever happens meanwhile."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from firn_broker.network.budget import Counted, Share
from firn_broker.network.output import SMALL
from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import UNCOUNTED, Server
from firn_broker.wire.headers import RequestHeader
from tests.unit.broker import connections
from tests.unit.broker.connections import OTHER, answers, closed, free, gone, lost, request, serving, until


class Repeated:
    """Answers every later request of its connection when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[asyncio.Future[Buffers | None]] = []
        self.handled = False
        """True if a task handles the request in full, so that its answer comes also after a disconnect."""

    def again(self, frame: memoryview, serve: Callable[[], Any]) -> "asyncio.Future[Buffers | None]":
        self.waiting.append(asyncio.get_running_loop().create_future())
        return self.waiting[-1]

    def abandon(self) -> None:
        for answer in self.waiting if not self.handled else ():
            answer.cancel()

    def release(self) -> None:
        pass

    async def until(self, count: int) -> None:
        await until(lambda: len(self.waiting) >= count)


class Router(connections.Router):
    """Lets `Repeated` answer the later requests of a connection."""

    def __init__(self) -> None:
        super().__init__()
        self.repeated = Repeated()

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        answer = await super().handle(header, frame, client)
        client.repeatable = self.repeated
        return answer


def number(value: int, size: int = 4) -> list[bytes]:
    return [value.to_bytes(4, "big"), bytes(size - 4)]


@asynccontextmanager
async def repeating(
    router: Router, limit: int = 1 << 16
) -> AsyncIterator[tuple[Server, asyncio.StreamReader, asyncio.StreamWriter]]:
    """Connect to a server inside the with block. The first request is answered, and `Repeated` answers all others."""
    async with serving(router) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=limit)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        yield server, reader, writer
        writer.close()


async def test_a_request_behind_a_repeated_one_is_answered_after_it() -> None:
    router = Router()
    async with repeating(router) as (server, reader, writer):
        (connection,) = server._connections
        writer.write(request(OTHER, 2))
        await router.repeated.until(1)
        assert connection._direct is not None
        writer.write(request(OTHER, 3))
        await until(lambda: connection._requests == 2)
        router.repeated.waiting[0].set_result(number(2))
        assert await answers(reader, 2) == [2, 3]
        writer.write(request(OTHER, 4))
        await router.repeated.until(2)
        router.repeated.waiting[1].set_result(number(4))
        assert await answers(reader, 1) == [4]


async def test_many_repeated_requests_hold_no_memory_after_their_answers() -> None:
    router = Router()
    async with repeating(router) as (server, reader, writer):
        for value in range(2, 50):
            writer.write(request(OTHER, value, size=2 * UNCOUNTED))
            await router.repeated.until(value - 1)
            router.repeated.waiting[-1].set_result(number(value))
            assert await answers(reader, 1) == [value]
            await free(server._budget)


@pytest.mark.parametrize("handled", [False, True], ids=["waits", "is handled"])
async def test_a_client_that_disconnects_during_a_repeated_request_leaves_nothing_behind(handled: bool) -> None:
    router = Router()
    router.repeated.handled = handled
    async with repeating(router) as (server, _, writer):
        writer.write(request(OTHER, 2, size=2 * UNCOUNTED))
        await router.repeated.until(1)
        assert server._budget.used
        writer.close()
        await lost(server)
        if handled:
            router.repeated.waiting[0].set_result(number(2))
        await free(server._budget)
        await gone(server, 0)


async def test_a_stopping_server_answers_a_repeated_request() -> None:
    router = Router()
    async with repeating(router) as (server, reader, writer):
        writer.write(request(OTHER, 2))
        await router.repeated.until(1)
        (connection,) = server._connections
        stopping = asyncio.create_task(server.stop(30, lambda: None))
        await until(lambda: connection._input.paused_for("stopping"))
        router.repeated.waiting[0].set_result(number(2))
        assert await answers(reader, 1) == [2]
        await closed(reader)
        await stopping


async def test_a_large_answer_is_released_only_when_the_client_took_it() -> None:
    router, size = Router(), 200 * SMALL
    async with repeating(router, limit=1 << 10) as (server, reader, writer):
        writer.write(request(OTHER, 2))
        await router.repeated.until(1)
        (connection,) = server._connections
        share = Share(server._budget, "client")
        await share.acquire(size)
        router.repeated.waiting[0].set_result(Counted([bytes(size)], share))
        await until(lambda: not connection._output.ready.is_set())
        assert server._budget.used
        await reader.readexactly(4 + size)
        await free(server._budget)


async def test_answers_that_the_client_does_not_read_are_bounded() -> None:
    router, size, most = Router(), SMALL // 2, 2_000
    async with repeating(router, limit=1 << 10) as (server, reader, writer):
        (connection,) = server._connections
        sent = 0
        while sent < most and connection._output.ready.is_set():
            writer.write(request(OTHER, 2 + sent))
            await router.repeated.until(sent + 1)
            router.repeated.waiting[sent].set_result(number(2 + sent, size))
            sent += 1
            while connection._requests and connection._output.ready.is_set():
                await asyncio.sleep(0)
        assert sent < most, "the connection pauses when its client reads nothing"
        assert connection._requests, "the last answer counts until the client takes bytes"
        assert connection._transport.get_write_buffer_size() <= SMALL + size + 8
        for value in range(2, 2 + sent):
            assert int.from_bytes((await reader.readexactly(4 + size))[4:8], "big") == value
        await free(server._budget)


@pytest.mark.parametrize("cancelled", [False, True], ids=["failed", "cancelled"])
async def test_a_repeated_request_without_an_answer_ends_the_connection(cancelled: bool) -> None:
    router = Router()
    async with repeating(router) as (server, reader, writer):
        writer.write(request(OTHER, 2))
        await router.repeated.until(1)
        (answer,) = router.repeated.waiting
        if cancelled:
            answer.cancel()
        else:
            answer.set_exception(RuntimeError("broken"))
        await closed(reader)
        await gone(server, 0)
