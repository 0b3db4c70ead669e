"""Connections: answers in the order of requests, reading ahead within bounds, and nobody's end but one's own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from firn_broker.budget import Budget
from firn_broker.router import Client
from firn_broker.server import Server
from firn_broker.settings import ConnectionSettings
from firn_broker.wire.cursor import MalformedError
from firn_broker.wire.headers import RequestHeader

PRODUCE, OTHER, BAD = 0, 3, 4


class Router:
    """Answers each request with its correlation id, as soon as a test lets it."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}
        self.stalls = 0

    def stalled(self) -> None:
        self.stalls += 1

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> list[bytes] | None:
        self.begun.append(header.correlation)
        if header.api == BAD:
            raise MalformedError("bad")
        if (gate := self.gates.get(header.correlation)) is not None:
            await gate.wait()
        return [header.correlation.to_bytes(4, "big")]

    def hold(self, *numbers: int) -> None:
        self.gates.update({number: asyncio.Event() for number in numbers})

    async def until(self, *numbers: int) -> None:
        """Until exactly these have begun, and for a while after."""
        async with asyncio.timeout(5):
            while not set(numbers) <= set(self.begun):
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.02)
        assert self.begun == list(numbers)


def request(api: int, number: int, size: int = 20) -> bytes:
    body = api.to_bytes(2, "big") + b"\0\0" + number.to_bytes(4, "big") + b"\xff\xff" + b"x" * (size - 10)
    return len(body).to_bytes(4, "big") + body


async def answers(reader: asyncio.StreamReader, count: int) -> list[int]:
    found = []
    for _ in range(count):
        async with asyncio.timeout(5):
            size = int.from_bytes(await reader.readexactly(4), "big")
            found.append(int.from_bytes(await reader.readexactly(size), "big"))
    return found


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[Server, Router, int]]:
    server, router = Server(ConnectionSettings(**settings)), Router()
    _, port = await server.bind("127.0.0.1", 0)
    await server.accept(router)  # type: ignore[arg-type]
    try:
        yield server, router, port
    finally:
        await server.stop(1, lambda: None)


async def test_answers_come_in_the_order_of_requests() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(b"".join(request(PRODUCE, number) for number in (1, 2, 3)))
        await router.until(1, 2, 3)
        router.gates[1].set()
        assert await answers(reader, 3) == [1, 2, 3]
        writer.close()


async def test_only_produce_requests_run_side_by_side() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(OTHER, 1) + request(OTHER, 2))
        await router.until(1)
        router.gates[1].set()
        assert await answers(reader, 2) == [1, 2]
        writer.close()


async def test_reading_ahead_has_a_bound() -> None:
    async with serving(read_ahead_requests=2) as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(b"".join(request(PRODUCE, number) for number in range(1, 6)))
        await router.until(1, 2)
        assert router.stalls == 1
        router.gates[1].set()
        assert await answers(reader, 5) == [1, 2, 3, 4, 5]
        writer.close()


async def test_large_requests_wait_for_memory_and_small_ones_do_not() -> None:
    size = 600_000
    async with serving(buffered_bytes=1 << 20) as (_, router, port):
        first, second, small = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        router.hold(1)
        first[1].write(request(PRODUCE, 1, size))
        await router.until(1)
        second[1].write(request(PRODUCE, 2, size))
        await router.until(1)
        small[1].write(request(PRODUCE, 3))
        assert await answers(small[0], 1) == [3]
        router.gates[1].set()
        assert await answers(first[0], 1) == [1]
        assert await answers(second[0], 1) == [2]
        for _, writer in (first, second, small):
            writer.close()


async def test_a_request_larger_than_the_memory_is_taken_alone() -> None:
    async with serving(buffered_bytes=1 << 20) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1, 3 << 20))
        assert await answers(reader, 1) == [1]
        writer.close()


async def test_who_goes_in_the_middle_gives_its_memory_back() -> None:
    async with serving(buffered_bytes=1 << 20) as (_, _, port):
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.write(request(PRODUCE, 1, 900_000)[:500_000])
        await gone.drain()
        await asyncio.sleep(0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 2, 900_000))
        await asyncio.sleep(0.05)
        gone.transport.abort()
        assert await answers(reader, 1) == [2]
        writer.close()


async def test_a_request_that_does_not_arrive_is_given_up() -> None:
    async with serving(buffered_bytes=1 << 20, arrival_seconds=0.05) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1, 900_000)[:500_000])
        async with asyncio.timeout(5):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        other, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(request(PRODUCE, 2, 900_000))
        assert await answers(other, 1) == [2]
        second.close()


async def test_a_bad_request_ends_its_connection_after_the_answers_before_it() -> None:
    async with serving() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other, second = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1))
        assert await answers(reader, 1) == [1]
        writer.write(request(BAD, 2) + request(PRODUCE, 3))
        async with asyncio.timeout(5):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        second.write(request(PRODUCE, 4))
        assert await answers(other, 1) == [4]
        second.close()


async def test_who_is_too_many_is_sent_away() -> None:
    async with serving(max_connections=1) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1))
        assert await answers(reader, 1) == [1]
        other, second = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(5):
            with suppress(ConnectionResetError):
                assert await other.read() == b""
        for one in (writer, second):
            one.close()


async def test_stopping_answers_what_was_asked() -> None:
    async with serving() as (server, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(PRODUCE, 1))
        await router.until(1)
        stopping = asyncio.create_task(server.stop(5, router.gates[1].set))
        assert await answers(reader, 1) == [1]
        await stopping
        assert await reader.read() == b""
        writer.close()


def test_a_budget_serves_in_line() -> None:
    budget, served = Budget(10), []
    assert budget.take(6, lambda: True)
    for number, size in ((1, 8), (2, 1)):
        assert not budget.take(size, lambda number=number: served.append(number) is None)
    assert served == [], "the small one does not overtake"
    budget.give(6)
    assert (served, budget.used, budget.waiting) == ([1, 2], 9, 0)


def test_a_budget_forgets_who_is_gone() -> None:
    budget = Budget(10)
    assert budget.take(10, lambda: True)
    assert not budget.take(10, lambda: False)
    budget.give(10)
    assert budget.used == 0
