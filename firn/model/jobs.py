"""Contracts from the operator to the Spark applications.

`IngestJob` says what a driver has to do for a topic: a ConfigMap for each topic, watched by label. `GroupSettings` says how the driver
reaches its surroundings: a mounted file.
"""

import functools
from enum import StrEnum
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from firn import member_paths
from firn.member_paths import Path
from firn.model import config, names

Epoch = Literal["s", "ms", "us", "ns"]
"""Unit of an integer that counts time since 1970."""

RESUME = r"^skip:[0-9]{1,10}:[0-9]{1,18}$"
"""Pattern of `IngestJob.resume`."""


class Contract(BaseModel):
    """Base of documents between processes. Unknown keys are ignored, so that an older driver reads a newer operator's documents."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Column(Contract):
    """A column of the inline schema. ``type`` is in the form of `firn.tables.types`."""

    name: str
    type: str
    required: bool = False
    doc: str | None = None
    epoch: Epoch = "ms"
    """Unit of integers in timestamps of the column."""
    default: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """Value of the column in records without the field, as text (`firn.decoders.defaults`)."""


@functools.lru_cache(4096)
def _names(path: str) -> Path:
    return tuple(path.split("."))


class Rename(Contract):
    """A column that gets another name. Both are paths with dots, in the same struct."""

    old: str
    new: str
    by_schema: bool = Field(default=False, exclude_if=lambda by_schema: not by_schema)
    """True if the schema of producers itself says it: by an alias in Avro, or by a field number in Protobuf."""

    @property
    def old_path(self) -> Path:
        """Return the names on the way to the column, with its earlier one."""
        return _names(self.old)

    @property
    def new_path(self) -> Path:
        """Return the names on the way to the column, with its later one."""
        return _names(self.new)

    @property
    def name(self) -> str:
        """Return the later name without the path."""
        return self.new_path[-1]

    @property
    def old_name(self) -> str:
        """Return the earlier name without the path."""
        return self.old_path[-1]


class WriterRename(Rename):
    """A field of the schema with ``schema_id`` whose name belongs to another field in the text of the contract."""

    schema_id: int


class ColumnVersion(Contract):
    """A column for the values of a field that the column with its name cannot hold, in records of one schema."""

    schema_id: int
    field: str
    column: str


class SchemaFormat(StrEnum):
    """Encoding of record values. Each format is a package in ``firn_spark/worker/formats``."""

    AVRO = "Avro"
    JSON = "Json"
    PROTOBUF = "Protobuf"
    RAW = "Raw"


class Subject(Contract):
    """A subject of a schema registry."""

    registry: str
    """Name of the registry in the operator's configuration."""
    name: str
    id_in: Literal["Payload", "Header", "None"] = Field(default="Payload", exclude_if=lambda place: place == "Payload")
    """The place of the id of a value's schema. None: values have no id, and the latest schema of the subject reads them."""

    @property
    def place(self) -> tuple[str, str]:
        """Return the registry and the name of the subject in it."""
        return self.registry, self.name


class WriterSchema(Contract):
    """A schema that producers write with. ``references`` are the schemas whose types it uses, each before its first use."""

    text: str
    references: tuple[str, ...] = Field(default=(), exclude_if=lambda references: not references)
    names: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """The names by which schemas refer to ``references``, such as the imports of a .proto text."""
    descriptors: str = Field(default="", exclude_if=lambda content: not content)
    """A ``FileDescriptorSet`` of a Protobuf text with all that it imports, in base64."""


class KeySchema(Contract):
    """How record keys become columns, beside that of Kafka's columns.

    Binary: the bytes. Struct and Flat: the ``fields``, as one struct or as a column for each field. They are those of a JSON
    object, unless ``decoding`` is set.
    """

    columns: Literal["Binary", "Struct", "Flat"]
    fields: tuple[Column, ...] = ()
    decoding: "RecordSchema | None" = Field(default=None, exclude_if=lambda schema: schema is None)
    """The schema of keys with a text or a subject, without its columns."""
    truncate_times: bool = Field(default=False, exclude_if=lambda truncates: not truncates)
    """As in `RecordSchema`, for ``fields`` without ``decoding``."""

    @property
    def record_schema(self) -> "RecordSchema":
        """Return how keys become ``fields``."""
        if self.decoding is None:
            return RecordSchema(format=SchemaFormat.JSON, fields=self.fields, truncate_times=self.truncate_times)
        return self.decoding.model_copy(update={"fields": self.fields})


