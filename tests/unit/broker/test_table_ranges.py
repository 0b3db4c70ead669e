"""Table ranges on whole brokers: compaction, recoveries, and history objects without a commit."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from firn_broker.log_types import BatchRange, Lookup, Partition, Rewrite, Swap
from firn_broker.maintenance import compaction
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import ADDRESS, TTL, in_entry
from tests.fakes.virtual_time import run
from tests.unit.broker.test_compaction import UPKEEP, alter
from tests.unit.broker.test_compaction import fill as fill_keys
from tests.unit.broker.test_merged_recovery import backup, merged_after_a_backup, recovered
from tests.unit.broker.test_merging import MERGES
from tests.unit.broker.test_recovery import SETTINGS
from tests.unit.broker.test_recovery import UPKEEP as RECOVERY_UPKEEP
from tests.unit.broker.whole import Shared, broker, create

KEPT = "firn_broker_uncommitted_objects"


async def topic_of(shared: Shared) -> UUID:
    topics = await shared.store.topics.load_topics()
    assert topics is not None
    return topics.topics[0].id


async def ranges(shared: Shared, partition: int = 0) -> list[BatchRange]:
    wanted = Lookup(Partition(await topic_of(shared), partition), 0, 1 << 40)
    (result,) = await shared.store.log.find([wanted], 1000)
    return list(result.ranges)


async def reserve(shared: Shared, number: int) -> str:
    """Write a history object that a broker has reserved."""
    lease, key = await shared.store.nodes.join(ADDRESS, TTL), wal.history_key(UUID(int=number), 7)
    await shared.store.log.reserve(lease, [key])
    await shared.objects.put(key, memoryview(bytes(500)))
    await shared.store.nodes.leave(lease)
    return key


async def move(shared: Shared) -> list[BatchRange]:
    """Move the first partition to a table, and return its ranges."""
    key, old = await reserve(shared, 1), await ranges(shared)
    lease = await shared.store.nodes.join(ADDRESS, TTL)
    await shared.store.log.adopt(lease, [key])
    new = in_entry(key, old)
    swap = Swap(Partition(await topic_of(shared), 0), old, new)
    assert await shared.store.log.rewrite(Rewrite(lease, key, 500, [swap])) == [True]
    await shared.store.nodes.leave(lease)
    return new


def test_compaction_leaves_table_ranges_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        get, got = shared.objects.get_ranges, set[str]()

        async def get_ranges(key: str, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
            got.add(key)
            return await get(key, spans)

        monkeypatch.setattr(shared.objects, "get_ranges", get_ranges)
        async with broker(shared, **UPKEEP) as asked:
            await create(asked, "t", retention_ms="-1")
            await fill_keys(asked)
            moved = await move(shared)
            await alter(asked, "t", cleanup_policy="compact")
            await asyncio.sleep(150)
            assert await ranges(shared) == moved
            assert moved[0].place.key not in got
            for why in ("outgrown", "undecodable", "behind"):
                assert REGISTRY.get_sample_value("firn_broker_not_compacted_partitions", {"why": why}) == 0

    run(story())


def test_a_recovery_leaves_table_ranges_alone_and_keeps_history_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "RANGE_BYTES", 400)

    async def story() -> None:
        shared = Shared()
        earlier, _ = await merged_after_a_backup(shared, 4, 0)
        (merged,) = shared.objects.objects
        shared.store.database.connection.deserialize(earlier)
        moved, uncommitted = await move(shared), await reserve(shared, 2)
        done = await recovered(shared, backup(shared))
        assert (done.compacted, done.kept, done.skipped, done.records) == ([merged], [uncommitted], [], 0)
        assert await ranges(shared) == moved
        assert {each.place.key for each in await ranges(shared, 1)} == {merged}
        async with broker(shared, 2, **MERGES):
            await asyncio.sleep(200)
            assert uncommitted in shared.objects.objects

    run(story())


def test_a_recovery_puts_a_merged_object_in_place_of_a_missing_history_object() -> None:
    async def story() -> None:
        shared = Shared()
        earlier, _ = await merged_after_a_backup(shared, 4, 0)
        (merged,) = shared.objects.objects
        shared.store.database.connection.deserialize(earlier)
        (history,) = {each.place.key for each in await move(shared)}
        await shared.objects.delete([history])
        done = await recovered(shared, backup(shared))
        assert (done.compacted, done.complete) == ([merged], True)
        assert {each.place.key for each in await ranges(shared)} == {merged}

    run(story())


def test_a_history_object_without_a_commit_stays_as_long_as_a_merged_one() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **SETTINGS):
            pass
        key = await reserve(shared, 3)
        async with broker(shared, 2, **SETTINGS):
            await asyncio.sleep(RECOVERY_UPKEEP["uncommitted_seconds"])
            assert key in shared.objects.objects
            await asyncio.sleep(200)
            assert key not in shared.objects.objects
            assert REGISTRY.get_sample_value(KEPT) == 0

    run(story())
