"""``firn adopt connect``: read a connector and its table, let the table consent, and write the manifest."""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.table import Table

from firn.model import names
from firn.model.errors import ConflictError, FirnError, InvalidSpecError, UnavailableError
from firn.tables.ownership import Ownership
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.adapters.iceberg.catalogs import open_catalog
from firn_operator.cli.adoption import connector as connectors
from firn_operator.cli.adoption import latest
from firn_operator.cli.adoption.comparison import Conversion
from firn_operator.cli.adoption.connector import Connector
from firn_operator.cli.adoption.manifest import Adopting, Choices, adopting, with_latest

_JSON_VALUES = (
    "Warning: the sink converts some JSON values to the type of the column, such as a number for a string column. Ingestion makes these"
    ' records dead letters; compare your values with the table "JSON values that the sink converts" of the guide "Take a table over from'
    ' Kafka Connect"'
)


def run(file: str, choices: Choices, *, dry_run: bool) -> tuple[str, str]:
    """Return the manifest as YAML, and the report. Without ``dry_run``, the table consents to its adoption by the topic.

    ``file``: path of the connector's configuration, or - for standard input. Raises FirnError.
    """
    connector = connectors.read(_read(file))
    place = f"table {connector.namespace}.{connector.table} in the catalog of connector {connector.name}"
    try:
        catalog = open_catalog(connector.catalog, connector.connection, snapshots="all")
        table = catalog.load_table((connector.namespace, connector.table))
        last = _last_commit(connector, table)
        made, more = _compared(connector, table, choices)
        _check_owner(place, table, made)
        if not dry_run and table.properties.get(names.TABLE_ADOPT) != made.consent:
            with table.transaction() as transaction:
                transaction.set_properties({names.TABLE_ADOPT: made.consent})
    except FirnError:
        raise
    except iceberg_errors.NoSuchTableError as error:
        raise InvalidSpecError(
            f"{place} does not exist; correct iceberg.tables and the properties iceberg.catalog.* of the file"
        ) from error
    except Exception as error:
        raise translated(place, error) or UnavailableError(f"{place}: {type(error).__name__}: {error}") from error
    text = yaml.safe_dump(made.manifest, sort_keys=False, allow_unicode=True, width=120)
    return text, "\n".join(
        _report(replace(connector, warnings=(*more, *connector.warnings)), table, made, last, dry_run=dry_run)
    )


def _compared(connector: Connector, table: Table, choices: Choices) -> tuple[Adopting, tuple[str, ...]]:
    """Return the manifest, and a warning if its columns were not compared with a schema in a registry."""
    made = adopting(connector, table.schema(), table.format_version, choices)
    if not made.subject and choices.schema:
        raise InvalidSpecError(
            f"connector {connector.name} reads values that name no schemas; run the command without --schema"
        )
    if not made.subject:
        return made, ()
    found, problem = (
        latest.of_registry(connector, made.subject) if not choices.schema else (latest.of_file(choices.schema), "")
    )
    if found is not None:
        return with_latest(made, table.schema(), found, choices), ()
    return made, (
        f"the columns were not compared with the schema of subject {made.subject}, because {problem}. If a type differs, the topic waits after"
        f" step 3; save REGISTRY_URL/subjects/{made.subject}/versions/latest in a file, and name it with --schema",
    )


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidSpecError(
            f"{file}: the configuration of the connector cannot be read: {error}; save it from CONNECT_URL/connectors/NAME, and name the file with"
            " --config"
        ) from error


def _last_commit(connector: Connector, table: Table) -> dict[str, str]:
    """Return the summary of the newest commit of the connector. Raises InvalidSpecError if there is none."""
    key = f"kafka.connect.offsets.{connector.sink.control_topic}.{connector.sink.group}"
    snapshot, others = table.current_snapshot(), set()
    while snapshot is not None:
        summary = snapshot.summary.additional_properties if snapshot.summary is not None else {}
        if key in summary:
            return {**summary, "offsets": summary[key]}
        others |= {each for each in summary if each.startswith("kafka.connect.offsets.")}
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    found = f", but {', '.join(sorted(others))}" if others else ""
    raise InvalidSpecError(
        f"table {connector.namespace}.{connector.table}: no snapshot has the key {key} of connector {connector.name}{found}; correct the"
        " file, or start the connector, wait until it has committed, and stop it"
    )


