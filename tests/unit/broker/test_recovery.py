"""Brokers serve no client from the first to the last commit of a recovery, whether it ends or not."""

import argparse
import asyncio
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from firn.model.errors import ExitCode, UnavailableError
from firn.records import record_batch
from firn_broker import __main__ as process
from firn_broker.broker import Ports
from firn_broker.log_types import BatchEntry, BatchOutcome, Commit, NodeAddress
from firn_broker.settings import BrokerSettings, DirectorySettings, SqliteSettings
from firn_broker.storage import wal
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Asked, Shared, broker, create, zero

RECORDS = 3
UPKEEP = {"interval_seconds": 10, "grace_seconds": 5, "abandon_seconds": 60, "uncommitted_seconds": 300}
SETTINGS: dict[str, Any] = {"upkeep": UPKEEP}
LONG = 3 * UPKEEP["uncommitted_seconds"]
LOSE = (
    "DELETE FROM wal",
    "DELETE FROM run",
    "DELETE FROM producer",
    "UPDATE log SET hw = 0, bytes = 0",
)
WHY = "CoordinatorWentBack: some commits are lost"


async def lose_commits(shared: Shared) -> None:
    """Write records whose commits the coordinator then loses."""
    async with broker(shared) as asked:
        await create(asked, "t", retention_ms="-1")
        for _ in range(RECORDS):
            await produce(asked, "t", 0, batch().data)
    lose(shared)


def lose(shared: Shared, *more: str) -> None:
    """Take all commits from the coordinator."""
    for sql in (*LOSE, *more):
        shared.store.database.connection.execute(sql)


def printed_report(capsys: pytest.CaptureFixture[str]) -> Any:
    """Return what fsck has printed. In front of it are lines of the log."""
    return json.loads("{" + f"\n{capsys.readouterr().out}".rpartition("\n{")[2])


async def read(asked: Asked, topic: str) -> list[int]:
    """Return the sequence numbers of the batches in partition 0."""
    answer = await asked.ask(
        1, 11, replica_id=-1, max_wait=zero(), min_bytes=0, max_bytes=1 << 20, session_epoch=-1,
        topics=[{"topic": topic, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}],
    )  # fmt: skip
    data = memoryview(answer.responses[0].partitions[0].records)
    return [
        record_batch.rewritten(data[place : place + size]).base_sequence for place, size, _ in record_batch.walk(data)
    ]


async def fsck(shared: Shared, monkeypatch: pytest.MonkeyPatch, option: str = "recover", **upkeep: Any) -> int:
    monkeypatch.setattr(
        process, "make_ports", lambda *_, **__: Ports(shared.store, shared.objects, LoopClock(), Random(1))
    )
    settings = BrokerSettings(
        coordinator=SqliteSettings(path=":memory:"), objects=DirectorySettings(path="/nowhere"), **upkeep
    )
    options = argparse.Namespace(read=False, recover=option == "recover", accept=option == "accept", topics=None)
    return await process.run_fsck(settings, options)


def watch_commits(shared: Shared, monkeypatch: pytest.MonkeyPatch, failing: int = -1) -> list[str]:
    """Record why brokers are stopped at each commit. The commit number ``failing`` fails."""
    reasons: list[str] = []
    commit = shared.store.log.commit

    async def watched(request: Commit) -> Sequence[BatchOutcome]:
        reasons.append((await shared.store.nodes.progress()).stopped)
        if len(reasons) - 1 == failing:
            raise UnavailableError("broken")
        return await commit(request)

    monkeypatch.setattr(shared.store.log, "commit", watched)
    return reasons


