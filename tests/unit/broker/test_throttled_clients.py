"""Clients beyond a quota: the answer comes at once and states the throttle time, and the broker then does not read their
connection for so long."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32Timedelta
from prometheus_client import REGISTRY

from firn_broker.access.quotas import BURST_SECONDS, Quota
from firn_broker.access_types import Entity
from firn_broker.network import throttling
from firn_broker.network.budget import Budget
from firn_broker.network.router import Buffers, Client
from firn_broker.wire.headers import RequestHeader
from tests.fakes.virtual_time import run
from tests.unit.broker import connections
from tests.unit.broker.batches import batch, raw
from tests.unit.broker.connections import OTHER, PRODUCE, answers, gone, request, serving
from tests.unit.broker.test_whole_brokers import COMMON, bases, produce, produce_answer
from tests.unit.broker.whole import Asked, Silence, broker, create, zero

ANYONE: Entity = (("user", "ANONYMOUS"),)
NONE = ErrorCode.none
THROTTLED = ErrorCode.throttling_quota_exceeded


@asynccontextmanager
async def limited(partitions: int = 1, **quotas: float) -> AsyncIterator[tuple[Asked, list[int]]]:
    """Run a broker with a topic and with quotas of every client. Yield it with the times for which its client was muted."""
    async with broker(topics={"auto_create": True}) as asked:
        await create(asked, "t", partitions)
        await asked.broker.metadata_store.access.change_quotas({ANYONE: quotas})
        await asked.broker.access.refresh()
        muted: list[int] = []
        asked.client.mute = muted.append
        yield asked, muted


def ms(answer: Any) -> int:
    return round(answer.throttle_time.total_seconds() * 1000)


async def fetch(asked: Asked, offset: int = 0, *, session: int = 0, epoch: int = -1, wait: float = 0) -> Any:
    partition = {
        "partition": 0, "current_leader_epoch": -1, "fetch_offset": offset, "last_fetched_epoch": -1,
        "log_start_offset": -1, "partition_max_bytes": 1 << 20,
    }  # fmt: skip
    return await asked.ask(
        1, 12, **COMMON | {
            "max_wait": i32Timedelta.parse(timedelta(seconds=wait)), "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
            "session_id": session,
            "session_epoch": epoch, "topics": [{"topic": "t", "partitions": [partition]}], "forgotten_topics_data": [],
            "rack_id": "", "replica_id": -1,
        },
    )  # fmt: skip


def test_a_producer_is_throttled_for_the_bytes_beyond_its_quota() -> None:
    async def story() -> None:
        rate, size = 1000.0, 4000
        async with limited(producer_byte_rate=rate) as (asked, muted):
            times = [await produce_answer(asked, "t", 0, batch(body=bytes(size)).data) for _ in range(4)]
            assert not any(answer.responses[0].partition_responses[0].error_code for answer in times)
            # The burst allows ten seconds of the rate, and a request has some bytes besides its records.
            assert [ms(answer) > 0 for answer in times] == [False, False, True, True]
            beyond = 4 * size - rate * BURST_SECONDS
            assert beyond / rate * 1000 <= ms(times[3]) <= beyond / rate * 1000 * 1.2
            assert muted == [ms(answer) for answer in times if ms(answer)]
            await asyncio.sleep(ms(times[3]) / 1000)
            assert not asked.broker.quotas.wait(Quota.PRODUCER_BYTES, "User:ANONYMOUS", "test")

    run(story())


def test_a_producer_without_answers_is_throttled_too() -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=10.0) as (asked, muted):
            with pytest.raises(Silence):
                await produce(asked, "t", 0, batch(body=bytes(2000)).data, acks=0)
            assert len(muted) == 1

    run(story())


def test_the_memory_throttles_a_producer_without_muting_it() -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=1e9) as (asked, muted):
            budget = Budget(8000)
            assert budget.acquire(6000, asked.client.peer, lambda _: None)
            asked.client.budget = budget
            assert ms(await produce_answer(asked, "t", 0, batch().data)) == 100
            assert not muted

    run(story())


def test_a_consumer_gets_no_records_until_it_is_within_its_quota_again() -> None:
    async def story() -> None:
        async with limited(consumer_byte_rate=100.0) as (asked, muted):
            for _ in range(3):
                await produce(asked, "t", 0, raw(body=bytes(1200)))
            # A batch may exceed what the quota allows at once, or no consumer could ever read it.
            answer = await fetch(asked)
            assert bases(answer.responses[0].partitions[0].records) == [0]
            assert ms(answer) >= 2000
            again = await fetch(asked, 1)
            assert (again.error_code, again.session_id, list(again.responses)) == (NONE, 0, [])
            assert ms(again) > 0
            assert muted == [ms(answer), ms(again)]
            await asyncio.sleep(ms(again) / 1000)
            assert bases((await fetch(asked, 1)).responses[0].partitions[0].records) == [1]

    run(story())


def test_an_answer_has_at_most_the_bytes_that_the_quota_allows_at_once() -> None:
    async def story() -> None:
        async with limited(consumer_byte_rate=200.0) as (asked, _):
            for _ in range(10):
                await produce(asked, "t", 0, raw(body=bytes(500)))
            records = (await fetch(asked)).responses[0].partitions[0].records
            assert bases(records) == [0, 1, 2]
            assert len(records) <= 200 * BURST_SECONDS

    run(story())


def test_a_throttled_fetch_of_a_session_continues_it() -> None:
    async def story() -> None:
        async with limited(consumer_byte_rate=100.0) as (asked, _):
            for _ in range(2):
                await produce(asked, "t", 0, raw(body=bytes(2000)))
            first = await fetch(asked, epoch=0)
            throttled = await fetch(asked, 1, session=first.session_id, epoch=1)
            assert (throttled.error_code, throttled.session_id, list(throttled.responses)) == (
                NONE,
                first.session_id,
                [],
            )
            await asyncio.sleep(ms(throttled) / 1000)
            last = await fetch(asked, 1, session=first.session_id, epoch=2)
            assert bases(last.responses[0].partitions[0].records) == [1]

    run(story())


async def ask_create(asked: Asked, version: int, *names: str, partitions: int = 1, validate: bool = False) -> Any:
    topics = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return await asked.ask(19, version, topics=topics, timeout=zero(), validate_only=validate)


def codes(answer: Any) -> Sequence[ErrorCode]:
    return [
        part.error_code
        for part in getattr(answer, "topics", None) or getattr(answer, "responses", None) or answer.results
    ]


def test_strict_versions_reject_the_mutations_beyond_the_quota() -> None:
    async def story() -> None:
        async with limited(controller_mutation_rate=1.0) as (asked, muted):
            answer = await ask_create(asked, 6, "a", "b", partitions=8)
            assert (codes(answer), ms(answer)) == ([NONE, NONE], 0)
            answer = await ask_create(asked, 6, "c", "d")
            assert codes(answer) == [THROTTLED, THROTTLED]
            assert ms(answer) == 6000
            grown = await asked.ask(
                37, 3, topics=[{"name": "t", "count": 3, "assignments": None}], timeout=zero(), validate_only=False
            )
            assert (codes(grown), ms(grown)) == ([THROTTLED], 6000)
            deleted = await asked.ask(20, 5, topic_names=("a",), timeout=zero())
            assert (codes(deleted), ms(deleted)) == ([THROTTLED], 6000)
            assert muted == [6000, 6000, 6000]
            assert codes(await ask_create(asked, 6, "c", validate=True)) == [NONE]
            await asyncio.sleep(6.01)
            assert codes(await asked.ask(20, 5, topic_names=("a",), timeout=zero())) == [NONE]
            assert codes(await ask_create(asked, 6, "c")) == [THROTTLED]

    run(story())


def test_earlier_versions_are_only_throttled() -> None:
    async def story() -> None:
        async with limited(controller_mutation_rate=1.0) as (asked, muted):
            answer = await ask_create(asked, 5, "a", "b", partitions=8)
            assert (codes(answer), ms(answer)) == ([NONE, NONE], 6000)
            grown = await asked.ask(
                37, 2, topics=[{"name": "t", "count": 3, "assignments": None}], timeout=zero(), validate_only=False
            )
            assert (codes(grown), ms(grown)) == ([NONE], 8000)
            deleted = await asked.ask(20, 4, topic_names=("a",), timeout=zero())
            assert (codes(deleted), ms(deleted)) == ([NONE], 16_000)
            assert muted == [6000, 8000, 16_000]

    run(story())


def test_topics_on_demand_count_as_mutations() -> None:
    async def story() -> None:
        async with limited(controller_mutation_rate=0.01) as (asked, _):
            for throttled in (True, False):
                answer = await asked.ask(3, 9, topics=[{"name": "new"}], allow_auto_topic_creation=True)
                assert not answer.topics[0].error_code
                assert (ms(answer) > 0) is throttled

    run(story())


class Turns:
    """A clock that advances by a number of seconds each time that a turn of the measured request ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr(throttling, "perf_counter", self)

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def test_a_client_is_throttled_for_the_time_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with limited(request_percentage=10.0) as (asked, muted):
            Turns(monkeypatch, 1.0)
            times = [
                ms(await asked.ask(3, 9, topics=[{"name": "t"}], allow_auto_topic_creation=False)) for _ in range(3)
            ]
            # The bucket has 100 units, which is one second of the loop.
            assert times[0] == 0
            assert times[1:] == [1000, 1000]
            assert muted == [1000, 1000]

    run(story())


