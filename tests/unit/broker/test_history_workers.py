"""The processes that rebuild batches: real ones, over a directory."""

import asyncio
import os
import signal
from pathlib import Path
from uuid import UUID

import pytest

from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.history import entries
from firn_broker.history.entries import Entry
from firn_broker.history.files import TableFiles
from firn_broker.history.indexing.building import build
from firn_broker.history.rebuilding.workers import HistoryWorkers
from firn_broker.history.rows import RowReader
from firn_broker.log_types import BatchRange
from firn_broker.settings import BrokerSettings, BucketSettings, DirectorySettings, HistorySettings, SqliteSettings
from firn_broker.storage import wal
from firn_broker.storage.objects import DirectoryObjects
from tests.unit.broker.test_history_entries import PARTITION, Local, batches_of, table_of, write


class World:
    """A history object with one entry in a directory, and the data file of a table in another one."""

    def __init__(self, directory: Path) -> None:
        (directory / "lake").mkdir()
        self.sent, rows = batches_of(7, large=300_000)
        self.file = write(directory / "lake" / "a.parquet", rows, group=40)
        # Paths of a table begin with the scheme of its store.
        placed = DataFile(f"file://{self.file.path}", self.file.size)
        (found,) = build(PARTITION, self.sent, table_of([self.file]), RowReader(Local(), 9))
        assert isinstance(found, Entry)
        entry = Entry(found.partition, found.heads, [placed], found.pieces, found.fields)
        framed = wal.framed(entries.encode(entry))
        data, (position,) = wal.assemble(UUID(int=3), 1, 1, [], [framed])
        self.key = wal.history_key(UUID(int=3))
        asyncio.run(DirectoryObjects(directory / "objects").put(self.key, data))
        self.ranges: list[BatchRange] = entry.ranges(self.key, position, len(framed))
        store = BucketSettings(url=f"file://{directory}/lake")
        self.settings = BrokerSettings(
            coordinator=SqliteSettings(path=":memory:"),
            objects=DirectorySettings(path=str(directory / "objects")),
            history=HistorySettings(stores=(store,), workers=2),
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_process_rebuilds_the_batches_of_its_ranges(world: World) -> None:
    async def story() -> None:
        workers = HistoryWorkers(world.settings)
        assert len(world.ranges) > 3
        first, *others = world.ranges
        found = [*await workers.rebuild([first]), *await workers.rebuild(others)]
        assert b"".join(found) == b"".join(world.sent)
        at_once = await asyncio.gather(*(workers.rebuild([each]) for each in world.ranges))
        assert [bytes(one) for (one,) in at_once] == [bytes(one) for one in found]
        workers.close()

    asyncio.run(story())


def test_errors_of_files_and_objects_are_those_of_the_request(world: World) -> None:
    async def story() -> None:
        workers = HistoryWorkers(world.settings)
        (place, *_) = (each.place for each in world.ranges)
        missing = world.ranges[0]._replace(place=place._replace(key="wal/00/none.history"))
        with pytest.raises(CorruptDataError, match=r"object .*none\.history does not exist"):
            await workers.rebuild([missing])
        Path(world.file.path).rename(f"{world.file.path}.gone")
        with pytest.raises(CorruptDataError, match=r"a\.parquet does not exist"):
            await workers.rebuild(world.ranges[:1])
        Path(f"{world.file.path}.gone").rename(world.file.path)
        assert await workers.rebuild(world.ranges[:1])
        workers.close()
        without = world.settings.model_copy(update={"history": HistorySettings()})
        other = HistoryWorkers(without)
        with pytest.raises(
            UnavailableError, match=r"a\.parquet: no store of history\.stores .* add the store of the table"
        ):
            await other.rebuild(world.ranges[:1])
        other.close()

    asyncio.run(story())


def test_a_killed_process_is_started_again(world: World) -> None:
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


def test_a_file_that_is_no_data_file_is_refused(world: World, tmp_path: Path) -> None:
    files = TableFiles(world.settings.history.stores)
    (tmp_path / "lake" / "b.parquet").write_bytes(b"PAR1 is how it begins, but not more")
    with pytest.raises(CorruptDataError, match=r"b\.parquet is no data file"):
        files.open(DataFile(f"file://{tmp_path}/lake/b.parquet", 35))
    with pytest.raises(CorruptDataError, match=r"a\.parquet has fewer than"):
        files.open(DataFile(f"file://{world.file.path}", world.file.size + 100))
    opened = files.open(DataFile(f"file://{world.file.path}", world.file.size))
    assert opened.metadata.num_row_groups > 1
