"""Iceberg catalogs (port `Tables`) with PyIceberg: SQL (the same two tables as Iceberg's JdbcCatalog) and REST.

Calls block, so they run on a small pool of threads. What is cheap in steady state: where a table's metadata lies is one row of the
SQL catalog, asked for many tables at a time; metadata is read only when that moved, and judged only when more than snapshots changed.
"""

import asyncio
import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import obstore.exceptions
import requests
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.serializers import Compressor, ToOutputFile
from pyiceberg.table import CommitTableResponse, Table, Transaction
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, new_table_metadata
from pyiceberg.table.sorting import SortOrder
from pyiceberg.table.update import AddSchemaUpdate, TableRequirement, TableUpdate
from requests.adapters import HTTPAdapter
from sqlalchemy import exc as sql_errors
from sqlalchemy import insert, select, tuple_
from sqlalchemy.engine import URL, make_url
from sqlalchemy.orm import Session

from firn.model import names, table_properties
from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, UnavailableError, is_denial
from firn.model.jobs import CatalogConnection, RecordSchema, TableTarget
from firn_controllers.ports import TableState
from firn_operator import evolution, file_io, secret_files
from firn_operator.batches import Batch
from firn_operator.evolution import Layout

OWNER = names.TABLE_OWNER
_THREADS = 6
_BATCH = 500
_ATTEMPTS = 5
_REQUEST_TIMEOUT = (5.0, 30.0)
_DIGESTED = (
    "format-version",
    "table-uuid",
    "location",
    "schemas",
    "current-schema-id",
    "partition-specs",
    "default-spec-id",
    "sort-orders",
    "default-sort-order-id",
    "properties",
)
_MOVES = frozenset({names.SUMMARY_TOPIC_ID, names.SUMMARY_EPOCH, names.SUMMARY_OFFSETS})

Result = TypeVar("Result")
TableKey = tuple[str, str]


class _Requests(HTTPAdapter):
    """Requests that end, where PyIceberg's own wait for ever, and commits with the ``last-column-id`` that servers older than
    Iceberg 1.5 insist on and PyIceberg leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.committing = threading.local()

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        if kwargs.get("timeout") is None:
            kwargs["timeout"] = _REQUEST_TIMEOUT
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
        self._requests = _Requests()
        session.mount("http://", self._requests)
        session.mount("https://", self._requests)
        return session

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """See `Catalog.commit_table`."""
        added = [update.schema_.highest_field_id for update in updates if isinstance(update, AddSchemaUpdate)]
        committing = self._requests.committing
        committing.last_column_id = max([table.metadata.last_column_id, *added]) if added else None
        try:
            response: CommitTableResponse = super().commit_table(table, requirements, updates)
            return response
        finally:
            committing.last_column_id = None


class LeanSqlCatalog(SqlCatalog):
    """PyIceberg's SQL catalog, but a table is created by one write of metadata and one INSERT, where PyIceberg asks the database six
    times more: a thousand tables have to be made within a minute."""

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
        ToOutputFile.table_metadata(metadata, output, overwrite=True)  # the name is new, no need to look
        try:
            with self.engine.begin() as connection:
                connection.execute(insert(IcebergTables).values(**self._create_table_row(*key, place)))
        except sql_errors.IntegrityError as error:
            file_io.ObjectFileIO(self.properties).delete(place)
            raise iceberg_errors.TableAlreadyExistsError(f"table {'.'.join(key)} exists already") from error
        return metadata

    def namespace_location(self, namespace: str) -> str:
        """Where the tables of a namespace go: its own location, or its folder in the warehouse."""
        own = self.load_namespace_properties(namespace).get("location")
        return str(own or f"{self.properties['warehouse'].rstrip('/')}/{namespace}").rstrip("/")


def sql_url(uri: str, properties: Mapping[str, str]) -> URL:
    """SQLAlchemy's URL: ``uri`` with psycopg as driver, bounded waits and ``user`` and ``password`` from ``properties``."""
    url = make_url(uri)
    if url.get_backend_name() == "postgresql":
        bounds = {"connect_timeout": "5", "options": "-c statement_timeout=20000", "tcp_user_timeout": "20000"}
        url = url.set(drivername="postgresql+psycopg", query={**bounds, **url.query})
        url = url.set(username=properties.get("user", url.username), password=properties.get("password", url.password))
    return url


