"""Open Iceberg catalogs with PyIceberg: SQL (the same two tables as Iceberg's JdbcCatalog) and REST."""

import json
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import pydantic
import requests
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CA_BUNDLE, SNAPSHOT_LOADING_MODE, SSL, Endpoints, RestCatalog, TableResponse
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import PY_IO_IMPL, FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier
from requests.adapters import HTTPAdapter
from sqlalchemy import exc as sql_errors
from sqlalchemy import insert, select, tuple_
from sqlalchemy.engine import URL, make_url
from sqlalchemy.orm import Session

from firn import trust
from firn.model.jobs import CatalogConnection
from firn_operator.adapters import foreign_types, secret_files
from firn_operator.adapters.iceberg import file_io

_REQUEST_TIMEOUT = (5.0, 30.0)

TableKey = tuple[str, str]


class _Requests(HTTPAdapter):
    """Requests with a timeout, which PyIceberg's own lack.

    Commits carry the ``last-column-id`` that servers older than Iceberg 1.5 require and that PyIceberg leaves out.
    ``ca_file``: CA certificates of the server. A session would prefer those of the variable REQUESTS_CA_BUNDLE.
    """

    def __init__(self, ca_file: str | None = None) -> None:
        super().__init__()
        self._ca_file = ca_file
        self.committing = threading.local()

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = _REQUEST_TIMEOUT
        if self._ca_file is not None:
            kwargs["verify"] = self._ca_file
        last_column_id: int | None = getattr(self.committing, "last_column_id", None)
        if last_column_id is not None and isinstance(request.body, bytes):
            body = json.loads(request.body)
            for update in body.get("updates", []):
                if update.get("action") == "add-schema":
                    update["last-column-id"] = last_column_id
            request.prepare_body(json.dumps(body).encode(), None)
        return super().send(request, *args, **kwargs)


class TimedRestCatalog(RestCatalog):
    """PyIceberg's REST catalog with the requests of `_Requests`."""

    def _create_session(self) -> requests.Session:
        session = super()._create_session()
        self._requests = _Requests(self.properties.get(SSL, {}).get(CA_BUNDLE))
        session.mount("http://", self._requests)
        session.mount("https://", self._requests)
        return session

    def load_table(self, identifier: str | Identifier) -> Table:
        """Load a table, which may have types that PyIceberg does not know. Raises NoSuchTableError."""
        try:
            table: Table = super().load_table(identifier)
            return table
        except (pydantic.ValidationError, iceberg_errors.ValidationError, TypeError):
            params = {"snapshots": self.properties[SNAPSHOT_LOADING_MODE]}
            path = self._split_identifier_for_path(identifier)
            response = self._session.get(self.url(Endpoints.load_table, prefixed=True, **path), params=params)
            response.raise_for_status()
            document = response.json()
            answer = {**document, "metadata": foreign_types.metadata_of(document["metadata"])}
            return self._response_to_table(self.identifier_to_tuple(identifier), TableResponse.model_validate(answer))

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Commit the updates. The request to the catalog contains the last column id."""
        added = [update.schema_.highest_field_id for update in updates if isinstance(update, AddSchemaUpdate)]
        committing = self._requests.committing
        committing.last_column_id = max([table.metadata.last_column_id, *added]) if added else None
        try:
            response: CommitTableResponse = super().commit_table(table, requirements, updates)
            return response
        finally:
            committing.last_column_id = None


class LeanSqlCatalog(SqlCatalog):
    """PyIceberg's SQL catalog, which creates a table with one write of metadata and one INSERT.

    PyIceberg itself sends six more queries, and a thousand tables have to be created within a minute.
    """

    def insert_table(
        self,
        key: TableKey,
        schema: Schema,
        spec: PartitionSpec,
        order: SortOrder,
        properties: dict[str, str],
        location: str,
    ) -> TableMetadata:
        """Create the table in a namespace that exists. Raises TableAlreadyExistsError."""
        metadata = new_table_metadata(schema, spec, order, location, dict(properties))
        provider = load_location_provider(location, properties)
        place = provider.new_table_metadata_file_location()
        output = file_io.ObjectFileIO(self.properties).new_output(place)
        ToOutputFile.table_metadata(metadata, output, overwrite=True)  # the name is new, so no file can exist
        try:
            with self.engine.begin() as connection:
                connection.execute(insert(IcebergTables).values(**self._create_table_row(*key, place)))
        except sql_errors.IntegrityError as error:
            file_io.ObjectFileIO(self.properties).delete(place)
            raise iceberg_errors.TableAlreadyExistsError(f"table {'.'.join(key)} exists already") from error
        return metadata

    def _convert_orm_to_iceberg(self, orm_table: IcebergTables) -> Table:
        """Return the table of a row. It may have types that PyIceberg does not know."""
        try:
            return super()._convert_orm_to_iceberg(orm_table)
        except (iceberg_errors.ValidationError, TypeError):
            place = str(orm_table.metadata_location)
            metadata = foreign_types.metadata_of(read_document(self._load_file_io(location=place), place))
            key = (orm_table.table_namespace, orm_table.table_name)
            return Table(key, metadata, place, self._load_file_io(metadata.properties, place), self)

    def namespace_location(self, namespace: str) -> str:
        """Return the location of a namespace's tables: its own location, or its folder in the warehouse."""
        own = self.load_namespace_properties(namespace).get("location")
        return str(own or f"{self.properties['warehouse'].rstrip('/')}/{namespace}").rstrip("/")


