"""A producer that the coordinator has forgotten keeps its order when the leader of a partition changes."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create

NONE, AGAIN = ErrorCode.none, ErrorCode.kafka_storage_error
UPKEEP: dict[str, Any] = {"upkeep": {"interval_seconds": 5, "producer_seconds": 60}}
IMPATIENT: dict[str, Any] = {"writer": {"upload_seconds": 1}}


async def send(asked: Asked, sequence: int) -> tuple[ErrorCode, int]:
    answer = await produce(asked, "t", 0, raw(producer=0, epoch=0, sequence=sequence))
    return answer.error_code, answer.base_offset


def test_no_batch_overtakes_the_one_at_the_former_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, **UPKEEP) as former, broker(shared, 2, **UPKEEP) as leader:
            await create(former, "t")
            assert await send(former, 0) == (NONE, 0)
            await asyncio.sleep(90)
            put, begun, slow = shared.objects.put, asyncio.Event(), asyncio.Event()

            async def delayed(key: str, data: memoryview) -> None:
                begun.set()
                await slow.wait()
                await put(key, data)

            with monkeypatch.context() as patched:
                patched.setattr(shared.objects, "put", delayed)
                first = asyncio.create_task(send(former, 1))
                await begun.wait()
            assert await send(leader, 2) == (AGAIN, -1)
            slow.set()
            # As Java clients do, the client sends 2 again only after 1 has an answer.
            assert await first == (AGAIN, -1)
            assert [await send(leader, sequence) for sequence in (1, 2)] == [(NONE, 1), (NONE, 2)]

    run(story())


def test_a_silent_producer_goes_on_at_the_second_attempt() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            await create(asked, "t")
            assert [await send(asked, sequence) for sequence in (0, 1)] == [(NONE, 0), (NONE, 1)]
            await asyncio.sleep(90)
            window = await asyncio.gather(*(send(asked, sequence) for sequence in (2, 3)))
            assert window == [(AGAIN, -1)] * 2
            assert [await send(asked, sequence) for sequence in (2, 3)] == [(NONE, 2), (NONE, 3)]

    run(story())


@pytest.mark.parametrize("reconnects", [False, True])
def test_no_batch_begins_before_one_that_is_in_front_of_it_on_its_connection(
    monkeypatch: pytest.MonkeyPatch, reconnects: bool
) -> None:
    """A client sends three batches at once, and again to another broker after all have an answer. Uploads of the first one fail."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, **UPKEEP, **IMPATIENT) as one, broker(shared, 2, **UPKEEP, **IMPATIENT) as other:
            await create(one, "t")
            assert await send(one, 0) == (NONE, 0)
            await asyncio.sleep(90)
            put, failing = shared.objects.put, set[str]()

            async def failing_first(key: str, data: memoryview) -> None:
                if not failing:
                    failing.add(key)
                if key in failing:
                    raise UnavailableError("the store does not answer")
                await put(key, data)

            windows: list[list[tuple[ErrorCode, int]]] = []
            for asked in (one, other, one, other, one, other):
                connection = Asked(asked.broker) if reconnects else asked
                with monkeypatch.context() as patched:
                    if len(windows) < 4:
                        failing.clear()
                        patched.setattr(shared.objects, "put", failing_first)
                    window = [asyncio.create_task(send(connection, 1))]
                    await asyncio.sleep(0.1)
                    # The first batch is in an object of its own.
                    window += [asyncio.create_task(send(connection, sequence)) for sequence in (2, 3)]
                    windows.append(await asyncio.gather(*window))
            assert windows == [[(AGAIN, -1)] * 3] * 5 + [[(NONE, 1), (NONE, 2), (NONE, 3)]]

    run(story())