def open_catalog(name: str, connection: CatalogConnection) -> Catalog:
    """The PyIceberg catalog at ``connection``; the secrets' files are read now. Raises NotReadyError where one is missing."""
    properties = secret_files.merged(connection.properties, connection.secret_properties, f"catalog {name}")
    properties = {"warehouse": connection.warehouse, PY_IO_IMPL: file_io.IMPLEMENTATION, **properties}
    if connection.type == "sql":
        url = sql_url(connection.uri, properties).render_as_string(hide_password=False)
        return LeanSqlCatalog(name, **{**properties, "uri": url, "schema_version": "v1"})
    return TimedRestCatalog(name, **{**properties, "uri": connection.uri, "snapshot-loading-mode": "refs"})


@dataclass(slots=True)
class _Seen:
    """What `ensure` found last time: nothing needs doing while request, place and digest stay the same."""

    request: bytes
    place: str
    digest: bytes
    state: TableState


class Connection:
    """One catalog, opened on first use and again when a secret's file changes."""

    def __init__(self, name: str, connection: CatalogConnection, threads: int = _THREADS) -> None:
        self.name = name
        self.connection = connection
        self.namespaces: dict[str, str] = {}
        """Namespaces known to exist, and where their tables go (empty: the catalog decides)."""
        self.seen: dict[TableKey, _Seen] = {}
        # Of its own: one catalog that hangs must not hold up the others.
        self.pool = ThreadPoolExecutor(threads, thread_name_prefix=f"catalog-{name}")
        self._catalog: Catalog | None = None
        self._opened_with: secret_files.Signature = ()
        self._lock = threading.Lock()

    def catalog(self) -> Catalog:
        """The catalog, as the secrets' files say now."""
        with self._lock:
            now = secret_files.signature(self.connection.secret_files)
            if self._catalog is None or now != self._opened_with:
                self._catalog = open_catalog(self.name, self.connection)
                self._opened_with = now
            return self._catalog

    async def call(self, subject: str, work: Callable[[], Result]) -> Result:
        """``work`` on one of the threads. Raises what it means (UnavailableError, AccessDeniedError) with ``subject`` in its message."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.pool, work)
        except FirnError:
            raise
        except Exception as error:
            known_error = translated(subject, error)
            if known_error is None:
                raise
            raise known_error from error


class CatalogTables:
    """Port `Tables` over real catalogs. Made and used on one event loop; `close` ends its threads."""

    def __init__(self, connections: Mapping[str, CatalogConnection]) -> None:
        self._connections = {name: Connection(name, connection) for name, connection in connections.items()}
        self._places: dict[str, Batch[TableKey, str | None]] = {
            name: Batch(self._place_reader(known), _BATCH)
            for name, known in self._connections.items()
            if known.connection.type == "sql"
        }

    def close(self) -> None:
        """Let the threads end after what they are doing."""
        for known in self._connections.values():
            known.pool.shutdown(wait=False, cancel_futures=True)

    async def ensure(self, target: TableTarget, schema: RecordSchema, owner: str) -> TableState | None:
        """See `firn_controllers.ports.Tables.ensure`."""
        known = self._connections[target.catalog]
        request = hashlib.blake2b(
            "\0".join((target.model_dump_json(), schema.model_dump_json(), owner)).encode(), digest_size=16
        ).digest()
        key = (target.namespace, target.name)
        place: str | None = None
        if (batch := self._places.get(target.catalog)) is not None:
            place = await batch.submit(key)
            seen = known.seen.get(key)
            if seen is not None and seen.request == request and seen.place == place:
                return seen.state
        return await known.call(
            f"table {target.identifier}", lambda: _Ensure(known, target, schema, owner, request).run(place)
        )

    async def drop(self, target: TableTarget, owner: str) -> bool:
        """See `firn_controllers.ports.Tables.drop`."""
        known = self._connections[target.catalog]
        key = (target.namespace, target.name)
        dead = (target.namespace, names.dead_letters(target.name))
        known.seen.pop(key, None)
        known.seen.pop(dead, None)
        return await known.call(f"table {target.identifier}", lambda: _drop_owned(known.catalog(), key, dead, owner))

    async def check(self, catalog: str) -> None:
        """See `firn_controllers.ports.Tables.check`."""
        known = self._connections[catalog]
        await known.call(f"catalog {catalog}", lambda: known.catalog().namespace_exists("firn"))

    def _place_reader(self, known: Connection) -> Callable[[Sequence[TableKey]], Awaitable[Sequence[str | None]]]:
        async def read(keys: Sequence[TableKey]) -> Sequence[str | None]:
            return await known.call(f"catalog {known.name}", lambda: places(known.catalog(), keys))

        return read


def places(catalog: Catalog, keys: Sequence[TableKey]) -> Sequence[str | None]:
    """Where the tables' metadata lies, None for those that do not exist; one query."""
    assert isinstance(catalog, SqlCatalog)
    query = select(IcebergTables.table_namespace, IcebergTables.table_name, IcebergTables.metadata_location).where(
        IcebergTables.catalog_name == catalog.name,
        tuple_(IcebergTables.table_namespace, IcebergTables.table_name).in_(sorted(set(keys))),
    )
    with Session(catalog.engine) as session:
        found = {(namespace, name): place for namespace, name, place in session.execute(query)}
    return [found.get(key) for key in keys]


