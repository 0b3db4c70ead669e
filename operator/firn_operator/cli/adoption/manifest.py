"""The manifest of a topic that continues the table of a connector, and its changes of the table. No I/O."""

import re
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.schema import Schema

from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.model import names
from firn.model.errors import InvalidSpecError
from firn.model.jobs import RecordSchema, TableTarget
from firn.schemas import projections
from firn.tables import rows
from firn_operator.cli.adoption import comparison, fields
from firn_operator.cli.adoption.comparison import Conversion
from firn_operator.cli.adoption.connector import Connector
from firn_operator.cli.adoption.latest import Latest

_CATALOG_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"


@dataclass(frozen=True, slots=True)
class Choices:
    """The parts of a manifest that the configuration of a connector does not name."""

    namespace: str
    """Kubernetes namespace of the topic."""
    name: str = ""
    """Name of the IcebergTopic; empty: that of the Kafka topic."""
    catalog: str = ""
    """Catalog of the operator's configuration; empty: its default."""
    profile: str = ""
    """Profile of the operator's configuration; empty: its default."""
    registry: str = ""
    """Schema registry of the operator's configuration, if records name their schemas."""
    message: str = ""
    """Full name of the record of the values, if the subjects have it in their names."""
    schema: str = ""
    """File with the latest schema of the values. Empty: the registry of the connector has it."""
    ignore_transforms: bool = False
    """Write the manifest although transforms of the connector change records."""


@dataclass(frozen=True, slots=True)
class Adopting:
    """A manifest, the columns of the table that it leaves out, and the columns that the table gets."""

    manifest: dict[str, Any]
    left_out: tuple[str, ...]
    added: tuple[str, ...]
    changed: tuple[str, ...] = ()
    """Changes of present columns, and of the catalog."""
    conversions: tuple[Conversion, ...] = ()
    """Fields whose columns have other types or names in the table."""
    ignores_case: bool = False
    """True if the connector fills the column whose name differs only in case."""

    @property
    def consent(self) -> str:
        """Value of the table property that lets this topic adopt the table."""
        return f"{self.manifest['metadata']['namespace']}/{self.manifest['metadata']['name']}"

    @property
    def target(self) -> TableTarget:
        """Table of the topic. Its catalog is ``default`` if the manifest names none."""
        topic = IcebergTopic.parse(self.manifest)
        return topic.table_target(self.manifest["spec"]["table"].get("catalog") or "default")

    @property
    def subject(self) -> str:
        """Subject of the values in a schema registry; empty without one."""
        subject = IcebergTopic.parse(self.manifest).record_schema().subject
        return subject.name if subject is not None else ""


def adopting(connector: Connector, schema: Schema, format_version: int, choices: Choices) -> Adopting:
    """Return the manifest that continues a table with this schema. Raises InvalidSpecError if none is valid."""
    metadata = _metadata(connector, choices)
    if connector.transforms and not choices.ignore_transforms:
        raise InvalidSpecError(
            f"connector {connector.name} transforms records before it writes them, and ingestion lands them as they are in the topic:"
            f" {'; '.join(connector.transforms)}. To write a manifest without the transforms, add --ignore-transforms, and edit spec.schema"
            " before you apply it"
        )
    left_out: tuple[str, ...] = ()
    spec: dict[str, Any] = {"topicName": connector.topic}
    if choices.profile:
        spec["profile"] = choices.profile
    if connector.has_registry:
        spec["schema"] = _of_registry(connector, choices)
    else:
        listed, left_out = fields.fields(f"{connector.namespace}.{connector.table}", schema)
        spec["schema"] = {"format": "Json", "fields": listed}
        if connector.transforms or connector.ignores_case:
            # Without this, a record without a member of these names would become a row of nulls.
            spec["schema"]["unknownFields"] = "DeadLetter"
    catalog = _catalog(connector, choices)
    spec["table"] = {
        **({"catalog": catalog} if catalog else {}),
        "namespace": connector.namespace,
        "name": connector.table,
        **({"formatVersion": format_version} if format_version > 2 else {}),
    }
    sink = connector.sink
    spec["ingestion"] = {"adopt": {"connect": {"group": sink.group, "controlTopic": sink.control_topic}}}
    if connector.transforms or (not connector.has_registry and connector.ignores_case):
        spec["ingestion"]["onBadRecord"] = "Halt"
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "metadata": metadata,
        "spec": spec,
    }
    made = Adopting(manifest, left_out, (), ignores_case=connector.ignores_case)
    if not connector.has_registry:
        found = IcebergTopic.parse(manifest).record_schema()
        made = replace(made, changed=comparison.changes(schema, made.target, found))
    return _with_added(made, schema)


def _metadata(connector: Connector, choices: Choices) -> dict[str, str]:
    """Return name and namespace of the topic. Raises InvalidSpecError if Kubernetes does not accept them."""
    name = choices.name or _name(connector.topic)
    if not names.is_resource(name):
        origin = "--topic" if choices.name else f"Kafka topic {connector.topic}"
        raise InvalidSpecError(
            f"connector {connector.name}: {origin} gives the IcebergTopic the name {name or '(empty)'}, but {names.RESOURCE_NAMES};"
            " choose another name with --topic NAME"
        )
    if not names.is_namespace(choices.namespace):
        raise InvalidSpecError(
            f"connector {connector.name}: the IcebergTopic would be in namespace {choices.namespace}, but names of namespaces have 1 to 63"
            " lower-case letters, digits and -, with a letter or digit at the start and at the end; choose another with --namespace"
        )
    return {"name": name, "namespace": choices.namespace}


