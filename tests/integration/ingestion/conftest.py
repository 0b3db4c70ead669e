"""Run one Kafka, one Spark session and drivers in this process for all tests of this folder.

Each test has its own topics and tables."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from firn.model.jobs import CatalogConnection, GroupSettings
from firn_spark import session
from tests.integration.ingestion.world import World
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.proxies.tcp import Proxy
from tests.servers.s3 import S3
from tests.servers.spark import spark_conf


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory, database: Postgres, storage: S3) -> CatalogConnection:
    """Return the usual catalog: PostgreSQL and S3."""
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
def settings(broker: Kafka, lake: CatalogConnection) -> GroupSettings:
    return GroupSettings(
        group="test",
        cores=2,
        heap="1g",
        kafka={"classic": broker.connection, "secure": broker.secure_connection()},
        catalogs={"lake": lake},
        listen="127.0.0.1:0",
        spark_conf=spark_conf(),
    )


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """Run one schema registry. Each test has subjects of its own."""
    with apicurio(tmp_path_factory.mktemp("registry")) as running:
        yield running


EXTENSIONS = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"


@pytest.fixture(scope="session")
def spark(settings: GroupSettings) -> Iterator[object]:
    # A process has one Spark, and tests of landing and of maintenance share it. They alter tables with SQL.
    conf = {**settings.spark_conf, "spark.sql.extensions": EXTENSIONS}
    running = session.start(settings.model_copy(update={"spark_conf": conf}))
    yield running
    running.stop()


@pytest.fixture
def world(settings: GroupSettings, broker: Kafka, spark: object, tmp_path: Path) -> Iterator[World]:
    with World(settings, broker, spark, tmp_path) as world:
        yield world


@pytest.fixture
def served(world: World, registry: Apicurio, tmp_path: Path) -> World:
    """Return the world with the registry in the drivers' settings."""
    world.settings = world.settings.model_copy(
        update={"registries": {"main": registry.connection}, "schema_directory": str(tmp_path / "schemas")}
    )
    return world


@pytest.fixture
def flaky(world: World, lake: CatalogConnection, database: Postgres) -> Iterator[Proxy]:
    """Return catalog ``flaky``: the usual one behind a proxy."""
    with Proxy(database.port) as proxy:
        connection = lake.model_copy(
            update={"uri": lake.uri.replace(str(database.port), str(proxy.port)) + "?prepareThreshold=0"}
        )
        world.add_catalog(f"flaky_{world.suffix}", connection)
        yield proxy
