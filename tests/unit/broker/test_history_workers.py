"""The processes that rebuild batches: real ones, over a directory."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.broker import HISTORY_SECONDS
from firn_broker.history.files import TableFiles
from firn_broker.history.rebuilding.workers import HistoryWorkers
from firn_broker.log_types import BatchRange
from firn_broker.settings import BucketSettings, HistorySettings
from tests.contract.test_histories import Tabled
from tests.fakes.virtual_time import run
from tests.unit.broker.whole import broker, create


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


def test_processes_start_before_the_first_read(world: Tabled) -> None:
    async def story() -> None:
        workers = HistoryWorkers(world.settings)
        await workers.start()
        before = children()
        assert len(before) == 2
        await workers.start()
        assert await workers.rebuild(world.ranges[:1])
        assert children() == before
        workers.close()

    asyncio.run(story())


class Counted:
    """A `History` that counts its starts. The first one fails."""

    def __init__(self) -> None:
        self.starts = 0

    async def start(self) -> None:
        self.starts += 1
        if self.starts == 1:
            raise UnavailableError("no memory")

    async def rebuild(self, ranges: Sequence[BatchRange]) -> list[memoryview]:
        raise NotImplementedError

    def close(self) -> None: ...


def test_a_broker_starts_the_processes_for_its_first_topic_with_its_history_in_a_table() -> None:
    async def story() -> None:
        history = Counted()
        stores = HistorySettings(stores=(BucketSettings(url="s3://table"),))
        async with broker(tables=history, history=stores) as asked:
            await create(asked, "copy")
            await asyncio.sleep(2 * HISTORY_SECONDS)
            assert history.starts == 0
            await create(asked, "single", firn_history="Single")
            await asyncio.sleep(2 * HISTORY_SECONDS)
            assert history.starts == 2, "a failure is no end"
            assert asked.broker.healthy

    run(story())


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
