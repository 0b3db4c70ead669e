"""Open the catalog of a connector without a change of its database."""

from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from firn.model.errors import InvalidSpecError
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli.adoption.connector import Connector

_TABLES = IcebergTables.__tablename__
_TYPE = "iceberg_type"


def opened(connector: Connector) -> Catalog:
    """Open the catalog of a connector. Raises InvalidSpecError if the database has no catalog."""
    if connector.connection.type == "sql":
        url = make_url(connector.connection.uri)
        # SQLite would create the file.
        if url.get_backend_name() == "sqlite" and url.database and not Path(url.database).exists():
            raise InvalidSpecError(
                f"connector {connector.name}: the file {url.database} of iceberg.catalog.uri does not exist; correct the property"
            )
    catalog = open_catalog(connector.catalog, connector.connection, snapshots="all", prepare=False)
    if isinstance(catalog, SqlCatalog) and not inspect(catalog.engine).has_table(_TABLES):
        raise InvalidSpecError(
            f"connector {connector.name}: the database of iceberg.catalog.uri has no table {_TABLES}, so it is not the catalog of the connector;"
            " correct the property"
        )
    return catalog


def migrations(catalog: Catalog) -> tuple[str, ...]:
    """Return the changes of the catalog's database that the operator makes when it opens the catalog."""
    if not isinstance(catalog, SqlCatalog):
        return ()
    columns = {column["name"] for column in inspect(catalog.engine).get_columns(_TABLES)}
    if _TYPE in columns:
        return ()
    return (
        f"the catalog's table {_TABLES} gets the column {_TYPE} (Iceberg's version V1) when the operator opens the catalog",
    )