@pytest.mark.parametrize("reason", ["", WHY])
def test_brokers_stay_stopped_until_the_recovery_has_ended(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        if reason:
            await shared.store.nodes.stop_serving(reason)
        reasons = watch_commits(shared, monkeypatch)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        assert len(reasons) == RECORDS
        assert all(reasons)
        report = printed_report(capsys)
        assert report["recovered"]["records"] == RECORDS
        assert report["stopped"] == reason
        assert (await shared.store.nodes.progress()).stopped == ""
        async with broker(shared) as asked:
            assert (await produce(asked, "t", 0, batch().data)).base_offset == RECORDS

    run(story())


def test_a_recovery_that_did_not_end_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        watch_commits(shared, monkeypatch, failing=1)
        with pytest.raises(UnavailableError):
            await fsck(shared, monkeypatch)
        stopped = (await shared.store.nodes.progress()).stopped
        assert "repeat firn-broker fsck --recover" in stopped
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        assert (await shared.store.nodes.progress()).stopped == ""

    run(story())


@pytest.mark.parametrize(("option", "reason"), [("recover", ""), ("recover", WHY), ("accept", WHY)])
def test_a_repair_does_nothing_while_a_broker_is_live(
    option: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        shared = Shared()
        reasons: list[Any] = watch_commits(shared, monkeypatch)
        async with broker(shared) as asked:
            await create(asked, "t")
            await shared.store.nodes.stop_serving(reason)
            assert await fsck(shared, monkeypatch, option) == ExitCode.TEMPORARY
            assert (reasons, (await shared.store.nodes.progress()).stopped) == ([], reason)

    run(story())


def test_the_batches_of_a_producer_that_moved_keep_their_order(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first, broker(shared, seed=2) as second:
            await create(first, "t", retention_ms="-1")
            for sequence, asked in enumerate([second, first, second, second, first, first]):
                sent = batch(producer=9, epoch=0, sequence=sequence).data
                assert (await produce(asked, "t", 0, sent)).base_offset == sequence
        lose(shared)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        assert printed_report(capsys)["recovered"]["records"] == 6
        async with broker(shared, seed=3, **SETTINGS) as asked:
            await asyncio.sleep(LONG)
            assert await read(asked, "t") == [0, 1, 2, 3, 4, 5]
            next_batch = batch(producer=9, epoch=0, sequence=6).data
            assert (await produce(asked, "t", 0, next_batch)).base_offset == 6, "the producer continues"

    run(story())


def test_batches_that_a_producer_sent_again_are_committed_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The coordinator remembers fewer batches of a producer than it sent again."""

    async def story() -> None:
        shared = Shared()
        for seed in (1, 2):
            async with broker(shared, seed=seed) as asked:
                if seed == 1:
                    await create(asked, "t", retention_ms="-1")
                for sequence in range(8):
                    await produce(asked, "t", 0, batch(producer=9, epoch=0, sequence=sequence).data)
            lose(shared)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        recovered = printed_report(capsys)["recovered"]
        assert (recovered["records"], recovered["duplicates"]) == (8, 8)
        async with broker(shared, seed=3, **SETTINGS) as asked:
            assert await read(asked, "t") == list(range(8))

    run(story())


def test_a_recovery_asks_the_coordinator_once_for_each_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t", retention_ms="-1")
            sent = (batch(producer=producer, epoch=0, sequence=0).data for producer in range(5))
            await asyncio.gather(*(produce(asked, "t", 0, data) for data in sent))
        assert len(shared.objects.objects) == 1
        # The object lost its commit. Two of its producers sent their batches again, and the log has them.
        lose(shared, "UPDATE counter SET value = 5 WHERE name = 'producer'")
        (key,) = shared.objects.objects
        lease = await shared.store.nodes.join(NodeAddress("h", 1), 1000)
        await shared.store.log.reserve(lease, [key])
        await shared.store.nodes.leave(lease)
        async with broker(shared, seed=2) as asked:
            for producer in (1, 3):
                await produce(asked, "t", 0, batch(producer=producer, epoch=0, sequence=0).data)
        contains = shared.store.retention.contains
        answers: list[Sequence[bool]] = []

        async def noted(key: str, batches: Sequence[BatchEntry]) -> Sequence[bool]:
            answers.append(await contains(key, batches))
            return answers[-1]

        monkeypatch.setattr(shared.store.retention, "contains", noted)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        assert answers == [[False, True, False, True, False]]
        recovered = printed_report(capsys)["recovered"]
        assert (recovered["records"], recovered["duplicates"]) == (3, 2)

    run(story())


@pytest.mark.parametrize("beside", ["t", None], ids=["beside records of a known topic", "alone"])
def test_records_of_an_unknown_topic_stay_until_they_are_accepted(
    beside: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The topic was created after the backup."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as asked:
            for name in ("t", "created-later"):
                await create(asked, name, retention_ms="-1")
            wanted = [name for name in (beside, "created-later") if name is not None]
            await asyncio.gather(*(produce(asked, name, 0, batch().data) for name in wanted))
        assert len(shared.objects.objects) == 1
        lose(
            shared,
            "DELETE FROM topic WHERE name = 'created-later'",
            "DELETE FROM log WHERE topic_id NOT IN (SELECT id FROM topic)",
        )
        for _ in range(2):
            assert await fsck(shared, monkeypatch) == ExitCode.CORRUPT
            report = printed_report(capsys)["recovered"]
            assert report["rejected"] == {"unknown_topic_or_partition": 1}
            (kept,) = report["kept"]
        async with broker(shared, seed=2, **SETTINGS) as asked:
            if beside is not None:
                assert await read(asked, beside) == [-1]
                await asked.broker.metadata_store.topics.delete_topic(asked.broker.topic_metadata.by_name[beside].id)
            await asyncio.sleep(LONG)
            assert list(shared.objects.objects) == [kept]
            batches = await wal.read_batches(shared.objects, kept, await shared.objects.size(kept))
            assert [found.records for found in batches] == [1]
            assert await fsck(shared, monkeypatch, "accept", **SETTINGS) == ExitCode.DONE
            await asyncio.sleep(LONG)
            assert not shared.objects.objects

    run(story())


def test_a_recovery_without_an_end_leaves_no_second_copy_of_rejected_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as asked:
            for name in ("t", "created-later"):
                await create(asked, name, retention_ms="-1")
            await asyncio.gather(*(produce(asked, name, 0, batch().data) for name in ("t", "created-later")))
        lose(
            shared,
            "DELETE FROM topic WHERE name = 'created-later'",
            "DELETE FROM log WHERE topic_id NOT IN (SELECT id FROM topic)",
        )
        with monkeypatch.context() as patched:
            watch_commits(shared, patched, failing=0)
            with pytest.raises(UnavailableError):
                await fsck(shared, patched)
        assert len(shared.objects.objects) == 2, "the copy comes first"
        assert await fsck(shared, monkeypatch) == ExitCode.CORRUPT
        report = printed_report(capsys)["recovered"]
        assert (report["records"], report["rejected"]) == (1, {"unknown_topic_or_partition": 1})
        assert len(shared.objects.objects) == 2

    run(story())


@pytest.mark.parametrize("option", ["recover", "accept"])
def test_a_producer_id_that_the_coordinator_lost_is_not_allocated_again(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t")
        ids = shared.store.database.connection.execute("SELECT value FROM counter WHERE name = 'producer'").fetchone()
        async with broker(shared) as asked:
            lost = await new_producer(asked)
            await produce(asked, "t", 0, batch(producer=lost, epoch=0, sequence=0).data)
        lose(shared, f"UPDATE counter SET value = {ids[0]} WHERE name = 'producer'")
        await shared.store.nodes.stop_serving(WHY)
        assert await fsck(shared, monkeypatch, option) == ExitCode.DONE
        # With the same seed at the same time, the broker would draw the key of a stored object.
        async with broker(shared, seed=2) as asked:
            new = await new_producer(asked)
            assert new > lost
            sent = batch(producer=new, epoch=0, sequence=0, body=b"other!!").data
            assert (await produce(asked, "t", 0, sent)).base_offset == (1 if option == "recover" else 0)
            assert await read(asked, "t") == [0, 0] if option == "recover" else [0]

    run(story())


def test_ids_of_lost_producers_are_not_allocated_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator lost more ids than the end of a repair leaves out."""

    async def story() -> None:
        shared = Shared()
        async with broker(shared) as asked:
            await create(asked, "t")
            await produce(asked, "t", 0, batch(producer=1 << 61, epoch=0, sequence=0).data)
        lose(shared)
        assert await fsck(shared, monkeypatch) == ExitCode.DONE
        async with broker(shared) as asked:
            assert await new_producer(asked) > 1 << 61

    run(story())


def test_objects_that_the_coordinator_does_not_know_are_deleted_after_they_are_accepted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        lost = set(shared.objects.objects)
        assert await fsck(shared, monkeypatch, "accept", **SETTINGS) == ExitCode.DONE
        assert printed_report(capsys)["accepted"] == RECORDS
        assert (await shared.store.nodes.progress()).stopped == ""
        async with broker(shared, **SETTINGS) as asked:
            await asyncio.sleep(UPKEEP["uncommitted_seconds"] / 2)
            assert set(shared.objects.objects) == lost, "a recovery can still commit them"
            await produce(asked, "t", 0, batch().data)
            await asyncio.sleep(LONG)
            assert len(shared.objects.objects) == 1
            assert lost.isdisjoint(shared.objects.objects)

    run(story())


def test_accepted_objects_can_be_recovered_until_they_are_deleted(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        await fsck(shared, monkeypatch, "accept", **SETTINGS)
        assert await fsck(shared, monkeypatch, **SETTINGS) == ExitCode.DONE
        assert printed_report(capsys)["recovered"]["records"] == RECORDS
        async with broker(shared, **SETTINGS) as asked:
            await asyncio.sleep(LONG)
            assert await read(asked, "t") == [-1] * RECORDS

    run(story())


def test_objects_that_the_coordinator_does_not_know_stay_while_a_broker_is_live(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A live broker may repeat their commits."""

    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        async with broker(shared, **SETTINGS):
            assert await fsck(shared, monkeypatch, "accept", **SETTINGS) == ExitCode.TEMPORARY
            assert printed_report(capsys)["accepted"] == 0
            await asyncio.sleep(LONG)
            assert len(shared.objects.objects) == RECORDS

    run(story())


def test_an_acceptance_that_did_not_end_is_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        await lose_commits(shared)
        with monkeypatch.context() as patched:
            patched.setattr(shared.store.retention, "withdraw_reservations", failing)
            with pytest.raises(UnavailableError):
                await fsck(shared, patched, "accept", **SETTINGS)
        assert "repeat firn-broker fsck --accept" in (await shared.store.nodes.progress()).stopped
        assert await fsck(shared, monkeypatch, "accept", **SETTINGS) == ExitCode.DONE
        async with broker(shared, **SETTINGS):
            await asyncio.sleep(LONG)
            assert not shared.objects.objects

    run(story())


async def failing(*_: Any) -> int:
    raise UnavailableError("broken")


async def new_producer(asked: Asked) -> int:
    answer = await asked.ask(
        22, 4, transactional_id=None, transaction_timeout=zero(), producer_id=-1, producer_epoch=-1
    )
    id: int = answer.producer_id
    return id
