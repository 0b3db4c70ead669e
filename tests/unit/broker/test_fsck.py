"""fsck reports lost and unknown objects, and nothing else."""

from collections.abc import Awaitable, Callable, Sized
from typing import Any

import pytest

from firn.model.errors import ExitCode
from firn_broker.log.writer import Append
from firn_broker.maintenance import fsck
from tests.unit.broker.batches import batch
from tests.unit.broker.rig import FIRST, SECOND, rig


async def test_fsck_reports_each_kind_of_problem() -> None:
    async with rig() as parts:
        keys = []
        for _ in range(4):
            await parts.writer.append([Append(FIRST, batch(), False)])
            keys.append(next(key for key in parts.objects.objects if key not in keys))
        clean = await fsck.check(parts.store.retention, parts.objects, read=True)
        assert (clean.objects, clean.lost, clean.unknown) == (4, False, [])
        missing, short, damaged, _ = keys
        del parts.objects.objects[missing]
        parts.objects.objects[short] = parts.objects.objects[short][:-1]
        bad = bytearray(parts.objects.objects[damaged])
        bad[60] ^= 1
        parts.objects.objects[damaged] = bytes(bad)
        parts.objects.objects["wal/00/stranger"] = b"x"
        report = await fsck.check(parts.store.retention, parts.objects, read=True)
        assert (report.missing, report.wrong_size, report.damaged) == ([missing], [short], [damaged])
        assert (report.unknown, report.lost) == (["wal/00/stranger"], True)


async def test_fsck_holds_only_a_part_of_all_objects_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with rig() as parts:
        for _ in range(100):
            await parts.writer.append([Append(FIRST, batch(), False)])
        sizes: list[int] = []
        for owner, name in ((parts.store.retention, "list_objects"), (parts.objects, "list")):
            work = getattr(owner, name)

            async def counted(*part: Any, work: Callable[..., Awaitable[Sized]] = work) -> Sized:
                found = await work(*part)
                sizes.append(len(found))
                return found

            monkeypatch.setattr(owner, name, counted)
        report = await fsck.check(parts.store.retention, parts.objects, read=True)
        assert (report.objects, report.lost, report.newer, report.uncommitted) == (100, False, [], [])
        assert max(sizes) <= 10


async def test_fsck_reports_objects_newer_than_the_coordinator() -> None:
    async with rig() as parts:
        await parts.writer.append([Append(FIRST, batch(2), False), Append(SECOND, batch(3), False)])
        (key,) = parts.objects.objects
        state = "UPDATE wal SET state=0, size=-1, runs=0, reply=NULL WHERE key=?"
        parts.store.database.connection.execute(state, (key,))
        announced = await fsck.check(parts.store.retention, parts.objects, read=False)
        assert (announced.uncommitted, announced.newer, announced.verdict) == ([key], [], ExitCode.DONE)
        parts.store.database.connection.execute("DELETE FROM wal WHERE key=?", (key,))
        report = await fsck.check(parts.store.retention, parts.objects, read=False)
        assert (report.newer, report.unknown, report.verdict) == ([key], [], ExitCode.CORRUPT)
        assert report.newer_records == {f"{FIRST.topic}/0": 2, f"{SECOND.topic}/1": 3}
