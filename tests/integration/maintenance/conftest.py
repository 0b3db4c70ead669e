"""Run a Spark session for all tests of this folder. Each test has its own tables."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from firn.model.jobs import CatalogConnection
from firn.model.maintenance import MaintenanceRun
from firn_spark import session
from firn_spark.tables.catalogs import Catalogs, catalog_conf
from firn_spark.tables.java_tables import Tables
from tests.integration.maintenance.lake import CATALOG, Lake
from tests.servers.iceberg_rest import LIFE_SECONDS, IcebergRest
from tests.servers.postgres import Postgres
from tests.servers.s3 import S3
from tests.servers.spark import spark_conf


@pytest.fixture(scope="session")
def connection(tmp_path_factory: pytest.TempPathFactory, database: Postgres, storage: S3) -> CatalogConnection:
    secret = tmp_path_factory.mktemp("secrets") / "database-password"
    secret.write_text(database.password + "\n")
    return CatalogConnection(
        type="sql",
        uri=database.uri,
        warehouse=f"s3://{storage.bucket}/lake",
        properties={**storage.properties, "user": database.user},
        secret_properties={**storage.secret_properties, "password": str(secret)},
    )


@pytest.fixture(scope="session")
def contract(connection: CatalogConnection) -> MaintenanceRun:
    return MaintenanceRun(
        name="run",
        tables=(),
        catalogs={CATALOG: connection},
        cores=2,
        heap="1g",
        spark_conf=spark_conf(),
    )


@pytest.fixture(scope="session")
def spark(contract: MaintenanceRun) -> Iterator[object]:
    running = session.start(contract, daemon=session.MERGE_DAEMON)
    yield running
    running.stop()


@pytest.fixture(scope="session")
def tables(contract: MaintenanceRun, spark: object) -> Iterator[Tables]:
    # All tests share the catalogs, because PostgreSQL accepts only 100 connections.
    catalogs = Catalogs(spark, contract)
    yield Tables(catalogs)
    catalogs.close()


@pytest.fixture
def lake(contract: MaintenanceRun, spark: object, tables: Tables, storage: S3, tmp_path: Path) -> Lake:
    return Lake(contract, spark, tables, storage, tmp_path)


@contextmanager
def lake_behind(
    rest: IcebergRest, contract: MaintenanceRun, spark: Any, storage: S3, directory: Path, own_references: bool | None
) -> Iterator[Lake]:
    """Return a lake whose runs use the proxies of ``rest``. The test itself writes and reads around them."""
    name = f"rest_{rest.uri.partition('127.0.0.1:')[2].strip('/').replace('/', '_')}"
    connection = rest.connection.model_copy(update={"own_references": own_references})
    proxied = contract.model_copy(update={"catalogs": {name: connection}})
    direct = contract.model_copy(update={"catalogs": {f"{name}_direct": rest.direct}})
    for settings in (proxied, direct):
        for key, value in catalog_conf(settings).items():
            spark.conf.set(key, value)
    around = Catalogs(spark, contract.model_copy(update={"catalogs": {name: rest.direct}}))
    rest.rules.expired_status, rest.rules.life_seconds = 401, LIFE_SECONDS
    try:
        yield Lake(proxied, spark, Tables(around), storage, directory, name, f"{name}_direct")
    finally:
        rest.rules.life_seconds = LIFE_SECONDS
        around.close()


@pytest.fixture
def fixture_lake(
    iceberg_catalog: IcebergRest, contract: MaintenanceRun, spark: Any, storage: S3, tmp_path: Path
) -> Iterator[Lake]:
    with lake_behind(iceberg_catalog, contract, spark, storage, tmp_path, False) as lake:
        yield lake


@pytest.fixture
def nessie_lake(
    proxied_nessie: IcebergRest, contract: MaintenanceRun, spark: Any, storage: S3, tmp_path: Path
) -> Iterator[Lake]:
    with lake_behind(proxied_nessie, contract, spark, storage, tmp_path, None) as lake:
        yield lake