def test_a_waiting_request_takes_no_time_of_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        async with limited(request_percentage=1.0) as (asked, muted):
            monkeypatch.setattr(throttling, "perf_counter", lambda: asyncio.get_running_loop().time())
            for _ in range(5):
                assert ms(await fetch(asked, wait=10)) == 0
            assert not muted

    run(story())


async def test_a_meter_passes_results_errors_and_cancellation() -> None:
    async def work(result: object) -> object:
        await asyncio.sleep(0)
        if isinstance(result, Exception):
            raise result
        return result

    assert await throttling.Meter().run(work(1)) == 1
    with pytest.raises(KeyError):
        await throttling.Meter().run(work(KeyError()))

    cancelled = []

    async def waits() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def outer() -> None:
        await throttling.Meter().run(waits())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cancelled == [True]


def test_throttle_times_are_measured_by_quota_and_not_by_client() -> None:
    async def story() -> None:
        async with limited(producer_byte_rate=10.0) as (asked, _):
            name, labels = "firn_broker_quota_throttle_seconds_count", {"quota": "producer_byte_rate"}
            before = REGISTRY.get_sample_value(name, labels) or 0
            await produce(asked, "t", 0, batch(body=bytes(2000)).data)
            assert REGISTRY.get_sample_value(name, labels) == before + 1

    run(story())


