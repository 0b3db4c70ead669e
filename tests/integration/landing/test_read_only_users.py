"""A user that can only read: the commands in docs/how-to/users.md, with PostgreSQL and an S3 server."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pyarrow
import pytest
from obstore.exceptions import PermissionDeniedError
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError

from firn.model.jobs import CatalogConnection
from firn_operator.adapters.iceberg.catalogs import open_catalog
from tests.servers.postgres import Postgres, query
from tests.servers.s3 import S3, s3

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "users.md"
OWNER, READER, DATABASE = "lake", "analyst", "readers"
ROWS = pyarrow.table({"n": [1, 2]})


def example(language: str) -> str:
    """Return the example in the section about rights on tables."""
    section = PAGE.read_text().split("\n## Rights on tables\n")[1].split("\n## ")[0]
    (found,) = re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)
    return str(found)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    with s3(tmp_path_factory.mktemp("store"), users=[READER]) as server:
        yield server


def opened(database: Postgres, store: S3, user: str, password: str, access_key: str) -> Catalog:
    secrets = {"password": password, "s3.secret-access-key": store.secret_key}
    properties = {"user": user, **store.properties, "s3.access-key-id": access_key, **secrets}
    uri = database.uri.replace("/postgres", f"/{DATABASE}")
    connection = CatalogConnection(
        type="sql", uri=uri, warehouse=f"s3://{store.bucket}/warehouse", properties=properties
    )
    return open_catalog("lake", connection, prepare=user == OWNER)


def connected(database: Postgres, user: str, password: str) -> "psycopg.Connection[Any]":
    return psycopg.connect(
        host="127.0.0.1", port=database.port, dbname=DATABASE, user=user, password=password, autocommit=True
    )


def test_a_user_with_the_rights_of_the_page_reads_one_namespace_and_writes_nothing(
    database: Postgres, store: S3, tmp_path: Path
) -> None:
    for statement in (f"create role {OWNER} login password 'owns'", f"create database {DATABASE} owner {OWNER}"):
        query(database, statement)
    lake = opened(database, store, OWNER, "owns", store.access_key)
    for namespace, name in (("shop", "orders"), ("pay", "salaries")):
        lake.create_namespace(namespace)
        lake.create_table((namespace, name), ROWS.schema).append(ROWS)
    secret = lake.load_table("pay.salaries").metadata_location

    with connected(database, database.user, database.password) as administrator:
        administrator.execute(example("sql").encode())
    (tmp_path / "policy.json").write_text(example("json"))
    environment = {"ACCESS_KEY": store.access_key, "SECRET_KEY": store.secret_key, "ENDPOINT": store.endpoint}
    subprocess.run(["sh", "-ec", example("sh")], check=True, cwd=tmp_path, env=environment)

    reader = opened(database, store, READER, "CHANGE-ME", READER)
    orders = reader.load_table("shop.orders")
    assert orders.scan().to_arrow() == ROWS
    with pytest.raises(NoSuchTableError):
        reader.load_table("pay.salaries")
    with pytest.raises(PermissionDeniedError), orders.io.new_input(secret).open() as stream:
        stream.read()
    with pytest.raises(PermissionDeniedError):
        orders.append(ROWS)
    with connected(database, READER, "CHANGE-ME") as session, pytest.raises(psycopg.errors.InsufficientPrivilege):
        session.execute("update iceberg_tables set metadata_location = previous_metadata_location")

    for name in ("shop.orders", "pay.salaries"):
        lake.load_table(name).append(ROWS)
    assert reader.load_table("shop.orders").scan().count() == 2 * ROWS.num_rows, "the owner commits as before"
