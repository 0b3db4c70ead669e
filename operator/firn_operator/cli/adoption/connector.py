"""The configuration of a connector of the Apache Iceberg sink (IcebergSinkConfig of version 1.12). No I/O."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from firn.model.errors import InvalidSpecError
from firn.model.jobs import CatalogConnection, SinkCommits
from firn_operator.cli.adoption import connections, transforms

CLASS = "org.apache.iceberg.connect.IcebergSinkConnector"
_JSON = "org.apache.kafka.connect.json.JsonConverter"
_APICURIO = "io.apicurio.registry.utils.converter."
_OF_A_REGISTRY = {
    "io.confluent.connect.avro.AvroConverter": "Avro",
    "io.confluent.connect.protobuf.ProtobufConverter": "Protobuf",
    "io.confluent.connect.json.JsonSchemaConverter": "Json",
    f"{_APICURIO}AvroConverter": "Avro",
    f"{_APICURIO}ProtobufConverter": "Protobuf",
    f"{_APICURIO}ExtJsonConverter": "Json",
}
"""Converters of values whose schemas are in a schema registry, and the format of the values. Version 2.6.13 of Apicurio's converters
has none for Protobuf. Apicurio added one to its source in August 2026."""
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
"""Names of tables and of their namespaces in a spec."""
_CONFLUENT = "io.confluent.kafka.serializers.subject."
_STRATEGIES = {
    f"{_CONFLUENT}TopicNameStrategy": "",
    f"{_CONFLUENT}RecordNameStrategy": "RecordName",
    f"{_CONFLUENT}TopicRecordNameStrategy": "TopicRecordName",
}
"""Classes that choose the subject of a schema, and the subjectStrategy of a spec. TopicName is the default of both."""
_STRATEGY = "value.converter.value.subject.name.strategy"
_AS_CONFLUENT = "value.converter.apicurio.registry.as-confluent"
_USE_ID = "value.converter.apicurio.registry.use-id"
_IN_HEADERS = "value.converter.apicurio.registry.headers.enabled"
_TABLES = "iceberg.tables."
_CHANGES_ROWS = ("cdc-field", "upsert-mode-enabled")
"""Properties under `_TABLES` of earlier releases of the sink, which replaced and deleted rows."""
_KNOWN = frozenset(
    {
        "dynamic-enabled", "route-field", "default-commit-branch", "default-id-columns", "default-partition-by", "auto-create-enabled",
        "schema-force-optional", "schema-case-insensitive", "evolve-schema-enabled", *_CHANGES_ROWS,
    }
)  # fmt: skip
"""Properties under `_TABLES`, beside those of `_KNOWN_GROUPS`."""
_KNOWN_GROUPS = ("auto-create-props.", "write-props.")


@dataclass(frozen=True, slots=True)
class Connector:
    """A connector that a topic can continue. ``warnings`` say in which way the topic differs from it."""

    name: str
    topic: str
    namespace: str
    """Namespace of the table."""
    table: str
    sink: SinkCommits
    format: str
    """Encoding of record values: Avro, Json or Protobuf."""
    has_registry: bool
    """True if each value names its schema in a schema registry."""
    strategy: str
    """The subjectStrategy of the spec, if it is not the default."""
    catalog: str
    """Name of the catalog in the connector. A JDBC catalog stores it with each table."""
    connection: CatalogConnection
    registry: str = ""
    """URL of the converter's schema registry with Confluent's API, without credentials. Empty if the file names none."""
    ignores_case: bool = False
    """True if a field fills the column whose name differs only in case."""
    transforms: tuple[str, ...] = ()
    """The transforms that change rows, each with the next step."""
    warnings: tuple[str, ...] = field(default=())


def read(text: str) -> Connector:
    """Read the JSON of a connector, as Connect's REST API takes or returns it.

    Raises InvalidSpecError if it is no connector of the sink, or one that no IcebergTopic can continue.
    """
    values = _values(text)
    _check(values)
    topic, (namespace, table) = _topic(values), _table(values)
    _check_branch(values, f"{namespace}.{table}")
    converter = _converter(values)
    group = values.get("iceberg.connect.group-id") or f"connect-{values['name']}"
    connection, unused = connections.of_values(values)
    return Connector(
        name=values["name"],
        topic=topic,
        namespace=namespace,
        table=table,
        sink=SinkCommits(control_topic=values.get("iceberg.control.topic") or "control-iceberg", group=group),
        format=_OF_A_REGISTRY.get(converter, "Json"),
        has_registry=converter in _OF_A_REGISTRY,
        strategy=_STRATEGIES.get(values.get(_STRATEGY, ""), ""),
        catalog=values.get("iceberg.catalog") or "iceberg",
        connection=connection,
        registry=_registry(values, converter),
        ignores_case=_is_true(values, "iceberg.tables.schema-case-insensitive"),
        transforms=tuple(transforms.changes(values)),
        warnings=(
            *(
                f"parameter {each} of the JDBC driver: the command connects without it; check whether Firn's catalog needs it"
                for each in unused
            ),
            *_warnings(values, f"{namespace}.{table}"),
        ),
    )


def _values(text: str) -> dict[str, str]:
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidSpecError(
            f"the configuration of the connector cannot be read as JSON: {str(error).partition(';')[0]}; save the answer of"
            " CONNECT_URL/connectors/NAME in the file"
        ) from error
    if isinstance(document, dict) and isinstance(document.get("config"), dict):
        document = {"name": document.get("name"), **document["config"]}
    if not isinstance(document, dict) or not document.get("name"):
        raise InvalidSpecError(
            "the configuration of the connector has no name; save the answer of GET /connectors/NAME of Connect's REST API"
        )
    values = {str(key): str(value).strip() for key, value in document.items() if value is not None}
    found = values.get("connector.class", "")
    if found not in (CLASS, CLASS.rpartition(".")[2], CLASS.rpartition(".")[2].removesuffix("Connector")):
        raise InvalidSpecError(
            f"connector {values['name']} has the class {found or '(none)'}, and firn adopt connect reads {CLASS}; for another sink, set"
            " spec.ingestion.startFrom, or move to this sink first"
        )
    return values


def _check(values: Mapping[str, str]) -> None:
    """Raise InvalidSpecError if the table is not that of one topic with all of its records."""
    name = values["name"]
    if _is_true(values, "iceberg.tables.dynamic-enabled"):
        raise InvalidSpecError(
            f"connector {name} chooses tables by a field of each record (iceberg.tables.dynamic-enabled), and an IcebergTopic fills one"
            " table with all records of its topic; let the producers write one topic for each table first"
        )
    if values.get("iceberg.tables.route-field"):
        raise InvalidSpecError(
            f"connector {name} chooses records by a field (iceberg.tables.route-field), and an IcebergTopic lands all records of its topic;"
            " let the producers write one topic for each table first"
        )
    group, override = values.get("iceberg.connect.group-id"), values.get("consumer.override.group.id")
    if override and override != group:
        raise InvalidSpecError(
            f"connector {name} commits its offsets in group {override} (consumer.override.group.id), and its tables name group"
            f" {group or f'connect-{name}'}; set iceberg.connect.group-id to the same group, let it commit, and stop it"
        )


def _check_branch(values: Mapping[str, str], table: str) -> None:
    """Raise InvalidSpecError if the connector commits to another branch than main."""
    key, default = f"iceberg.table.{table}.commit-branch", "iceberg.tables.default-commit-branch"
    branch = values.get(key, values.get(default, ""))
    if branch not in ("", "main"):
        raise InvalidSpecError(
            f"connector {values['name']} commits to branch {branch} ({key if key in values else default}), and ingestion commits to main; move"
            " main to this branch, and remove the property"
        )


def _topic(values: Mapping[str, str]) -> str:
    topics = [topic.strip() for topic in values.get("topics", "").split(",") if topic.strip()]
    if values.get("topics.regex") or len(topics) != 1:
        found = values.get("topics.regex") or ", ".join(topics) or "no topics"
        raise InvalidSpecError(
            f"connector {values['name']} reads {found}, and an IcebergTopic lands one topic in its table; split the connector into one for"
            " each topic and table first, each with its own name"
        )
    return topics[0]


def _table(values: Mapping[str, str]) -> tuple[str, str]:
    tables = [table.strip() for table in values.get("iceberg.tables", "").split(",") if table.strip()]
    if len(tables) != 1:
        raise InvalidSpecError(
            f"connector {values['name']} writes {', '.join(tables) or 'no tables'}, and an IcebergTopic fills one table; split the connector"
            " into one for each table first, each with its own name"
        )
    parts = tables[0].split(".")
    if len(parts) != 2:
        raise InvalidSpecError(
            f"connector {values['name']} writes table {tables[0]}, and IcebergTopics have tables with a namespace of one level, such as"
            " shop.orders; rename the table first"
        )
    if not all(_NAME.fullmatch(part) for part in parts) or parts[1].endswith("__dlq"):
        raise InvalidSpecError(
            f"connector {values['name']} writes table {tables[0]}, and names of tables and namespaces of IcebergTopics have only letters, digits"
            " and _, and do not end in __dlq; stop the connector, rename the table, write the new name into iceberg.tables, and let the connector"
            " commit before you run the command again"
        )
    return parts[0], parts[1]


def _converter(values: Mapping[str, str]) -> str:
    """Return the class of the converter of values. Raises InvalidSpecError for other values than a topic reads."""
    converter = values.get("value.converter")
    if converter is None:
        raise InvalidSpecError(
            f"connector {values['name']} has no value.converter, so that of the worker applies; add value.converter and its properties to"
            " the file"
        )
    if converter.startswith(_APICURIO) and _is_true(values, _IN_HEADERS):
        raise InvalidSpecError(
            f"connector {values['name']} reads the ids of schemas in Apicurio's headers ({_IN_HEADERS}), which an IcebergTopic does not read;"
            " let the producers write content ids of four bytes in the values first"
        )
    if converter in _OF_A_REGISTRY:
        return converter
    if converter != _JSON:
        raise InvalidSpecError(
            f"connector {values['name']} reads values with {converter}, for which firn adopt connect writes no schema; write the"
            " manifest by hand, with spec.ingestion.adopt.connect"
        )
    if values.get("value.converter.schemas.enable", "true").lower() != "false":
        raise InvalidSpecError(
            f"connector {values['name']} reads JSON with a schema in each record (value.converter.schemas.enable is true), and an"
            " IcebergTopic reads the fields at the top of the record; let the producers write plain JSON first"
        )
    return converter


def _registry(values: Mapping[str, str], converter: str) -> str:
    """Return the URL of Confluent's API in the converter's registry, or an empty text."""
    of_apicurio = converter.startswith(_APICURIO)
    key = "apicurio.registry.url" if of_apicurio else "schema.registry.url"
    url = values.get(f"value.converter.{key}", "").partition(",")[0].strip().rstrip("/")
    if of_apicurio and "/apis/ccompat/" not in url:
        base, found, _ = url.partition("/apis/registry")
        url = f"{base}/apis/ccompat/v7" if found else ""
    scheme, _, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    return (
        f"{scheme}://{place.rpartition('@')[2]}{slash}{path}" if scheme in ("http", "https") and "${" not in url else ""
    )


def _table_warnings(values: Mapping[str, str], table: str) -> Iterator[str]:
    ids = values.get(f"iceberg.table.{table}.id-columns") or values.get("iceberg.tables.default-id-columns")
    if ids:
        yield f"id columns {ids}: ingestion appends every record, and replaces no row with the same id"
    own = {key.removeprefix(_TABLES): value for key, value in values.items() if key.startswith(_TABLES)}
    for key in _CHANGES_ROWS:
        if own.get(key, "").lower() not in ("", "false"):
            yield f"{key} {own[key]}: ingestion appends every record, and updates or deletes no row"
    unknown = sorted(key for key in own if key not in _KNOWN and not key.startswith(_KNOWN_GROUPS))
    if unknown:
        named = ", ".join(f"{_TABLES}{key}" for key in unknown)
        yield f"{named}: not known in version 1.12 of the sink; ingestion ignores such properties"


def _warnings(values: Mapping[str, str], table: str) -> Iterator[str]:
    yield from _table_warnings(values, table)
    yield from transforms.warnings(values)
    if _is_true(values, "iceberg.tables.evolve-schema-enabled"):
        yield (
            "evolve-schema-enabled: the topic adds a column after the registry has a schema with its field"
            if values.get("value.converter") in _OF_A_REGISTRY
            else "evolve-schema-enabled: the topic adds a column after you have added its field to spec.schema.fields"
        )
    if _is_true(values, "iceberg.tables.schema-case-insensitive"):
        yield (
            "schema-case-insensitive: spec.schema.columns names the columns whose names differ in case from their fields; members of structs"
            " fill the member of exactly the same name"
            if values.get("value.converter") in _OF_A_REGISTRY
            else "schema-case-insensitive: members of records fill the column of exactly the same name. The manifest halts the topic at the first"
            " record with another member (unknownFields, onBadRecord); remove both settings if all names are those of the columns"
        )
    if values.get("errors.tolerance") == "all":
        letters = values.get("errors.deadletterqueue.topic.name")
        where = f" in topic {letters}" if letters else ""
        yield f"errors.tolerance: bad records{where} are not in the table; later ones go to the dead-letter table of the topic"
    if values.get("consumer.override.auto.offset.reset") == "latest":
        yield "auto.offset.reset latest: a partition of which the connector has read no record lands from the start of its log"
    writes = sorted(key for key in values if key.startswith("iceberg.tables.write-props."))
    if writes:
        yield f"{', '.join(writes)}: ingestion writes files by the properties of the table; set them in spec.table.properties"
    strategy = values.get(_STRATEGY, "")
    if strategy and strategy not in _STRATEGIES:
        yield f"subject name strategy {strategy}: set spec.schema.registry.subject to the subject of the records"
    if values.get("value.converter", "").startswith(_APICURIO):
        yield from _apicurio_warnings(values)


def _apicurio_warnings(values: Mapping[str, str]) -> Iterator[str]:
    if not _is_true(values, _AS_CONFLUENT):
        yield f"{_AS_CONFLUENT} is not true: values may have ids of eight bytes, and the topic reads ids of four bytes"
    if values.get(_USE_ID) != "contentId":
        yield (
            f"{_USE_ID} is not contentId, and globalId is the default of version 2: Confluent's API of the registry answers by content ids, so values"
            " with global ids become dead letters, or columns of another schema; let the producers write content ids first"
        )


def _is_true(values: Mapping[str, str], key: str) -> bool:
    return values.get(key, "").lower() == "true"