class _Ensure:
    """One `ensure`, in a thread."""

    def __init__(
        self, known: Connection, target: TableTarget, schema: RecordSchema, owner: str, request: bytes
    ) -> None:
        self._known = known
        self._catalog = known.catalog()
        self._target = target
        self._key = (target.namespace, target.name)
        self._layout = evolution.layout(target, schema)
        self._owner = owner
        self._request = request
        for key in self._layout.properties:
            if key.startswith(table_properties.RESERVED):
                raise InvalidSpecError(f"table {target.identifier}: property {key!r} is not yours to set; remove it")

    def run(self, place: str | None) -> TableState | None:
        """`place`: where the metadata lies, None where that is not known or there is no table."""
        for attempt in range(_ATTEMPTS):
            try:
                return self._once(place)
            except (
                iceberg_errors.CommitFailedException,
                iceberg_errors.TableAlreadyExistsError,
                iceberg_errors.NoSuchNamespaceError,
                sql_errors.IntegrityError,
            ):
                # Somebody else was faster: look at what there is now.
                self._known.namespaces.pop(self._target.namespace, None)
                time.sleep(0.05 * 2**attempt)
                place = None
                if isinstance(self._catalog, SqlCatalog):
                    (place,) = places(self._catalog, [self._key])
        raise UnavailableError(
            f"table {self._target.identifier} was changed by others {_ATTEMPTS} times in a row", reason=_UNREACHABLE
        )

    def _once(self, place: str | None) -> TableState | None:
        digest = b""
        if isinstance(self._catalog, SqlCatalog):
            if place is None:
                return self._create()
            document = _read_metadata(self._catalog, place)
            digest = _digest(document)
            seen = self._known.seen.get(self._key)
            if seen is not None and seen.request == self._request and seen.digest == digest:
                seen.place = place
                return seen.state
            table = _table(self._catalog, self._key, TableMetadataUtil.parse_obj(document), place)
        else:
            try:
                table = self._catalog.load_table(self._key)
            except iceberg_errors.NoSuchTableError:
                return self._create()
        state = self._agree(table)
        if state.changed or state.owner != self._owner:
            return state  # the metadata moved: remember it when it has been read again
        self._known.seen[self._key] = _Seen(self._request, place or "", digest, state)
        return state

    def _create(self) -> TableState | None:
        schema = evolution.new_schema(self._layout.columns)
        partitioning = evolution.new_partition_spec(schema, self._layout)
        order = evolution.sort_order(schema, self._layout)
        if self._target.format_version == 3:
            return None
        namespace = self._target.namespace
        location = self._known.namespaces.get(namespace)
        if location is None:
            location = self._known.namespaces[namespace] = self._make_namespace()
        properties = {
            "format-version": str(self._target.format_version),
            **table_properties.CREATED_WITH,
            **self._layout.properties,
            **self._marks(),
        }
        if isinstance(self._catalog, LeanSqlCatalog):
            place = f"{location}/{self._target.name}"
            metadata = self._catalog.insert_table(self._key, schema, partitioning, order, properties, place)
        else:
            metadata = self._catalog.create_table(
                self._key, schema, partition_spec=partitioning, sort_order=order, properties=properties
            ).metadata
        return replace(_state(metadata), owner=None, created=True)

    def _make_namespace(self) -> str:
        """Make the namespace where it is missing; where its tables go."""
        namespace = self._target.namespace
        if not self._catalog.namespace_exists(namespace):
            # It may be made at the same moment by another thread or process.
            with contextlib.suppress(iceberg_errors.NamespaceAlreadyExistsError, sql_errors.IntegrityError):
                self._catalog.create_namespace(namespace)
        return self._catalog.namespace_location(namespace) if isinstance(self._catalog, LeanSqlCatalog) else ""

    def _marks(self) -> dict[str, str]:
        return table_properties.marks(self._owner, self._layout.properties)

    def _agree(self, table: Table) -> TableState:
        """Change the table where it differs from the layout, in one commit."""
        metadata = table.metadata
        state = _state(metadata)
        reason = Reason.INCOMPATIBLE_SCHEMA if state.owner == self._owner else Reason.SCHEMA_INCOMPATIBLE
        steps = evolution.schema_steps(metadata.schema(), self._layout, reason)
        if metadata.format_version > 2 or self._target.format_version > 2:
            return state
        transaction = table.transaction()
        changed: list[str] = []
        if metadata.format_version < self._target.format_version:
            transaction.upgrade_table_version(self._target.format_version)
            changed.append(f"format version {self._target.format_version}")
        if steps:
            with transaction.update_schema() as update:
                for step in steps:
                    step.act(update)
            changed += [step.text for step in steps]
        changed += _repartition(transaction, self._layout)
        changed += _resort(transaction, self._layout)
        changed += self._set_properties(transaction)
        if changed or state.owner != self._owner:
            transaction.commit_transaction()
        return replace(state, format_version=max(metadata.format_version, 2), changed=tuple(changed))

    def _set_properties(self, transaction: Transaction) -> list[str]:
        current = transaction.table_metadata.properties
        wanted = {**self._layout.properties, **self._marks()}
        put = {key: value for key, value in wanted.items() if current.get(key) != value}
        gone = table_properties.taken_back(current, wanted)
        if put:
            transaction.set_properties(put)
        if gone:
            transaction.remove_properties(*gone)
        return [f"property {key} set" for key in sorted(put) if not key.startswith("firn.")] + [
            f"property {key} removed" for key in sorted(gone) if not key.startswith("firn.")
        ]


