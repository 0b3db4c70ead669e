"""The loser of a race for a namespace creates its table, whatever the catalog answers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import ServerError

from firn.model.errors import UnavailableError
from firn.model.jobs import CatalogConnection, Column, RecordSchema, TableTarget
from firn.tables.ownership import Claimant
from firn_controllers.ports import TableState
from firn_operator.adapters.iceberg.catalogs import LeanSqlCatalog
from firn_operator.adapters.iceberg.tables import CatalogTables

TARGET = TableTarget(catalog="lake", namespace="shop", name="orders")
ORDERS = RecordSchema(format="Json", fields=(Column(name="id", type="long"),))
create = LeanSqlCatalog.create_namespace


def created_by_another(catalog: LeanSqlCatalog, namespace: Any, **properties: Any) -> None:
    create(catalog, namespace, **properties)
    raise ServerError("UncheckedSQLException: Failed to execute: INSERT")


def failed(*_: Any, **__: Any) -> None:
    raise ServerError("the disk is full")


def ensure(directory: Path) -> TableState | None:
    uri, warehouse = f"sqlite:///{directory}/catalog.db", f"file://{directory}/lake"
    port = CatalogTables({"lake": CatalogConnection(type="sql", uri=uri, warehouse=warehouse)})
    try:
        return asyncio.run(port.ensure(TARGET, ORDERS, Claimant("uid-1")))
    finally:
        port.close()


def test_an_error_of_the_catalog_is_ignored_if_the_namespace_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeanSqlCatalog, "create_namespace", created_by_another)
    state = ensure(tmp_path)
    assert state is not None
    assert state.created


def test_an_error_of_the_catalog_without_a_namespace_is_an_outage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeanSqlCatalog, "create_namespace", failed)
    with pytest.raises(UnavailableError, match="the disk is full"):
        ensure(tmp_path)
