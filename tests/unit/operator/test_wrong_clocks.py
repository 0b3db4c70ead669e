"""The operator changes no table that is ahead of its clock: Iceberg's Java could not read the table any more."""

import asyncio
import json
import time
from pathlib import Path
from unittest.mock import patch

import pytest

from firn.model.errors import NotReadyError
from firn.model.jobs import CatalogConnection, Column, RecordSchema, TableTarget
from firn.tables.ownership import Claimant
from firn_operator.adapters.iceberg import agreement
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.adapters.iceberg.tables import CatalogTables

ID, NAME = Column(name="id", type="long"), Column(name="name", type="string")
TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")
AHEAD_MS = 3_600_000


def schema(*columns: Column) -> RecordSchema:
    return RecordSchema(format="Json", fields=columns)


def ensure(connection: CatalogConnection, *columns: Column) -> None:
    port = CatalogTables({"lake": connection})
    try:
        asyncio.run(port.ensure(TARGET, schema(*columns), Claimant("uid-1")))
    finally:
        port.close()


def set_ahead(connection: CatalogConnection) -> None:
    """Give the table the time of a process whose clock is an hour ahead."""
    place = Path(
        open_catalog("lake", connection).load_table(("shop", "orders")).metadata_location.removeprefix("file://")
    )
    metadata = json.loads(place.read_text())
    place.write_text(json.dumps({**metadata, "last-updated-ms": int(time.time() * 1000) + AHEAD_MS}))


def test_a_change_of_a_table_that_is_ahead_waits_and_says_why(tmp_path: Path) -> None:
    connection = CatalogConnection(
        type="sql", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}/lake"
    )
    ensure(connection, ID)
    set_ahead(connection)
    ensure(connection, ID)  # the table matches: nothing waits
    expected = "table lake.shop.orders: .* ahead of the clock, .* correct the clock"
    with pytest.raises(NotReadyError, match=expected):
        ensure(connection, ID, NAME)
    with patch.object(agreement, "now_ms", lambda: int(time.time() * 1000) + AHEAD_MS):
        ensure(connection, ID, NAME)
    columns = open_catalog("lake", connection).load_table(("shop", "orders")).schema().column_names
    assert "name" in columns
