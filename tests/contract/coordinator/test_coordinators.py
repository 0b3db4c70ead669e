"""The contract, on SQLite in memory (which simulations use), SQLite on disk, and PostgreSQL."""

import asyncio
import itertools
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from firn.model.errors import InvalidSpecError, UnavailableError
from firn_broker.log_types import CommittedOffset, Topic
from firn_broker.metadata_store import sqlite
from firn_broker.metadata_store.migrations import FUNCTIONS, SCRIPTS
from firn_broker.metadata_store.postgres import PostgresCoordinator
from firn_broker.metadata_store.sqlite import MIGRATIONS, Inline, SqliteCoordinator
from firn_broker.ports import Coordinator
from firn_broker.settings import PostgresSettings
from tests.contract.coordinator.suite import (
    ADDRESS,
    FIRST,
    TOPIC,
    TTL,
    Advance,
    CoordinatorContract,
    Log,
    batch,
    produced,
)
from tests.fakes.clock import FakeClock
from tests.servers.postgres import Postgres
from tests.servers.proxy import Proxy

_numbers = itertools.count()


class OverSqlite(CoordinatorContract):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def advance(self, clock: FakeClock) -> Advance:
        async def advance(seconds: float) -> None:
            clock.advance(seconds)

        return advance

    async def test_a_look_through_a_long_log_lets_commits_in_between(
        self, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sqlite, "TIMED_RUNS", 2)
        for _ in range(12):
            await log.commit(batch())
        key = await log.key()
        order: list[str] = []

        async def look() -> None:
            assert await log.coordinator.find_by_time(FIRST, 5000) is None
            order.append("looked")

        async def commit() -> None:
            await log.commit(batch(), key=key)
            order.append("committed")

        await asyncio.gather(look(), commit())
        assert order == ["committed", "looked"]


class TestSqliteInMemory(OverSqlite):
    @pytest.fixture
    async def coordinator(self, clock: FakeClock) -> AsyncIterator[Coordinator]:
        coordinator = SqliteCoordinator(":memory:", clock, "cluster", Inline())
        await coordinator.start()
        yield coordinator
        await coordinator.close()


