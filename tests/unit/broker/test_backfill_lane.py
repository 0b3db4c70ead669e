"""Readers of old records wait for each other while the store is slow, and delay no other client."""

import asyncio
from collections.abc import Sequence

import pytest
from kio.schema.errors import ErrorCode

from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_whole_brokers import bases, fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

READERS = 40
LANES = 4
GET_SECONDS = 10.0
BATCH = 3_000
READER = {"backfills": LANES, "read_ahead_bytes": 0}


class SlowReads:
    """Every read of the shared store takes `GET_SECONDS`."""

    def __init__(self, shared: Shared) -> None:
        self._inner = shared.objects.get_ranges
        self.at_once = 0
        self.most_at_once = 0
        shared.objects.get_ranges = self.get_ranges  # type: ignore[method-assign]

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await asyncio.sleep(GET_SECONDS)
            return await self._inner(key, ranges)
        finally:
            self.at_once -= 1


async def seconds_of_produce(asked: Asked, partition: int) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert (await produce(asked, "live", partition, raw())).error_code is ErrorCode.none
    return loop.time() - began


async def seconds_of_tail(asked: Asked, partition: int, offset: int) -> float:
    loop = asyncio.get_running_loop()
    began = loop.time()
    answer = await fetch(asked, "live", partition, offset)
    assert bases(answer.records)[0] == offset
    return loop.time() - began


def test_backfills_slow_neither_producers_nor_readers_of_the_tail() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1) as other, broker(shared, 2, reader=READER) as asked:
            await create(other, "old", READERS)
            await create(other, "live", 2)
            for _ in range(3):
                await asyncio.gather(
                    *(produce(other, "old", partition, raw(body=b"x" * BATCH)) for partition in range(READERS)),
                )
            await seconds_of_produce(asked, 0)
            calm = await seconds_of_produce(asked, 0)
            reads = SlowReads(shared)
            loop = asyncio.get_running_loop()
            began = loop.time()
            backfills = [
                asyncio.ensure_future(fetch(asked, "old", partition, 0, max_bytes=BATCH))
                for partition in range(READERS)
            ]
            await asyncio.sleep(1)
            assert reads.at_once == LANES, "the others wait for these"
            for offset in range(2, 7):
                assert await seconds_of_produce(asked, 0) <= calm
                assert await seconds_of_tail(asked, 0, offset) == 0, "batches of this broker are still in its memory"
            assert (await produce(other, "live", 1, raw())).error_code is ErrorCode.none
            assert await seconds_of_tail(asked, 1, 0) == pytest.approx(GET_SECONDS), "one read, without a queue"
            assert not all(backfill.done() for backfill in backfills)
            for answer in await asyncio.gather(*backfills):
                assert bases(answer.records) == [0]
            assert loop.time() - began > (READERS / LANES - 0.5) * GET_SECONDS
            assert reads.most_at_once == LANES + 1

    run(story())
