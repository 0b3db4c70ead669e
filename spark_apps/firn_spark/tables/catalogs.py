"""The Iceberg catalogs of an application: their properties, as Spark and Java take them, and the Java objects."""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

import structlog
from py4j.java_gateway import JavaObject
from py4j.protocol import Py4JJavaError

from firn import trust
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError, NotReadyError
from firn.model.jobs import CatalogConnection
from firn_spark.credentials import jdbc_key, read_secret, without_secrets
from firn_spark.jvm import JavaNames
from firn_spark.tables.java_errors import JAVA_ERRORS

log = structlog.get_logger()


class CatalogSettings(Protocol):
    """The settings of an application that concern catalogs."""

    @property
    def application(self) -> str: ...  # noqa: D102
    @property
    def catalogs(self) -> dict[str, CatalogConnection]: ...  # noqa: D102


def catalog_conf(settings: CatalogSettings) -> dict[str, str]:
    """Return the session's configuration of the catalogs, including secrets.

    Set it on the running session: Spark's own configuration is visible on the JVM's command line. A catalog whose
    secrets are missing is left out. Only its own topics wait for it, until the next start. Raises InvalidSpecError as
    `catalog_properties` does.
    """
    conf: dict[str, str] = {}
    for name, connection in settings.catalogs.items():
        prefix = f"spark.sql.catalog.{name}"
        try:
            properties = catalog_properties(name, connection)
        except NotReadyError as error:
            log.warning("catalog cannot be used yet", catalog=name, error=str(error))
            continue
        conf[prefix] = "org.apache.iceberg.spark.SparkCatalog"
        conf |= {f"{prefix}.{key}": value for key, value in properties.items()}
    return conf


def catalog_properties(name: str, connection: CatalogConnection) -> dict[str, str]:
    """Return Iceberg's properties of a catalog, with secrets read from their files.

    Raises NotReadyError for a file that cannot be read or has no certificates, InvalidSpecError for a URI that names no supported database.
    """
    for certificates in (connection.ca_path, connection.store_ca_path):
        if certificates is not None:
            trust.authorities(certificates, f"catalog {name}")
    values = dict(connection.properties)
    for key, path in connection.secret_properties.items():
        values[key] = read_secret(path)
    values |= {"warehouse": connection.warehouse, "cache-enabled": "false"}
    if urlsplit(connection.warehouse).scheme in ("s3", "s3a"):
        values.setdefault("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
    if connection.store_ca_path is not None:
        values[trust.STORE_CA_FILE] = connection.store_ca_path
    if connection.type == "rest":
        return {"type": "rest", "uri": connection.uri} | values
    uri = urlsplit(connection.uri)
    scheme = uri.scheme.split("+")[0]
    if scheme in ("postgresql", "postgres"):
        jdbc = f"jdbc:postgresql://{uri.netloc.rpartition('@')[2]}{uri.path}"
        options = [uri.query, "socketTimeout=60&connectTimeout=10&loginTimeout=15&tcpKeepAlive=true"]
        jdbc = f"{jdbc}?{'&'.join(option for option in options if option)}"
    elif scheme == "sqlite":
        jdbc = f"jdbc:sqlite:{connection.uri.partition(':///')[2]}"
    else:
        raise InvalidSpecError(
            f"catalog {name}: {connection.uri!r} is not a URI such as postgresql://host:5432/database"
        )
    values |= _trust(connection)
    for key in ("user", "password"):
        if key in values:
            values[f"jdbc.{key}"] = values.pop(key)
    return {
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": jdbc,
        "jdbc.schema-version": "V1",
        "clients": "4",
    } | values


def _trust(connection: CatalogConnection) -> dict[str, str]:
    """Return the properties of PostgreSQL's driver for the CA and the client certificate."""
    if connection.ca_path is None:
        return {}
    values = {"jdbc.sslmode": "verify-full", "jdbc.sslrootcert": connection.ca_path}
    if connection.certificate_path is not None and connection.certificate_key_path is not None:
        key = jdbc_key(connection.certificate_key_path)
        values |= {"jdbc.sslcert": connection.certificate_path, "jdbc.sslkey": key}
    return values


class Catalogs:
    """The Iceberg catalogs of an application, as Java objects. A catalog that could not be opened is tried again at
    its next use."""

    def __init__(self, spark: Any, settings: CatalogSettings) -> None:
        self.jvm = JavaNames(spark._jvm)
        self._hadoop = spark._jsc.hadoopConfiguration()
        self._settings = settings
        self._open: dict[str, JavaObject] = {}
        self._forgotten: dict[str, float] = {}
        self._opening = {name: threading.Lock() for name in settings.catalogs}

    def get(self, name: str) -> JavaObject:
        """Return the ``org.apache.iceberg.catalog.Catalog`` of this name.

        Raises Java's exceptions if it cannot be opened, and NotReadyError if its secrets cannot be read or the settings do not
        name it.
        """
        catalog = self._open.get(name)
        if catalog is None:
            connection = self._settings.catalogs.get(name)
            if connection is None:
                raise NotReadyError(
                    f"catalog {name} is not in the settings of {self._settings.application}; wait for the operator to restart the driver with it, or"
                    " add the catalog to catalogs in the operator's configuration",
                    reason=Reason.CATALOG_UNREACHABLE,
                )
            # One thread opens a catalog: several would race to create its tables. A catalog that does not answer delays only its own topics.
            with self._opening[name]:
                catalog = self._open.get(name)
                if catalog is None:
                    properties = catalog_properties(name, connection)
                    try:
                        catalog = self._build(name, properties)
                    except Py4JJavaError as error:
                        # Another process opened a new database first, after Iceberg read its columns and before it changed them.
                        if "already exists" not in str(error):
                            raise
                        catalog = self._build(name, properties)
                    self._open[name] = catalog
        return catalog

    def has_own_references(self, name: str) -> bool:
        """Return `CatalogConnection.has_own_references` of a catalog that `get` has returned."""
        return self._settings.catalogs[name].has_own_references

    def forget(self, name: str, opened: JavaObject, pause: float = 0.0) -> bool:
        """Open the catalog again at its next use, unless that has happened since ``opened`` was returned.

        Return False if the last time was less than ``pause`` seconds ago. Topics may still use ``opened``, so it is not
        closed. A catalog that never accepts the credentials would leave many connections behind.
        """
        with self._opening[name]:
            if self._open.get(name) is not opened:
                return True
            if time.monotonic() - self._forgotten.get(name, -math.inf) < pause:
                return False
            self._forgotten[name] = time.monotonic()
            del self._open[name]
            return True

    def close(self) -> None:
        """Close the catalogs and their connections. Log each catalog that does not close."""
        while self._open:
            name, catalog = self._open.popitem()
            try:
                catalog.close()
            except (*JAVA_ERRORS, OSError) as error:
                log.warning("catalog cannot be closed", catalog=name, error=without_secrets(str(error)))

    def _build(self, name: str, properties: Mapping[str, str]) -> JavaObject:
        return self.jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(name, properties, self._hadoop)
