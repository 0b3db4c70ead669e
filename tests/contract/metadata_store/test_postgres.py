"""The contract of the metadata store, over PostgreSQL."""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from kio.schema.errors import ErrorCode

from firn.model.clock import SystemClock
from firn.model.errors import InvalidSpecError, UnavailableError
from firn_broker.__main__ import make_ports, take_back
from firn_broker.log_types import Commit, CommittedOffset, Partition, Topic
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.postgres import access as postgres_access
from firn_broker.metadata_store.postgres import database as postgres_database
from firn_broker.metadata_store.postgres import retention as postgres_retention
from firn_broker.metadata_store.postgres.migrations import FUNCTIONS, SCRIPTS, TABLE_RANGES
from firn_broker.metadata_store.postgres.store import PostgresStore
from firn_broker.ports import MetadataStore, WentBackError
from firn_broker.settings import BrokerSettings, DirectorySettings, PostgresSettings
from tests.contract.metadata_store.access import acl, loaded
from tests.contract.metadata_store.builders import (
    ADDRESS,
    FIRST,
    SECOND,
    TOPIC,
    TTL,
    Advance,
    Log,
    StoreContract,
    batch,
    placed,
    produced,
)
from tests.contract.metadata_store.logs.merges import merged
from tests.contract.metadata_store.logs.table_ranges import moved
from tests.contract.metadata_store.suite import MetadataStoreContract, check_all_ports
from tests.contract.metadata_store.topics import whole
from tests.servers.postgres import Postgres
from tests.servers.proxies.tcp import Proxy

_numbers = itertools.count()
RELEASED = Path(__file__).parent / "released"
"""The statements that released versions send to PostgreSQL, by version. They never change. A new version adds a file."""


@asynccontextmanager
async def behind(database: Postgres, settings: PostgresSettings) -> AsyncIterator[tuple[Proxy, PostgresStore]]:
    """Open a store behind a proxy that can drop or delay traffic. Calls do not time out by themselves."""
    with Proxy(database.port) as proxy:
        uri = replace(database, port=proxy.port).uri
        store = PostgresStore(settings.model_copy(update={"uri": uri, "timeout_seconds": 600}))
        await store.start()
        yield proxy, store
        await store.close()


