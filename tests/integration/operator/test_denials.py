"""Errors of a real PostgreSQL for missing rights and missing names."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from firn.model.errors import AccessDeniedError, FirnError, UnavailableError
from firn.model.jobs import CatalogConnection
from firn_operator.adapters.iceberg.tables import CatalogTables
from tests.servers.postgres import Postgres, directory_for_postgres, postgres


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with directory_for_postgres() as directory, postgres(directory) as running:
        statements = (
            "create role low login password 'low'",
            "create role barred password 'barred'",
            "create database lake",
            "create database closed",
            "revoke connect on database closed from public",
        )
        for statement in statements:
            with psycopg.connect(**_as(running, running.user, running.password), autocommit=True) as connection:
                connection.execute(statement)
        yield running


def _as(server: Postgres, user: str, password: str) -> dict[str, Any]:
    return {"host": "127.0.0.1", "port": server.port, "user": user, "password": password, "dbname": "postgres"}


@pytest.mark.parametrize(
    ("user", "password", "database", "kind", "words"),
    [
        ("firn", "wrong", "lake", AccessDeniedError, "password authentication failed"),
        ("firn", "", "lake", AccessDeniedError, "no password supplied"),
        ("barred", "barred", "lake", AccessDeniedError, "not permitted to log in"),
        ("low", "low", "closed", AccessDeniedError, "permission denied for database"),
        ("low", "low", "lake", AccessDeniedError, "permission denied for schema public"),
        ("low", "low", "ghost", UnavailableError, 'database "ghost" does not exist'),
    ],
)
async def test_denied_access_differs_from_a_missing_object(
    server: Postgres, user: str, password: str, database: str, kind: type[FirnError], words: str
) -> None:
    uri = server.uri.replace("/postgres", f"/{database}")
    properties = {"user": user, "password": password}
    tables = CatalogTables(
        {"lake": CatalogConnection(type="sql", uri=uri, warehouse="/nowhere", properties=properties)}
    )
    with pytest.raises(FirnError, match=words) as failure:
        await tables.check("lake")
    tables.close()
    assert type(failure.value) is kind


async def test_a_dropped_catalog_table_is_unavailable(server: Postgres) -> None:
    properties = {"user": server.user, "password": server.password}
    connection = CatalogConnection(type="sql", uri=server.uri, warehouse="/nowhere", properties=properties)
    tables = CatalogTables({"lake": connection})
    await tables.check("lake")
    with psycopg.connect(**_as(server, server.user, server.password)) as own:
        own.execute("drop table iceberg_namespace_properties, iceberg_tables")
    with pytest.raises(UnavailableError, match='relation "iceberg_.*" does not exist'):
        await tables.check("lake")
    tables.close()
