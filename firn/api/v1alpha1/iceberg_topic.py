"""IcebergTopic: a Kafka topic and an Iceberg table that holds the same records, exactly once.

The descriptions, bounds, defaults and CEL rules here are what the CRD and docs/reference/api.md say. What a spec leaves unset, and
what it comes out at, is answered by the properties and methods of `IcebergTopic`.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AwareDatetime, Field, ValidationError, WithJsonSchema

from firn.api.model import ApiModel, Condition, Duration, ObjectMeta, Rule
from firn.api.v1alpha1.policy import ConfiguredName, RunStatus
from firn.model import durations, names
from firn.model.conditions import Reason
from firn.model.errors import InvalidSpecError
from firn.model.jobs import Column, RecordSchema, SchemaFormat, StartFrom, TableTarget
from firn.tables import types

KIND = "IcebergTopic"
PLURAL = "icebergtopics"


def _immutable(path: str) -> Rule:
    """The optional field at ``path`` can be neither changed, nor set or unset later; only a rule on the parent sees the last two."""
    steps = path.split(".")
    has = " && ".join(f"has(self.{'.'.join(steps[: length + 1])})" for length in range(len(steps)))
    now = f"({has} ? self.{path} : '')"
    return Rule(f"{now} == {now.replace('self', 'oldSelf')}", f"{path.replace('__', '')} is immutable, set or unset")


Retention = Literal["Retain", "Delete"]
BoundedText = Annotated[str, Field(max_length=4096)]
Term = Annotated[str, Field(min_length=1, max_length=256)]
TableName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_]+$", max_length=128)]
ResourceName = Annotated[str, Field(max_length=253)]


class FieldSpec(ApiModel):
    """One column, filled from the member of the same name of each JSON record."""

    name: str = Field(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128, description="Member of the record and column of the table."
    )
    type: str = Field(
        min_length=1,
        max_length=4096,
        description="An Iceberg type: boolean, int, long, float, double, decimal(P,S), date, time, timestamp, timestamptz, string, uuid,"
        " fixed[L], binary, list<T>, map<K,V>, struct<a: T, b: T>.",
    )
    required: bool = Field(default=False, description="A record without it, or with null, is a dead letter.")
    doc: str | None = Field(default=None, max_length=1024, description="The column's comment in the table.")


class SchemaSpec(ApiModel):
    """How record values become columns: JSON with named, typed fields, or raw."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "has(self.raw) != has(self.format)",
            "give either raw, or format: Json with fields",
        ),
        Rule("has(self.format) == has(self.fields)", "format: Json needs fields, and fields need format: Json"),
        Rule(
            "!has(self.raw) || self.unknownFields == 'Ignore'",
            "a raw value has no unknown fields",
        ),
    )

    raw: Literal["Binary", "String"] | None = Field(
        default=None,
        description="No decoding: the table has the columns key and value, as bytes or as text (then a record that is not UTF-8 is a dead letter).",
    )
    format: Literal["Json"] | None = Field(default=None, description="How record values are encoded.")
    fields: Annotated[tuple[FieldSpec, ...], Field(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="The columns, in order. Later changes: add a field that is not required, widen a type, drop required, change doc.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    unknown_fields: Literal["Ignore", "DeadLetter"] = Field(
        default="Ignore", description="What a record with members that are no fields comes to."
    )


class TableSpec(ApiModel):
    """The Iceberg table."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.metadataColumns == oldSelf.metadataColumns", "metadataColumns is immutable"),
        Rule("self.formatVersion >= oldSelf.formatVersion", "formatVersion can only go up"),
    )

    catalog: ConfiguredName | None = Field(
        default=None, description="A catalog of the operator's configuration; unset: its defaultCatalog. Immutable."
    )
    namespace: TableName | None = Field(
        default=None, description="Namespace in the catalog; unset: the resource's namespace, with _ for -. Immutable."
    )
    name: (
        Annotated[TableName, Rule("!self.endsWith('__dlq')", "names that end in __dlq are those of dead-letter tables")]
        | None
    ) = Field(
        default=None,
        description="Name of the table; unset: the topic's, in small letters and with _ for others. Immutable.",
    )
    partition_by: Annotated[tuple[Term, ...], Field(max_length=16)] = Field(
        default=(),
        description="Iceberg partition transforms: a column, or year, month, day, hour, bucket(N, column), truncate(N, column). May change.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    sort_by: Annotated[tuple[Term, ...], Field(max_length=16)] = Field(
        default=(),
        description="Sort order inside files: columns or transforms with asc or desc, nulls first or nulls last. May change.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    metadata_columns: Literal["Struct", "Flat"] = Field(
        default="Struct",
        description="Where partition, offset, timestamp, key and headers stand: one column _kafka, or columns _kafka_partition and so on. Immutable.",
    )
    format_version: Literal[2, 3] = Field(default=2, description="Iceberg format version; only upwards.")
    properties: Annotated[
        dict[str, BoundedText],
        Field(max_length=64),
        Rule(
            "self.all(key, key.size() <= 256 && !key.startsWith('firn.'))",
            "property names have at most 256 characters and do not start with firn., which is Firn's own",
        ),
    ] = Field(default_factory=dict, description="Table properties, as Iceberg names them.")


class TimestampStart(ApiModel):
    """Ingestion begins with the first record at or after a time."""

    timestamp: AwareDatetime = Field(description="ISO 8601 with zone.")


_START_FROM = {
    "x-kubernetes-preserve-unknown-fields": True,
    # Strings: the two words. Objects: timestamp alone.
    "pattern": "^(Earliest|Latest)$",
    "properties": {"timestamp": {"type": "string", "format": "date-time"}},
    "required": ["timestamp"],
    "maxProperties": 1,
    # Numbers, lists and booleans: nothing passes.
    "minimum": 1,
    "maximum": 0,
    "minItems": 1,
    "maxItems": 0,
    "not": {"enum": [True, False]},
}
"""A string or an object. A structural schema has no such union, and CEL does not see a field without a type; but each keyword
of JSON schema binds values of its own type only, so that together they say it."""


class IngestionSpec(ApiModel):
    """How records get from the topic into the table."""

    group: ConfiguredName | None = Field(
        default=None,
        description="An ingestion group of the operator's configuration; unset: its defaultGroup. May change.",
    )
    freshness: Annotated[
        Duration,
        Rule(
            "self.endsWith('d') ? self == '1d' : (self.endsWith('ms') || self.size() <= 6)"
            " && duration(self) >= duration('5s') && duration(self) <= duration('24h')",
            "freshness is between 5s and 1d",
        ),
    ] = Field(default="60s", description="A record is in the table at most this long after it was written.")
    start_from: Annotated[Literal["Earliest", "Latest"] | TimestampStart, WithJsonSchema(_START_FROM)] = Field(
        default="Earliest",
        description="Where a table without offsets begins: Earliest, Latest, or {timestamp: ISO 8601 with zone}.",
    )
    on_bad_record: Literal["DeadLetter", "Halt", "Skip"] = Field(
        default="DeadLetter",
        description="A record that does not fit goes to the dead-letter table, stops this topic, or is counted and left out.",
    )


class DeletionPolicy(ApiModel):
    """What deleting the resource does to its data."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.table != 'Delete' || self.topic == 'Delete'",
            "a table may be deleted only together with its topic",
        ),
    )

    topic: Retention = Field(default="Retain", description="The Kafka topic.")
    table: Retention = Field(
        default="Retain", description="The table and its dead letters; Delete only with topic Delete."
    )