class OverPostgres(StoreContract):
    """The store over a schema of its own."""

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
    async def store(self, settings: PostgresSettings) -> AsyncIterator[MetadataStore]:
        store = PostgresStore(settings)
        await store.start()
        yield store
        await store.close()

    @pytest.fixture
    async def db(self, settings: PostgresSettings, database: Postgres, store: MetadataStore) -> AsyncIterator[Any]:
        """Open a connection of another program to the schema of the store."""
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await db.execute(f"SET search_path = {settings.schema_name}")
        yield db
        await db.close()

    @pytest.fixture
    async def advance(
        self, settings: PostgresSettings, database: Postgres, store: MetadataStore
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

    async def compatible_from(self, log: Log) -> tuple[int, int]:
        assert isinstance(log.store, PostgresStore)
        return int(await log.store.database.value("SELECT compatible_from FROM cluster")), TABLE_RANGES


class TestPostgres(OverPostgres, MetadataStoreContract):
    async def count_time_marks(self, log: Log) -> int:
        assert isinstance(log.store, PostgresStore)
        return int(await log.store.database.value("SELECT count(*) FROM time_mark"))

    @pytest.mark.parametrize("release", sorted(RELEASED.iterdir()), ids=lambda path: path.stem)
    async def test_the_statements_of_a_released_version_are_valid(self, release: Path, db: Any) -> None:
        """Brokers of that version run on this schema during an upgrade, and after a way back."""
        for statement in json.loads(release.read_text()):
            await db.prepare(statement)

    async def test_version_0_1_0_drops_batch_ranges(self, log: Log, db: Any) -> None:
        for _ in range(3):
            await log.commit(batch(FIRST), batch(SECOND))
        await log.store.log.advance_start(FIRST, 2)
        assert [await db.fetchval("SELECT drop_runs($1)", 1) for _ in range(3)] == [1, 1, 0]
        await log.store.topics.delete_topic(TOPIC)
        assert await db.fetchval("SELECT drop_runs($1)", 10) == 4
        assert len(await log.store.retention.dead_objects(0, 10)) == 3

    async def test_a_change_that_begins_first_and_commits_last_is_not_missed(
        self, settings: PostgresSettings, database: Postgres, log: Log
    ) -> None:
        known = (await whole(log.store)).version
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        async with db.transaction():
            await db.execute(f"SET LOCAL search_path = {settings.schema_name}")
            await db.execute("INSERT INTO topic VALUES ($1, 'slow', 1, '{}')", UUID(int=8))
            async with asyncio.timeout(60):
                await log.store.topics.create_topic(Topic(UUID(int=9), "fast", 1, {}))
            loaded = await log.store.topics.load_topics(known)
            assert loaded is not None
            assert [topic.name for topic in loaded.topics] == ["fast"]
        after = await log.store.topics.load_topics(loaded.version)
        assert after is not None
        assert ([topic.name for topic in after.topics], after.whole) == (["slow"], False)
        await db.close()

    async def test_changes_of_access_do_not_overlap(self, log: Log, db: Any) -> None:
        """The second one would otherwise get a later version, and be visible first."""
        store = log.store
        async with db.transaction():
            await db.execute("SELECT raise_counter('access', 1)")
            change = asyncio.create_task(store.access.create_acls([acl()], 1))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            while not change.done() and not await db.fetchval(waits):
                await asyncio.sleep(0.01)
            assert not change.done()
        assert await change
        assert (await loaded(store)).version.number == 2

    async def test_a_load_of_many_acls_reads_them_in_steps(self, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_access, "LOADED_ROWS", 2)
        many = [acl(name=f"t{number}") for number in range(5)]
        await log.store.access.create_acls(many, 5)
        assert sorted((await loaded(log.store)).acls[acl().principal]) == many

    async def test_a_topic_that_version_0_1_0_creates_is_loaded(
        self, settings: PostgresSettings, database: Postgres, log: Log
    ) -> None:
        known = (await whole(log.store)).version
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        async with db.transaction():
            await db.execute(f"SET LOCAL search_path = {settings.schema_name}")
            await db.execute("INSERT INTO topic VALUES ($1, 'earlier', 1, '{}')", UUID(int=8))
            await db.execute("SELECT raise_counter('topics', 1)")
        loaded = await log.store.topics.load_topics(known)
        assert loaded is not None
        assert ([topic.name for topic in loaded.topics], loaded.whole) == (["earlier"], False)
        await db.close()

    async def test_a_version_with_forgotten_changes_loads_all_topics(self, log: Log, db: Any) -> None:
        known = (await whole(log.store)).version
        for changes, is_whole in ((9_999, False), (1, True)):
            await db.execute(
                f"DO $$ BEGIN FOR i IN 1 .. {changes} LOOP UPDATE topic SET partitions = partitions; END LOOP; END $$"
            )
            loaded = await log.store.topics.load_topics(known)
            assert loaded is not None
            assert (loaded.whole, loaded.topics[0].partitions) == (is_whole, 2)
        assert await db.fetchval("SELECT count(*) FROM topic_change") == 10_000

    async def test_producers_that_version_0_1_0_forgets_go_on(self, log: Log, advance: Advance, db: Any) -> None:
        statements = json.loads((RELEASED / "0.1.0.json").read_text())
        (forget,) = (statement for statement in statements if "DELETE FROM producer" in statement)
        (delete,) = (statement for statement in statements if "DELETE FROM topic" in statement)
        (logs,) = (statement for statement in statements if "UPDATE log SET deleted" in statement)
        again = Partition(UUID(int=8), 0)
        await log.commit(produced(0, producer=1), produced(0, producer=2))
        await advance(11)
        assert (await db.fetchrow(forget, 10_000, 10, -1, -1))[2] == 2
        assert [outcome.error for outcome in await log.commit(produced(7, producer=2), produced(7, producer=3))] == [
            idempotence.HELD, ErrorCode.out_of_order_sequence_number,
        ]  # fmt: skip
        await log.commit(produced(0, producer=4))
        await db.execute(delete, TOPIC)
        await db.execute(logs, TOPIC)
        await log.store.topics.create_topic(Topic(again.topic, "orders", 1, {}))
        outcomes = await log.commit(produced(5, producer=5, partition=again), produced(5, producer=4, partition=again))
        assert [outcome.error for outcome in outcomes] == [ErrorCode.out_of_order_sequence_number, idempotence.HELD]

    async def test_a_server_that_loses_commits_in_a_crash_is_refused(self, settings: PostgresSettings) -> None:
        with pytest.raises(InvalidSpecError, match="has fsync=off"):
            await PostgresStore(settings, requires_durable=True).start()

    @pytest.mark.parametrize("required", [True, False])
    async def test_the_setting_decides_about_such_a_server(
        self, settings: PostgresSettings, tmp_path: Path, required: bool
    ) -> None:
        objects = DirectorySettings(path=str(tmp_path / "objects"))
        given = BrokerSettings(coordinator=settings, objects=objects, require_durable=required)
        store = make_ports(given, SystemClock(), Random(1)).metadata_store
        with pytest.raises(InvalidSpecError, match="has fsync=off") if required else nullcontext():
            await store.start()
        if not required:
            await store.close()

    async def test_a_migration_may_take_longer_than_a_call(
        self, settings: PostgresSettings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_database, "SCRIPTS", (*SCRIPTS, "SELECT pg_sleep(4)"))
        store = PostgresStore(settings.model_copy(update={"schema_name": "slow_migration", "timeout_seconds": 2.0}))
        await store.start()
        await store.close()

    async def test_commits_are_flushed_whatever_the_role_says(
        self, settings: PostgresSettings, database: Postgres, store: MetadataStore
    ) -> None:
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await db.execute(f"ALTER ROLE {database.user} SET synchronous_commit = off")
        started = PostgresStore(settings)
        await started.start()
        assert await started.database.value("SHOW synchronous_commit") == "on"
        await started.close()
        await db.execute(f"ALTER ROLE {database.user} RESET synchronous_commit")
        await db.close()

    async def test_all_connections_are_replaced_when_one_gets_no_reply(
        self, settings: PostgresSettings, database: Postgres
    ) -> None:
        """The machine of the server is gone, and another server has taken over its address."""
        async with behind(database, settings) as (proxy, store):
            lease = await store.nodes.join(ADDRESS, 2_000)
            await asyncio.gather(*(store.topics.load_topics() for _ in range(settings.connections)))
            proxy.silence()
            with pytest.raises(UnavailableError):
                await store.nodes.renew(lease, 2_000)
            async with asyncio.timeout(60):
                await store.nodes.renew(lease, 30_000)
                await asyncio.gather(*(store.topics.load_topics() for _ in range(settings.connections)))

    async def test_a_cancelled_call_to_a_silent_server_ends(
        self, settings: PostgresSettings, database: Postgres
    ) -> None:
        async with behind(database, settings) as (proxy, store):
            proxy.silence()
            task = asyncio.create_task(store.topics.load_topics())
            await asyncio.wait({task}, timeout=0.2)
            task.cancel()
            await asyncio.wait({task}, timeout=60)
            assert task.cancelled()

    async def test_brokers_that_start_together_share_one_schema(
        self, settings: PostgresSettings, store: MetadataStore
    ) -> None:
        other = PostgresStore(settings)
        await other.start()
        assert await other.cluster_id() == await store.cluster_id()
        await other.close()

    async def test_a_schema_of_an_earlier_version_is_migrated(
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
        # The first release had the functions in its first script.
        await db.execute(FUNCTIONS.replace("made_ms = now_at, ", ""))
        await db.execute("INSERT INTO cluster VALUES ('earlier')")
        await db.execute(
            "INSERT INTO grp_offset VALUES ('of a topic that is gone', gen_random_uuid(), 0, 5, -1, '', 0)"
        )
        store = PostgresStore(settings.model_copy(update={"schema_name": name}))
        await store.start()
        await check_all_ports(store, "earlier")
        source = await db.fetchval("SELECT prosrc FROM pg_proc WHERE oid = 'commit_wal'::regproc")
        assert "made_ms = now_at" in source
        await store.close()
        await db.close()

    @pytest.mark.parametrize("oldest", [len(SCRIPTS), len(SCRIPTS) + 1])
    async def test_a_program_older_than_the_schema_starts_only_if_the_schema_allows_it(
        self, settings: PostgresSettings, store: MetadataStore, oldest: int, db: Any
    ) -> None:
        await db.execute("INSERT INTO schema_version VALUES ($1)", len(SCRIPTS) + 1)
        await db.execute("UPDATE cluster SET compatible_from = $1", oldest)
        older = PostgresStore(settings)
        if oldest > len(SCRIPTS):
            with pytest.raises(InvalidSpecError, match=f"needs a program of schema version {oldest} or later"):
                await older.start()
        else:
            await older.start()
            assert await older.cluster_id() == await store.cluster_id()
            await older.close()

    async def test_a_store_that_may_not_migrate_rejects_another_schema_version(
        self, settings: PostgresSettings, database: Postgres, store: MetadataStore
    ) -> None:
        reader = PostgresStore(settings, migrates=False)
        await reader.start()
        assert await reader.cluster_id() == await store.cluster_id()
        await reader.close()
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        wrong = settings.model_copy(update={"schema_name": "misspelt"})
        with pytest.raises(InvalidSpecError, match="'misspelt' .* does not exist"):
            await PostgresStore(wrong, migrates=False).start()
        assert await db.fetchval("SELECT to_regnamespace('misspelt')") is None
        await db.execute(f"DELETE FROM {settings.schema_name}.schema_version WHERE version > 2")
        with pytest.raises(InvalidSpecError, match="has schema version 2"):
            await PostgresStore(settings, migrates=False).start()
        assert await db.fetchval(f"SELECT max(version) FROM {settings.schema_name}.schema_version") == 2
        await db.close()

    @pytest.mark.parametrize(
        "trouble",
        [
            pytest.param("ALTER ROLE {role} SET default_transaction_read_only = on", id="the server is read-only"),
            pytest.param("ALTER ROLE {role} PASSWORD 'another'", id="the password was rotated"),
            pytest.param("REVOKE UPDATE ON {schema}.counter FROM {role}", id="a privilege is missing"),
        ],
    )
    async def test_an_error_that_an_administrator_can_repair_is_temporary(
        self, settings: PostgresSettings, database: Postgres, store: MetadataStore, trouble: str, tmp_path: Path
    ) -> None:
        role, schema = f"role_{settings.schema_name}", settings.schema_name
        admin: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await admin.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'first'")
        await admin.execute(f"GRANT ALL ON DATABASE postgres TO {role}")
        await admin.execute(f"GRANT ALL ON SCHEMA {schema} TO {role}")
        await admin.execute(f"GRANT ALL ON ALL TABLES IN SCHEMA {schema} TO {role}")
        (tmp_path / "first").write_text("first")
        restricted = PostgresStore(
            settings.model_copy(update={"user_file": "", "user": role, "password_file": str(tmp_path / "first")})
        )
        await restricted.start()
        first = await restricted.nodes.allocate_producer_ids(1)
        await admin.execute(trouble.format(role=role, schema=schema))
        await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", role)
        for _ in range(4):
            with pytest.raises(UnavailableError):
                await restricted.nodes.allocate_producer_ids(1)
        await admin.execute(f"ALTER ROLE {role} RESET default_transaction_read_only")
        await admin.execute(f"ALTER ROLE {role} PASSWORD 'first'")
        await admin.execute(f"GRANT UPDATE ON {schema}.counter TO {role}")
        assert await restricted.nodes.allocate_producer_ids(1) == first + 1
        await restricted.close()
        await admin.close()

    async def test_a_standby_that_lags_behind_is_no_loss(
        self, settings: PostgresSettings, database: Postgres, log: Log
    ) -> None:
        """A function of the schema stands for PostgreSQL's own, so that the server seems to be a standby."""
        key, schema = await log.key(), settings.schema_name
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        await db.execute(
            f"CREATE FUNCTION {schema}.pg_is_in_recovery() RETURNS boolean LANGUAGE sql AS 'SELECT true';"
            f" ALTER FUNCTION {schema}.check_progress SET search_path = {schema}, pg_catalog"
        )
        with pytest.raises(UnavailableError, match="is a standby") as raised:
            await log.store.log.commit(Commit(log.lease, key, 1000, placed([batch()]), after=5))
        assert not isinstance(raised.value, WentBackError)
        await db.execute(f"ALTER FUNCTION {schema}.check_progress RESET ALL")
        with pytest.raises(WentBackError):
            await log.store.log.commit(Commit(log.lease, key, 1000, placed([batch()]), after=5))
        await db.close()

    async def test_no_offsets_are_saved_during_the_deletion_of_their_topic(
        self, settings: PostgresSettings, database: Postgres, log: Log
    ) -> None:
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        async with db.transaction():
            await db.execute(f"SET LOCAL search_path = {settings.schema_name}")
            await db.execute("DELETE FROM topic WHERE id = $1", TOPIC)
            await db.execute("DELETE FROM grp_offset WHERE topic_id = $1", TOPIC)
            commit = asyncio.create_task(log.store.groups.commit_offsets(None, "g", {FIRST: CommittedOffset(5)}))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            while not commit.done() and not await db.fetchval(waits):
                await asyncio.sleep(0.01)
        await commit
        assert dict(await log.store.groups.load_offsets("g")) == {}
        await db.close()

    async def test_commits_proceed_while_many_ranges_are_dropped(
        self, settings: PostgresSettings, database: Postgres, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_retention, "DROPPED_RANGES", 2)
        for _ in range(5):
            await log.commit(batch(), batch(SECOND))
        await log.store.log.advance_start(FIRST, 4)
        await log.store.log.advance_start(SECOND, 4)
        db: Any = await asyncpg.connect(database.uri, user=database.user, password=database.password)
        async with db.transaction():
            await db.execute(f"SET LOCAL search_path = {settings.schema_name}")
            await db.execute("SELECT 1 FROM log WHERE topic_id = $1 AND part = 1 FOR UPDATE", TOPIC)
            dropping = asyncio.create_task(log.store.retention.drop_ranges(10))
            waits = "SELECT count(*) FROM pg_stat_activity WHERE pg_backend_pid() = ANY(pg_blocking_pids(pid))"
            while not await db.fetchval(waits):
                await asyncio.sleep(0.01)
            # The step that waits holds no other partition.
            async with asyncio.timeout(5):
                await log.commit(batch())
        assert await dropping == 8
        assert await log.store.retention.drop_ranges(10) == 0
        await db.close()


class TestProgramsWithoutTableRanges(OverPostgres):
    """Programs that do not know table ranges stay out while there are any."""

    async def test_a_later_migration_does_not_readmit_programs_that_do_not_know_table_ranges(
        self, settings: PostgresSettings, log: Log, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await moved(log)
        monkeypatch.setattr(postgres_database, "SCRIPTS", (*SCRIPTS, "SELECT 1"))
        later = PostgresStore(settings)
        await later.start()
        assert await self.compatible_from(Log(later, log.lease)) == (TABLE_RANGES, TABLE_RANGES)
        await later.close()

    async def test_a_program_of_a_released_version_loses_its_node_lease_when_ranges_move_to_a_table(
        self, log: Log, db: Any
    ) -> None:
        """These versions do not read `compatible_from`, and a running broker does not read it again."""
        statements = json.loads((RELEASED / "0.1.0.json").read_text())
        (join,) = (statement for statement in statements if "INSERT INTO node" in statement)
        renew = "UPDATE node SET expires_ms = now_ms() + 9000 WHERE id = 7"
        node = (7, "host", 9092, "", 9000, None, None)
        await db.fetchval(join, *node)
        await db.execute(renew)
        await moved(log)
        for statement, values in ((renew, ()), (join, node)):
            with pytest.raises(asyncpg.PostgresError, match="batch ranges in tables") as raised:
                await db.execute(statement, *values)
            assert raised.value.sqlstate == "FN001"
        await db.execute("UPDATE node SET expires_ms = 0 WHERE id = 7")
        await asyncio.gather(*(log.store.nodes.renew(log.lease, TTL) for _ in range(9)))
        await log.store.nodes.join(ADDRESS, TTL)

    async def test_the_way_back_is_open_while_no_range_is_in_a_table(
        self, settings: PostgresSettings, log: Log, tmp_path: Path
    ) -> None:
        given = BrokerSettings(coordinator=settings, objects=DirectorySettings(path=str(tmp_path)))
        assert await asyncio.to_thread(take_back, given, "0.2.0") == 0
        await moved(log)
        with pytest.raises(InvalidSpecError, match=r"version 0\.2\.0 cannot read them there\. Let the brokers copy"):
            await asyncio.to_thread(take_back, given, "0.2.0")
        assert await self.compatible_from(log) == (TABLE_RANGES, TABLE_RANGES)
        await log.store.log.rewrite(await merged(log, FIRST))
        assert await asyncio.to_thread(take_back, given, "0.2.0") == 0
        assert (await self.compatible_from(log))[0] < TABLE_RANGES
        await moved(log)
        assert await self.compatible_from(log) == (TABLE_RANGES, TABLE_RANGES), "new table ranges close it again"