class Router(connections.Router):
    """Mutes the connection of each of the given requests for so many milliseconds."""

    def __init__(self, **muted: int) -> None:
        super().__init__()
        self.muted = {int(number[1:]): ms for number, ms in muted.items()}

    async def handle(self, header: RequestHeader, frame: memoryview, client: Client) -> Buffers | None:
        buffers = await super().handle(header, frame, client)
        if header.correlation in self.muted:
            client.mute(self.muted[header.correlation])
        return buffers


LONG = 3_600_000


async def test_a_muted_connection_gets_its_answer_and_is_then_not_read() -> None:
    async with serving(Router(r1=300)) as (_, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        began = asyncio.get_running_loop().time()
        writer.write(request(OTHER, 2))
        assert await answers(reader, 1) == [2]
        # A longer time of the test proves nothing, and a shorter one is impossible.
        assert asyncio.get_running_loop().time() - began > 0.25
        writer.close()


async def test_requests_that_were_received_before_are_answered_while_the_connection_is_muted() -> None:
    async with serving(Router(r1=LONG)) as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(PRODUCE, 1) + request(PRODUCE, 2))
        await router.until(1, 2)
        router.gates[1].set()
        assert await answers(reader, 2) == [1, 2]
        writer.write(request(PRODUCE, 3))
        await router.until(1, 2)
        writer.close()


async def test_a_request_that_arrives_meanwhile_completes_and_keeps_no_memory() -> None:
    async with serving(Router(r1=LONG)) as (server, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        large = request(PRODUCE, 2, 100_000)
        writer.write(request(PRODUCE, 1) + large[:50_000])
        await router.until(1)
        router.gates[1].set()
        assert await answers(reader, 1) == [1]
        writer.write(large[50_000:])
        assert await answers(reader, 1) == [2]
        await connections.free(server._budget)
        writer.write(request(PRODUCE, 3))
        await router.until(1, 2)
        writer.close()


async def test_a_muted_connection_is_neither_idle_nor_slow() -> None:
    async with serving(Router(r1=LONG), idle_seconds=0.1, arrival_seconds=0.1) as (server, _, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        writer.write(request(OTHER, 2)[:7])
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await reader.read(1)
        assert len(server._connections) == 1
        writer.close()


@pytest.mark.parametrize("unread", [b"", request(OTHER, 2)])
async def test_the_end_of_a_muted_connection_is_noticed(unread: bytes) -> None:
    async with serving(Router(r1=LONG), idle_seconds=0.2) as (server, router, port):
        before = REGISTRY.get_sample_value("firn_broker_muted_connections")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(OTHER, 1))
        assert await answers(reader, 1) == [1]
        writer.write(unread)
        writer.close()
        await gone(server, 0)
        assert REGISTRY.get_sample_value("firn_broker_muted_connections") == before
        assert router.begun == [1]


async def test_a_shorter_throttle_time_does_not_end_a_longer_one() -> None:
    async with serving(Router(r1=LONG, r2=1)) as (_, router, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        router.hold(1)
        writer.write(request(PRODUCE, 1) + request(PRODUCE, 2))
        await router.until(1, 2)
        router.gates[1].set()
        assert await answers(reader, 2) == [1, 2]
        writer.write(request(PRODUCE, 3))
        await router.until(1, 2, pause=0.1)
        writer.close()