def _repartition(transaction: Transaction, layout: Layout) -> list[str]:
    metadata = transaction.table_metadata
    change = evolution.partition_change(metadata.schema(), metadata.spec(), metadata.specs().values(), layout)
    if not change:
        return []
    with transaction.update_spec() as update:
        for name in change.remove:
            update.remove_field(name)
        for column, transform, name in change.add:
            update.add_field(column, transform, name)
    return [f"partition field {name} removed" for name in change.remove] + [
        f"partition field {name} added" for _, _, name in change.add
    ]


def _resort(transaction: Transaction, layout: Layout) -> list[str]:
    metadata = transaction.table_metadata
    wanted = evolution.sort_order(metadata.schema(), layout)
    current = metadata.sort_order_by_id(metadata.default_sort_order_id)
    if (current.fields if current is not None else []) == wanted.fields:
        return []
    with transaction.update_sort_order() as update:
        for field in wanted.fields:
            column = metadata.schema().find_column_name(field.source_id)
            add = update.asc if field.direction.value == "asc" else update.desc
            add(str(column), field.transform, field.null_order)
    return [f"sort order {', '.join(str(item.term) for item in layout.sort) or 'none'}"]


def _state(metadata: TableMetadata) -> TableState:
    return TableState(
        uuid=str(metadata.table_uuid),
        location=metadata.location,
        format_version=metadata.format_version,
        owner=metadata.properties.get(OWNER),
    )


def _read_metadata(catalog: SqlCatalog, place: str) -> dict[str, Any]:
    io = file_io.ObjectFileIO(catalog.properties)
    with (
        io.new_input(place).open() as raw,
        Compressor.get_compressor(place).stream_decompressor(raw) as stream,
    ):
        document: dict[str, Any] = json.loads(stream.read())
    return document


