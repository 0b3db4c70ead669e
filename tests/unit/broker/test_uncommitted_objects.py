"""A complete object without a commit may hold acknowledged records: it stays until an administrator decides."""

import asyncio
from collections.abc import Sequence

import pytest
from prometheus_client import REGISTRY

from firn.model.errors import ExitCode
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_recovery import LONG, SETTINGS, UPKEEP, fsck, printed_report
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Shared, broker, create

LOSE_COMMIT = (
    "DELETE FROM run",
    "UPDATE log SET hw = 0, bytes = 0",
    "UPDATE wal SET state = 0, size = -1, runs = 0, reply = NULL, made_ms = 0 WHERE state = 1",
)


def kept() -> float | None:
    return REGISTRY.get_sample_value("firn_broker_uncommitted_objects")


async def leave_uncommitted(shared: Shared) -> str:
    """Write an object whose commit the coordinator then loses; return its key."""
    async with broker(shared) as asked:
        await create(asked, "t", retention_ms="-1")
        await produce(asked, "t", 0, batch().data)
    for sql in LOSE_COMMIT:
        shared.store.database.connection.execute(sql)
    (key,) = shared.objects.objects
    return key


def test_an_uncommitted_object_stays_and_is_counted_until_it_is_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        key = await leave_uncommitted(shared)
        async with broker(shared, seed=2, **SETTINGS):
            await asyncio.sleep(LONG)
            assert (key in shared.objects.objects, kept()) == (True, 1)
            assert REGISTRY.get_sample_value("firn_broker_dead_objects") == 0, "no backlog of deletions"
            assert await fsck(shared, monkeypatch, "accept", **SETTINGS) == ExitCode.DONE, "brokers need not stop"
            report = printed_report(capsys)
            assert (report["uncommitted"], report["accepted"]) == ([key], 1)
            await asyncio.sleep(UPKEEP["uncommitted_seconds"] - 30)
            assert (key in shared.objects.objects, kept()) == (True, 0), "the decision can still be changed"
            await asyncio.sleep(60)
            assert key not in shared.objects.objects

    run(story())


def test_a_recovery_commits_a_kept_object(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        key = await leave_uncommitted(shared)
        async with broker(shared, seed=2, **SETTINGS):
            await asyncio.sleep(LONG)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        async with broker(shared, seed=3, **SETTINGS) as asked:
            assert (await produce(asked, "t", 0, batch().data)).base_offset == 1
            await asyncio.sleep(60)
            assert (key in shared.objects.objects, kept()) == (True, 0)

    run(story())


def test_a_damaged_object_stays_and_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        key = await leave_uncommitted(shared)
        data = bytearray(shared.objects.objects[key])
        data[-1] ^= 1
        shared.objects.objects[key] = bytes(data)
        assert await fsck(shared, monkeypatch) == ExitCode.CORRUPT
        report = printed_report(capsys)["recovered"]
        assert (report["skipped"], report["kept"]) == ([key], [key])
        async with broker(shared, seed=2, **SETTINGS):
            await asyncio.sleep(LONG)
            assert key in shared.objects.objects

    run(story())


@pytest.mark.parametrize("damaged_reads", [1, 2, 1_000])
def test_a_damaged_read_deletes_no_object(
    damaged_reads: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        key = await leave_uncommitted(shared)
        read, reads = shared.objects.get_ranges, 0

        async def damaged(wanted: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
            nonlocal reads
            found = await read(wanted, ranges)
            reads += wanted == key
            if wanted == key and reads <= damaged_reads:
                found[0] = memoryview(bytes(found[0][:-1]) + bytes([found[0][-1] ^ 1]))
            return found

        monkeypatch.setattr(shared.objects, "get_ranges", damaged)
        async with broker(shared, seed=2, **SETTINGS):
            await asyncio.sleep(LONG)
            assert (key in shared.objects.objects, kept()) == (True, 1)

    run(story())
