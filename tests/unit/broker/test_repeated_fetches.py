"""Fetches that repeat the last request of their connection: the same answer, without the work, and never an old one."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import pytest
from kio.schema.errors import ErrorCode

from firn_broker.log import repeated_fetches
from firn_broker.log.repeated_fetches import TICK_SECONDS, RepeatedFetches
from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Partition
from firn_broker.network.router import Router
from firn_broker.settings import ReaderSettings
from firn_broker.wire.headers import RequestHeader
from tests.unit.broker.batches import batch
from tests.unit.broker.connections import until
from tests.unit.broker.test_disconnected_clients import Client, Slow, request, seconds, serving
from tests.unit.broker.test_known_ends import NONE
from tests.unit.broker.test_whole_brokers import bases, produce
from tests.unit.broker.whole import Asked, Shared

FETCH, VERSION = 1, 12
WAIT = 0.25


def asks(offset: int = 0, *, session: int = 0, epoch: int = -1, topics: bool = True, wait: float = WAIT) -> bytes:
    partition = {
        "partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20, "current_leader_epoch": -1,
        "last_fetched_epoch": -1, "log_start_offset": -1,
    }  # fmt: skip
    return request(
        FETCH, VERSION, replica_id=-1, max_wait=seconds(wait), min_bytes=1, max_bytes=1 << 20, session_id=session,
        session_epoch=epoch, topics=[{"topic": "t", "partitions": [partition]}] if topics else (),
        forgotten_topics_data=(), rack_id="",
    )  # fmt: skip


class Handled:
    """Counts the fetches that the broker handles in full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        handle = Router.handle

        async def counted(router: Router, header: RequestHeader, *values: Any) -> Any:
            self.count += header.api == FETCH
            return await handle(router, header, *values)

        monkeypatch.setattr(Router, "handle", counted)


class Consumer:
    """A connection, and what its last answer has for partition 0."""

    def __init__(self, client: Client, asked: Asked) -> None:
        self.client, self.asked = client, asked

    async def fetch(self, frame: bytes) -> Any:
        answer = await self.client.ask(FETCH, VERSION, frame)
        assert answer.error_code is NONE
        return answer

    async def partition(self, frame: bytes) -> Any:
        ((partition,),) = [topic.partitions for topic in (await self.fetch(frame)).responses]
        return partition


@asynccontextmanager
async def consumer() -> AsyncIterator[Consumer]:
    async with serving(Shared()) as (asked, _, connect):
        yield Consumer(await connect(), asked)


async def test_the_broker_repeats_an_empty_answer_without_handling_the_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        answers = [await reader.partition(asks()) for _ in range(4)]
    assert {(answer.error_code, answer.high_watermark, answer.log_start_offset) for answer in answers} == {(NONE, 0, 0)}
    assert handled.count == 1


async def test_records_end_the_wait_of_a_repeated_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    async with consumer() as reader:
        await reader.partition(asks())
        waiting = asyncio.create_task(reader.partition(asks()))
        await until(lambda: bool(reader.asked.broker.watermarks.claims()))
        await produce(reader.asked, "t", 0, batch().data)
        assert bases((await waiting).records) == [0]
        assert not reader.asked.broker.watermarks.watched()


async def test_a_repeated_fetch_has_the_correlation_id_of_its_request() -> None:
    async with consumer() as reader:
        await reader.partition(asks())
        frame = bytearray(asks())
        frame[8:12] = (77).to_bytes(4, "big")
        reader.client.send(bytes(frame))
        size = int.from_bytes(await reader.client._reader.readexactly(4), "big")
        answer = await reader.client._reader.readexactly(size)
        assert int.from_bytes(answer[:4], "big") == 77


async def test_a_fetch_of_another_offset_is_handled_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        await reader.partition(asks())
        assert (await reader.partition(asks(5))).error_code is not NONE
        assert handled.count == 2


async def test_a_session_repeats_with_growing_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        session = (await reader.fetch(asks(epoch=0))).session_id
        for epoch in range(1, 5):
            answer = await reader.fetch(asks(session=session, epoch=epoch, topics=False))
            assert (answer.session_id, list(answer.responses)) == (session, [])
        assert handled.count == 2
        # An epoch that was used before is rejected, as without the repetition.
        again = await reader.client.ask(FETCH, VERSION, asks(session=session, epoch=4, topics=False))
        assert again.error_code is ErrorCode.invalid_fetch_session_epoch
        waiting = asyncio.create_task(reader.partition(asks(session=session, epoch=5, topics=False)))
        await asyncio.sleep(0)
        await produce(reader.asked, "t", 0, batch().data)
        assert bases((await waiting).records) == [0]


async def test_a_deleted_topic_ends_the_repetition() -> None:
    async with consumer() as reader:
        await reader.partition(asks())
        broker = reader.asked.broker
        await broker.metadata_store.topics.delete_topic(broker.topic_metadata.by_name["t"].id)
        await broker.topic_metadata.refresh()
        assert (await reader.partition(asks())).error_code is ErrorCode.unknown_topic_or_partition


async def test_a_newer_log_start_is_in_the_next_answer() -> None:
    async with consumer() as reader:
        for _ in range(3):
            await produce(reader.asked, "t", 0, batch().data)
        for _ in range(2):
            assert (await reader.partition(asks(3))).log_start_offset == 0
        partition = Partition(reader.asked.broker.topic_metadata.by_name["t"].id, 0)
        await reader.asked.broker.metadata_store.log.advance_start(partition, 2)
        assert (await reader.partition(asks(3))).log_start_offset == 2