def sql_url(uri: str, properties: Mapping[str, str]) -> URL:
    """Return SQLAlchemy's URL for ``uri``: psycopg, timeouts, and ``user`` and ``password`` from ``properties``."""
    url = make_url(uri)
    if url.get_backend_name() == "postgresql":
        bounds = {"connect_timeout": "5", "options": "-c statement_timeout=20000", "tcp_user_timeout": "20000"}
        url = url.set(drivername="postgresql+psycopg", query={**bounds, **url.query})
        url = url.set(username=properties.get("user", url.username), password=properties.get("password", url.password))
    return url


def _trusting(url: URL, connection: CatalogConnection) -> URL:
    """Return the URL with the CA and the client certificate of a PostgreSQL connection."""
    if connection.ca_path is None:
        return url
    files = {
        "sslrootcert": connection.ca_path,
        "sslcert": connection.certificate_path,
        "sslkey": connection.certificate_key_path,
    }
    given = {key: path for key, path in files.items() if path is not None}
    return url.update_query_dict({"sslmode": "verify-full", **given})


def open_catalog(
    name: str, connection: CatalogConnection, *, snapshots: Literal["refs", "all"] = "refs", prepare: bool = True
) -> Catalog:
    """Open the PyIceberg catalog at ``connection``. Raises NotReadyError if a secret's file is missing.

    ``snapshots``: those that a REST catalog returns of a table. ``refs`` are the ones that a branch or a tag names.
    ``prepare``: create the tables of a SQL catalog if they do not exist, and migrate them from version V0 to V1.
    """
    properties = secret_files.merged(connection.properties, connection.secret_properties, f"catalog {name}")
    properties = {"warehouse": connection.warehouse, PY_IO_IMPL: file_io.IMPLEMENTATION, **properties}
    for path in (connection.ca_path, connection.store_ca_path):
        if path is not None:
            trust.authorities(path, f"catalog {name}")
    if connection.store_ca_path is not None:
        properties[trust.STORE_CA_FILE] = connection.store_ca_path
    if connection.type == "sql":
        url = _trusting(sql_url(connection.uri, properties), connection).render_as_string(hide_password=False)
        version = {"schema_version": "v1" if prepare else "v0", "init_catalog_tables": str(prepare).lower()}
        return LeanSqlCatalog(name, **{**properties, "uri": url, **version})
    bundle: dict[str, Any] = {} if connection.ca_path is None else {SSL: {CA_BUNDLE: connection.ca_path}}
    return TimedRestCatalog(name, **{**properties, **bundle, "uri": connection.uri, "snapshot-loading-mode": snapshots})


def read_document(io: FileIO, place: str) -> dict[str, Any]:
    """Return a table's metadata as JSON."""
    with (
        io.new_input(place).open() as raw,
        Compressor.get_compressor(place).stream_decompressor(raw) as stream,
    ):
        document: dict[str, Any] = json.loads(stream.read())
    return document


def places(catalog: Catalog, keys: Sequence[TableKey]) -> Sequence[str | None]:
    """Return the metadata locations of tables with one query; None for tables that do not exist."""
    assert isinstance(catalog, SqlCatalog)
    query = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        tuple_(IcebergTables.table_namespace, IcebergTables.table_name).in_(sorted(set(keys))),
    )
    with Session(catalog.engine) as session:
        locations = {(namespace, name): place for namespace, name, place in session.execute(query)}
    return [locations.get(key) for key in keys]
