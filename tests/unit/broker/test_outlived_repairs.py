"""A broker that could not reach the coordinator until the end of a repair stops no other broker, and ends."""

import asyncio
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from firn.model.errors import ExitCode, UnavailableError
from firn_broker.cluster.continuity import PATIENCE_SECONDS
from firn_broker.log_types import REPAIRS
from tests.fakes.virtual_time import run
from tests.unit.broker.batches import batch
from tests.unit.broker.test_recovery import fsck
from tests.unit.broker.test_whole_brokers import produce
from tests.unit.broker.whole import Shared, broker, create

LEASE = 10.0


def test_a_broker_that_returns_after_a_repair_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        shared = Shared()
        async with broker(shared, seed=1) as first:
            await create(first, "t")
            await asyncio.sleep(LEASE)
            backup = shared.store.database.connection.serialize()
            await produce(first, "t", 0, batch().data)
            nodes: Any = first.broker.metadata_store.nodes

            async def unreachable(*_: Any) -> None:
                raise UnavailableError("cut off")

            nodes.renew = unreachable
            shared.store.database.connection.deserialize(backup)
            await asyncio.sleep(2 * LEASE)
            assert await fsck(shared, monkeypatch) == ExitCode.DONE
            async with broker(shared, seed=2) as second:
                del nodes.renew
                await asyncio.sleep(2 * PATIENCE_SECONDS)
                assert first.broker.metadata_store.continuity.outlived.is_set()
                assert "so this broker ends" in (first.broker.not_ready or "")
                assert second.broker.not_ready is None
                assert not second.broker.metadata_store.continuity.outlived.is_set()
                assert (await shared.store.nodes.progress()).stopped == ""
                assert (await produce(second, "t", 0, batch().data)).base_offset == 1

    run(story())


@pytest.fixture
def process(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-m", "firn_broker", "--data-dir", str(tmp_path), "--listen", "127.0.0.1:0"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as started:
        yield started
        started.kill()


@pytest.mark.slow
def test_the_process_of_a_broker_that_missed_a_repair_ends(process: "subprocess.Popen[str]", tmp_path: Path) -> None:
    assert process.stdout is not None
    assert any(line.startswith("ready ") for line in process.stdout)
    with closing(sqlite3.connect(tmp_path / "coordinator.db", timeout=60)) as db, db:
        db.execute("INSERT INTO counter VALUES (?, 1) ON CONFLICT(name) DO UPDATE SET value=value+1", (REPAIRS,))
    assert process.wait(60) == ExitCode.TEMPORARY
