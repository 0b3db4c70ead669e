"""Recoveries after merges: the coordinator comes from a backup, and the small objects are deleted."""

import asyncio
from itertools import count
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_broker.log_types import NodeAddress, Topic
from firn_broker.maintenance import compaction, fsck, recovery
from firn_broker.maintenance.recovery import Recovered
from firn_broker.topics.configs import TopicConfigs
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import raw
from tests.unit.broker.test_compaction import fill as fill_keys
from tests.unit.broker.test_compaction import read as read_keys
from tests.unit.broker.test_merging import MERGES, fill, objects, read
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create


@pytest.fixture(autouse=True)
def short_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of merged objects have several ranges."""
    monkeypatch.setattr(compaction, "RANGE_BYTES", 400)


LONG_GRACE: dict[str, Any] = {"upkeep": {**MERGES["upkeep"], "grace_seconds": 100_000}}
PARTITIONS = 3


def backup(shared: Shared) -> bytes:
    return shared.store.database.connection.serialize()


async def recovered(shared: Shared, earlier: bytes, *, ends_early: bool = False) -> Recovered:
    """Restore the coordinator, and run a recovery over what fsck finds."""
    shared.store.database.connection.deserialize(earlier)
    await asyncio.sleep(60)
    assert await shared.store.nodes.stop_idle("a recovery runs")
    findings = await fsck.check(shared.store.retention, shared.objects, read=True)
    keys = [*findings.uncommitted, *findings.newer]
    done = await recovery.recover(shared.store, shared.objects, keys, TopicConfigs({}), findings.missing)
    if not ends_early:
        assert await shared.store.nodes.allow_serving()
        assert await fsck.still_missing(shared.store.retention, findings.missing) == []
    return done


async def contents(asked: Asked) -> list[bytes]:
    return [await read(asked, partition) for partition in range(PARTITIONS)]


async def merged_after_a_backup(shared: Shared, before: int, after: int, **configs: str) -> tuple[bytes, list[bytes]]:
    """Produce so many rounds before and after a backup, and wait until small objects are merged and deleted.

    Return the backup, and the batches of each partition."""
    async with broker(shared, **MERGES) as asked:
        await create(asked, "t", partitions=PARTITIONS, retention_ms="-1", **configs)
        await fill(asked, PARTITIONS, before)
        earlier = backup(shared)
        await fill(asked, PARTITIONS, after)
        await asyncio.sleep(150)
        return earlier, await contents(asked)


async def check_contents(shared: Shared, expected: list[bytes]) -> None:
    """Check that readers of another broker get these batches."""
    async with broker(shared, 2, **LONG_GRACE) as other:
        assert await contents(other) == expected


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_a_merged_object_takes_the_place_of_deleted_ones(kind: str) -> None:
    async def story() -> None:
        shared = Shared()
        earlier, before = await merged_after_a_backup(shared, 10, 0, message_timestamp_type=kind)
        (merged,) = shared.objects.objects
        done = await recovered(shared, earlier)
        assert (done.compacted, done.kept, done.records, done.complete) == ([merged], [], 0, True)
        async with broker(shared, 2, **MERGES) as other:
            assert await contents(other) == before
            await asyncio.sleep(100)
            assert set(shared.objects.objects) == set(await objects(shared))

    run(story())


@pytest.mark.parametrize("settings", [MERGES, LONG_GRACE], ids=["deleted", "there"])
def test_lost_commits_in_merged_objects_get_the_same_offsets_once(settings: dict[str, Any]) -> None:
    """The producers are not idempotent, and some batches are equal. Small objects may be deleted or not."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, **settings) as asked:
            await create(asked, "t", partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, PARTITIONS, 6)
            earlier = backup(shared)
            await fill(asked, PARTITIONS, 6)
            await asyncio.sleep(80)
            for _ in range(3):
                await produce(asked, "t", 0, raw(2))
                await asyncio.sleep(0.3)
            await asyncio.sleep(120)
            before = await contents(asked)
            assert len([key for key in shared.objects.objects if key.endswith(".merged")]) == 2
        done = await recovered(shared, earlier)
        assert (done.rejected, done.skipped, done.kept) == ({}, [], [])
        await check_contents(shared, before)

    run(story())