class ProjectedColumn(Contract):
    """A column of the table that is computed from a record."""

    name: str
    type: str = ""
    """Type of the column. Empty until the fields of the record are known (`firn.schemas.projections`)."""
    source: str = Field(default="", exclude_if=lambda source: not source)
    """``$.FIELD['MEMBER']`` (`firn.member_paths`), ``key``, ``value`` or ``header:NAME``. Empty for a constant."""
    constant: str | None = Field(default=None, exclude_if=lambda text: text is None)
    """The value of every row, as text."""
    function: Literal["Mask", "Sha256"] | None = Field(default=None, exclude_if=lambda name: name is None)
    cast: str = Field(default="", exclude_if=lambda kind: not kind)
    """The type that the spec states. Without it, the column has the type of its source."""
    required: bool = False
    doc: str | None = None
    epoch: Epoch | None = None
    """Unit of integers that become times. None: ms."""
    salt: str = Field(default="", exclude_if=lambda name: not name)
    """Name of the salt of a digest. Contracts have no salts themselves."""

    @property
    def path(self) -> Path:
        """Return the path in the record that the column reads; empty if it reads none."""
        return member_paths.parse(self.source) if self.source.startswith("$") else ()

    @property
    def field(self) -> str:
        """Return the field of the record that the column reads; empty if it reads none."""
        return self.path[0] if self.path else ""


class Projection(Contract):
    """The columns that a table has in place of the fields of its records."""

    columns: tuple[ProjectedColumn, ...]
    keeps_others: bool = False
    """True if each field that no column reads is a column, too."""


class Evolution(Contract):
    """Which changes of a schema the table follows at once (``Auto``), after an approval (``Propose``), or not at all."""

    add: Literal["Auto", "Propose", "Refuse"] = "Auto"
    widen: Literal["Auto", "Propose", "Refuse"] = "Auto"
    optional: Literal["Auto", "Propose", "Refuse"] = "Auto"
    rename: Literal["ByIdentity", "Propose", "Refuse"] = "ByIdentity"
    drop: Literal["KeepNull", "DropColumn", "Refuse"] | None = None
    """None: KeepNull if producers own the schema, else Refuse."""
    partition: Literal["Auto", "Propose", "Refuse"] = Field(default="Auto", exclude_if=lambda way: way == "Auto")
    sort: Literal["Auto", "Propose", "Refuse"] = Field(default="Auto", exclude_if=lambda way: way == "Auto")
    approved: str = ""
    """Value of the annotation that approves proposed changes."""


