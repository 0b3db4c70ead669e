"""The catalog of a connector as one of Firn: its type, address and properties. No I/O."""

from collections.abc import Mapping
from urllib.parse import parse_qsl, urlencode

from firn.model.errors import InvalidSpecError
from firn.model.jobs import CatalogConnection

_CATALOG = "iceberg.catalog."
_TYPES = {"rest": "rest", "jdbc": "sql", "restcatalog": "rest", "jdbccatalog": "sql"}
"""Types, and classes without their packages, in lower case. Iceberg ignores the case of a type."""
_OWN = frozenset({"type", "catalog-impl", "uri", "warehouse"})
_OF_ICEBERG = frozenset({"jdbc.schema-version", "jdbc.init-catalog-tables", "jdbc.strict-mode"})
"""Properties of Iceberg's JdbcCatalog. All others with this prefix are parameters of the JDBC driver."""
_REGISTER = "register the table in a catalog of type rest or sql first, and let the connector write it there"
_SAME = frozenset({"sslmode", "sslrootcert", "sslcert", "sslkey"})
"""Parameters with the same name and meaning in PostgreSQL's JDBC driver and in libpq."""
_WITHOUT_EFFECT = frozenset(
    {
        "applicationname", "connecttimeout", "logintimeout", "sockettimeout", "tcpkeepalive", "preparethreshold",
        "rewritebatchedinserts", "defaultrowfetchsize", "loglevel", "loggerlevel",
    }
)  # fmt: skip


def of_values(values: Mapping[str, str]) -> tuple[CatalogConnection, tuple[str, ...]]:
    """Return the catalog of a connector's configuration, and the parameters of its address that the command does not use.

    Raises InvalidSpecError with the next step for a catalog that Firn cannot use.
    """
    own = {key.removeprefix(_CATALOG): value for key, value in values.items() if key.startswith(_CATALOG)}
    for key, value in own.items():
        if "${" in value:
            raise InvalidSpecError(
                f"property {_CATALOG}{key} of connector {values['name']} refers to {value}, which only Connect can resolve; write its value"
                " into the file"
            )
    kind = own.get("type") or own.get("catalog-impl") or ""
    known = _TYPES.get(kind.rpartition(".")[2].lower())
    if known is None:
        raise InvalidSpecError(
            f"connector {values['name']} has a catalog of type {kind or '(none)'}, and Firn has catalogs of type rest and sql (jdbc);"
            f" {_instead(kind.lower(), own)}"
        )
    if known == "rest" and "true" in (
        own.get("rest.sigv4-enabled", "").lower(),
        str("sigv4" in own.get("rest.auth.type", "")).lower(),
    ):
        raise InvalidSpecError(
            f"connector {values['name']} signs its requests with SigV4, as Glue and S3 Tables require, and Firn does not sign requests;"
            f" {_REGISTER}"
        )
    if not own.get("uri", "").removeprefix("jdbc:"):
        raise InvalidSpecError(
            f"connector {values['name']} has no {_CATALOG}uri, which a catalog of type {kind} needs; add the address of the catalog to the file"
        )
    drivers = {
        key.removeprefix("jdbc."): value
        for key, value in own.items()
        if key.startswith("jdbc.") and key not in _OF_ICEBERG
    }
    properties = {key: value for key, value in own.items() if key not in _OWN and not key.startswith("jdbc.")}
    if "client.region" in properties:
        properties.setdefault("s3.region", properties["client.region"])
    uri, unused = own["uri"], tuple[str, ...]()
    if known == "sql":
        uri, credentials, unused = _database(values["name"], uri.removeprefix("jdbc:"), drivers)
        properties |= credentials
    found = {"type": known, "uri": uri, "warehouse": own.get("warehouse", ""), "properties": properties}
    return CatalogConnection.model_validate(found), unused


def _instead(kind: str, own: Mapping[str, str]) -> str:
    """Return the next step for a catalog of another type."""
    if "nessie" in kind:
        base, found, _ = own.get("uri", "").partition("/api/")
        uri = f"{base if found else 'http://NESSIE:19120'}/iceberg/{own.get('ref') or 'main'}"
        return (
            f"if this Nessie serves Iceberg's REST API, write {_CATALOG}type rest, {_CATALOG}uri {uri} and the warehouse of Nessie's"
            f" configuration into the file, and give Firn the same catalog. Otherwise, {_REGISTER}"
        )
    if "glue" in kind:
        return f"the REST API of Glue needs requests signed with SigV4, which Firn does not make, so {_REGISTER}"
    if "hive" in kind:
        return (
            f"if the metastore serves Iceberg's REST API, write {_CATALOG}type rest and its address as {_CATALOG}uri into the file, and give"
            f" Firn the same catalog. Otherwise, {_REGISTER}"
        )
    return _REGISTER


def _database(name: str, address: str, drivers: Mapping[str, str]) -> tuple[str, dict[str, str], tuple[str, ...]]:
    """Return the address of a JDBC catalog's database, user and password, and the parameters of the driver without a counterpart."""
    scheme, _, rest = address.partition(":")
    if scheme == "sqlite":
        return (address if rest.startswith("///") else f"sqlite:///{rest}"), _credentials(drivers), ()
    if scheme != "postgresql":
        raise InvalidSpecError(
            f"connector {name} has a JDBC catalog in {scheme}, and Firn's catalogs of type sql are in PostgreSQL; let a server of Iceberg's REST"
            f" API serve the same catalog, and write it with {_CATALOG}type rest into the file, or {_REGISTER}"
        )
    place, _, query = rest.partition("?")
    hosts = place.removeprefix("//").partition("/")[0]
    if "," in hosts:
        raise InvalidSpecError(
            f"connector {name}: {_CATALOG}uri has several hosts ({hosts}), and a catalog of Firn has one; leave the primary in the file"
        )
    parameters = dict(parse_qsl(query, keep_blank_values=True)) | dict(drivers)
    schema = parameters.pop("currentSchema", "public")
    if schema != "public":
        raise InvalidSpecError(
            f"connector {name}: {_CATALOG}uri has currentSchema {schema}, which Firn does not support; set the schema for the database users of"
            f" Firn and of this file (ALTER ROLE user IN DATABASE database SET search_path = {schema}), and remove the parameter from the file"
        )
    # The JDBC driver then verifies certificate and host name.
    if parameters.pop("ssl", "false").lower() in ("true", ""):
        parameters.setdefault("sslmode", "verify-full")
    kept = urlencode({key: value for key, value in parameters.items() if key in _SAME})
    unused = [
        key
        for key in parameters
        if key not in _SAME and key not in ("user", "password") and key.lower() not in _WITHOUT_EFFECT
    ]
    target = place if place.startswith("//") else f"//localhost/{place}"
    return f"postgresql:{target}{'?' if kept else ''}{kept}", _credentials(parameters), tuple(sorted(unused))


def _credentials(parameters: Mapping[str, str]) -> dict[str, str]:
    return {key: parameters[key] for key in ("user", "password") if key in parameters}
