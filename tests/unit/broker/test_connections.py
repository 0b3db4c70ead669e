"""Connections: answers in the order of requests, bounded reading ahead, and no effect of one client's end on others."""

import asyncio
import socket
from contextlib import suppress

import pytest
from prometheus_client import REGISTRY

from firn_broker.network.budget import Budget, Counted, Share
from firn_broker.network.router import Buffers, Client
from firn_broker.network.server import STEP, UNCOUNTED
from firn_broker.wire.headers import RequestHeader
from tests.unit.broker.connections import (
    BAD,
    OTHER,
    PRODUCE,
    TOLD,
    Router,
    answers,
    closed,
    free,
    gone,
    lost,
    request,
    serving,
    waiting,
)


async def test_answers_come_in_the_order_of_requests() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(b"".join(request(PRODUCE, number) for number in (1, 2, 3)))
        await router.until(1, 2, 3)
        router.gates[1].set()
        assert await answers(reader, 3) == [1, 2, 3]
        writer.close()


async def test_only_produce_requests_run_concurrently() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(OTHER, 1) + request(OTHER, 2))
        await router.until(1)
        router.gates[1].set()
        assert await answers(reader, 2) == [1, 2]
        writer.close()


async def test_a_request_behind_produce_requests_starts_when_they_are_done() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1, 2, 3)
        writer.write(request(PRODUCE, 1) + request(PRODUCE, 2) + request(TOLD, 3) + request(PRODUCE, 4))
        await router.until(1, 2, 4)
        router.gates[2].set()
        await router.until(1, 2, 4)
        router.gates[1].set()
        await router.until(1, 2, 4, 3)
        router.gates[3].set()
        assert await answers(reader, 4) == [1, 2, 3, 4]
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
        small[1].write(request(OTHER, 3))
        assert await answers(small[0], 1) == [3]
        router.gates[1].set()
        assert await answers(first[0], 1) == [1]
        assert await answers(second[0], 1) == [2]
        for _, writer in (first, second, small):
            writer.close()


async def test_produce_requests_of_any_size_count() -> None:
    size = 60_000
    async with serving(buffered_bytes=1 << 20, read_ahead_requests=30) as (server, router, port):
        # A connection beyond its share leaves two eighths of the memory free.
        count = (1 << 20) * 6 // 8 // size
        router.hold(*range(1, count + 1))
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        for number in range(count):
            clients[number % 4][1].write(request(PRODUCE, number + 1, size))
            await router.until(*range(1, number + 2), pause=0)
        for which, (_, writer) in enumerate(clients):
            writer.write(request(PRODUCE, 100 + which, size))
        await waiting(server._budget, 4)
        assert router.begun == list(range(1, count + 1))
        assert (server._budget.used, server._budget.waiting) == (count * size, 4)
        # Requests that were read before are completed although their client is gone. Requests that wait in line are
        # dropped.
        for _, writer in clients[:2]:
            writer.transport.abort()
        for gate in router.gates.values():
            gate.set()
        for reader, _ in clients[2:]:
            await answers(reader, count // 4 + 1)
        await gone(server, 2)
        await free(server._budget)
        for _, writer in clients:
            writer.close()


async def test_many_long_polls_cannot_exceed_the_memory() -> None:
    size, polls = 60_000, 30
    async with serving(buffered_bytes=1 << 20) as (server, router, port):
        router.hold(*range(polls))
        clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(polls)]
        for number, (_, writer) in enumerate(clients):
            writer.write(request(OTHER, number, size))
        # One address leaves an eighth of the memory to others.
        fit = (1 << 20) * 7 // 8 // size
        await waiting(server._budget, polls - fit)
        assert server._budget.used == fit * size
        heart_reader, heart = await asyncio.open_connection("127.0.0.1", port)
        heart.write(request(OTHER, 100, UNCOUNTED - 1))
        assert await answers(heart_reader, 1) == [100], "a heartbeat does not wait"
        for gate in router.gates.values():
            gate.set()
        for number, (reader, _) in enumerate(clients):
            assert await answers(reader, 1) == [number]
        for _, writer in [*clients, (None, heart)]:
            writer.close()
        await free(server._budget)


