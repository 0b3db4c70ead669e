"""Port `History`: the processes of a broker, and the implementation inside one process."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest

from firn.driver_requests.landed_offsets import DataFile
from firn.model.errors import CorruptDataError, UnavailableError
from firn_broker.history import entries
from firn_broker.history.entries import Entry
from firn_broker.history.files import TableFiles
from firn_broker.history.indexing.building import build
from firn_broker.history.rebuilding.rebuilder import Rebuilder
from firn_broker.history.rebuilding.workers import HistoryWorkers
from firn_broker.history.rows import RowReader
from firn_broker.log_types import BatchRange
from firn_broker.ports import History
from firn_broker.settings import BrokerSettings, BucketSettings, DirectorySettings, HistorySettings, SqliteSettings
from firn_broker.storage import wal
from firn_broker.storage.objects import DirectoryObjects, open_objects
from tests.unit.broker.test_history_entries import PARTITION, Local, batches_of, table_of, write

Make = Callable[[BrokerSettings], History]


class Tabled:
    """A history object with one entry in a directory, and the data file of a table in another one.

    ``changed``: the row of the first record has another time than the record had."""

    def __init__(self, directory: Path, *, changed: bool = False) -> None:
        (directory / "lake").mkdir()
        self.sent, rows = batches_of(7, large=300_000)
        self.file = write(directory / "lake" / "a.parquet", rows, group=40)
        (found,) = build(PARTITION, self.sent, table_of([self.file]), RowReader(Local()))
        assert isinstance(found, Entry)
        if changed:
            rows = [
                (partition, offset, row._replace(time=row.time + 1) if (partition, offset) == (1, 1_000) else row)
                for partition, offset, row in rows
            ]
            self.file = write(directory / "lake" / "a.parquet", rows, group=40)
        # Paths of a table begin with the scheme of its store.
        placed = DataFile(f"file://{self.file.path}", self.file.size)
        entry = Entry(found.partition, found.heads, [placed], found.pieces, found.fields)
        framed = wal.framed(entries.encode(entry))
        data, (position,) = wal.assemble(UUID(int=3), 1, 1, [], [framed])
        self.key = wal.history_key(UUID(int=3), 7)
        asyncio.run(DirectoryObjects(directory / "objects").put(self.key, data))
        self.ranges: list[BatchRange] = entry.ranges(self.key, position, len(framed))
        store = BucketSettings(url=f"file://{directory}/lake")
        self.settings = BrokerSettings(
            coordinator=SqliteSettings(path=":memory:"),
            objects=DirectorySettings(path=str(directory / "objects")),
            history=HistorySettings(stores=(store,), workers=2),
        )


def in_process(settings: BrokerSettings) -> History:
    return Rebuilder(open_objects(settings.objects), TableFiles(settings.history.stores))


@pytest.fixture
def world(tmp_path: Path) -> Tabled:
    return Tabled(tmp_path)


@pytest.mark.parametrize("make", [HistoryWorkers, in_process])
class TestHistory:
    def test_ranges_have_the_batches_of_their_producers(self, world: Tabled, make: Make) -> None:
        async def story() -> None:
            history = make(world.settings)
            assert len(world.ranges) > 3
            first, *others = world.ranges
            found = [*await history.rebuild([first]), *await history.rebuild(others)]
            assert b"".join(found) == b"".join(world.sent)
            at_once = await asyncio.gather(*(history.rebuild([each]) for each in world.ranges))
            assert [bytes(one) for (one,) in at_once] == [bytes(one) for one in found]
            history.close()

        asyncio.run(story())

    def test_an_error_of_a_file_or_an_object_is_one_of_its_request(self, world: Tabled, make: Make) -> None:
        async def story() -> None:
            history = make(world.settings)
            place = world.ranges[0].place
            missing = world.ranges[0]._replace(place=place._replace(key="wal/00/none.history"))
            with pytest.raises(CorruptDataError, match=r"object .*none\.history does not exist"):
                await history.rebuild([missing])
            Path(world.file.path).rename(f"{world.file.path}.gone")
            with pytest.raises(CorruptDataError, match=r"a\.parquet does not exist"):
                await history.rebuild(world.ranges[:1])
            Path(f"{world.file.path}.gone").rename(world.file.path)
            assert await history.rebuild(world.ranges[:1])
            history.close()

        asyncio.run(story())

    def test_a_changed_table_is_named(self, tmp_path: Path, make: Make) -> None:
        world = Tabled(tmp_path, changed=True)

        async def story() -> None:
            history = make(world.settings)
            placed = (
                f"topic {PARTITION.topic}, partition 1: the data files do not give back the batch of offsets 1000 to"
            )
            with pytest.raises(CorruptDataError, match=placed):
                await history.rebuild(world.ranges[:1])
            history.close()

        asyncio.run(story())

    def test_a_store_that_is_not_configured_is_named(self, world: Tabled, make: Make) -> None:
        async def story() -> None:
            history = make(world.settings.model_copy(update={"history": HistorySettings()}))
            with pytest.raises(
                UnavailableError, match=r"a\.parquet: no store of history\.stores .* add the store of the table"
            ):
                await history.rebuild(world.ranges[:1])
            history.close()

        asyncio.run(story())
