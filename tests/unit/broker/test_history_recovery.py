"""Recoveries of a coordinator that is older than history objects: their batches come back from the data files of the table."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_broker.history.restoring import restoring
from firn_broker.history.restoring.restoring import Restored, restore
from firn_broker.log_types import WalRange
from firn_broker.maintenance import fsck, recovery
from firn_broker.maintenance.recovery import Recovered
from firn_broker.topics.configs import TopicConfigs
from tests.fakes.virtual_time import run
from tests.unit.broker.test_history_entries import write
from tests.unit.broker.test_history_indexing import UPKEEP, World, made
from tests.unit.broker.test_merged_recovery import backup
from tests.unit.broker.test_rebuilt_batches import Row, produced
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, broker

LONG_GRACE: dict[str, Any] = {"upkeep": {**UPKEEP["upkeep"], "grace_seconds": 100_000}}


async def recovered(world: World, earlier: bytes) -> tuple[Restored, Recovered]:
    """Restore the coordinator, and repair it as ``firn-broker fsck --recover`` does."""
    shared = world.shared
    shared.store.database.connection.deserialize(earlier)
    await asyncio.sleep(60)
    assert await shared.store.nodes.stop_idle("a recovery runs")
    findings = await fsck.check(shared.store.retention, shared.objects, read=True)
    keys = [*findings.uncommitted, *findings.newer]
    restored = await restore(shared.objects, keys, world.tables())
    done = await recovery.recover(
        shared.store,
        shared.objects,
        [*keys, *restored.keys],
        TopicConfigs({}),
        findings.missing,
        restored.unreadable,
        restored.copies,
    )
    assert await shared.store.nodes.allow_serving()
    if done.complete:
        assert await fsck.still_missing(shared.store.retention, findings.missing) == []
    return restored, done


@pytest.mark.parametrize("settings", [UPKEEP, LONG_GRACE], ids=["deleted", "there"])
@pytest.mark.parametrize("before", [0, 6, 12])
def test_records_whose_only_copy_is_in_the_table_keep_their_offsets(
    tmp_path: Path, settings: dict[str, Any], before: int
) -> None:
    """The backup is older than all commits, than some, or than the indexing alone. WAL objects are deleted or not."""

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **settings) as asked:
            await made(world, asked)
            await world.fill(asked, before)
            earlier = backup(world.shared)
            await world.fill(asked, 12 - before, seed=2)
            indexed = await world.index(asked, world.rows[5:])
            assert indexed.batches
            assert indexed.kept
            await asyncio.sleep(200)
        restored, done = await recovered(world, earlier)
        assert restored.keys
        assert (done.rejected, done.skipped) == ({}, [])
        async with broker(world.shared, 2, tables=world.tables(), **LONG_GRACE) as other:
            await world.check(other)
            places = [each.place for partition in (0, 1) for each in await world.ranges(partition)]
            assert all(isinstance(place, WalRange) for place in places)
        again, done = await recovered(world, backup(world.shared))
        assert (again.keys, done.records) == ([], 0)

    run(story())


def test_a_history_object_that_the_table_does_not_give_back_makes_a_recovery_incomplete(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            earlier = backup(world.shared)
            await world.fill(asked, 5)
            await world.index(asked)
            await asyncio.sleep(200)
        (key,) = world.shared.objects.objects
        whole = (tmp_path / "file").read_bytes()
        write(tmp_path / "file", [(*row[:2], row[2]._replace(time=1)) for row in world.rows], group=60)
        restored, done = await recovered(world, earlier)
        assert list(restored.unreadable) == done.skipped == [key]
        assert not done.complete
        assert key in done.kept
        (tmp_path / "file").write_bytes(whole)
        restored, done = await recovered(world, backup(world.shared))
        assert (restored.unreadable, done.complete) == ({}, True)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())


def test_a_store_that_is_not_available_ends_the_recovery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            await world.fill(asked, 5)
            await world.index(asked)

        async def away(*_: object) -> None:
            raise UnavailableError("the store is away")

        tables = world.tables()
        monkeypatch.setattr(tables, "rebuild", away)
        with pytest.raises(UnavailableError, match="the store is away"):
            await restore(world.shared.objects, list(world.shared.objects.objects), tables)

    run(story())


async def fill_at_once(world: World, asked: Asked, count: int) -> None:
    """Produce batches at the same time, so that an object has them next to each other, in one range."""
    offset, rows = world.landed_to[0], [Row(1_000, None, b"v%d" % number) for number in range(count)]
    answers = await asyncio.gather(*(produce(asked, "t", 0, produced([row], 0, 0, idempotent=False)) for row in rows))
    for _, row in sorted((answer.base_offset, row) for answer, row in zip(answers, rows, strict=True)):
        world.sent[0].append(produced([row], offset, idempotent=False))
        world.rows.append((0, offset, row))
        offset += 1
    world.landed_to[0] = offset


@pytest.mark.parametrize(("most", "shared"), [(64 << 20, 2 << 20), (1_500, 1_000)])
def test_ranges_of_which_the_table_gives_back_only_some_batches_come_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, shared: int
) -> None:
    monkeypatch.setattr(restoring, "OBJECT_BYTES", most)
    monkeypatch.setattr(restoring, "SHARED_BYTES", shared)

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            for _ in range(5):
                await fill_at_once(world, asked, 9)
            assert len(await world.ranges(0)) == 5, "a range has nine batches"
            earlier = backup(world.shared)
            indexed = await world.index(asked, [row for row in world.rows if row[1] % 9 not in (3, 7)])
            assert (indexed.batches, indexed.kept) == (35, 10)
            await asyncio.sleep(200)
        restored, done = await recovered(world, earlier)
        assert (len(restored.keys) > 1) == (most == 1_500)
        assert done.complete, done
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())


def test_restored_batches_take_the_place_of_those_whose_data_files_are_gone(tmp_path: Path) -> None:
    """The backup has table ranges of the first generation. Since then, batches have moved to another one."""

    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **LONG_GRACE) as asked:
            await made(world, asked)
            await world.fill(asked, 8)
            await world.index(asked)
            earlier = backup(world.shared)
            await world.index(asked, name="new", generation=2)
            await asyncio.sleep(200)
        (tmp_path / "file").unlink()
        _, done = await recovered(world, earlier)
        assert done.complete, done
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())


def test_one_batch_that_the_table_lost_hides_no_other(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **UPKEEP) as asked:
            await made(world, asked)
            earlier = backup(world.shared)
            await world.fill(asked, 6)
            await world.index(asked)
            await asyncio.sleep(200)
        rows = [(*row[:2], row[2]._replace(time=1)) if row[:2] == (0, 0) else row for row in world.rows]
        whole = (tmp_path / "file").read_bytes()
        write(tmp_path / "file", rows, group=60)
        restored, done = await recovered(world, earlier)
        assert len(restored.unreadable) == 1
        assert not done.complete
        assert done.records > 0
        (tmp_path / "file").write_bytes(whole)
        restored, done = await recovered(world, earlier)
        assert (restored.unreadable, done.complete) == ({}, True)
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())


def test_a_recovery_that_ends_after_the_restore_is_repeated(tmp_path: Path) -> None:
    async def story() -> None:
        world = World(tmp_path)
        async with broker(world.shared, tables=world.tables(), **LONG_GRACE) as asked:
            await made(world, asked)
            await world.fill(asked, 8)
            await world.index(asked)
            earlier = backup(world.shared)
            await world.index(asked, name="new", generation=2)
            await asyncio.sleep(200)
        keys = [key for key in world.shared.objects.objects if key.endswith(".history")]
        assert (await restore(world.shared.objects, keys, world.tables())).keys
        (tmp_path / "file").unlink()
        restored, done = await recovered(world, earlier)
        assert restored.keys == []
        assert done.complete
        async with broker(world.shared, 2, tables=world.tables(), **UPKEEP) as other:
            await world.check(other)

    run(story())
