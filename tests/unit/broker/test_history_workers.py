"""The processes that rebuild batches: real ones, over a directory."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.history.files import TableFiles
from firn_broker.history.rebuilding.workers import HistoryWorkers
from tests.contract.test_histories import Tabled


@pytest.fixture
def world(tmp_path: Path) -> Tabled:
    return Tabled(tmp_path)


def test_a_killed_process_is_started_again(world: Tabled) -> None:
    async def story() -> None:
        workers = HistoryWorkers(world.settings)
        await workers.rebuild(world.ranges[:1])
        for child in children():
            os.kill(child, signal.SIGKILL)
        with pytest.raises(UnavailableError, match="ended or is stuck"):
            await workers.rebuild(world.ranges[:1])
        assert await workers.rebuild(world.ranges[:1])
        workers.close()

    asyncio.run(story())


def children() -> list[int]:
    """Return the processes that this one has started and that rebuild batches."""
    found = []
    for text in Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split():
        if b"firn_broker.history.rebuilding.worker" in Path(f"/proc/{text}/cmdline").read_bytes():
            found.append(int(text))
    assert found
    return found


def test_a_file_that_is_no_data_file_is_refused(world: Tabled, tmp_path: Path) -> None:
    files = TableFiles(world.settings.history.stores)
    (tmp_path / "lake" / "b.parquet").write_bytes(b"PAR1 is how it begins, but not more")
    with pytest.raises(CorruptDataError, match=r"b\.parquet is no data file"):
        files.open(DataFile(f"file://{tmp_path}/lake/b.parquet", 35))
    with pytest.raises(CorruptDataError, match=r"a\.parquet has fewer than"):
        files.open(DataFile(f"file://{world.file.path}", world.file.size + 100))
    opened = files.open(DataFile(f"file://{world.file.path}", world.file.size))
    assert opened.metadata.num_row_groups > 1
