"""The operator and the CLI trust the CA that the configuration names, and no other certificate."""

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from firn.model.errors import FirnError, NotReadyError
from firn.model.jobs import CatalogConnection
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli.lake import ARROW_IO, scan
from tests.integration.trust.conftest import Private

SCHEMA = Schema(NestedField(1, "id", LongType()))


def failure(connection: CatalogConnection, arrow: bool = False) -> str:
    """Return the message of the operator, or with ``arrow`` of the CLI, about a table of the catalog that it cannot reach."""
    io = {PY_IO_IMPL: ARROW_IO, "s3.region": "us-east-1"} if arrow else {}
    try:
        catalog = open_catalog("lake", connection.model_copy(update={"properties": {**connection.properties, **io}}))
        catalog.create_namespace_if_not_exists("errors")
        catalog.create_table("errors.orders", SCHEMA)
    except Exception as error:
        return str(error if isinstance(error, FirnError) else translated("table lake.errors.orders", error))
    raise AssertionError("the catalog accepts the server")


def test_the_operator_and_the_cli_use_a_catalog_with_a_private_ca(private: Private) -> None:
    catalog = open_catalog("lake", private.connection)
    catalog.create_namespace_if_not_exists("operator")
    catalog.create_table("operator.orders", SCHEMA)
    region = {**private.connection.properties, PY_IO_IMPL: ARROW_IO, "s3.region": "us-east-1"}
    command = open_catalog("lake", private.connection.model_copy(update={"properties": region}))
    table = command.load_table("operator.orders")
    table.append(pa.table({"id": [1, 2]}))
    assert scan(table, ["id"]).read_all()["id"].to_pylist() == [1, 2]


def test_a_database_of_a_foreign_ca_is_rejected(private: Private) -> None:
    message = failure(private.connection.model_copy(update={"ca_path": str(private.foreign)}))
    assert message.startswith("table lake.errors.orders: ")
    assert message.endswith("compare its CA with tls.ca, its names with the address, and its validity"), (
        "libpq names no cause"
    )


def test_a_database_with_another_name_is_rejected(private: Private) -> None:
    elsewhere = private.connection.uri.replace("localhost", "127.0.0.1")
    message = failure(private.connection.model_copy(update={"uri": elsewhere}))
    assert "the name of the server is not in its certificate" in message


@pytest.mark.parametrize("arrow", [False, True])
def test_a_store_is_rejected_for_its_ca_its_name_or_its_age(private: Private, arrow: bool) -> None:
    foreign = private.connection.model_copy(update={"store_ca_path": str(private.foreign)})
    causes = (
        (foreign, "put the CA of the server into tls.ca"),
        (private.at(private.odd), "the name of the server is not in its certificate"),
        (private.at(private.old), "the certificate of the server has expired"),
    )
    for connection, cause in causes:
        message = failure(connection, arrow)
        assert message.startswith("table lake.errors.orders: ")
        assert (cause in message) or (arrow and "the certificate of the server is not accepted" in message), message


def test_a_rest_catalog_needs_a_certificate_of_the_named_ca(private: Private) -> None:
    assert open_catalog("rest", private.rest_catalog(private.rest)).list_namespaces() == [("private",)]
    elsewhere = private.rest.replace("localhost", "127.0.0.1")
    for uri, cause in (
        (private.stranger, "put the CA of the server into tls.ca"),
        (elsewhere, "the name of the server"),
    ):
        assert cause in failure(private.rest_catalog(uri))


def test_a_missing_file_of_certificates_is_named(private: Private, tmp_path: Path) -> None:
    with pytest.raises(NotReadyError, match="create the Secret or ConfigMap and the key that tls.ca names"):
        open_catalog("lake", private.connection.model_copy(update={"store_ca_path": str(tmp_path / "ca.crt")}))


def test_changed_certificates_of_a_store_need_no_restart(private: Private, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    file.write_bytes(private.foreign.read_bytes())
    connection = private.connection.model_copy(update={"store_ca_path": str(file)})
    assert "tls.ca" in failure(connection)
    file.unlink()
    file.write_bytes(private.ca.read_bytes())
    catalog = open_catalog("lake", connection)
    catalog.create_namespace_if_not_exists("changed")
    catalog.create_table("changed.orders", SCHEMA)