def test_a_repeated_recovery_adds_no_record() -> None:
    async def story() -> None:
        shared = Shared()
        earlier, before = await merged_after_a_backup(shared, 4, 4)
        first = await recovered(shared, earlier, ends_early=True)
        assert first.records > 0
        second = await recovered(shared, backup(shared))
        assert second.records == 0
        third = await recovered(shared, earlier)
        assert third.records == first.records
        await check_contents(shared, before)

    run(story())


def test_records_that_took_the_offsets_of_lost_ones_stay() -> None:
    async def story() -> None:
        shared = Shared()
        earlier, lost = await merged_after_a_backup(shared, 0, 4)
        shared.store.database.connection.deserialize(earlier)
        async with broker(shared, 2, **LONG_GRACE) as other:
            for partition in range(PARTITIONS):
                await produce(other, "t", partition, raw(1, body=b"another"))
            before = await contents(other)
        await recovered(shared, backup(shared))
        async with broker(shared, 3, **MERGES) as third:
            for now, first, second in zip(await contents(third), before, lost, strict=True):
                assert now.startswith(first)
                assert len(now) == len(first) + len(second)

    run(story())


def test_equal_records_that_were_sent_later_are_no_copies() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            await create(asked, "t", partitions=PARTITIONS, retention_ms="-1")
            earlier = backup(shared)
            for number in range(4):
                await produce(asked, "t", 0, raw(1, body=b"ping-ping", time=1000 + number))
                await asyncio.sleep(0.3)
            await asyncio.sleep(150)
            for number in range(4):
                await produce(asked, "t", 0, raw(1, body=b"ping-ping", time=2000 + number))
                await asyncio.sleep(0.3)
            before = await contents(asked)
        done = await recovered(shared, earlier)
        assert (done.records, done.duplicates) == (8, 0), done
        await check_contents(shared, before)

    run(story())


@pytest.mark.parametrize(("call", "number"), [("adopt", 2), ("commit", 1), ("rewrite", 1)])
def test_a_recovery_that_ends_early_loses_no_batch(monkeypatch: pytest.MonkeyPatch, call: str, number: int) -> None:
    async def story() -> None:
        shared = Shared()
        earlier, before = await merged_after_a_backup(shared, 4, 4)
        true, calls = getattr(shared.store.log, call), count(1)

        async def broken(*values: Any) -> Any:
            if next(calls) == number:
                raise UnavailableError("the coordinator ended")
            return await true(*values)

        with monkeypatch.context() as patched:
            patched.setattr(shared.store.log, call, broken)
            with pytest.raises(UnavailableError):
                await recovered(shared, earlier, ends_early=True)
        await recovered(shared, backup(shared))
        await check_contents(shared, before)

    run(story())


def test_values_of_compacted_topics_do_not_come_back() -> None:
    async def story() -> None:
        shared = Shared()
        upkeep = {**MERGES["upkeep"], "grace_seconds": 100_000, "interval_seconds": 40}
        async with broker(shared, upkeep=upkeep) as asked:
            await create(asked, "t", cleanup_policy="compact", min_compaction_lag_ms="60000")
            await fill_keys(asked)
            await asyncio.sleep(300)
            records = await read_keys(asked)
            assert any(key.endswith(".merged") for key in shared.objects.objects)
        # The coordinator does not know the merged objects any more, which compaction has replaced.
        shared.store.database.connection.execute("DELETE FROM wal WHERE state=2 AND key LIKE '%.merged'")
        await recovered(shared, backup(shared))
        async with broker(shared, 2, upkeep=upkeep) as other:
            assert await read_keys(other) == records

    run(story())


def test_merged_batches_of_a_topic_that_is_unknown_are_kept() -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, **MERGES) as asked:
            earlier = backup(shared)
            await create(asked, "t", partitions=PARTITIONS, retention_ms="-1")
            await fill(asked, PARTITIONS, 4)
            await asyncio.sleep(150)
            id = (await asked.broker.topic_metadata.find("t")).id  # type: ignore[union-attr]
            before = await contents(asked)
        done = await recovered(shared, earlier)
        assert sum(done.rejected.values()) == 3 * sum(1 + number % 3 for number in range(4))
        (kept,) = done.kept
        assert kept in shared.objects.objects
        lease = await shared.store.nodes.join(NodeAddress("h", 1), 1)
        await shared.store.topics.create_topic(Topic(id, "t", PARTITIONS, {"retention.ms": "-1"}))
        await shared.store.nodes.leave(lease)
        await recovered(shared, backup(shared))
        await check_contents(shared, before)

    run(story())