async def test_only_produce_requests_may_be_large() -> None:
    async with serving() as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write((5 << 20).to_bytes(4, "big") + OTHER.to_bytes(2, "big"))
        await closed(reader)
        assert router.begun == []
        writer.close()


async def test_a_closed_connection_counts_until_its_writes_complete() -> None:
    async with serving(max_connections=1) as (server, router, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(PRODUCE, 1))
        await router.until(1)
        writer.close()
        await lost(server)
        other, second = await asyncio.open_connection("127.0.0.1", port)
        await closed(other)
        assert (len(server._connections), server._budget.used) == (1, 20)
        router.gates[1].set()
        await free(server._budget)
        await gone(server, 0)
        second.close()


async def test_reads_of_a_disconnected_client_are_cancelled() -> None:
    async with serving(drain_seconds=0.05) as (server, router, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(TOLD, 1) + request(TOLD, 2) + request(OTHER, 3) + request(TOLD, 4))
        (connection,) = server._connections
        async with asyncio.timeout(60):
            while connection._requests < 4:
                await asyncio.sleep(0.001)
        writer.transport.abort()
        await gone(server, 0)
        assert (router.begun, router.cut) == ([1, 3], [1]), "its write is completed"


async def test_a_connection_closed_in_one_direction_holds_no_memory() -> None:
    async with serving() as (server, _, port):
        router = Answers()
        server._router = router  # type: ignore[assignment]
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        writer.write(request(OTHER, 1))
        await router.until(1)
        assert router.budget.used == Answers.SIZE
        writer.write_eof()
        await gone(server, 0)
        await free(router.budget)
        writer.close()


async def test_an_idle_connection_is_closed() -> None:
    async with serving(idle_seconds=0.05) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        (connection,) = server._connections
        assert connection._transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        await closed(reader)
        await gone(server, 0)
        writer.close()


async def test_metrics_report_the_memory_held_at_the_scrape() -> None:
    def buffer_metrics() -> list[float | None]:
        return [REGISTRY.get_sample_value(f"firn_broker_buffer{name}") for name in ("ed_bytes", "_waiting")]

    async with serving(buffered_bytes=1 << 20) as (server, router, port):
        first, second = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        router.hold(1)
        first[1].write(request(PRODUCE, 1, 1 << 20))
        await router.until(1)
        second[1].write(request(PRODUCE, 2, 1 << 20))
        async with asyncio.timeout(60):
            while buffer_metrics() != [1 << 20, 1]:
                await asyncio.sleep(0.001)
        router.gates[1].set()
        assert await answers(second[0], 1) == [2]
        await free(server._budget)
        assert buffer_metrics() == [0, 0]
        for _, writer in (first, second):
            writer.close()


async def test_a_request_larger_than_the_memory_is_read_alone() -> None:
    async with serving(buffered_bytes=1 << 20) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1, 3 << 20))
        assert await answers(reader, 1) == [1]
        writer.close()


async def test_a_connection_lost_in_the_middle_of_a_request_releases_its_memory() -> None:
    async with serving(buffered_bytes=1 << 20) as (server, _, port):
        _, gone = await asyncio.open_connection("127.0.0.1", port)
        gone.write(request(PRODUCE, 1, 900_000)[: 3 * STEP])
        async with asyncio.timeout(60):
            while server._budget.used < 3 * STEP:
                await asyncio.sleep(0.001)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 2, 900_000))
        await waiting(server._budget, 1)
        gone.transport.abort()
        assert await answers(reader, 1) == [2]
        writer.close()


