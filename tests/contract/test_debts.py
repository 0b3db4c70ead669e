"""Port `Debts`: the suite on the fake and on real catalogs, and the caches and bounds of the adapter."""

import asyncio
import gzip
import itertools
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import update

from firn.model.clock import SystemClock
from firn.model.errors import UnavailableError
from firn.model.jobs import CatalogConnection, TableTarget
from firn.model.maintenance import CompactionWork
from firn.tables import compaction
from firn_operator.adapters.iceberg import debt as debt_module
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.connections import Connection
from firn_operator.adapters.iceberg.debt import CatalogDebts
from tests.contract.suites import AT_ONCE, CATALOG, MIB, DebtsContract
from tests.contract.writers import CatalogWriters
from tests.fakes.lake.debts import FakeDebts
from tests.servers.nessie import Nessie
from tests.servers.postgres import Postgres
from tests.servers.process import free_port
from tests.servers.s3 import S3

_numbers = itertools.count()


class Later:
    """The system clock turned forward, or a clock that stands still."""

    def __init__(self) -> None:
        self.ahead = timedelta()
        self.fixed: datetime | None = None

    def now(self) -> datetime:
        return self.fixed or datetime.now(UTC) + self.ahead

    def monotonic(self) -> float:
        return SystemClock().monotonic()


@pytest.fixture
def target() -> TableTarget:
    return TableTarget(catalog=CATALOG, namespace="debts", name=f"table{next(_numbers)}")