class RecordSchema(Contract):
    """How record values become columns. Json has ``fields``; Raw has the columns ``key`` and ``value``.

    Avro and Protobuf have both: ``text`` is the schema of the writer, and ``fields`` are the columns of its fields. With a
    ``subject``, each value names the schema of its writer, in all three formats. ``text`` is then the latest schema of the subject,
    and ``schema_id`` its id. In tasks, a schema with ``schema_id`` and without ``subject`` is that of one writer.
    """

    format: SchemaFormat
    fields: tuple[Column, ...] = ()
    unknown_fields: Literal["Ignore", "DeadLetter"] = "Ignore"
    unknown_column: str = Field(default="", exclude_if=lambda name: not name)
    """Name of a column for the members of a JSON record that are not in ``fields``. Empty: the table does not have them."""
    nanoseconds: bool = Field(default=False, exclude_if=lambda keeps: not keeps)
    """True if columns keep the nanoseconds of times. Otherwise, such times are long in Avro, and have microseconds in Protobuf."""
    truncate_times: bool = Field(default=False, exclude_if=lambda truncates: not truncates)
    """True if times in JSON, and texts and integers that become times, lose their digits below the microsecond."""
    variants: bool = Field(default=False, exclude_if=lambda has: not has)
    """True if values without a single type in a JSON schema become variants. Otherwise, `columns` refuses the schema."""
    text: str = Field(default="", exclude_if=lambda text: not text)
    references: tuple[str, ...] = Field(default=(), exclude_if=lambda references: not references)
    """Schemas whose types ``text`` uses."""
    names: tuple[str, ...] = Field(default=(), exclude_if=lambda names: not names)
    """The names by which a JSON schema refers to ``references``."""
    framing: Literal["None", "Registry"] = Field(default="None", exclude_if=lambda framing: framing == "None")
    """Bytes before a value. JSON values may have them without ``Registry``."""
    message: str = Field(default="", exclude_if=lambda name: not name)
    """Full name of the Protobuf message. Without it, values are ``found_message``."""
    found_message: str = Field(default="", exclude_if=lambda name: not name)
    """Full name of the Protobuf message if the spec names none: the first one of the topic's first text. Later texts keep it. Empty:
    the first one of ``text``."""
    descriptors: str = Field(default="", exclude_if=lambda content: not content)
    """A ``FileDescriptorSet`` with the Protobuf messages of ``text``, in base64."""
    subject: Subject | None = Field(default=None, exclude_if=lambda subject: subject is None)
    schema_id: int | None = Field(default=None, exclude_if=lambda number: number is None)
    """Id of ``text`` in the registry of ``subject``."""
    incompatible: Literal["Hold", "DeadLetter", "NewColumn"] = Field(
        default="Hold", exclude_if=lambda way: way == "Hold"
    )
    """Treatment of records whose writer has a schema that the table cannot hold."""
    versions: tuple[ColumnVersion, ...] = Field(default=(), exclude_if=lambda versions: not versions)
    """Other columns for fields of some schemas. The driver finds them, so contracts have none."""
    writer_renames: tuple[WriterRename, ...] = Field(default=(), exclude_if=lambda renames: not renames)
    """Renames in the Protobuf messages of some schemas, after ``renames``. The driver finds them, so contracts have none."""
    renames: tuple[Rename, ...] = Field(default=(), exclude_if=lambda renames: not renames)
    """Fields and columns that have a later name in ``fields``, in the order of the changes."""
    evolution: Evolution = Field(default=Evolution(), exclude_if=lambda evolution: evolution == Evolution())
    gone: tuple[str, ...] = Field(default=(), exclude_if=lambda gone: not gone)
    """Columns of earlier schemas that the driver drops after an approval."""
    raw_as: Literal["Binary", "String"] = "Binary"
    key: KeySchema | None = Field(default=None, exclude_if=lambda key: key is None)
    """Columns of the key. None: the key is in Kafka's columns only."""
    projection: Projection | None = Field(default=None, exclude_if=lambda projection: projection is None)

    def of_writer(self, number: int, writer: WriterSchema) -> "RecordSchema":
        """Return the schema of the writer with the id ``number``, with the same columns."""
        moved = tuple(each for each in self.writer_renames if each.schema_id == number)
        renamed = tuple(Rename(old=each.field, new=each.column) for each in self.versions if each.schema_id == number)
        # Members may have later names in this column than in the column with the name of the field.
        inside = (each for each in self.renames if any(each.old.startswith(f"{column.new}.") for column in renamed))
        update = {
            "renames": (*self.renames, *moved, *renamed, *inside),
            "versions": (),
            "writer_renames": (),
            "text": writer.text,
            "references": writer.references,
            "names": writer.names,
            "descriptors": writer.descriptors,
            "subject": None,
            "schema_id": number,
        }
        return self.model_copy(update=update)

    @property
    def subjects(self) -> tuple[Subject, ...]:
        """Return the subjects of values and keys."""
        of_key = self.key.decoding.subject if self.key is not None and self.key.decoding is not None else None
        return tuple(subject for subject in (self.subject, of_key) if subject is not None)

    @property
    def salts(self) -> frozenset[str]:
        """Return the names of the salts that columns use."""
        columns = self.projection.columns if self.projection is not None else ()
        return frozenset(column.salt for column in columns if column.salt)

    @property
    def has_writers(self) -> bool:
        """Return whether producers own the schema, so that its fields come and go with theirs."""
        return self.subject is not None or self.format in (SchemaFormat.AVRO, SchemaFormat.PROTOBUF)

    @property
    def has_found_columns(self) -> bool:
        """Return whether the operator has to find the columns: in a schema registry, or by compiling a Protobuf text."""
        return self.subject is not None or self.format is SchemaFormat.PROTOBUF


