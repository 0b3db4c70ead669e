"""The contract of the metadata store, over SQLite in memory, which simulations use, and SQLite on disk."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from firn.model.errors import InvalidSpecError
from firn_broker.metadata_store.sqlite import database as sqlite_database
from firn_broker.metadata_store.sqlite import retention as sqlite_retention
from firn_broker.metadata_store.sqlite import topics as sqlite_topics
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.logs import log as sqlite_log
from firn_broker.metadata_store.sqlite.migrations import MIGRATIONS, TABLE_RANGES
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.ports import MetadataStore
from tests.contract.metadata_store.builders import FIRST, TOPIC, Advance, Log, batch
from tests.contract.metadata_store.logs.table_ranges import moved
from tests.contract.metadata_store.suite import MetadataStoreContract, check_all_ports
from tests.contract.metadata_store.topics import whole
from tests.fakes.clock import FakeClock


class OverSqlite(MetadataStoreContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock: FakeClock) -> Advance:
        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        return advance

    async def count_time_marks(self, log: Log) -> int:
        assert isinstance(log.store, SqliteStore)
        database = log.store.database
        count: int = await database.run(lambda: database.row("SELECT count(*) FROM time_mark")[0], write=False)
        return count

    async def compatible_from(self, log: Log) -> tuple[int, int]:
        assert isinstance(log.store, SqliteStore)
        database = log.store.database
        (oldest,) = await database.run(lambda: database.row("SELECT compatible_from FROM cluster"), write=False)
        return oldest, TABLE_RANGES


class TestSqliteInMemory(OverSqlite):
    @pytest.fixture
    async def store(self, clock: FakeClock) -> AsyncIterator[MetadataStore]:
        store = SqliteStore(":memory:", clock, "cluster", Inline())
        await store.start()
        yield store
        await store.close()

    async def test_commits_proceed_during_a_search_by_time(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sqlite_log, "TIMED_RANGES", 2)
        for _ in range(12):
            await log.commit(batch())
        key = await log.key()
        order: list[str] = []

        async def search() -> None:
            assert await log.store.log.find_by_time(FIRST, 5000) is None
            order.append("searched")

        async def commit() -> None:
            await log.commit(batch(), key=key)
            order.append("committed")

        await asyncio.gather(search(), commit())
        assert order == ["committed", "searched"]

    async def test_commits_proceed_while_many_ranges_are_dropped(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_retention, "DROPPED_RANGES", 2)
        for _ in range(12):
            await log.commit(batch())
        await log.store.log.advance_start(FIRST, 11)
        key = await log.key()
        order: list[str] = []

        async def drop() -> None:
            assert await log.store.retention.drop_ranges(9) == 9
            order.append("dropped")

        async def commit() -> None:
            await log.commit(batch(), key=key)
            order.append("committed")

        await asyncio.gather(drop(), commit())
        assert order == ["committed", "dropped"]

    async def test_a_version_with_forgotten_changes_loads_all_topics(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite_topics, "KEPT_CHANGES", 3)
        known = (await whole(log.store)).version
        for number, is_whole in enumerate((False, False, True, True), 3):
            await log.store.topics.grow_topic(TOPIC, number)
            loaded = await log.store.topics.load_topics(known)
            assert loaded is not None
            assert (loaded.whole, loaded.topics[0].partitions) == (is_whole, number)


class TestSqliteOnDisk(OverSqlite):
    @pytest.fixture
    async def store(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[MetadataStore]:
        store = SqliteStore(str(tmp_path / "coordinator.db"), clock, "cluster")
        await store.start()
        yield store
        await store.close()

    async def test_a_second_start_continues_with_the_same_data(
        self, store: MetadataStore, tmp_path: Path, clock: FakeClock
    ) -> None:
        first = await store.nodes.allocate_producer_ids(5)
        again = SqliteStore(str(tmp_path / "coordinator.db"), clock, "another name")
        await again.start()
        assert await again.cluster_id() == "cluster"
        assert await again.nodes.allocate_producer_ids(5) == first + 5
        await again.close()

    async def test_a_schema_of_an_earlier_version_is_migrated(self, tmp_path: Path, clock: FakeClock) -> None:
        path = str(tmp_path / "earlier.db")
        db = sqlite3.connect(path)
        for script in MIGRATIONS[:2]:
            db.executescript(script)
        db.execute("PRAGMA user_version=2")
        db.execute("INSERT INTO cluster(id) VALUES ('earlier')")
        db.execute("INSERT INTO grp_offset VALUES ('of a topic that is gone', x'00', 0, 5, -1, '', 0)")
        db.commit()
        db.close()
        store = SqliteStore(path, clock, "another name")
        await store.start()
        await check_all_ports(store, "earlier")
        await store.close()

    @pytest.mark.parametrize("oldest", [len(MIGRATIONS), len(MIGRATIONS) + 1])
    async def test_a_program_older_than_the_schema_starts_only_if_the_schema_allows_it(
        self, store: MetadataStore, tmp_path: Path, clock: FakeClock, oldest: int
    ) -> None:
        path = str(tmp_path / "coordinator.db")
        db = sqlite3.connect(path)
        db.execute(f"PRAGMA user_version={len(MIGRATIONS) + 1}")
        db.execute("UPDATE cluster SET compatible_from=?", (oldest,))
        db.commit()
        db.close()
        older = SqliteStore(path, clock, "another name")
        if oldest > len(MIGRATIONS):
            with pytest.raises(InvalidSpecError, match=f"needs a program of schema version {oldest} or later"):
                await older.start()
        else:
            await older.start()
            assert await older.cluster_id() == "cluster"
        await older.close()

    async def test_a_later_migration_does_not_readmit_programs_that_do_not_know_table_ranges(
        self, log: Log, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await moved(log)
        monkeypatch.setattr(sqlite_database, "MIGRATIONS", (*MIGRATIONS, "SELECT 1"))
        later = SqliteStore(str(tmp_path / "coordinator.db"), clock, "another name")
        await later.start()
        assert await self.compatible_from(Log(later, log.lease)) == (TABLE_RANGES, TABLE_RANGES)
        await later.close()

    async def test_a_store_that_may_not_migrate_rejects_another_schema_version(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        path = tmp_path / "coordinator.db"
        with pytest.raises(InvalidSpecError, match=r"coordinator\.db does not exist"):
            await SqliteStore(str(path), clock, "name", migrates=False).start()
        assert not path.exists()
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version=1")
        db.close()
        before = path.read_bytes()
        with pytest.raises(InvalidSpecError, match="has schema version 1"):
            await SqliteStore(str(path), clock, "name", migrates=False).start()
        assert path.read_bytes() == before
        path.unlink()
        owner = SqliteStore(str(path), clock, "cluster")
        await owner.start()
        reader = SqliteStore(str(path), clock, "name", migrates=False)
        await reader.start()
        assert await reader.cluster_id() == "cluster"
        await reader.close()
        await owner.close()
