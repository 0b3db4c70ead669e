"""Brokers serve no client from the first to the last commit of a recovery, whether it ends or not."""

import argparse
import json
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from firn.model.errors import ExitCode, UnavailableError
from firn_broker import __main__ as process
from firn_broker.broker import Ports
from firn_broker.log_types import BatchOutcome, Commit
from firn_broker.settings import BrokerSettings, DirectorySettings, SqliteSettings
from tests.fakes.virtual_time import LoopClock, run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Shared, broker, create

RECORDS = 3
WHY = "CoordinatorWentBack: some commits are lost"


async def lose_commits(shared: Shared) -> None:
    """Write records whose commits the coordinator then loses."""
    async with broker(shared) as asked:
        await create(asked, "t")
        for _ in range(RECORDS):
            await produce(asked, "t", 0, batch().data)
    for sql in ("DELETE FROM wal", "DELETE FROM run", "UPDATE log SET hw = 0, bytes = 0"):
        shared.store.database.connection.execute(sql)


async def fsck(shared: Shared, monkeypatch: pytest.MonkeyPatch, option: str = "recover", **upkeep: Any) -> int:
    monkeypatch.setattr(
        process, "make_ports", lambda *_, **__: Ports(shared.store, shared.objects, LoopClock(), Random(1))
    )
    settings = BrokerSettings(
        coordinator=SqliteSettings(path=":memory:"), objects=DirectorySettings(path="/nowhere"), **upkeep
    )
    options = argparse.Namespace(read=False, recover=option == "recover", accept=option == "accept")
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
        # In front of the report are lines of the log.
        _, _, printed = capsys.readouterr().out.rpartition("\n{")
        report = json.loads("{" + printed)
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