class PartialSchema(RecordSchema):
    """A schema of which only the members at the paths that columns read have to be able to become columns. No contract has it."""


KeySchema.model_rebuild()


class Route(Contract):
    """The records of a topic that go to the table of this contract. Each record goes to exactly one contract of the topic.

    Without ``match``: the records that no route takes, and those whose value cannot be read.
    """

    values: RecordSchema
    """Decodes the value that decides. Its projection has one column, of type string. All contracts of a topic have the same."""
    match: str = ""
    """An RE2 expression for the whole value."""
    before: tuple[str, ...] = ()
    """Expressions of the routes that take precedence; without ``match``, of all routes."""
    otherwise: Literal["DeadLetter", "Table"] = "DeadLetter"
    """Treatment of records that no route takes. DeadLetter: they are bad records."""

    @property
    def by(self) -> str:
        """Return the source of the value: ``$.FIELD['MEMBER']``, ``message``, ``key`` or ``header:NAME``."""
        return self.values.projection.columns[0].source if self.values.projection is not None else ""

    @property
    def by_writers(self) -> bool:
        """Return whether the value needs the schemas of writers, which a registry has."""
        return self.values.subject is not None


class TableTarget(Contract):
    """The Iceberg table of a topic. Without ``partition_by`` or ``sort_by``, the table keeps its own."""

    catalog: str
    namespace: str
    name: str
    partition_by: tuple[str, ...] | None = None
    sort_by: tuple[str, ...] | None = None
    metadata_columns: Literal["Struct", "Flat"] = "Struct"
    format_version: Literal[2, 3] = 2
    properties: dict[str, str] = Field(default_factory=dict)
    shared_by: str = Field(default="", exclude_if=lambda resource: not resource)
    """Name of the IcebergTopic, if other topics land in the table, too. Each of them has a dead-letter table of its own."""
    history: Literal["Copy", "Single"] = Field(default="Copy", exclude_if=lambda history: history == names.COPY)
    """Copy, if the log keeps the records that the table has (`firn.model.names.HISTORY`)."""

    @property
    def identifier(self) -> str:
        """Return the full name: ``CATALOG.NAMESPACE.NAME``."""
        return f"{self.catalog}.{self.namespace}.{self.name}"

    @property
    def shared(self) -> bool:
        """Return whether other topics may land in the table, too."""
        return bool(self.shared_by)

    @property
    def dead_letters(self) -> str:
        """Return the name of the dead-letter table."""
        return names.dead_letters(self.name, self.shared_by)

    @property
    def dead_letters_identifier(self) -> str:
        """Return the full name of the dead-letter table."""
        return f"{self.catalog}.{self.namespace}.{self.dead_letters}"


class QualityRule(Contract):
    """A condition on rows. A record for which it is false fails the rule. `firn.quality` has the language of ``check``."""

    name: str
    check: str
    on_fail: Literal["DeadLetter", "Halt", "Count"] = "DeadLetter"


class PublishCheck(Contract):
    """A condition on the rows that main does not have yet. `firn.quality.aggregates` has the language of ``check``."""

    name: str
    check: str


class Publish(Contract):
    """Rows land on a branch of the table, and main follows it after checks."""

    branch: str
    every_ms: int
    checks: tuple[PublishCheck, ...] = ()
    on_fail: Literal["Hold", "Publish"] = "Hold"
    approved: int | None = None
    """Snapshot of the branch up to which main follows without checks."""


