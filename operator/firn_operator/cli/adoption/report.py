"""The report of ``firn adopt connect``: what the takeover changes, how the topic differs from the connector, and the next steps. No I/O."""

from collections.abc import Iterable, Iterator
from typing import Any

from pyiceberg.table import Table

from firn.model import names
from firn.tables.ownership import Ownership
from firn_operator.cli.adoption.comparison import Conversion
from firn_operator.cli.adoption.connector import Connector
from firn_operator.cli.adoption.manifest import Adopting

_FORMAT = "write.format.default"
_JSON_VALUES = (
    "the sink converts some JSON values to the type of the column, such as a number for a string column. Ingestion makes these"
    ' records dead letters; compare your values with the table "JSON values that the sink converts" of the guide "Take a table over from'
    ' Kafka Connect"'
)
_HALTS = (
    "ingestion does not apply these transforms. The topic halts at the first bad record (onBadRecord: Halt), so that no wrong rows land. In JSON,"
    " a record with a member that spec.schema.fields lacks is a bad record (unknownFields: DeadLetter). List the columns,"
    " remove unknownFields if records have further members,"
    " and remove onBadRecord when the first rows are right"
)


def lines(connector: Connector, table: Table, made: Adopting, last: dict[str, str], *, dry_run: bool) -> Iterator[str]:
    """Return the report. ``last`` is the summary of the connector's newest commit, with ``offsets`` of the control topic."""
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
    yield from (f"Warning: {text}" for text in _warnings(connector, table, made))
    yield ""
    yield "Next steps:"
    yield f"  1. Check the manifest: firn plan -f FILE. Catalog and profile have to be those of the connector: {_address(connector)}"
    if connector.connection.type == "sql":
        yield (
            f"     The catalog needs the name {connector.catalog} in the operator's configuration, which is iceberg.catalog of the connector: its"
            " database has this name in each row"
        )
    yield f"  2. Stop the connector, and keep it for a way back: curl -X PUT CONNECT_URL/connectors/{connector.name}/stop"
    yield "  3. Apply the manifest: kubectl apply -f FILE. The driver waits until the connector has stopped"
    yield f"  4. Watch it: firn status {made.consent}"
    if dry_run:
        yield "This was a dry run: the table has not consented. Run the command without --dry-run before step 3."


def _warnings(connector: Connector, table: Table, made: Adopting) -> Iterator[str]:
    owner = Ownership.of(table.properties)
    if owner.owner:
        yield (
            f"the table was that of an IcebergTopic in namespace {owner.tenant or '(unknown)'}; if it exists, delete it first with"
            " deletionPolicy Retain"
        )
    for column in made.left_out:
        yield f"column {column} has no field in the {'schema' if made.subject else 'manifest'}, and gets null"
    for each in made.conversions:
        yield (
            f"column {', '.join(each.problems)}; {_step(each)}"
            if each.problems
            else f"column {each.column} differs only in case from field {each.field}; spec.schema.columns of the manifest lands the field in it"
        )
    written = table.properties.get(_FORMAT, "parquet").lower()
    if written != "parquet":
        yield (
            f"property {_FORMAT} is {written}, and ingestion writes Parquet, so the table gets files of both formats; check that your readers"
            " can read both"
        )
    yield from connector.transforms
    if connector.transforms:
        yield _HALTS
    if not connector.has_registry:
        yield _JSON_VALUES
    yield from connector.warnings


def _step(conversion: Conversion) -> str:
    field, column, kind = conversion.field, conversion.column, conversion.kind
    if not conversion.is_new:
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
