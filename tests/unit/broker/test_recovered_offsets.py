"""Offsets and producers after recoveries: which records keep their offsets, and which come behind those that have landed."""

import asyncio
from contextlib import suppress

import pytest
from kio.schema.errors import ErrorCode

from firn.model.errors import UnavailableError
from firn_broker.log_types import Partition
from firn_broker.maintenance import compaction
from firn_broker.storage import wal
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_lost_coordinators import LONG_GRACE, T, ends, failing, known, logs, lose, read, recovered
from tests.unit.broker.test_merging import MERGES
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of merged objects have several ranges."""
    monkeypatch.setattr(compaction, "RANGE_BYTES", 400)


async def named(asked: Asked, name: str, records: int) -> None:
    """Produce records one after the other, without idempotence. No two are equal."""
    for number in range(records):
        await produce(asked, T, 0, raw(1, body=f"{name} {number}".encode() + b"x" * 30))
        await asyncio.sleep(0.3)


def test_records_come_behind_the_landed_ones_if_no_offset_is_known() -> None:
    """All earlier records landed and expired. More records than these are new, and no merge has read them."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, retention_ms="-1")
            await named(asked, "old", 10)
            landed = (await ends(shared, id))[0]
            await shared.store.log.advance_start(Partition(id, 0), landed)
            await asyncio.sleep(400)
            assert not shared.objects.objects
            await named(asked, "new", 12)
        await lose(shared)
        outcome = await recovered(shared, [known(id, 1, {0: landed})])
        assert outcome.done.again == [f"{T}/0"]
        async with broker(shared, 2, **MERGES) as other:
            start, batches = await read(other, 0)
            assert (start, len(batches)) == (landed, 12)

    run(story())


def test_an_idempotent_batch_of_two_objects_is_there_once() -> None:
    """The producer sent it again to another broker. Both objects still exist beside the merged one."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, 1, **LONG_GRACE) as one, broker(shared, 2, **LONG_GRACE) as two:
            id = await create(one, T, retention_ms="-1")
            for asked, sequence in ((one, 0), (two, 0), (one, 1)):
                await produce(asked, T, 0, raw(1, producer=7, epoch=0, sequence=sequence))
                await asyncio.sleep(1)
            await asyncio.sleep(200)
            before = await logs(one, 1)
        await lose(shared)
        assert (await recovered(shared, [known(id, 1)])).complete
        async with broker(shared, 3, **LONG_GRACE) as other:
            assert await logs(other, 1) == before

    run(story())


def test_idempotent_producers_continue() -> None:
    """A merge has read all batches of the producer, which lives during the recovery."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, retention_ms="-1")
            for sequence in range(4):
                await produce(asked, T, 0, raw(1, producer=7, epoch=0, sequence=sequence))
                await asyncio.sleep(0.3)
            await asyncio.sleep(200)
        await lose(shared)
        assert (await recovered(shared, [known(id, 1)])).complete
        async with broker(shared, 2, **MERGES) as other:
            answers = [await produce(other, T, 0, raw(1, producer=7, epoch=0, sequence=4)) for _ in range(2)]
            assert [answer.error_code for answer in answers] == [ErrorCode.kafka_storage_error, ErrorCode.none]
            assert answers[-1].base_offset == 4

    run(story())


def test_batches_that_a_recovery_moved_keep_their_new_offsets() -> None:
    """Brokers wrote other records at the first offsets, between the restore of a backup and its recovery."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **LONG_GRACE) as asked:
            id = await create(asked, T, retention_ms="-1")
            earlier = shared.store.database.connection.serialize()
            await named(asked, "lost", 4)
            await asyncio.sleep(150)
        for key in [key for key in shared.objects.objects if not key.endswith(wal.MERGED)]:
            del shared.objects.objects[key]
        shared.store.database.connection.deserialize(earlier)
        await asyncio.sleep(60)
        async with broker(shared, 2, **LONG_GRACE) as other:
            await named(other, "another", 4)
            await asyncio.sleep(150)
        assert (await recovered(shared, [])).complete
        async with broker(shared, 3, upkeep={"interval_seconds": 10_000}) as third:
            before = await logs(third, 1)
            assert len(before[0][1]) == 8
        await lose(shared)
        await recovered(shared, [known(id, 1)])
        async with broker(shared, 4, upkeep={"interval_seconds": 10_000}) as fourth:
            assert len((await logs(fourth, 1))[0][1]) == 8

    run(story())


def test_a_recovery_that_ended_before_it_moved_the_log_start_is_completed() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            id = await create(asked, T, retention_ms="-1")
        await lose(shared)
        with failing(shared, 2), suppress(UnavailableError):
            await recovered(shared, [known(id, 1, {0: 10})])
        await asyncio.sleep(60)
        assert (await recovered(shared, [known(id, 1, {0: 10})])).complete
        (state,) = await shared.store.log.states([Partition(id, 0)])
        assert state is not None
        assert (state.log_start, state.high_watermark) == (10, 10)

    run(story())


@pytest.mark.parametrize("fails", range(1, 9))
def test_a_repeated_recovery_after_a_restore_adds_nothing(fails: int) -> None:
    """The first one fails at a change of the coordinator. The small objects still exist beside the merged one."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **LONG_GRACE) as asked:
            await create(asked, T, retention_ms="-1")
            await named(asked, "before", 3)
            earlier = shared.store.database.connection.serialize()
            await named(asked, "after", 3)
            await asyncio.sleep(150)
            before = await logs(asked, 1)
        shared.store.database.connection.deserialize(earlier)
        await asyncio.sleep(60)
        with failing(shared, fails), suppress(UnavailableError):
            await recovered(shared, [])
        await asyncio.sleep(60)
        await recovered(shared, [])
        async with broker(shared, 2, upkeep={"interval_seconds": 10_000}) as other:
            assert await logs(other, 1) == before

    run(story())