class StartFrom(Contract):
    """The first record to land when the table has no offsets."""

    kind: Literal["Earliest", "Latest", "Timestamp"] = "Earliest"
    timestamp_ms: int | None = None


class SinkCommits(Contract):
    """The places of the state of a connector of the Apache Iceberg sink of Kafka Connect."""

    control_topic: str
    group: str
    """Consumer group of the connector."""


class Adoption(Contract):
    """The topic, or the connector, whose table this topic continues, and the first offsets to land.

    Other partitions begin at their start. After a connector without offsets here, the driver finds them.
    """

    topic_id: str = ""
    offsets: dict[int, int] = Field(default_factory=dict)
    connect: SinkCommits | None = Field(default=None, exclude_if=lambda sink: sink is None)


class IngestJob(Contract):
    """The ingestion of a topic. ``generation`` is that of the resource."""

    version: Literal[1, 2] = 1
    """`needed_version`. Drivers of the releases up to 0.2.0 read only 1. With 2, they keep the earlier contract, and report an error."""
    uid: str
    namespace: str
    name: str
    generation: int
    group: str
    profile: str
    topic: str
    topic_id: str | None = None
    """Kafka's topic ID that the operator observed, in Kafka's base64."""
    record_schema: RecordSchema
    route: Route | None = Field(default=None, exclude_if=lambda route: route is None)
    """The records that land. None: all records of the topic."""
    table: TableTarget
    freshness_ms: int
    retention_ms: int | None = None
    """Milliseconds after which the log deletes records. None: it does not, or its configs are not known."""
    retention_bytes: int | None = None
    """Bytes of a partition above which the log deletes records. None as above."""
    start_from: StartFrom = StartFrom()
    adopt: Adoption | None = None
    on_bad_record: Literal["DeadLetter", "Halt", "Skip"] = "DeadLetter"
    quality_rules: tuple[QualityRule, ...] = Field(default=(), exclude_if=lambda rules: not rules)
    """Rules that each row has to satisfy, in order."""
    publish: Publish | None = Field(default=None, exclude_if=lambda publish: publish is None)
    filter: str = Field(default="", exclude_if=lambda condition: not condition)
    """Condition on the columns of the table, in the language of quality rules. Rows for which it is not true do not land."""
    suspended: bool = False
    resume: str | None = Field(default=None, pattern=RESUME)
    """``skip:PARTITION:OFFSET``: write the record at which the topic halted to the dead letters. A new value ends the halt."""
    keep_snapshots_ms: int | None = None
    """Time for which ingestion keeps snapshots in the table's metadata after newer ones replaced them. None: it removes none."""
    restart: str | None = None
    """Value of the restart annotation. On a new value the driver drops its state of the topic and starts again."""
    first_table: str | None = None
    """UUID of the first table that the resource had. A table with another UUID replaced it; None if it is not known."""
    topic_created: bool = False
    """True if the resource created its topic. Then every record of the log belongs to the table, from offset 0 on."""

    @model_validator(mode="after")
    def _has_version_of_shared_table(self) -> Self:
        if self.table.shared and (self.version != 2 or not self.topic_id):
            raise ValueError("contracts with a shared table have version 2, and name the id of the topic")
        if self.table.shared and self.route is not None:
            raise ValueError("a topic has one place in a shared table, so the contract has no route")
        return self

    @property
    def needed_version(self) -> Literal[1, 2]:
        """Return 2 if a driver that ignores the fields since version 0.2.0 would write other rows or columns, or to another place.

        At a shared table, it would take the offsets of another topic for its own. A topic that adopts a table would be one that was
        created again, so that it lands from its start.
        """
        schema = self.record_schema
        columns = (schema.projection, schema.key, schema.renames, schema.unknown_column, schema.truncate_times)
        values = any(field.default is not None or field.epoch != "ms" for field in schema.fields)
        other_rows = (self.table.shared, self.route, self.publish, self.filter, self.adopt, values)
        return 2 if any((*other_rows, schema.subject, *columns)) else 1

    @property
    def registries(self) -> frozenset[str]:
        """Return the names of the schema registries that read values and keys, and that decide about routes."""
        of_route = self.route.values.subjects if self.route is not None else ()
        return frozenset(subject.registry for subject in (*self.record_schema.subjects, *of_route))

    @property
    def halts(self) -> bool:
        """Return whether ingestion may stop at a record. Each partition is then read in one task."""
        return self.on_bad_record == "Halt" or any(rule.on_fail == "Halt" for rule in self.quality_rules)