class TestSqliteOnDisk(OverSqlite):
    @pytest.fixture
    async def coordinator(self, clock: FakeClock, tmp_path: Path) -> AsyncIterator[Coordinator]:
        coordinator = SqliteCoordinator(str(tmp_path / "coordinator.db"), clock, "cluster")
        await coordinator.start()
        yield coordinator
        await coordinator.close()

    async def test_it_goes_on_with_what_is_there(
        self, coordinator: Coordinator, tmp_path: Path, clock: FakeClock
    ) -> None:
        first = await coordinator.producer_ids(5)
        again = SqliteCoordinator(str(tmp_path / "coordinator.db"), clock, "another name")
        await again.start()
        assert await again.cluster_id() == "cluster"
        assert await again.producer_ids(5) == first + 5
        await again.close()

    async def test_a_schema_of_an_earlier_version_is_brought_to_this_one(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        path = str(tmp_path / "earlier.db")
        db = sqlite3.connect(path)
        for script in MIGRATIONS[:2]:
            db.executescript(script)
        db.execute("PRAGMA user_version=2")
        db.execute("INSERT INTO cluster VALUES ('earlier')")
        db.execute("INSERT INTO grp_offset VALUES ('of a topic that is gone', x'00', 0, 5, -1, '', 0)")
        db.commit()
        db.close()
        coordinator = SqliteCoordinator(path, clock, "another name")
        await coordinator.start()
        await works(coordinator, "earlier")
        await coordinator.close()

    async def test_who_changes_nothing_refuses_what_is_not_of_this_version(
        self, tmp_path: Path, clock: FakeClock
    ) -> None:
        path = tmp_path / "coordinator.db"
        with pytest.raises(InvalidSpecError, match=r"coordinator\.db is not there"):
            await SqliteCoordinator(str(path), clock, "name", migrates=False).start()
        assert not path.exists()
        db = sqlite3.connect(path)
        db.execute("PRAGMA user_version=1")
        db.close()
        before = path.read_bytes()
        with pytest.raises(InvalidSpecError, match="has version 1"):
            await SqliteCoordinator(str(path), clock, "name", migrates=False).start()
        assert path.read_bytes() == before
        path.unlink()
        serving = SqliteCoordinator(str(path), clock, "cluster")
        await serving.start()
        looking = SqliteCoordinator(str(path), clock, "name", migrates=False)
        await looking.start()
        assert await looking.cluster_id() == "cluster"
        await looking.close()
        await serving.close()


async def works(coordinator: Coordinator, cluster: str) -> None:
    """A few calls of all kinds."""
    assert await coordinator.cluster_id() == cluster
    assert await coordinator.offset_groups() == []
    log = Log(coordinator, await coordinator.join(ADDRESS, TTL))
    await coordinator.create_topic(Topic(TOPIC, "t", 2, {}))
    assert [it.base_offset for it in await log.commit(batch(), batch(), produced(0))] == [0, 1, 2]
    assert await coordinator.expire(TOPIC, -1, 0, 10) == 1
    assert await coordinator.drop_runs(10) == 1
    assert await coordinator.forget_replies(0, 10) == 0


@asynccontextmanager
async def behind(database: Postgres, settings: PostgresSettings) -> AsyncIterator[tuple[Proxy, PostgresCoordinator]]:
    """A coordinator, and its way to the server, which can be spoiled. No call is given up by itself."""
    with Proxy(database.port) as way:
        uri = replace(database, port=way.port).uri
        coordinator = PostgresCoordinator(settings.model_copy(update={"uri": uri, "timeout_seconds": 600}))
        await coordinator.start()
        yield way, coordinator
        await coordinator.close()


class TestPostgres(CoordinatorContract):
    @pytest.fixture
    def settings(self, database: Postgres, tmp_path: Path) -> PostgresSettings:
        password = tmp_path / "password"
        password.write_text(database.password)
        user = tmp_path / "user"
        user.write_text(database.user)
        return PostgresSettings(
            uri=database.uri,
            user_file=str(user),
            password_file=str(password),
            schema_name=f"contract_{next(_numbers)}",
        )

    @pytest.fixture
    async def coordinator(self, settings: PostgresSettings) -> AsyncIterator[Coordinator]:
        coordinator = PostgresCoordinator(settings)
        await coordinator.start()
        yield coordinator
        await coordinator.close()

    @pytest.fixture
    async def advance(
        self, settings: PostgresSettings, database: Postgres, coordinator: Coordinator
    ) -> AsyncIterator[Advance]:
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        ahead = 0.0

        async def advance(seconds: float) -> None:
            nonlocal ahead
            ahead += seconds
            await db.execute(
                f"CREATE OR REPLACE FUNCTION {settings.schema_name}.now_ms() RETURNS bigint LANGUAGE sql VOLATILE AS"
                f" $$ SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint + {int(ahead * 1000)} $$"
            )

        yield advance
        await db.close()

    async def test_connections_that_went_silent_are_replaced_all_at_once(
        self, settings: PostgresSettings, database: Postgres
    ) -> None:
        """As those to a server whose machine is gone, while another has taken its place."""
        async with behind(database, settings) as (way, coordinator):
            lease = await coordinator.join(ADDRESS, 2_000)
            await asyncio.gather(*(coordinator.topics() for _ in range(settings.connections)))
            way.silence()
            with pytest.raises(UnavailableError):
                await coordinator.renew(lease, 2_000)
            async with asyncio.timeout(60):
                await coordinator.renew(lease, 30_000)
                await asyncio.gather(*(coordinator.topics() for _ in range(settings.connections)))

    async def test_who_is_cancelled_while_the_server_is_silent_ends(
        self, settings: PostgresSettings, database: Postgres
    ) -> None:
        async with behind(database, settings) as (way, coordinator):
            way.silence()
            task = asyncio.create_task(coordinator.topics())
            await asyncio.wait({task}, timeout=0.2)
            task.cancel()
            await asyncio.wait({task}, timeout=60)
            assert task.cancelled()

    async def test_brokers_that_start_together_share_one_schema(
        self, settings: PostgresSettings, coordinator: Coordinator
    ) -> None:
        other = PostgresCoordinator(settings)
        await other.start()
        assert await other.cluster_id() == await coordinator.cluster_id()
        await other.close()

    async def test_a_schema_of_an_earlier_version_is_brought_to_this_one(
        self, settings: PostgresSettings, database: Postgres
    ) -> None:
        name = f"{settings.schema_name}_earlier"
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await db.execute(f"CREATE SCHEMA {name}; SET search_path = {name}")
        await db.execute(
            "CREATE TABLE schema_version(version int NOT NULL); INSERT INTO schema_version VALUES (1), (2)"
        )
        for script in SCRIPTS[:2]:
            await db.execute(script)
        # An earlier version had its functions in the first script.
        await db.execute(FUNCTIONS.replace("made_ms = now_at, ", ""))
        await db.execute("INSERT INTO cluster VALUES ('earlier')")
        await db.execute(
            "INSERT INTO grp_offset VALUES ('of a topic that is gone', gen_random_uuid(), 0, 5, -1, '', 0)"
        )
        coordinator = PostgresCoordinator(settings.model_copy(update={"schema_name": name}))
        await coordinator.start()
        await works(coordinator, "earlier")
        source = await db.fetchval("SELECT prosrc FROM pg_proc WHERE oid = 'commit_wal'::regproc")
        assert "made_ms = now_at" in source
        await coordinator.close()
        await db.close()

    async def test_who_changes_nothing_refuses_what_is_not_of_this_version(
        self, settings: PostgresSettings, database: Postgres, coordinator: Coordinator
    ) -> None:
        looking = PostgresCoordinator(settings, migrates=False)
        await looking.start()
        assert await looking.cluster_id() == await coordinator.cluster_id()
        await looking.close()
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        wrong = settings.model_copy(update={"schema_name": "misspelt"})
        with pytest.raises(InvalidSpecError, match="'misspelt' .* is not there"):
            await PostgresCoordinator(wrong, migrates=False).start()
        assert await db.fetchval("SELECT to_regnamespace('misspelt')") is None
        await db.execute(f"DELETE FROM {settings.schema_name}.schema_version WHERE version > 2")
        with pytest.raises(InvalidSpecError, match="has version 2"):
            await PostgresCoordinator(settings, migrates=False).start()
        assert await db.fetchval(f"SELECT max(version) FROM {settings.schema_name}.schema_version") == 2
        await db.close()

    @pytest.mark.parametrize(
        "trouble",
        [
            pytest.param("ALTER ROLE {role} SET default_transaction_read_only = on", id="the server only reads"),
            pytest.param("ALTER ROLE {role} PASSWORD 'another'", id="the password was rotated"),
            pytest.param("REVOKE UPDATE ON {schema}.counter FROM {role}", id="a right is missing"),
        ],
    )
    async def test_what_may_be_mended_outside_is_passing(
        self, settings: PostgresSettings, database: Postgres, coordinator: Coordinator, trouble: str, tmp_path: Path
    ) -> None:
        role, schema = f"role_{settings.schema_name}", settings.schema_name
        admin: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
        await admin.execute(f"GRANT ALL ON DATABASE postgres TO {role}")
        await admin.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        (tmp_path / "first").write_text("first")
        theirs = PostgresCoordinator(
            settings.model_copy(update={"user_file": "", "user": role, "password_file": str(tmp_path / "first")})
        )
        await theirs.start()
        first = await theirs.producer_ids(1)
        await admin.execute(trouble.format(role=role, schema=schema))
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
        for _ in range(4):
            with pytest.raises(UnavailableError):
                await theirs.producer_ids(1)
        await admin.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        await admin.execute(f"ALTER ROLE {role} PASSWORD 'first'")
        await admin.execute(f"GRANT UPDATE ON {schema}.counter TO {role}")
        assert await theirs.producer_ids(1) == first + 1
        await theirs.close()
        await admin.close()

    async def test_no_offsets_are_kept_for_a_topic_that_is_being_deleted(
        self, settings: PostgresSettings, database: Postgres, log: Log
    ) -> None:
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        async with db.transaction():
            await db.execute(f"SET LOCAL search_path = {settings.schema_name}")
            await db.execute("DELETE FROM topic WHERE id = $1", TOPIC)
            await db.execute("DELETE FROM grp_offset WHERE topic_id = $1", TOPIC)
            commit = asyncio.create_task(log.coordinator.commit_offsets(None, "g", {FIRST: CommittedOffset(5)}))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            while not commit.done() and not await db.fetchval(waits):
                await asyncio.sleep(0.01)
        await commit
        assert dict(await log.coordinator.offsets("g")) == {}
        await db.close()