@pytest.fixture(scope="module", params=["sqlite-files", "sql-s3", "rest-s3"])
def connection(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CatalogConnection:
    if request.param == "sqlite-files":
        directory = tmp_path_factory.mktemp("lake")
        return CatalogConnection(type="sql", uri=f"sqlite:///{directory}/catalog", warehouse=f"file://{directory}")
    if request.param == "rest-s3":
        nessie: Nessie = request.getfixturevalue("rest_catalog")
        return nessie.connection
    return sql_on_s3(request.getfixturevalue("database"), request.getfixturevalue("storage"), tmp_path_factory)


def sql_on_s3(database: Postgres, storage: S3, directories: pytest.TempPathFactory) -> CatalogConnection:
    password = directories.mktemp("catalog") / "password"
    password.write_text(database.password)
    return CatalogConnection(
        type="sql",
        uri=database.uri,
        warehouse=f"s3://{storage.bucket}/debts",
        properties={"user": database.user, **storage.properties},
        secret_properties={"password": str(password), **storage.secret_properties},
    )


@pytest.fixture
def clock() -> Later:
    return Later()


@pytest.fixture
def debts(connection: CatalogConnection, clock: Later) -> Iterator[CatalogDebts]:
    port = CatalogDebts({CATALOG: connection}, clock)
    yield port
    port.close()


@pytest.fixture
def writers(connection: CatalogConnection) -> CatalogWriters:
    return CatalogWriters(open_catalog(CATALOG, connection))


class TestFakeDebts(DebtsContract):
    @pytest.fixture
    def debts(self) -> FakeDebts:
        return FakeDebts()

    @pytest.fixture
    def writers(self, debts: FakeDebts) -> FakeDebts:
        return debts


class TestCatalogDebts(DebtsContract):
    """Run the test with each of the catalogs."""


async def test_manifests_are_read_once(debts: CatalogDebts, writers: CatalogWriters, target: TableTarget) -> None:
    writers.create(target)
    for number in range(1, 4):
        writers.append(target, [MIB] * 3)
        await debts.measure(target, AT_ONCE)
        assert debts.manifests.read == number
    await debts.measure(target, AT_ONCE.model_copy(update={"open_grace_ms": 1}))
    assert debts.manifests.read == 3


async def test_an_unchanged_table_is_not_read_again(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers.create(target)
    writers.append(target, [MIB] * 5)
    first = await debts.measure(target, AT_ONCE)

    def unread(*_: object) -> None:
        raise AssertionError("metadata was read again")

    monkeypatch.setattr(debt_module, "read_metadata", unread)
    assert await debts.measure(target, AT_ONCE) == first


async def test_files_become_due_without_a_commit(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget, clock: Later
) -> None:
    work = CompactionWork(open_grace_ms=3_600_000)
    writers.create(target)
    writers.append(target, [MIB] * 5)
    writers.append(target, [600 * MIB])
    debt = await debts.measure(target, work)
    assert debt is not None
    assert debt.due_files == 0
    clock.ahead = timedelta(minutes=61)
    debt = await debts.measure(target, work)
    assert debt is not None
    assert debt.due_files == 5


async def test_files_of_a_quiet_partition_become_due(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget, clock: Later
) -> None:
    """The size rule leaves files of these sizes alone until the partition is quiet."""
    writers.create(target)
    writers.append(target, [MIB, 4 * MIB, 16 * MIB, 64 * MIB])
    debt = await debts.measure(target, AT_ONCE)
    assert debt is not None
    assert (debt.small_files, debt.due_files) == (4, 0)
    clock.ahead = timedelta(milliseconds=compaction.QUIET_MS + 60_000)
    debt = await debts.measure(target, AT_ONCE)
    assert debt is not None
    assert debt.due_files == 4


async def test_large_files_keep_a_partition_active(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget, clock: Later
) -> None:
    """A large file needs no rewrite, but it shows that the partition is still written."""
    work = CompactionWork(open_grace_ms=0, target_file_bytes=100 * MIB)
    writers.create(target)
    writers.append(target, [MIB, 4 * MIB, 16 * MIB, 64 * MIB])
    committed = writers.load(target).metadata.snapshots[-1].timestamp_ms
    clock.fixed = datetime.fromtimestamp((committed + compaction.QUIET_MS) / 1000, UTC)
    debt = await debts.measure(target, work)
    assert debt is not None
    assert debt.due_files == 4
    writers.append(target, [MIB * 100])
    assert writers.load(target).metadata.snapshots[-1].timestamp_ms > committed
    debt = await debts.measure(target, work)
    assert debt is not None
    assert debt.due_files == 0


async def test_a_file_is_at_most_as_old_as_the_oldest_snapshot(
    connection: CatalogConnection, debts: CatalogDebts, writers: CatalogWriters, target: TableTarget
) -> None:
    if connection.type == "rest":
        pytest.skip("Nessie expires snapshots itself")
    writers.create(target)
    for _ in range(5):
        writers.append(target, [MIB])
    before = await debts.measure(target, AT_ONCE)
    table = writers.load(target)
    gone = [snapshot.snapshot_id for snapshot in table.metadata.snapshots[:-1]]
    table.maintenance.expire_snapshots().by_ids(gone).commit()
    last = table.refresh().metadata.snapshots[-1].timestamp_ms
    after = await debts.measure(target, AT_ONCE)
    assert after is not None
    assert (after.snapshots, after.data_files, after.due_files) == (1, 5, 5)
    assert after.oldest_due == datetime.fromtimestamp(last / 1000, UTC)
    assert before is not None
    assert before.oldest_due is not None
    assert before.oldest_due < after.oldest_due, "a run no longer sees the older snapshots, and neither does the cache"


async def test_the_cache_of_manifests_is_bounded(
    connection: CatalogConnection, writers: CatalogWriters, target: TableTarget
) -> None:
    writers.create(target)
    for _ in range(6):
        writers.append(target, [MIB] * 50)
    port = CatalogDebts({CATALOG: connection}, SystemClock(), kept_files=250)
    try:
        for settings in (AT_ONCE, AT_ONCE.model_copy(update={"open_grace_ms": 1})):
            debt = await port.measure(target, settings)
            assert debt is not None
            assert debt.due_files == 300
        assert port.manifests.read > 6, "the cache does not hold all of them"
        assert port.manifests.weight <= 250
    finally:
        port.close()


async def test_no_catalog_is_opened_on_the_event_loop(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a Secret has changed, opening the catalog may take seconds. The event loop must not wait."""
    writers.create(target)
    writers.append(target, [MIB])
    opened_by = []
    opened = Connection.catalog

    def catalog(connection: Connection) -> Catalog:
        opened_by.append(threading.current_thread())
        return opened(connection)

    monkeypatch.setattr(Connection, "catalog", catalog)
    assert await debts.measure(target, AT_ONCE) is not None
    assert opened_by
    assert threading.current_thread() not in opened_by


async def test_many_tables_are_measured_concurrently(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget
) -> None:
    targets = [target.model_copy(update={"name": f"{target.name}_{n}"}) for n in range(30)]
    for number, table in enumerate(targets):
        writers.create(table)
        writers.append(table, [MIB] * number or [MIB])
    measured = await asyncio.gather(*(debts.measure(table, AT_ONCE) for table in targets))
    assert [debt.data_files for debt in measured if debt is not None] == [1, *range(1, 30)]


async def test_an_error_names_the_table_of_a_missing_manifest(
    debts: CatalogDebts, writers: CatalogWriters, target: TableTarget
) -> None:
    writers.create(target)
    writers.append(target, [MIB])
    table = writers.load(target)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    (manifest,) = snapshot.manifests(table.io)
    table.io.delete(manifest.manifest_path)
    with pytest.raises(UnavailableError, match=f"{target.name}: a file of its metadata does not exist"):
        await debts.measure(target, AT_ONCE)


async def test_compressed_metadata_is_read(
    database: Postgres, storage: S3, tmp_path_factory: pytest.TempPathFactory, target: TableTarget
) -> None:
    connection = sql_on_s3(database, storage, tmp_path_factory)
    writers = CatalogWriters(open_catalog(CATALOG, connection))
    writers.create(target)
    writers.append(target, [MIB] * 4)
    table = writers.load(target)
    packed = table.metadata_location.replace(".metadata.json", ".gz.metadata.json")
    with table.io.new_input(table.metadata_location).open() as stream:
        content = gzip.compress(stream.read())
    with table.io.new_output(packed).create() as out:
        out.write(content)
    assert isinstance(writers.catalog, SqlCatalog)
    with writers.catalog.engine.begin() as session:
        session.execute(
            update(IcebergTables)
            .where(IcebergTables.table_name == target.name, IcebergTables.table_namespace == target.namespace)
            .values(metadata_location=packed)
        )
    port = CatalogDebts({CATALOG: connection}, SystemClock())
    try:
        debt = await port.measure(target, AT_ONCE)
    finally:
        port.close()
    assert debt is not None
    assert debt.due_files == 4


async def test_an_error_of_the_catalog_names_the_table(tmp_path: Path, target: TableTarget) -> None:
    port = free_port()
    connection = CatalogConnection(
        type="sql", uri=f"postgresql://127.0.0.1:{port}/firn", warehouse=f"file://{tmp_path}"
    )
    down = CatalogDebts({CATALOG: connection}, SystemClock())
    try:
        with pytest.raises(UnavailableError, match="catalog lake"):
            await down.measure(target, AT_ONCE)
    finally:
        down.close()