class TokenEndpoint(Contract):
    """The endpoint that issues access tokens for SASL OAUTHBEARER. A file has its CA certificates."""

    url: str
    scope: str = ""
    extensions: dict[str, str] = Field(default_factory=dict)
    ca_path: str | None = None


class DirectReads(Contract):
    """How tasks read the bucket of diskless brokers, and where the driver asks for the places of batches. Files have the secret values."""

    address: str
    """URL of the brokers' internal listener."""
    token_path: str
    url: str
    """URL below which the brokers store their objects."""
    properties: dict[str, str] = Field(default_factory=dict)
    """Options of obstore."""
    secret_properties: dict[str, str] = Field(default_factory=dict)
    ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """File with the CA certificates of the object store."""
    listener_ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """File with the CA certificates of the internal listener, whose ``address`` then begins with https."""
    previous_listener_ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """Set while the source of the brokers' certificate changes: file with the CA certificates of the source before."""


class KafkaConnection(Contract):
    """Connection to a profile's brokers. Files have the secret values."""

    bootstrap_servers: str
    protocol: str = "PLAINTEXT"
    ca_path: str | None = None
    certificate_path: str | None = None
    certificate_key_path: str | None = None
    verify_hostname: bool = True
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_path: str | None = None
    # Without tokens, a driver keeps the settings of the release before. So an upgrade of the operator does not restart it.
    sasl_tokens: TokenEndpoint | None = Field(default=None, exclude_if=lambda tokens: tokens is None)
    """Set if an endpoint issues the tokens for OAUTHBEARER. Name and password are then those of the OAuth client."""
    sasl_token_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """Set if a file has the token for OAUTHBEARER. The kubelet replaces it before it expires, so each login reads it."""
    previous_ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """Set while the source of the brokers' certificate changes: file with the CA certificates of the source before."""

    @property
    def ca_paths(self) -> tuple[str, ...]:
        """Return the files with the CA certificates of the brokers. While their source changes, one of two may be missing."""
        return tuple(path for path in (self.ca_path, self.previous_ca_path) if path is not None)

    @property
    def secret_files(self) -> tuple[str, ...]:
        """Return the files with secret values that clients keep. A process needs new clients after they change."""
        tokens_ca = self.sasl_tokens.ca_path if self.sasl_tokens else None
        files = (self.certificate_path, self.certificate_key_path, self.sasl_password_path, tokens_ca)
        return (*self.ca_paths, *(file for file in files if file is not None))


class CatalogConnection(Contract):
    """Connection to a catalog. ``properties`` are Iceberg's Java keys; ``secret_properties`` name files."""

    type: Literal["sql", "rest"]
    uri: str
    warehouse: str
    properties: dict[str, str] = Field(default_factory=dict)
    secret_properties: dict[str, str] = Field(default_factory=dict)
    own_references: bool | None = None
    """Configured value; None if the type of the catalog decides."""
    # Without tls, a driver keeps the settings of the release before. So an upgrade of the operator does not restart it.
    ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """File with the CA certificates of the catalog's server."""
    certificate_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    certificate_key_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    store_ca_path: str | None = Field(default=None, exclude_if=lambda path: path is None)
    """File with the CA certificates of the object store."""

    @property
    def secret_files(self) -> tuple[str, ...]:
        """Return the files with secret values and certificates."""
        files = (self.ca_path, self.certificate_path, self.certificate_key_path, self.store_ca_path)
        return (*self.secret_properties.values(), *(file for file in files if file is not None))

    @property
    def process_trust(self) -> tuple[str, ...]:
        """Return the files with CA certificates for clients that have no trust of their own, as those of the JVM for HTTP."""
        server = self.ca_path if self.type == "rest" else None
        return tuple(file for file in (server, self.store_ca_path) if file is not None)

    @property
    def has_own_references(self) -> bool:
        """Return True if the catalog may need files that the metadata of a table no longer refers to."""
        return self.type == "rest" if self.own_references is None else self.own_references