class PolicyRef(ApiModel):
    """A policy of the same namespace, by name."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=52)] = Field(
        description="Its metadata.name."
    )


class IcebergTopicSpec(ApiModel):
    """What is wanted."""

    rules: ClassVar[tuple[Rule, ...]] = (
        _immutable("profile"),
        _immutable("topicName"),
        _immutable("table.catalog"),
        _immutable("table.__namespace__"),
        _immutable("table.name"),
        Rule(
            "!has(self.partitions) || !has(oldSelf.partitions) || self.partitions >= oldSelf.partitions",
            "partitions can only grow",
        ),
    )

    profile: ConfiguredName | None = Field(
        default=None,
        description="A profile of the operator's configuration; unset: its defaultProfile when the topic was created. Immutable.",
    )
    topic_name: (
        Annotated[
            str,
            Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=249),
            Rule(
                "self != '.' && self != '..' && !self.startsWith('__')",
                "Kafka refuses . and .. as names, and names that start with __ are its own",
            ),
        ]
        | None
    ) = Field(default=None, description="Name of the Kafka topic; unset: metadata.name. Immutable.")
    partitions: Annotated[int, Field(ge=1, le=10000)] | None = Field(
        default=None,
        description="Partitions of the topic; can only grow. Unset: the profile's default at creation, then as it is.",
    )
    config: Annotated[
        dict[str, BoundedText],
        Field(max_length=64),
        Rule(
            "self.all(key, key.size() <= 128 && key.matches('^[a-z][a-z0-9.]*$'))",
            "Kafka's topic configs have names of small letters, digits and dots, at most 128",
        ),
    ] = Field(default_factory=dict, description="Kafka topic configs; values are strings.")
    record_schema: SchemaSpec | None = Field(
        default=None, alias="schema", description="How values become columns; unset: raw, key and value as bytes."
    )
    table: TableSpec = Field(default=TableSpec(), description="The Iceberg table.")
    ingestion: IngestionSpec = Field(default=IngestionSpec(), description="From topic to table.")
    compaction_policy_ref: PolicyRef | None = Field(
        default=None, description="The CompactionPolicy that governs the table; unset: one whose selector fits, if any."
    )
    retention_policy_ref: PolicyRef | None = Field(
        default=None,
        description="The RetentionPolicy that governs topic and table; unset: one whose selector fits, if any.",
    )
    suspend: bool = Field(default=False, description="Stops ingestion; topic and table stay.")
    deletion_policy: DeletionPolicy = Field(
        default=DeletionPolicy(), description="What deleting this resource does to its data."
    )


class TableStatus(ApiModel):
    """The table as it is."""

    identifier: str | None = Field(default=None, max_length=512, description="catalog.namespace.name.")
    uuid: str | None = Field(default=None, max_length=64, description="Iceberg's id of the table.")
    location: str | None = Field(default=None, max_length=2048, description="Where its files are.")
    dead_letters: str | None = Field(
        default=None, max_length=512, description="The dead-letter table, once there is a dead letter."
    )


class HaltedAt(ApiModel):
    """The record that ingestion stopped at."""

    partition: int = Field(description="Its partition.")
    offset: int = Field(description="Its offset.", json_schema_extra={"format": "int64"})


class IngestionStatus(ApiModel):
    """Coarse figures of ingestion; live ones are metrics."""

    group: str | None = Field(default=None, max_length=253, description="The ingestion group that serves the topic.")
    last_commit_time: datetime | None = Field(
        default=None, description="When records last reached the table; written at most once a minute."
    )
    dead_letters: int | None = Field(
        default=None,
        description="Dead letters so far; written at most once a minute.",
        json_schema_extra={"format": "int64"},
    )
    halted_at: HaltedAt | None = Field(default=None, description="The record that ingestion stopped at.")


class PolicyBinding(ApiModel):
    """The policy of one kind that governs the topic, and what came of it."""

    policy: str = Field(max_length=253, description="Its name.")
    because: Literal["NamedByTopic", "Selected"] = Field(
        description="NamedByTopic: the topic's spec names it. Selected: its selector fits, and no other that fits goes before it."
    )
    last_run: RunStatus | None = Field(default=None, description="The last run, as far as this table is concerned.")
    policy_uid: str | None = Field(
        default=None,
        max_length=64,
        description="Its uid: failures, lastScheduleTime, lastRequest and failedRequest are of this policy.",
    )
    failures: int | None = Field(default=None, description="Runs that failed since one succeeded.")
    failed_generation: int | None = Field(
        default=None,
        description="Generation of the policy that they failed under; a policy that was changed since is tried without a pause.",
        json_schema_extra={"format": "int64"},
    )
    schedule: str | None = Field(
        default=None, max_length=200, description="The schedule, as cron and time zone, that lastScheduleTime is of."
    )
    last_schedule_time: datetime | None = Field(
        default=None,
        description="The last time of the schedule that a run has answered, or that was past when policy or schedule took the topic over.",
    )
    next_run_time: datetime | None = Field(
        default=None, description="When the schedule is next due, or a run is tried again."
    )
    last_request: Annotated[dict[str, Annotated[str, Field(max_length=128)]], Field(max_length=2)] = Field(
        default_factory=dict,
        description="Values of the annotation firn.dev/run-now that are answered: the topic's and the policy's.",
    )
    failed_request: Annotated[dict[str, Annotated[str, Field(max_length=128)]], Field(max_length=2)] = Field(
        default_factory=dict,
        description="Those for which runs failed: they are tried again after a pause, as all else. Another value is tried at once.",
    )


class MaintenanceStatus(ApiModel):
    """What the table's upkeep waits for, and the policies. Figures are written at most once a minute; live ones are metrics."""

    data_files: int | None = Field(default=None, description="Data files.", json_schema_extra={"format": "int64"})
    data_bytes: int | None = Field(default=None, description="Their bytes.", json_schema_extra={"format": "int64"})
    small_files: int | None = Field(
        default=None, description="Data files below the target size.", json_schema_extra={"format": "int64"}
    )
    delete_files: int | None = Field(
        default=None, description="Delete files and deletion vectors.", json_schema_extra={"format": "int64"}
    )
    manifests: int | None = Field(default=None, description="Manifests of the newest snapshot.")
    snapshots: int | None = Field(default=None, description="Snapshots.")
    metadata_bytes: int | None = Field(
        default=None, description="Bytes of the newest metadata.", json_schema_extra={"format": "int64"}
    )
    oldest_uncompacted_time: datetime | None = Field(
        default=None,
        description="Since when the data files that have waited longest for compaction have been due: compaction lag counts from here.",
    )
    compaction: PolicyBinding | None = Field(default=None, description="The CompactionPolicy that governs.")
    retention: PolicyBinding | None = Field(default=None, description="The RetentionPolicy that governs.")