async def test_a_disconnected_client_leaves_no_repeated_fetch() -> None:
    async with serving(Shared()) as (asked, server, connect):
        reader = Consumer(await connect(), asked)
        await reader.partition(asks())
        reader.client.send(asks())
        await until(lambda: bool(asked.broker.watermarks.claims()))
        reader.client.go()
        await until(lambda: not server._connections)
        assert not asked.broker.watermarks.watched()
        assert asked.broker.reader.answers.used == 0


async def test_a_disconnect_ends_a_repeated_fetch_that_is_handled_after_all() -> None:
    shared = Shared()
    shared.store.log = slow = Slow(shared)
    slow.gate.set()
    async with serving(shared) as (asked, server, connect):
        reader = Consumer(await connect(), asked)
        await reader.partition(asks())
        slow.gate.clear()
        reader.client.send(asks())
        await until(lambda: bool(asked.broker.watermarks.claims()))
        asked.broker.watermarks.doubt(asked.broker.watermarks.claims())
        asked.broker.wake()
        await until(lambda: slow.under_way == 1)
        reader.client.go()
        await until(lambda: not server._connections)
        assert slow.under_way == 0
        assert not asked.broker.watermarks.watched()
        slow.gate.set()


async def test_a_large_request_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_fetches, "REQUEST_BYTES", len(asks()) // 2)
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        for _ in range(2):
            await reader.partition(asks())
        assert (handled.count, reader.asked.broker.repeated_fetches.bytes.used) == (2, 0)


async def test_remembered_requests_of_one_address_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_fetches, "TOTAL_BYTES", 1000)
    async with serving(Shared()) as (asked, server, connect):
        readers = [Consumer(await connect(), asked) for _ in range(4)]
        await asyncio.gather(*(reader.partition(asks()) for reader in readers))
        fetches = asked.broker.repeated_fetches
        assert 0 < fetches.bytes.used <= 875, "an eighth is left to other addresses"
        for reader in readers:
            reader.client.go()
        await until(lambda: not server._connections)
        assert fetches.bytes.used == 0


async def test_a_stopping_broker_ends_repeated_fetches(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with serving(Shared()) as (asked, _, connect):
        reader = Consumer(await connect(), asked)
        await reader.partition(asks())
        waiting = asyncio.create_task(reader.partition(asks()))
        await until(lambda: bool(asked.broker.watermarks.claims()))
        asked.broker.wake()
        assert (await waiting).error_code is NONE
        assert handled.count == 2


class Timers:
    """An event loop whose time stands still until `pass_to`."""

    def __init__(self) -> None:
        self.now = 10.0
        self._due: list[tuple[float, Callable[..., None], tuple[Any, ...]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[..., None], *arguments: Any) -> None:
        self._due.append((when, callback, arguments))

    def pass_to(self, now: float) -> int:
        """Call what is due, and return how many timers that took."""
        self.now = now
        due = [timer for timer in self._due if timer[0] <= now]
        self._due = [timer for timer in self._due if timer[0] > now]
        for _, callback, arguments in due:
            callback(*arguments)
        return len(due)


async def test_waits_of_the_same_tick_end_with_one_timer_and_never_early(monkeypatch: pytest.MonkeyPatch) -> None:
    timers = Timers()
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: timers)
    fetches: Any = RepeatedFetches(Watermarks(), Mock(), Mock(version=0), Mock(active=False), ReaderSettings())
    waits = [Mock() for _ in range(20)]
    ticks = [fetches.wait(wait, 0.5 + TICK_SECONDS * (number + 0.5) / 20) for number, wait in enumerate(waits)]
    assert len(set(ticks)) == 1
    fetches.leave(waits[3], ticks[3])
    later = Mock()
    fetches.wait(later, 0.5 + TICK_SECONDS * 1.5)
    assert timers.pass_to(10.5 + TICK_SECONDS * 0.99) == 0
    assert timers.pass_to(10.5 + TICK_SECONDS * 1.01) == 1
    assert [wait.expire.call_count for wait in waits] == [1] * 3 + [0] + [1] * 16
    fetches.leave(waits[0], ticks[0])
    assert later.expire.call_count == 0
    assert timers.pass_to(10.5 + TICK_SECONDS * 2.01) == 1
    assert later.expire.call_count == 1
    assert not fetches._ticks


async def test_the_bytes_of_repeated_fetches_count_until_the_client_is_throttled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        await limit(reader.asked, consumer_byte_rate=10.0)
        throttled = [(await reader.fetch(asks())).throttle_time.total_seconds() for _ in range(2)]
        assert (throttled, handled.count) == ([0, 0], 1)
        answers = 2
        # The bucket has 100 bytes, and loses about 60 with each answer.
        while not (await reader.fetch(asks())).throttle_time:
            answers += 1
        assert answers < 5
        assert handled.count == 2


async def test_a_fetch_whose_time_counts_is_handled_in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    handled = Handled(monkeypatch)
    async with consumer() as reader:
        await limit(reader.asked, request_percentage=1000.0)
        for _ in range(3):
            await reader.fetch(asks())
        assert handled.count == 3


async def limit(asked: Asked, **quotas: float) -> None:
    """Set quotas of all clients of the test."""
    await asked.broker.metadata_store.access.change_quotas({(("user", "ANONYMOUS"),): quotas})
    await asked.broker.access.refresh()
