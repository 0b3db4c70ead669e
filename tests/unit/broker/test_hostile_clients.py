"""Clients that send or read nothing, or slowly: other clients still find memory."""

import asyncio
from random import Random

import pytest

from firn_broker.network.budget import SHARES, Budget, Counted, Share
from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import STEP, UNCOUNTED
from firn_broker.settings import ReaderSettings
from firn_broker.wire.headers import RequestHeader
from tests.unit.broker.connections import OTHER, PRODUCE, Router, answers, closed, free, request, serving, waiting

MIB = 1 << 20
TOTAL = 8 * MIB
OWN, FOREIGN = ("127.0.0.1", 0), ("127.0.0.2", 0)


async def test_an_announced_request_holds_one_step_until_its_bytes_arrive() -> None:
    async with serving(buffered_bytes=TOTAL) as (server, _, port):
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        silent.write(request(PRODUCE, 1, 64 * MIB)[:18])
        async with asyncio.timeout(60):
            while not server._budget.used:
                await asyncio.sleep(0.001)
        assert server._budget.used == STEP
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 2, MIB))
        assert await answers(reader, 1) == [2]
        for opened in (silent, writer):
            opened.close()


async def test_a_connection_that_stops_in_a_large_request_leaves_memory_to_others() -> None:
    async with serving(buffered_bytes=TOTAL) as (server, _, port):
        _, silent = await asyncio.open_connection("127.0.0.1", port)
        silent.write(request(PRODUCE, 1, 64 * MIB)[: 32 * MIB])
        async with asyncio.timeout(60):
            while not server._budget._beyond:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(2, 10):
            writer.write(request(PRODUCE, number, MIB // 2))
            assert await answers(reader, 1) == [number]
        silent.transport.abort()
        await free(server._budget)
        writer.close()


async def test_connections_of_one_address_leave_memory_to_other_addresses() -> None:
    async with serving(buffered_bytes=TOTAL) as (server, _, port):
        hostile = [await asyncio.open_connection("127.0.0.1", port, local_addr=OWN) for _ in range(40)]
        for number, (_, writer) in enumerate(hostile):
            writer.write(request(PRODUCE, 100 + number, MIB)[:18])
        async with asyncio.timeout(60):
            while server._budget.used < (SHARES - 1) * MIB or not server._budget.waiting:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=FOREIGN)
        for number in range(2, 10):
            writer.write(request(PRODUCE, number, MIB // 2))
            assert await answers(reader, 1) == [number]
        for _, opened in hostile:
            opened.transport.abort()
        writer.close()


async def test_large_requests_that_wait_for_each_other_complete() -> None:
    async with serving(buffered_bytes=TOTAL) as (server, _, port):
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for number, (_, writer) in enumerate(clients):
            writer.write(request(PRODUCE, number, 5 * MIB))
        for number, (reader, writer) in enumerate(clients):
            assert await answers(reader, 1) == [number]
            writer.close()
        await free(server._budget)


async def test_a_slow_request_is_closed_when_others_wait_for_its_memory() -> None:
    async with serving(buffered_bytes=MIB, min_bytes_per_second=64 * MIB) as (server, _, port):
        reader, slow = await asyncio.open_connection("127.0.0.1", port)
        slow.write(request(PRODUCE, 1, MIB)[: 3 * STEP])
        async with asyncio.timeout(60):
            while server._budget.used < 3 * STEP:
                await asyncio.sleep(0.001)
        (connection,) = server._connections
        now = asyncio.get_running_loop().time()
        connection.check_timeouts(now + 50)
        assert len(server._connections) == 1, "no other request waits"
        second, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(request(PRODUCE, 2, MIB))
        await waiting(server._budget, 1)
        connection.check_timeouts(now + 50)
        await closed(reader)
        assert await answers(second, 1) == [2]
        for opened in (slow, other):
            opened.close()


class Answers(Router):
    """Answers of one share each."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(TOTAL)

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers:
        share = Share(self.budget, client.peer)
        await share.acquire(MIB)
        self.begun.append(header.correlation)
        return Counted([bytes(MIB)], share)


async def test_a_consumer_that_reads_nothing_leaves_memory_to_others() -> None:
    async with serving(drain_seconds=60, read_ahead_requests=20) as (server, _, port):
        router = Answers()
        server._router = router  # type: ignore[assignment]
        _, silent = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        silent.write(b"".join(request(OTHER, number) for number in range(20)))
        async with asyncio.timeout(60):
            while not router.budget.waiting:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(100, 110):
            writer.write(request(OTHER, number))
            assert len(await reader.readexactly(4 + MIB)) > MIB
        for opened in (silent, writer):
            opened.transport.abort()
        await free(router.budget)


async def test_one_address_cannot_open_all_connections() -> None:
    async with serving(max_connections=8) as (server, _, port):
        opened = [await asyncio.open_connection("127.0.0.1", port, local_addr=OWN) for _ in range(8)]
        await closed(opened[7][0])
        assert len(server._connections) == 7
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=FOREIGN)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        for _, other in [*opened, (reader, writer)]:
            other.transport.abort()
        async with asyncio.timeout(60):
            while server._connections:
                await asyncio.sleep(0.001)
        assert not server._addresses


async def test_small_requests_behind_another_one_count() -> None:
    async with serving(buffered_bytes=TOTAL) as (server, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(b"".join(request(OTHER, number, UNCOUNTED - 1) for number in (1, 2, 3)))
        counted = 2 * (UNCOUNTED - 1)
        async with asyncio.timeout(60):
            while server._budget.used < counted:
                await asyncio.sleep(0.001)
        assert server._budget.used == counted
        router.gates[1].set()
        assert await answers(reader, 3) == [1, 2, 3]
        await free(server._budget)
        writer.close()


@pytest.mark.parametrize(("size", "counted"), [(UNCOUNTED - 1, 0), (UNCOUNTED, UNCOUNTED), (60_000, 60_000)])
async def test_an_announced_request_counts_before_its_bytes_arrive_unless_it_is_small(size: int, counted: int) -> None:
    async with serving() as (server, _, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(OTHER, 1, size)[:8])
        async with asyncio.timeout(60):
            while not server._connections or not next(iter(server._connections))._size:
                await asyncio.sleep(0.001)
        assert server._budget.used == counted
        writer.close()


def test_an_answer_is_smaller_than_the_share_of_its_connection() -> None:
    settings = ReaderSettings()
    assert settings.max_response_bytes <= settings.answer_bytes // SHARES


def test_a_small_holder_is_granted_memory_whatever_the_others_hold() -> None:
    random, budget = Random(1), Budget(8_000)
    for _ in range(1_000):
        budget.acquire(random.randrange(1, 900), f"hostile:{random.randrange(5)}", lambda size: None)
        assert budget.used <= 7_000
    assert budget.waiting
    for number in range(4):
        assert budget.acquire(200, f"other{number}:1", lambda size: None)


def test_a_growing_caller_that_may_exceed_the_budget_is_alone() -> None:
    budget, grown = Budget(8_000), list[str]()
    ready = {peer: (lambda size, peer=peer: grown.append(peer)) for peer in ("a:1", "b:1", "c:1")}
    for peer in ready:
        assert budget.acquire(2_000, peer, ready[peer])
    assert budget.acquire(1_000, "a:1", ready["a:1"], growing=True), "the first exceeds the limit of its line"
    assert budget.acquire(1_000, "a:1", ready["a:1"], growing=True)
    for peer in ("b:1", "c:1"):
        assert not budget.acquire(1_000, peer, ready[peer], growing=True)
    assert (budget.used, grown) == (6_000, [])
    budget.release(4_000, "a:1")
    assert (budget.used, budget.waiting, grown) == (6_000, 0, ["b:1", "c:1"])
    for peer in ("b:1", "c:1"):
        budget.release(3_000, peer)
    assert budget.used == 0