@pytest.mark.parametrize(("api", "size"), [(PRODUCE, 900_000), (PRODUCE, 900), (OTHER, 900)])
async def test_an_incomplete_request_times_out(api: int, size: int) -> None:
    async with serving(buffered_bytes=1 << 20, arrival_seconds=0.05) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(api, 1, size)[: size // 2])
        await closed(reader)
        other, second = await asyncio.open_connection("127.0.0.1", port)
        second.write(request(PRODUCE, 2, 900_000))
        assert await answers(other, 1) == [2]
        second.close()


async def test_an_invalid_request_closes_the_connection_after_earlier_replies() -> None:
    async with serving() as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other, second = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1))
        assert await answers(reader, 1) == [1]
        writer.write(request(BAD, 2) + request(PRODUCE, 3))
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await reader.read() == b""
        second.write(request(PRODUCE, 4))
        assert await answers(other, 1) == [4]
        second.close()


async def test_a_connection_above_the_limit_is_closed() -> None:
    async with serving(max_connections=1) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(PRODUCE, 1))
        assert await answers(reader, 1) == [1]
        other, second = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            with suppress(ConnectionResetError):
                assert await other.read() == b""
        for opened in (writer, second):
            opened.close()


async def test_a_stopping_server_answers_pending_requests() -> None:
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


def test_a_budget_serves_waiters_in_order() -> None:
    budget, served = Budget(16), list[int]()
    assert budget.acquire(10, "a:1", served.append)
    for size in (9, 3):
        assert not budget.acquire(size, "b:1", lambda size: served.append(size))
    assert served == [], "the small request does not overtake"
    budget.release(10, "a:1")
    assert (served, budget.used, budget.waiting) == ([9, 3], 12, 0)


def test_a_budget_removes_cancelled_waiters() -> None:
    budget, served = Budget(16), list[int]()
    gone, other = list[int](), served.append
    assert budget.acquire(9, "a:1", gone.append)
    leave = gone.append
    assert not budget.acquire(10, "b:1", leave)
    assert not budget.acquire(3, "c:1", other)
    budget.cancel(leave)
    assert (gone, served, budget.used, budget.waiting) == ([], [3], 12, 0), "the next request no longer waits"


class Answers(Router):
    """Answers of 32 MiB, within a budget of one of them."""

    SIZE = 32 << 20

    def __init__(self) -> None:
        super().__init__()
        self.budget = Budget(self.SIZE)

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers:
        share = Share(self.budget, client.peer)
        self.begun.append(header.correlation)
        await share.acquire(self.SIZE)
        return Counted([bytes(self.SIZE)], share)


async def test_a_client_that_reads_nothing_is_closed_when_others_need_the_memory() -> None:
    async with serving(drain_seconds=0.1) as (server, _, port):
        router = Answers()
        server._router = router  # type: ignore[assignment]
        _, silent = await asyncio.open_connection("127.0.0.1", port, limit=1 << 10)
        silent.write(request(OTHER, 1))
        await asyncio.sleep(0.5)
        assert (len(server._connections), router.budget.used) == (1, Answers.SIZE), "no other request waits for it"
        second, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(request(OTHER, 2))
        async with asyncio.timeout(60):
            assert len(await second.readexactly(4 + Answers.SIZE)) > Answers.SIZE
        await gone(server, 1)
        await free(router.budget)
        for writer in (silent, other):
            writer.close()


async def test_a_client_that_reads_slowly_is_not_closed() -> None:
    async with serving(drain_seconds=0.5) as (server, _, port):
        router = Answers()
        server._router = router  # type: ignore[assignment]
        slow, first = await asyncio.open_connection("127.0.0.1", port)
        first.write(request(OTHER, 1))
        await router.until(1)
        second, other = await asyncio.open_connection("127.0.0.1", port)
        other.write(request(OTHER, 2))
        for _ in range(16):
            await slow.readexactly(2 << 20)
            await asyncio.sleep(0.05)
        await slow.readexactly(4)
        await second.readexactly(4 + Answers.SIZE)
        for writer in (first, other):
            writer.close()