class IcebergTopicStatus(ApiModel):
    """What is."""

    observed_generation: int | None = Field(
        default=None,
        description="The generation of the spec that this status is about.",
        json_schema_extra={"format": "int64"},
    )
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16)] = Field(
        default=(),
        description="Ready sums up SpecValid, TopicReady, TableReady and IngestionReady.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]},
    )
    profile: str | None = Field(default=None, max_length=253, description="The profile the topic was created under.")
    topic_name: str | None = Field(default=None, max_length=249, description="Name of the Kafka topic.")
    topic_id: str | None = Field(default=None, max_length=64, description="Kafka's id of the topic.")
    partitions: int | None = Field(default=None, description="Partitions the topic has.")
    bootstrap_servers: str | None = Field(default=None, max_length=2048, description="Where clients connect.")
    table: TableStatus | None = Field(default=None, description="The table as it is.")
    ingestion: IngestionStatus | None = Field(default=None, description="Coarse figures of ingestion.")
    maintenance: MaintenanceStatus | None = Field(
        default=None, description="Policies that govern the table, and what it waits for."
    )


class IcebergTopic(ApiModel):
    """A Kafka topic and an Iceberg table that holds the same records, exactly once."""

    rules: ClassVar[tuple[Rule, ...]] = (
        Rule("self.metadata.name.size() <= 52", "metadata.name has at most 52 characters"),
    )

    metadata: ObjectMeta
    spec: IcebergTopicSpec = Field(default_factory=IcebergTopicSpec)
    status: IcebergTopicStatus = Field(default_factory=IcebergTopicStatus)

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> Self:
        """The resource in a manifest or live object. Raises InvalidSpecError that names every field that is wrong."""
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            problems = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
            name = (manifest.get("metadata") or {}).get("name", "?")
            raise InvalidSpecError(f"IcebergTopic {name}: " + "; ".join(problems)) from error

    @property
    def topic_name(self) -> str:
        """Name of the Kafka topic."""
        return self.spec.topic_name or self.metadata.name

    def profile_name(self, default: str) -> str:
        """The profile: the spec's, or the one the topic was created under, or ``default`` (the configuration's)."""
        return self.spec.profile or self.status.profile or default

    def group_name(self, default: str) -> str:
        """The ingestion group: the spec's, or ``default`` (the configuration's)."""
        return self.spec.ingestion.group or default

    @property
    def freshness_ms(self) -> int:
        """Milliseconds within which a record has to be in the table."""
        return durations.milliseconds(self.spec.ingestion.freshness)

    @property
    def start_from(self) -> StartFrom:
        """Where a table without offsets begins."""
        match self.spec.ingestion.start_from:
            case TimestampStart(timestamp=time):
                return StartFrom(kind="Timestamp", timestamp_ms=round(time.timestamp() * 1000))
            case kind:
                return StartFrom(kind=kind)

    def record_schema(self) -> RecordSchema:
        """How values become columns. Raises InvalidSpecError (BadSchema) naming the field."""
        schema = self.spec.record_schema
        if schema is None or schema.fields is None:
            return RecordSchema(format=SchemaFormat.RAW, raw_as=(schema and schema.raw) or "Binary")
        seen: dict[str, str] = {}
        columns = []
        for field in schema.fields:
            known = seen.setdefault(field.name.lower(), field.name)
            if known != field.name:
                raise _bad_schema(
                    f"{known} and {field.name} differ only in case, which query engines do not tell apart"
                )
            if field.name.startswith("_kafka"):
                raise _bad_schema(f"{field.name}: names that start with _kafka are those of Kafka's columns")
            try:
                kind = types.parse(field.type)
            except InvalidSpecError as error:
                raise _bad_schema(f"{field.name}: {error}") from error
            columns.append(Column(name=field.name, type=str(kind), required=field.required, doc=field.doc))
        if len(seen) < len(columns):
            raise _bad_schema("a field is named twice")
        return RecordSchema(format=SchemaFormat.JSON, fields=tuple(columns), unknown_fields=schema.unknown_fields)

    def table_target(self, default_catalog: str) -> TableTarget:
        """The table, with the catalog it was made in where the spec names none, or else ``default_catalog``.

        Raises InvalidSpecError (ResourceConflict) for a derived name that a dead-letter table could have.
        """
        table = self.spec.table
        made_in = ((self.status.table and self.status.table.identifier) or "").partition(".")[0]
        name = table.name or names.table_part(self.topic_name)
        if name.endswith(names.DEAD_LETTER_SUFFIX):
            raise InvalidSpecError(
                f"table name {name}: names that end in {names.DEAD_LETTER_SUFFIX} are those of dead-letter tables; set spec.table.name",
                reason=Reason.RESOURCE_CONFLICT,
            )
        return TableTarget(
            catalog=table.catalog or made_in or default_catalog,
            namespace=table.namespace or names.table_part(self.metadata.namespace),
            name=name,
            partition_by=table.partition_by,
            sort_by=table.sort_by,
            metadata_columns=table.metadata_columns,
            format_version=table.format_version,
            properties=table.properties,
        )


def _bad_schema(problem: str) -> InvalidSpecError:
    return InvalidSpecError(f"spec.schema.fields: {problem}", reason=Reason.BAD_SCHEMA)
