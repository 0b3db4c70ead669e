"""The configured catalogs for reading: tables by name (``lake.demo.flights``), scanned to Arrow.

Used by the CLI in a process of its own, so Arrow may be loaded here.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileSystem
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io import pyarrow as arrow
from pyiceberg.io.pyarrow import PyArrowFileIO, schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.table import Table

from firn.model.config import Config
from firn.model.errors import FirnError, InvalidSpecError
from firn.trust import STORE_CA_FILE
from firn_controllers.ingestion_group import settings
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.adapters.iceberg.catalogs import open_catalog

# Files that PyIceberg reads at the same time. It reads the variable when it creates its pool. More files need more memory.
os.environ.setdefault("PYICEBERG_MAX_WORKERS", "2")

ARROW_IO = "firn_operator.cli.lake.LakeFileIO"


class LakeFileIO(PyArrowFileIO):
    """PyIceberg's FileIO over Arrow, with the CA certificates of the object store."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        found = super()._initialize_s3_fs(netloc)
        if STORE_CA_FILE not in self.properties:
            return found
        make, (options,) = found.__reduce__()
        return make({**options, "tls_ca_file_path": self.properties[STORE_CA_FILE]})


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Translate exceptions of a catalog's client into errors of Firn about ``what``."""
    try:
        yield
    except FirnError:
        raise
    except Exception as error:
        translated_error = translated(what, error)
        if translated_error is None:
            raise
        raise translated_error from error


class Lake:
    """Catalogs of a configuration, opened when first needed."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._catalogs: dict[str, Catalog] = {}

    @property
    def catalogs(self) -> list[str]:
        """Names of the configured catalogs."""
        return sorted(self._config.catalogs)

    def catalog(self, name: str) -> Catalog:
        """Return the catalog of this name. Raises InvalidSpecError that names the configured ones."""
        if name not in self._catalogs:
            if name not in self._config.catalogs:
                raise InvalidSpecError(
                    f"catalog {name!r} is not in the configuration, which has {sorted(self._config.catalogs)}"
                )
            connection = settings.catalog_connection(self._config.catalogs[name])
            properties = {**connection.properties, PY_IO_IMPL: ARROW_IO}
            if "client.region" in properties:
                properties.setdefault("s3.region", properties["client.region"])
            connection = connection.model_copy(update={"properties": properties})
            self._catalogs[name] = open_catalog(name, connection, snapshots="all")
        return self._catalogs[name]

    def tables(self) -> list[str]:
        """Return the names of all tables, sorted. Raises AccessDeniedError and UnavailableError."""
        found = []
        for name in self.catalogs:
            with translating(f"catalog {name}"):
                catalog = self.catalog(name)
                for namespace in catalog.list_namespaces():
                    found += [".".join((name, *identifier)) for identifier in catalog.list_tables(namespace)]
        return sorted(found)

    def find(self, identifier: str) -> Table:
        """Return the table ``catalog.namespace.name``. Raises InvalidSpecError if it does not exist."""
        table = self.look_up(identifier)
        if table is None:
            raise InvalidSpecError(f"table {identifier} does not exist; check catalog, namespace and name")
        return table

    def look_up(self, identifier: str) -> Table | None:
        """Return the table of this name; None if it does not exist.

        Raises InvalidSpecError for a text that is no table name, AccessDeniedError and UnavailableError if the catalog
        cannot be read.
        """
        parts = identifier.split(".")
        if len(parts) != 3:
            raise InvalidSpecError(
                f"{identifier!r} is not the name of a table: write CATALOG.NAMESPACE.NAME, such as lake.demo.flights"
            )
        catalog, namespace, name = parts
        with translating(f"table {identifier}"):
            try:
                return self.catalog(catalog).load_table((namespace, name))
            except NoSuchTableError:
                return None


def readable_schema(schema: Schema) -> tuple[Schema, dict[str, str]]:
    """Return the columns that can be read, and the types of the others by name."""
    others: dict[str, str] = {}
    for field in schema.fields:
        try:
            schema_to_pyarrow(Schema(field))
        except (KeyError, NotImplementedError, TypeError, ValueError):
            others[field.name] = str(field.field_type)
    return Schema(*(field for field in schema.fields if field.name not in others)), others


def _schema_of_file(schema: pa.Schema, *options: Any, **more: Any) -> Schema:
    """Return the schema of a data file without its variants.

    The parts of a variant have no field ids, because of which PyIceberg would look up all columns by name.
    """
    fields = [field for field in schema if not _has_variant(field.type)]
    found: Schema = _pyiceberg_schema(pa.schema(fields, schema.metadata), *options, **more)
    return found


def _has_variant(kind: pa.DataType) -> bool:
    if not pa.types.is_nested(kind):
        return False
    members = [kind.field(place) for place in range(kind.num_fields)]
    if pa.types.is_struct(kind) and {member.name for member in members} >= {"metadata", "value"}:
        return not any(FIELD_ID in (member.metadata or {}) for member in members)
    return any(_has_variant(member.type) for member in members)


FIELD_ID = b"PARQUET:field_id"
_pyiceberg_schema = arrow.pyarrow_to_schema
arrow.pyarrow_to_schema = _schema_of_file


def scan(table: Table, columns: Sequence[str], snapshot_id: int | None = None) -> pa.RecordBatchReader:
    """Read these columns of the current rows of ``table``, or of a snapshot, as a stream of Arrow batches."""
    return table.scan(selected_fields=tuple(columns), snapshot_id=snapshot_id).to_arrow_batch_reader()