def _check_owner(place: str, table: Table, made: Adopting) -> None:
    owner = Ownership.of(table.properties)
    if owner.consent not in ("", made.consent):
        raise ConflictError(
            f"{place} consents to its adoption by {owner.consent}; remove its property {names.TABLE_ADOPT}, or name that topic with --topic"
        )


def _report(
    connector: Connector, table: Table, made: Adopting, last: dict[str, str], *, dry_run: bool
) -> Iterator[str]:
    target = f"{connector.namespace}.{connector.table}"
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    count = summary.get("total-records")
    through = last.get("kafka.connect.valid-through-ts")
    yield f"Connector {connector.name} writes topic {connector.topic} to table {target}, which has {count or 'an unknown number of'} rows."
    yield (
        f"  last commit {last.get('kafka.connect.commit-id', '(unknown)')}, control topic {connector.sink.control_topic} up to"
        f" {last['offsets']}" + (f", all records until {through}" if through else "")
    )
    yield ""
    yield f"What changes in table {target}:"
    done = "would be set" if dry_run else "is set"
    yield f"  property {names.TABLE_ADOPT} {done} to {made.consent}; the adoption removes it"
    for column in made.added:
        yield f"  new column {column}, null in present rows"
    for change in made.changed:
        yield f"  {change}"
    if table.format_version < 2:
        yield "  format version 2, which cannot be undone"
    yield "  properties of Firn, whose names begin with firn."
    yield (
        "  old snapshots leave the metadata after keepSnapshots of the ingestion group, 1h by default; their files stay. A catalog of type"
        " rest keeps them"
    )
    yield "What stays: rows, files, " + ", ".join(
        [
            f"partitioning ({_terms(table, table.spec().fields)})",
            f"sort order ({_terms(table, table.sort_order().fields)})",
            f"{len([key for key in table.properties if not key.startswith('firn.')])} properties",
        ]
    )
    owner = Ownership.of(table.properties)
    if owner.owner:
        yield (
            f"Warning: the table was that of an IcebergTopic in namespace {owner.tenant or '(unknown)'}; if it exists, delete it first with"
            " deletionPolicy Retain"
        )
    for column in made.left_out:
        yield f"Warning: column {column} has no field in the {'schema' if made.subject else 'manifest'}, and gets null"
    for each in made.conversions:
        yield f"Warning: column {', '.join(each.problems)}; {_step(each)}"
    if not connector.has_registry:
        yield _JSON_VALUES
    for warning in connector.warnings:
        yield f"Warning: {warning}"
    yield ""
    yield "Next steps:"
    yield f"  1. Check the manifest: firn plan -f FILE. Catalog and profile have to be those of the connector: {_address(connector)}"
    yield f"  2. Stop the connector, and keep it for a way back: curl -X PUT CONNECT_URL/connectors/{connector.name}/stop"
    yield "  3. Apply the manifest: kubectl apply -f FILE. The driver waits until the connector has stopped"
    yield f"  4. Watch it: firn status {made.consent}"
    if dry_run:
        yield "This was a dry run: the table has not consented. Run the command without --dry-run before step 3."


def _step(conversion: Conversion) -> str:
    field, column, kind = conversion.field, conversion.column, conversion.kind
    if kind:
        return f"spec.schema.columns of the manifest converts the values to {kind}, and a value that cannot become one is a dead letter"
    return (
        f"no conversion gives the values of the connector, so spec.schema.columns of the manifest lands field {field} in the new column {column},"
        f" and column {field} gets null; read both columns, or let producers write a field of the old type first"
    )


def _address(connector: Connector) -> str:
    """Return the address of the catalog without credentials."""
    address = connector.connection.uri.partition("?")[0]
    scheme, separator, rest = address.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _terms(table: Table, fields: Iterable[Any]) -> str:
    columns = ((each.transform, table.schema().find_column_name(each.source_id)) for each in fields)
    return (
        ", ".join(str(column) if str(kind) == "identity" else f"{kind}({column})" for kind, column in columns) or "none"
    )
