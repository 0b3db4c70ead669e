"""``firn adopt connect``: read a connector and its table, let the table consent, and write the manifest."""

import sys
from dataclasses import replace
from pathlib import Path

import yaml
from pyiceberg import exceptions as iceberg_errors
from pyiceberg.table import Table

from firn.model import names
from firn.model.errors import ConflictError, FirnError, InvalidSpecError, UnavailableError
from firn.tables.ownership import Ownership
from firn_operator.adapters.iceberg.catalog_errors import translated
from firn_operator.cli.adoption import connector as connectors
from firn_operator.cli.adoption import latest, opening, report
from firn_operator.cli.adoption.connector import Connector
from firn_operator.cli.adoption.manifest import Adopting, Choices, adopting, with_latest


def run(file: str, choices: Choices, *, dry_run: bool) -> tuple[str, str]:
    """Return the manifest as YAML, and the report. Without ``dry_run``, the table consents to its adoption by the topic.

    ``file``: path of the connector's configuration, or - for standard input. Raises FirnError.
    """
    connector = connectors.read(_read(file))
    place = f"table {connector.namespace}.{connector.table} in the catalog of connector {connector.name}"
    try:
        catalog = opening.opened(connector)
        table = catalog.load_table((connector.namespace, connector.table))
        last = _last_commit(connector, table)
        made, more = _compared(connector, table, choices)
        made = replace(made, changed=(*made.changed, *opening.migrations(catalog)))
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
        report.lines(replace(connector, warnings=(*more, *connector.warnings)), table, made, last, dry_run=dry_run)
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
        return with_latest(made, table.schema(), found), ()
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
    """Raise ConflictError if the table consents to its adoption by another topic.

    The command replaces a consent whose name no IcebergTopic can have.
    """
    owner = Ownership.of(table.properties)
    namespace, _, name = owner.consent.partition("/")
    if owner.consent != made.consent and names.is_namespace(namespace) and names.is_resource(name):
        raise ConflictError(
            f"{place} consents to its adoption by {owner.consent}; remove its property {names.TABLE_ADOPT}, or name that topic with --topic"
        )
