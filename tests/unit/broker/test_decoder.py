"""Records are decoded in a thread: other requests run meanwhile."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from threading import Event
from types import FrameType
from typing import Any, TypeVar

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.records import contents, keys, record_batch
from firn_broker.apis import list_offsets
from firn_broker.broker import measure_stalls
from firn_broker.log.decoder import OPENED, OWN, TURN_RECORDS, Decoder
from firn_broker.maintenance import compaction
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.network.router import Client
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_contents import batch, record
from tests.unit.broker.test_offsets_by_time import by_time
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, broker, create, settle

T = TypeVar("T")
SECONDS = 20


@pytest.fixture
def thread() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


class Gate:
    """Holds the calls of a function until another task lets them pass."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.begun, self._passes = Event(), Event()
        function = getattr(module, name)

        def held(*arguments: Any) -> Any:
            self.begun.set()
            assert self._passes.wait(SECONDS), "no other task runs while records are decoded"
            return function(*arguments)

        monkeypatch.setattr(module, name, held)

    async def open(self) -> None:
        async with asyncio.timeout(SECONDS):
            while not self.begun.is_set():
                await asyncio.sleep(0.001)
        self._passes.set()


async def test_other_requests_run_while_a_produced_batch_is_decoded(
    thread: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(decoder=thread) as asked:
        await create(asked, "t", cleanup_policy="compact")
        gate = Gate(monkeypatch, keys, "require")
        answer, _ = await asyncio.gather(produce(asked, "t", 0, batch(record(0), 1)), gate.open())
        assert not answer.error_code


async def test_other_requests_run_while_a_time_is_searched(thread: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker(decoder=thread) as asked:
        await create(asked, "t")
        await produce(asked, "t", 0, batch(record(0) + record(1, time=5), 2, time=1000))
        gate = Gate(monkeypatch, contents, "open_batch")
        found, _ = await asyncio.gather(by_time(asked, 999), gate.open())
        assert found == (ErrorCode.none, 0)


async def test_other_requests_run_while_a_partition_is_compacted(
    thread: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with broker(decoder=thread, upkeep={"interval_seconds": 0.01}) as asked:
        gate = Gate(monkeypatch, keys.Newest, "add")
        await create(asked, "t", cleanup_policy="compact")
        monkeypatch.setattr(keys, "require", lambda batch: None)
        for _ in range(2):
            await produce(asked, "t", 0, batch(record(0), 1))
        await gate.open()


class Counted(Inline):
    """Counts turns."""

    def __init__(self) -> None:
        self.turns = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        self.turns += 1
        return super().submit(fn, *args, **kwargs)


class Lines(Inline):
    """Counts the lines that run in the longest turn. This does not depend on the speed of the machine."""

    def __init__(self) -> None:
        self.most = 0

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> "Future[T]":
        lines = 0

        def trace(frame: FrameType, event: str, argument: Any) -> Any:
            nonlocal lines
            lines += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            return super().submit(fn, *args, **kwargs)
        finally:
            sys.settrace(before)
            self.most = max(self.most, lines)


async def longest_turn(records: int) -> int:
    """Return the lines of the longest turn while a broker compacts so many records, each with a key of its own."""
    lines = Lines()
    async with broker(decoder=lines, upkeep={"interval_seconds": 30}) as asked:
        await create(asked, "t", cleanup_policy="compact")
        for start in range(0, records, COMPACTED):
            body = b"".join(
                record(number, key=b"%d" % (start + number), value=bytes(1000)) for number in range(COMPACTED)
            )
            await produce(asked, "t", 0, batch(body, COMPACTED))
        before, lines.most = compacted(), 0
        await asyncio.sleep(40)
        assert compacted() == before + 1
    return lines.most


def compacted() -> float:
    return REGISTRY.get_sample_value("firn_broker_upkeep_total", {"what": "compacted partitions"}) or 0


COMPACTED = 250
"""Records of a batch, and of a turn of compaction."""


def test_no_turn_of_compaction_grows_with_the_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "TURN_RECORDS", COMPACTED)
    few, many = (run(longest_turn(batches * COMPACTED)) for batches in (4, 12))
    assert many < 1.2 * few, (few, many)


RECORDS, QUEUE = 25_000, 12
NEWEST = 2 * RECORDS
"""The time of the last record. A search for it decodes all."""


@asynccontextmanager
async def crowded() -> AsyncIterator[tuple[Counted, Asked]]:
    """Run a broker with a long queue of searches and produced batches of one address; also return a client of another
    address."""
    turns = Counted()
    async with broker(decoder=turns) as asked:
        await create(asked, "t")
        await create(asked, "compacted", cleanup_policy="compact")
        body = b"".join(record(number, time=number + 1 - RECORDS) for number in range(RECORDS))
        await produce(asked, "t", 0, batch(body, RECORDS, time=NEWEST))
        busy = [Asked(asked.broker, Client(f"10.0.0.1:{port}")) for port in range(QUEUE)]
        honest = Asked(asked.broker, Client("10.0.0.2:1"))
        tasks = [asyncio.create_task(by_time(client, NEWEST)) for client in busy]
        tasks += [
            asyncio.create_task(produce(client, "compacted", 0, batch(record(0), 1)))
            for client in busy
            for _ in range(QUEUE)
        ]
        await settle()
        yield turns, honest
        assert sum(not task.done() for task in tasks) > QUEUE, "the queue is longer than the wait"
        await asyncio.gather(*tasks)


async def test_a_search_waits_for_few_turns_of_another_address() -> None:
    async with crowded() as (turns, honest):
        before = turns.turns
        assert await by_time(honest, NEWEST) == (ErrorCode.none, RECORDS - 1)
        own = -(-RECORDS // TURN_RECORDS)
        assert turns.turns - before < 4 * own, "one for each of its own, and a few while it loads the range"


async def test_a_produced_batch_waits_for_few_turns_of_another_address(monkeypatch: pytest.MonkeyPatch) -> None:
    turns_at: list[int] = []
    require = keys.require

    async with crowded() as (turns, honest):

        def noted(batch: record_batch.Batch) -> None:
            if batch.records == 2:
                turns_at.append(turns.turns)
            require(batch)

        monkeypatch.setattr(keys, "require", noted)
        before = turns.turns
        await produce(honest, "compacted", 0, batch(record(0) + record(1), 2))
        assert turns_at[0] - before <= 3, "the one under way, and one of each other party"


async def test_searches_of_one_address_leave_room_for_others() -> None:
    at_once: Counter[str] = Counter()
    most: Counter[str] = Counter()

    class Counting(Decoder):
        async def run(self, work: Callable[[], Any], address: str = OWN) -> Any:
            at_once[address] += 1
            most[address] = max(most[address], at_once[address])
            most["all"] = max(most["all"], at_once.total())
            await settle()
            at_once[address] -= 1
            return work()

    async with broker() as asked:
        await create(asked, "t")
        await produce(asked, "t", 0, batch(record(0) + record(1, time=5), 2, time=1000))
        asked.broker.decoder = Counting(None)
        clients = [Asked(asked.broker, Client(f"10.0.0.{host}:{port}")) for host in (1, 2, 3) for port in range(5)]
        assert set(await asyncio.gather(*(by_time(client, 999) for client in clients))) == {(ErrorCode.none, 0)}
        assert most == {"10.0.0.1": 1, "10.0.0.2": 1, "10.0.0.3": 1, "all": OPENED}


async def test_a_compacted_topic_refuses_batches_of_many_records() -> None:
    async with broker() as asked:
        await create(asked, "t", cleanup_policy="compact")
        body = b"".join(record(number, key=b"k") for number in range(keys.MAX_RECORDS + 1))
        refused = await produce(asked, "t", 0, batch(body, keys.MAX_RECORDS + 1))
        assert refused.error_code is ErrorCode.message_too_large, "Java clients split the batch"


def test_an_undecodable_batch_has_its_greatest_time_at_its_first_record() -> None:
    data = raw(3, time=2000, base=7)
    assert record_batch.header(data)[0] == 2000
    assert list(list_offsets.search_batch(data, 1500, 0)) == [(7, 2000)]
    assert list(list_offsets.search_batch(data, 1500, 9)) == [(9, 2000)]


async def test_stalls_of_the_event_loop_are_measured() -> None:
    def stalled() -> float:
        return REGISTRY.get_sample_value("firn_broker_loop_stall_seconds_sum") or 0

    before = stalled()
    measuring = asyncio.create_task(measure_stalls())
    await asyncio.sleep(0)
    time.sleep(0.1)  # noqa: ASYNC251
    await asyncio.sleep(0)
    async with asyncio.timeout(SECONDS):
        while stalled() - before < 0.08:
            await asyncio.sleep(0.001)
    measuring.cancel()
