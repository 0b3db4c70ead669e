"""Objects that the coordinator does not know are found within a week, and never deleted."""

import asyncio
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from firn_broker.log.writer import Append
from firn_broker.maintenance import orphans
from firn_broker.maintenance.orphans import SWEEP_SECONDS, OrphanSweep
from firn_broker.storage import wal
from tests.fakes.clock import FakeClock
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, rig
from tests.unit.broker.whole import Shared, broker

LATE = [wal.key(UUID(int=number)) for number in (1, 2, 3)]


def reported() -> float:
    return REGISTRY.get_sample_value("firn_broker_orphan_objects") or 0


async def test_late_uploads_are_reported_within_a_week_and_stay() -> None:
    async with rig() as parts:
        clock, rounds = FakeClock(), 7 * 24
        sweep = OrphanSweep(parts.store.retention, parts.objects, clock)

        async def week() -> None:
            for _ in range(2 * rounds):
                await sweep.step()
                clock.advance(SWEEP_SECONDS / rounds / 2)

        for _ in range(20):
            await parts.writer.append([Append(FIRST, batch(), False)])
        for key in LATE:
            parts.objects.objects[key] = b"late"
        await week()
        assert reported() == len(LATE)
        assert len(parts.objects.objects) == 20 + len(LATE)
        del parts.objects.objects[LATE[0]]
        await week()
        assert reported() == len(LATE) - 1
        sweep.rest()
        assert reported() == 0


async def test_brokers_that_take_turns_list_each_part_once_a_week(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        clock, listed = FakeClock(), list[str]()
        true = parts.objects.list

        async def counted(prefix: str) -> list[tuple[str, int]]:
            listed.append(prefix)
            return await true(prefix)

        monkeypatch.setattr(parts.objects, "list", counted)
        for _ in range(7):
            sweep = OrphanSweep(parts.store.retention, parts.objects, clock)
            for _ in range(24 * 60):
                await sweep.step()
                clock.advance(60)
        assert {part.prefix for part in wal.PARTS} == set(listed)
        assert len(listed) <= len(wal.PARTS) + 7


async def test_an_object_that_is_deleted_meanwhile_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(), False)])
        (key,) = parts.objects.objects
        true = parts.objects.list

        async def deleted_after(prefix: str) -> list[tuple[str, int]]:
            found = await true(prefix)
            if found:
                del parts.objects.objects[key]
                parts.store.database.connection.execute("DELETE FROM wal")
            return found

        monkeypatch.setattr(parts.objects, "list", deleted_after)
        sweep = OrphanSweep(parts.store.retention, parts.objects, FakeClock())
        for part in wal.PARTS:
            assert await sweep.examine(part) == []
        assert key not in parts.objects.objects


def test_maintenance_searches_for_orphans(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(orphans, "SWEEP_SECONDS", 60 * len(wal.PARTS))
        shared = Shared()
        # So many that the part that is due has some.
        for number in range(2_000):
            shared.objects.objects[wal.key(UUID(int=number))] = b"late"
        async with broker(shared, upkeep={"interval_seconds": 10}):
            await asyncio.sleep(15)
            assert reported() > 0
        assert len(shared.objects.objects) == 2_000

    run(story())