def _catalog(connector: Connector, choices: Choices) -> str:
    """Return the catalog of the manifest; empty: the default one. Raises InvalidSpecError if Firn's catalog has another name.

    The database of a JDBC catalog has the name of the catalog in each row, so each client finds the tables of its own name only.
    """
    if connector.connection.type != "sql":
        return choices.catalog
    if choices.catalog not in ("", connector.catalog):
        raise InvalidSpecError(
            f"connector {connector.name}: the database of its catalog has tables of the catalog {connector.catalog} (iceberg.catalog), so a catalog"
            f" of the name {choices.catalog} does not find them; run the command without --catalog, and give the operator's configuration a catalog"
            f" {connector.catalog}"
        )
    if not re.fullmatch(_CATALOG_NAME, connector.catalog):
        raise InvalidSpecError(
            f"connector {connector.name}: the database of its catalog has tables of the catalog {connector.catalog} (iceberg.catalog), and names of"
            " Firn's catalogs have lower-case letters, digits and -; stop all writers, and change catalog_name in the tables iceberg_tables and"
            " iceberg_namespace_properties, and iceberg.catalog of the connector"
        )
    return connector.catalog


def _name(topic: str) -> str:
    """Return the name of a Kafka topic as one of a resource."""
    parts = re.sub(r"[^a-z0-9.-]+", "-", topic.lower()).split(".")
    return ".".join(part for each in parts if (part := each.strip("-")))[: names.LONGEST_NAME].rstrip("-.")


def with_latest(made: Adopting, schema: Schema, latest: Latest) -> Adopting:
    """Return the manifest whose columns hold the values of the latest schema in a registry. Raises InvalidSpecError if none do."""
    found = latest.columns(IcebergTopic.parse(made.manifest).record_schema())
    converted = comparison.conversions(schema, found, ignores_case=made.ignores_case)
    for each in converted:
        if each.is_new and schema.find_field(each.field, case_sensitive=not made.ignores_case).required:
            raise InvalidSpecError(
                f"table {_place(made)}: column {', '.join(each.problems)}, and no conversion gives the values of the connector; make column"
                f" {each.field} optional first, so that the field can land in a new column"
            )
    if not made.ignores_case:
        _check_case(made, schema, found)
    if converted:
        made.manifest["spec"]["schema"] |= {"columns": [each.entry for each in converted], "otherFields": "Keep"}
    topic = IcebergTopic.parse(made.manifest)
    whole = projections.applied(found, topic.record_schema().projection)
    filled = {column.name for column in rows.schema_columns(whole)}
    left_out = [
        field.name
        for field in schema.fields
        if field.name not in filled and not field.name.startswith(rows.METADATA_COLUMN)
    ]
    changed = comparison.changes(schema, made.target, whole)
    made = replace(made, left_out=tuple(left_out), changed=changed, conversions=converted)
    return _with_added(made, schema, whole)


def _check_case(made: Adopting, schema: Schema, found: RecordSchema) -> None:
    """Raise InvalidSpecError if a field would become a column whose name differs only in case from a present one."""
    present = {field.name for field in schema.fields}
    folded = {name.lower(): name for name in present}
    for field in found.fields:
        if field.name not in present and field.name.lower() in folded:
            raise InvalidSpecError(
                f"table {_place(made)}: column {folded[field.name.lower()]} differs only in case from field {field.name}, and the connector does"
                f" not fill it; rename the column to {field.name}, so that the field lands in it"
            )


def _place(made: Adopting) -> str:
    table = made.manifest["spec"]["table"]
    return f"{table['namespace']}.{table['name']}"


def _with_added(made: Adopting, schema: Schema, found: RecordSchema | None = None) -> Adopting:
    """Return the manifest with the columns that the table gets. ``found`` is the schema of the values, if its columns are known."""
    topic = IcebergTopic.parse(made.manifest)
    present = {field.name for field in schema.fields}
    columns = rows.table_columns(found or topic.record_schema(), made.target.metadata_columns)
    return replace(made, added=tuple(column.name for column in columns if column.name not in present))


def _of_registry(connector: Connector, choices: Choices) -> dict[str, Any]:
    """Return ``spec.schema`` of values in a registry. Raises InvalidSpecError if it needs a name that the connector does not have."""
    if not choices.registry:
        raise InvalidSpecError(
            f"connector {connector.name} reads {connector.format} with a schema registry; name this registry in the operator's"
            " configuration with --registry"
        )
    schema = {"format": connector.format, "registry": {"name": choices.registry}}
    if not connector.strategy:
        return schema
    if not choices.message:
        raise InvalidSpecError(
            f"connector {connector.name} has the subject name strategy {connector.strategy}, which names subjects by the record; name the record"
            " of the values with --message"
        )
    registry = {"name": choices.registry, "subjectStrategy": connector.strategy}
    return {**schema, "registry": registry, "message": choices.message}
