"""Compacted topics on whole brokers: what stays, what goes, and deaths in between."""

import asyncio
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.coordinates import Rewrite
from firn_broker.wire import keys, records
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_keys import record
from tests.unit.broker.test_whole_brokers import fetch, produce
from tests.unit.broker.whole import Asked, Shared, broker, create

UPKEEP = {"upkeep": {"interval_seconds": 30, "grace_seconds": 60}}


def batch(*pairs: tuple[bytes | None, bytes | None], time: int = 1 << 50) -> memoryview:
    of = [record(number, key, value, time) for number, (key, value) in enumerate(pairs)]
    (made,) = keys.encode(of, 0, len(of) - 1, compressed=False, batch_bytes=1 << 20)
    return memoryview(made)


async def read(asked: Asked, topic: str = "t") -> list[tuple[int, bytes | None, bool]]:
    """(offset, key, tombstone) of all records, as a consumer comes by them."""
    found: list[tuple[int, bytes | None, bool]] = []
    offset = 0
    while True:
        answer: Any = await fetch(asked, topic, 0, offset, wait=0)
        assert not answer.error_code
        if offset >= answer.high_watermark:
            return found
        data = memoryview(answer.records)
        assert len(data), "a consumer could never go on"
        for place, size, offsets in records.walk(data):
            one = data[place : place + size]
            found += [(it.offset, it.key, it.tombstone) for it in keys.decode(one) if it.offset >= offset]
            offset = int.from_bytes(one[:8], "big") + offsets


async def fill(asked: Asked) -> None:
    for number in range(10):
        answer = await produce(asked, "t", 0, batch((b"a", b"%d" % number), (b"b", b"%d" % number)))
        assert answer.base_offset == 2 * number
        await asyncio.sleep(0.3)


def test_the_newest_record_of_each_key_stays_at_its_offset_and_the_rest_goes() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            await produce(asked, "t", 0, batch((b"b", None), (b"c", b"v")))
            assert len(await read(asked)) == 22
            before = len(shared.objects.objects)
            await asyncio.sleep(150)
            assert await read(asked) == [(18, b"a", False), (20, b"b", True), (21, b"c", False)]
            assert before > 1 == len(shared.objects.objects)
            assert (await produce(asked, "t", 0, batch((b"a", b"w")))).base_offset == 22
        async with broker(shared, 2, **UPKEEP) as other:
            await asyncio.sleep(60)
            assert [it[0] for it in await read(other)] == [20, 21, 22]

    run(story())


def test_old_tombstones_go() -> None:
    async def story() -> None:
        async with broker(**UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact", delete_retention_ms="1000")
            await fill(asked)
            await produce(asked, "t", 0, batch((b"a", None), (b"z", b"v"), time=1))
            await asyncio.sleep(60)
            assert [it[1] for it in await read(asked)] == [b"b", b"z"]

    run(story())


@pytest.mark.parametrize("fault", ["put", "before", "after"])
def test_a_fault_at_any_step_loses_nothing(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", cleanup_policy="compact")
            await fill(asked)
            place: Any = shared.objects if fault == "put" else shared.coordinator
            name = "put" if fault == "put" else "rewrite"
            true = getattr(place, name)

            async def broken(*values: Rewrite) -> None:
                if fault == "after":
                    await true(*values)
                raise UnavailableError("broken")

            with monkeypatch.context() as patched:
                patched.setattr(place, name, broken)
                await asyncio.sleep(40)
                assert {it[0] for it in await read(asked)} >= {18, 19}
            await asyncio.sleep(300)
            assert [it[0] for it in await read(asked)] == [18, 19]

    run(story())


def test_what_cannot_be_compacted_is_refused() -> None:
    async def story() -> None:
        async with broker(topics={"compacted_partitions": 3}) as asked:
            with pytest.raises(AssertionError, match=r"may have 3 partitions \(topics.compactedPartitions\), not 4"):
                await create(asked, "large", partitions=4, cleanup_policy="compact,delete")
            await create(asked, "t", partitions=3, cleanup_policy="compact")
            for bad in (batch((b"k", b"v"), (None, b"v")), raw(2)):
                assert (await produce(asked, "t", 0, bad)).error_code == ErrorCode.invalid_record
            assert (await produce(asked, "t", 0, batch((b"k", b"v")))).base_offset == 0

    run(story())
