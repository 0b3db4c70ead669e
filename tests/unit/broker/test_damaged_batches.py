"""Batches that do not match their checksums when they come from the object store reach no consumer."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from kio.schema.errors import ErrorCode
from prometheus_client import REGISTRY

from firn.records import record_batch
from firn_broker.log.blocks import BlockCache
from firn_broker.storage.objects import MemoryObjects
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_compaction import UPKEEP, fill
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

APPEND_TIME: dict[str, Any] = {"message_timestamp_type": "LogAppendTime"}
COMPACTED: dict[str, Any] = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": "0.1"}


class Damaging(MemoryObjects):
    """Flips a bit in each of the next ``answers``, at byte ``place`` of every range."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.place = place
        self.answers = 0

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        contents = await super().get_ranges(key, ranges)
        if not self.answers:
            return contents
        self.answers -= 1
        contents = [memoryview(bytearray(content)) for content in contents]
        for content in contents:
            content[self.place] ^= 1
        return contents


def damaging(place: int) -> tuple[Shared, Damaging]:
    shared = Shared()
    shared.objects = objects = Damaging(place)
    return shared, objects


def damaged(read: str) -> float:
    return REGISTRY.get_sample_value("firn_broker_damaged_ranges_total", {"read": read}) or 0.0


async def cold_fetch(asked: Asked) -> Any:
    """Fetch as from a broker that has nothing in its cache."""
    asked.broker.reader._cache = BlockCache(1 << 20, 1 << 20)
    return await fetch(asked, "t", 0, 0, wait=0)


@pytest.mark.parametrize("place", [11, 17, 30, record_batch.HEADER + 3], ids=["length", "checksum", "time", "records"])
@pytest.mark.parametrize("config", [{}, APPEND_TIME], ids=["create time", "append time"])
def test_a_damaged_answer_of_the_store_is_read_once_more(place: int, config: dict[str, Any]) -> None:
    async def story() -> None:
        shared, objects = damaging(place)
        async with broker(shared) as asked:
            await create(asked, "t", **config)
            await produce(asked, "t", 0, raw(3))
            whole = bytes((await cold_fetch(asked)).records)
            before = damaged("first"), damaged("second")
            objects.answers = 1
            answer = await cold_fetch(asked)
            assert (answer.error_code, bytes(answer.records)) == (ErrorCode.none, whole)
            assert (damaged("first"), damaged("second")) == (before[0] + 1, before[1])

    run(story())


@pytest.mark.parametrize("config", [{}, APPEND_TIME], ids=["create time", "append time"])
def test_batches_that_are_damaged_in_the_store_are_a_storage_error(config: dict[str, Any]) -> None:
    async def story() -> None:
        shared, objects = damaging(record_batch.HEADER)
        async with broker(shared) as asked:
            await create(asked, "t", **config)
            await produce(asked, "t", 0, raw(3))
            before = damaged("second")
            objects.answers = 2
            answer = await cold_fetch(asked)
            assert (answer.error_code, answer.records or b"") == (ErrorCode.kafka_storage_error, b"")
            assert damaged("second") == before + 1
            assert (await fetch(asked, "t", 0, 0, wait=0)).error_code is ErrorCode.none, "the store is repaired"

    run(story())


def test_compaction_leaves_a_partition_with_damaged_batches_as_it_is() -> None:
    async def story() -> None:
        shared, objects = damaging(record_batch.HEADER)
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", **COMPACTED)
            await fill(asked)
            before = dict(objects.objects)
            asked.broker.reader._cache = BlockCache(0, 0)
            objects.answers = 1 << 30
            await asyncio.sleep(100)
            assert objects.objects == before
            objects.answers = 0
            await asyncio.sleep(200)
            assert objects.objects != before, "the store is repaired"

    run(story())
