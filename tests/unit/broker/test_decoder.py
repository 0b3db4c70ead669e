"""Records are decoded in a thread: other requests run meanwhile."""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.records import contents, keys, record_batch
from firn_broker.apis import list_offsets
from firn_broker.broker import measure_stalls
from firn_broker.log.decoder import Decoder
from tests.unit.broker.batches import raw
from tests.unit.broker.test_contents import batch, record
from tests.unit.broker.test_offsets_by_time import by_time
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import broker, create

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
        gate = Gate(monkeypatch, keys, "decode")
        await create(asked, "t", cleanup_policy="compact")
        monkeypatch.setattr(keys, "require", lambda batch: None)
        for _ in range(2):
            await produce(asked, "t", 0, batch(record(0), 1))
        await gate.open()


async def test_searches_for_times_run_one_at_a_time() -> None:
    at_once = most = 0

    class Counting(Decoder):
        async def run(self, work: Callable[[], Any]) -> Any:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return work()

    async with broker() as asked:
        await create(asked, "t")
        await produce(asked, "t", 0, batch(record(0) + record(1, time=5), 2, time=1000))
        asked.broker.decoder = Counting(None)
        assert {await found for found in [asyncio.ensure_future(by_time(asked, 999)) for _ in range(5)]} == {
            (ErrorCode.none, 0)
        }
        assert most == 1


async def test_a_compacted_topic_refuses_batches_of_many_records() -> None:
    async with broker() as asked:
        await create(asked, "t", cleanup_policy="compact")
        body = b"".join(record(number, key=b"k") for number in range(keys.MAX_RECORDS + 1))
        refused = await produce(asked, "t", 0, batch(body, keys.MAX_RECORDS + 1))
        assert refused.error_code is ErrorCode.message_too_large, "Java clients split the batch"


def test_an_undecodable_batch_has_its_greatest_time_at_its_first_record() -> None:
    data = raw(3, time=2000, base=7)
    assert record_batch.header(data)[0] == 2000
    assert list_offsets.search_batch(data, 1500, 0) == (7, 2000)
    assert list_offsets.search_batch(data, 1500, 9) == (9, 2000)


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