class RegistryConnection(Contract):
    """Connection to a schema registry. Files have the secret values."""

    url: str
    ca_path: str | None = None
    username: str = ""
    password_path: str | None = None
    token_path: str | None = None
    """File with a bearer token."""

    @property
    def secret_files(self) -> tuple[str, ...]:
        """Return the files with secret values."""
        return tuple(file for file in (self.ca_path, self.password_path, self.token_path) if file is not None)


class GroupSettings(Contract):
    """Settings of an ingestion application. If ``jobs_directory`` is set, directories replace Kubernetes."""

    group: str
    namespace: str = ""
    cluster: str = ""
    """Uid of the namespace ``kube-system``, which identifies the Kubernetes cluster; empty if unknown."""
    former_clusters: tuple[str, ...] = ()
    """Clusters whose tables the configuration approves to take."""
    cores: int = 1
    heap: str = "768m"
    bytes_per_commit: int = 128 * 1024 * 1024
    """Waiting bytes from which a topic lands before its freshness requires it."""
    buffer_bytes: int = 128 * 1024 * 1024
    """Bytes of decoded rows that a task holds before it writes files."""
    executors: config.Executors | None = None
    executor_image: str | None = None
    executor_pull_policy: str = "IfNotPresent"
    # An application without executors keeps the document of the release before.
    executor_storage: str | None = Field(default=None, exclude_if=lambda size: size is None)
    """Limit for the disk space of each executor on its node."""
    executor_storage_request: str | None = Field(default=None, exclude_if=lambda size: size is None)
    """Disk space that a node must have for an executor."""
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    kafka: dict[str, KafkaConnection] = Field(default_factory=dict)
    catalogs: dict[str, CatalogConnection] = Field(default_factory=dict)
    # A driver without direct reads keeps the settings of the release before, and so does not restart with an upgrade of the operator.
    direct: dict[str, DirectReads] = Field(default_factory=dict, exclude_if=lambda reads: not reads)
    """Profiles whose bucket the tasks read. Their secrets are read for each round, so the driver need not restart for new ones."""
    registries: dict[str, RegistryConnection] = Field(
        default_factory=dict, exclude_if=lambda registries: not registries
    )
    """Schema registries. Their secrets are read for each request."""
    salts: dict[str, str] = Field(default_factory=dict, exclude_if=lambda salts: not salts)
    """Files with the salts of digests, by name. They are read for each round."""
    schema_directory: str | None = Field(default=None, exclude_if=lambda directory: directory is None)
    """Directory in which the driver stores schemas of registries."""
    history_ms: int = Field(default=3_600_000, exclude_if=lambda pause: pause == 3_600_000)
    """Milliseconds between two requests that name a topic's data files to the brokers. Only with history Single."""
    jobs_directory: str | None = None
    listen: str = "0.0.0.0:8080"

    @property
    def secret_files(self) -> frozenset[str]:
        """Return every file with a secret value of any connection."""
        connections: tuple[KafkaConnection | CatalogConnection, ...] = (*self.kafka.values(), *self.catalogs.values())
        return frozenset(file for connection in connections for file in connection.secret_files)

    @property
    def application(self) -> str:
        """Return the name of the Spark application."""
        return names.ingestion(self.group)

    @property
    def rows_in_jvm(self) -> bool:
        """Return False: tasks in Python fetch and write the rows."""
        return False

    @property
    def tasks(self) -> int:
        """Return the number of tasks that run at the same time."""
        return self.cores if self.executors is None else self.executors.instances * self.executors.cores

    @property
    def driver_host(self) -> str | None:
        """Return the name at which executors reach the driver."""
        return f"{self.application}.{self.namespace}.svc"

    @property
    def executor_labels(self) -> dict[str, str]:
        """Return the labels that identify the executors of this application."""
        return {names.LABEL_GROUP: self.group}
