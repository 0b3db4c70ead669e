"""Run a Spark session for all tests of this folder. Each test has its own tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection
from firn.model.maintenance import MaintenanceRun
from firn_spark import session
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.java_tables import Tables
from tests.integration.maintenance.lake import CATALOG, Lake
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
