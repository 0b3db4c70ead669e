"""The operator compares a table again only if something changed that its spec decides about."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from firn.model import names
from firn.model.jobs import CatalogConnection, Column, RecordSchema, TableTarget
from firn.tables.ownership import Claimant
from firn_operator.adapters.iceberg import evolution
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.tables import CatalogTables

SCHEMA = RecordSchema(format="Json", fields=(Column(name="id", type="long"),))
TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")


@pytest.fixture
def connection(tmp_path: Path) -> CatalogConnection:
    return CatalogConnection(type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake")


@pytest.fixture
def port(connection: CatalogConnection) -> Iterator[CatalogTables]:
    made = CatalogTables({"lake": connection})
    yield made
    made.close()


@pytest.mark.parametrize(
    ("key", "compared"),
    [
        (names.SUMMARY_OFFSETS, False),
        (names.TABLE_CLAIM, False),
        (names.TABLE_LOST, False),
        (names.TABLE_FILTERED, False),
        (names.TABLE_REFUSED_SCHEMAS, False),
        (names.of_topic(names.TABLE_FILTERED, "topic-id"), False),
        (names.TABLE_BRANCH, True),
        ("write.parquet.compression-codec", True),
    ],
)
def test_what_ingestion_writes_with_its_commits_compares_no_table_again(
    connection: CatalogConnection, port: CatalogTables, key: str, compared: bool
) -> None:
    def ensure() -> int:
        """Return how often the table was compared with its spec."""
        with patch.object(evolution, "followed", wraps=evolution.followed) as compare:
            asyncio.run(port.ensure(TARGET, SCHEMA, Claimant("uid-1")))
        return compare.call_count

    ensure()  # Creates the table.
    ensure()
    assert ensure() == 0
    with open_catalog("lake", connection).load_table(("shop", "orders")).transaction() as change:
        change.set_properties({key: "gzip"})
    assert ensure() == int(compared)