def _digest(document: Mapping[str, Any]) -> bytes:
    """A digest of all that `ensure` judges: the same for metadata that differ in snapshots and offsets only."""
    judged = {key: document.get(key) for key in _DIGESTED}
    judged["properties"] = {key: value for key, value in (judged["properties"] or {}).items() if key not in _MOVES}
    return hashlib.blake2b(json.dumps(judged, sort_keys=True).encode(), digest_size=16).digest()


def _table(catalog: SqlCatalog, key: TableKey, metadata: TableMetadata, place: str) -> Table:
    io = file_io.ObjectFileIO({**catalog.properties, **metadata.properties})
    return Table(identifier=key, metadata=metadata, metadata_location=place, io=io, catalog=catalog)


def _drop_owned(catalog: Catalog, key: TableKey, dead: TableKey, owner: str) -> bool:
    """Drop a table of this owner and its dead letters. Those go first: a drop that was cut short still finds whose they are. They may have
    been made for an earlier owner of the table; a table of their name that has none was never Firn's, and stays."""
    table = _existing(catalog, key)
    if table is None or table.metadata.properties.get(OWNER) != owner:
        return False
    letters = _existing(catalog, dead)
    if letters is not None and OWNER in letters.metadata.properties:
        _drop(catalog, dead, letters)
    _drop(catalog, key, table)
    return True


def _existing(catalog: Catalog, key: TableKey) -> Table | None:
    try:
        return catalog.load_table(key)
    except (iceberg_errors.NoSuchTableError, iceberg_errors.NoSuchNamespaceError):
        return None


def _drop(catalog: Catalog, key: TableKey, table: Table) -> None:
    """Drop one table and delete the files its snapshots name. The name goes first: no reader meets a table with holes."""
    metadata = table.metadata
    manifests: dict[str, ManifestFile] = {}
    files: set[str] = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    for snapshot in metadata.snapshots:
        manifests.update({manifest.manifest_path: manifest for manifest in snapshot.manifests(table.io)})
        files.add(snapshot.manifest_list)
    for manifest in manifests.values():
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        files.update(entry.data_file.file_path for entry in entries)
    files.update(manifests)
    try:
        catalog.drop_table(key)
    except iceberg_errors.NoSuchTableError:
        return
    io = file_io.ObjectFileIO(table.io.properties)
    io.delete_all(sorted(files))


_UNREACHABLE = Reason.CATALOG_UNREACHABLE
_REFUSED_CONNECTION = re.compile(
    'password authentication failed|permission denied|no pg_hba.conf entry|no password supplied|role ".*" does not exist'
    "|is not permitted to log in"
)
"""What PostgreSQL says to credentials that it does not let in: its client knows no SQLSTATE before there is a connection."""
_DENIED = (
    obstore.exceptions.PermissionDeniedError,
    obstore.exceptions.UnauthenticatedError,
    iceberg_errors.ForbiddenError,
    iceberg_errors.UnauthorizedError,
    iceberg_errors.OAuthError,
    PermissionError,
)
_UNAVAILABLE = (
    obstore.exceptions.BaseError,
    iceberg_errors.RESTError,
    iceberg_errors.ValidationException,
    requests.RequestException,
    sql_errors.SQLAlchemyError,
    OSError,
)


_STORAGE_NOISE = re.compile(
    r" in [\d.]+[nµm]?s|,? after \d+ retries, max_retries: \d+, retry_timeout: \S+|/\d+-[0-9a-f-]{36}[\w.-]*"
)
"""Parts of obstore's messages that differ from try to try: object names and times."""


def translated(subject: str, error: Exception) -> FirnError | None:
    """What a library's exception means, or None for one that means a bug of ours."""
    if isinstance(error, sql_errors.DBAPIError):
        text = str(error.orig).strip().splitlines()[0]
        state: str | None = getattr(error.orig, "sqlstate", None)
        denied = is_denial(state) if state else _REFUSED_CONNECTION.search(str(error.orig)) is not None
    else:
        text = _STORAGE_NOISE.sub("", str(error).strip().split("\n", 1)[0]) or repr(error)
        denied = isinstance(error, _DENIED)
    if denied:
        return AccessDeniedError(f"{subject}: access denied: {text}; check the catalog's credentials and grants")
    if isinstance(error, _UNAVAILABLE):
        return UnavailableError(f"{subject}: {text}", reason=_UNREACHABLE)
    return None
