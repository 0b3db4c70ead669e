"""Run the servers of the benchmarks: a Kafka broker, and a catalog in PostgreSQL. The tables are on the local disk or in a bucket."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyiceberg.exceptions import NamespaceAlreadyExistsError

from firn.model.jobs import CatalogConnection, Column, RecordSchema, TableTarget
from firn.tables import table_properties
from firn.tables.ownership import Claimant
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.evolution import new_schema
from firn_operator.adapters.iceberg.tables import CatalogTables
from hack.bench.records.measurements import COLUMNS, SCHEMA
from tests.servers import kafka as kafka_server
from tests.servers.kafka import Kafka, kafka
from tests.servers.postgres import Postgres, postgres
from tests.servers.s3 import S3

CATALOG = "lake"
NAMESPACE = "bench"
PLAIN_TABLE = {
    "format-version": "2",
    table_properties.CODEC: "zstd",
    "write.parquet.compression-level": "1",
}
"""Properties of tables for other programs, with the codec of Firn's files. PyIceberg sets no codec, and Java writers then
compress with gzip."""


@dataclass(frozen=True)
class Lake:
    """A broker, a catalog, and a directory for other programs of a benchmark."""

    kafka: Kafka
    database: Postgres
    connection: CatalogConnection
    directory: Path

    def catalog(self) -> Any:
        """Open the catalog with PyIceberg."""
        return open_catalog(CATALOG, self.connection)

    @property
    def jdbc(self) -> dict[str, str]:
        """Return the properties of Iceberg's JDBC catalog in Java for this catalog."""
        if self.connection.uri.startswith("sqlite"):
            access = {"uri": f"jdbc:sqlite:{self.connection.uri.removeprefix('sqlite:///')}"}
        else:
            user, password = self.database.user, self.database.password
            access = {"uri": f"jdbc:{self.database.uri}", "jdbc.user": user, "jdbc.password": password}
        return {
            "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
            **access,
            "jdbc.schema-version": "V1",
            "warehouse": self.connection.warehouse,
        }

    def on_sqlite(self, directory: Path) -> Lake:
        """Return this lake with another catalog, in a file of SQLite in ``directory``."""
        directory.mkdir(parents=True, exist_ok=True)
        uri = f"sqlite:///{directory / 'catalog.db'}"
        connection = CatalogConnection(type="sql", uri=uri, warehouse=self.connection.warehouse)
        return replace(self, connection=connection)

    def create_plain_table(
        self, name: str, columns: Sequence[Column] = COLUMNS, properties: Mapping[str, str] = PLAIN_TABLE
    ) -> None:
        """Create a table with only the record's columns, for other programs than Firn."""
        catalog = self.catalog()
        with suppress(NamespaceAlreadyExistsError):
            catalog.create_namespace(NAMESPACE)
        catalog.create_table((NAMESPACE, name), schema=new_schema(columns), properties=dict(properties))

    def create_topic_tables(self, names: list[str], schema: RecordSchema = SCHEMA) -> list[TableTarget]:
        """Create tables as the operator does for topics of the records."""
        targets = [TableTarget(catalog=CATALOG, namespace=NAMESPACE, name=name) for name in names]

        async def create() -> None:
            tables = CatalogTables({CATALOG: self.connection})
            try:
                await asyncio.gather(*(tables.ensure(target, schema, Claimant(target.name)) for target in targets))
            finally:
                tables.close()

        asyncio.run(create())
        return targets


@contextmanager
def lake(directory: Path, bucket: S3 | None = None) -> Iterator[Lake]:
    """Run the servers inside the with block. The broker has the flags of its own start script.

    Without a bucket, the tables are on the local disk.
    """
    directory.mkdir(parents=True)
    with (
        postgres(directory / "postgres") as database,
        kafka(directory / "kafka", java=kafka_server.STOCK) as broker,
    ):
        secret = directory / "password"
        secret.write_text(database.password)
        connection = CatalogConnection(
            type="sql",
            uri=database.uri,
            warehouse=f"s3://{bucket.bucket}/bench" if bucket else (directory / "warehouse").as_uri(),
            properties={"user": database.user, **(bucket.properties if bucket else {})},
            secret_properties={"password": str(secret), **(bucket.secret_properties if bucket else {})},
        )
        yield Lake(broker, database, connection, directory)
