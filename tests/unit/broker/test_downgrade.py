"""An embedded broker can go back to a released version, and forward again."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from firn.model.clock import SystemClock
from firn.model.errors import ExitCode
from firn_broker import __main__
from firn_broker.__main__ import main
from firn_broker.log_types import CommittedOffset, NodeLease, StoredGroup, Topic
from firn_broker.metadata_store.downgrade import RELEASES
from firn_broker.metadata_store.sqlite.migrations import MIGRATIONS
from firn_broker.metadata_store.sqlite.store import SqliteStore
from tests.contract.metadata_store.access import OF_ALL, acl, credential, loaded
from tests.contract.metadata_store.builders import ADDRESS, FIRST, TOPIC, TTL, Log, batch, produced
from tests.contract.metadata_store.logs.merges import merged
from tests.contract.metadata_store.logs.table_ranges import moved

each_release = pytest.mark.parametrize("release", RELEASES)


@pytest.fixture(autouse=True)
def logs_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    # Logging is set up once for a process, which is that of the tests.
    monkeypatch.setattr(__main__, "log_as_json", lambda: None)


async def opened(directory: Path) -> SqliteStore:
    store = SqliteStore(str(directory / "coordinator.db"), SystemClock(), "cluster")
    await store.start()
    return store


async def filled(directory: Path) -> NodeLease:
    """Create a coordinator with rows in all tables, and return the lease of its node."""
    store = await opened(directory)
    log = Log(store, await store.nodes.join(ADDRESS, TTL))
    await store.topics.create_topic(Topic(TOPIC, "t", 2, {}))
    await log.commit(batch(records=3), produced(0))
    held = await store.nodes.acquire("groups/1", log.lease)
    assert held is not None
    await store.groups.save_group(held, 1, StoredGroup("g", 1, "{}"))
    await store.groups.commit_offsets(held, "g", {FIRST: CommittedOffset(2)}, 1)
    await store.access.change_credentials([credential()])
    await store.access.create_acls([acl()], 1)
    await store.access.change_quotas({OF_ALL: {"producer_byte_rate": 1.0}})
    await store.access.secret(b"secret")
    await store.close()
    return log.lease


async def leave(directory: Path, lease: NodeLease) -> None:
    store = await opened(directory)
    await store.nodes.leave(lease)
    await store.close()


def schema(db: sqlite3.Connection) -> set[tuple[str, str, tuple[str, ...]]]:
    """Return kind, name and columns of all tables and indexes."""
    found = set()
    for kind, name in db.execute("SELECT type, name FROM sqlite_master").fetchall():
        columns = db.execute(f"PRAGMA {kind}_info({name})").fetchall()
        found.add((kind, name, tuple(str(column[1:]) for column in columns)))
    return found


def downgrade(directory: Path, release: str) -> int:
    return main(["--data-dir", str(directory), "downgrade", "--to", release])


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "coordinator.db")) as db:
        yield db


@each_release
async def test_a_downgrade_leaves_the_schema_of_the_release(
    release: str, tmp_path: Path, database: sqlite3.Connection
) -> None:
    await leave(tmp_path, await filled(tmp_path))
    assert downgrade(tmp_path, release) == ExitCode.DONE
    with closing(sqlite3.connect(":memory:")) as released:
        for script in MIGRATIONS[: RELEASES[release]]:
            released.executescript(script)
        assert schema(database) == schema(released)
    assert database.execute("PRAGMA user_version").fetchone() == (RELEASES[release],)
    # Released versions insert rows without the names of columns.
    database.execute("INSERT OR REPLACE INTO node VALUES (7, 1, 'host', 9092, '', 0, NULL, NULL)")


@each_release
async def test_a_downgrade_and_an_upgrade_keep_all_data(release: str, tmp_path: Path) -> None:
    await leave(tmp_path, await filled(tmp_path))
    assert downgrade(tmp_path, release) == ExitCode.DONE
    store = await opened(tmp_path)
    (state,) = await store.log.states([FIRST])
    assert state is not None
    assert (state.high_watermark, await store.cluster_id()) == (4, "cluster")
    assert dict(await store.groups.load_offsets("g")) == {FIRST: CommittedOffset(2)}
    assert await store.groups.groups_with_offsets(5) == ["g"], "its shard is unknown again"
    assert [group.name for group in await store.groups.load_groups(1)] == ["g"]
    log = Log(store, await store.nodes.join(ADDRESS, TTL))
    assert [outcome.base_offset for outcome in await log.commit(produced(1))] == [4]
    access = await loaded(store)
    # The released version does not know them.
    assert [*access.credentials, *access.acls, *access.quotas] == []
    assert await store.access.create_acls([acl()], 1)
    assert (await loaded(store, access.version)).acls == {acl().principal: [acl()]}
    await store.close()


async def test_a_downgrade_fails_while_ranges_are_in_a_table(
    tmp_path: Path, database: sqlite3.Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    lease = await filled(tmp_path)
    store = await opened(tmp_path)
    log = Log(store, lease)
    log.number = 10
    await moved(log)
    await store.nodes.leave(lease)
    before = schema(database)
    assert downgrade(tmp_path, "0.2.0") == ExitCode.CONFIGURATION
    assert "version 0.2.0 cannot read them there" in capfd.readouterr().err
    assert schema(database) == before
    assert await store.log.rewrite(await merged(log, FIRST)) == [True]
    await store.close()
    assert downgrade(tmp_path, "0.2.0") == ExitCode.DONE


async def test_a_downgrade_fails_while_a_broker_is_live_or_brokers_are_stopped(
    tmp_path: Path, database: sqlite3.Connection, capfd: pytest.CaptureFixture[str]
) -> None:
    lease = await filled(tmp_path)
    before = schema(database)
    assert downgrade(tmp_path, "0.1.0") == ExitCode.CONFIGURATION
    assert "a broker uses" in capfd.readouterr().err
    await leave(tmp_path, lease)
    store = await opened(tmp_path)
    await store.nodes.stop_serving("commits are lost")
    await store.close()
    assert downgrade(tmp_path, "0.1.0") == ExitCode.CONFIGURATION
    assert "commits are lost" in capfd.readouterr().err
    assert schema(database) == before
