"""Contracts from the operator to the Spark applications: what an ingestion driver must do (`IngestJob`, one ConfigMap per
topic, watched by label) and what it needs to know of the world (`GroupSettings`, mounted as a file)."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from firn.model import config, names

RESUME = r"^skip:[0-9]{1,10}:[0-9]{1,18}$"
"""Pattern of `IngestJob.resume`."""


class Contract(BaseModel):
    """Base of what crosses a process boundary: unknown keys are ignored, so that a newer operator can talk to an older driver."""

    model_config = ConfigDict(extra="ignore", frozen=True)


class Column(Contract):
    """A column of the inline schema. ``type`` uses Iceberg's type names (`firn.tables.types`)."""

    name: str
    type: str
    required: bool = False
    doc: str | None = None


class SchemaFormat(StrEnum):
    """How record values are encoded. Each format is a package in ``firn_spark/worker/formats``."""

    JSON = "Json"
    RAW = "Raw"


class RecordSchema(Contract):
    """How record values become columns. Json has fields; Raw has a ``value`` column, and ``key`` too."""

    format: SchemaFormat
    fields: tuple[Column, ...] = ()
    unknown_fields: Literal["Ignore", "DeadLetter"] = "Ignore"
    raw_as: Literal["Binary", "String"] = "Binary"


class TableTarget(Contract):
    """The Iceberg table of a topic."""

    catalog: str
    namespace: str
    name: str
    partition_by: tuple[str, ...] = ()
    sort_by: tuple[str, ...] = ()
    metadata_columns: Literal["Struct", "Flat"] = "Struct"
    format_version: Literal[2, 3] = 2
    properties: dict[str, str] = Field(default_factory=dict)

    @property
    def identifier(self) -> str:
        """``catalog.namespace.name``."""
        return f"{self.catalog}.{self.namespace}.{self.name}"


class StartFrom(Contract):
    """The start of ingestion for a table without landed offsets."""

    kind: Literal["Earliest", "Latest", "Timestamp"] = "Earliest"
    timestamp_ms: int | None = None


class IngestJob(Contract):
    """The job contract of a topic. ``generation`` is that of the resource."""

    version: Literal[1] = 1
    uid: str
    namespace: str
    name: str
    generation: int
    group: str
    profile: str
    topic: str
    topic_id: str | None = None
    """Kafka's id of the topic as the operator saw it (base64 as Kafka prints it)."""
    record_schema: RecordSchema
    table: TableTarget
    freshness_ms: int
    start_from: StartFrom = StartFrom()
    on_bad_record: Literal["DeadLetter", "Halt", "Skip"] = "DeadLetter"
    suspended: bool = False
    resume: str | None = Field(default=None, pattern=RESUME)
    """``skip:PARTITION:OFFSET``: the record at which the topic halted, which goes to dead letters. A new one ends the halt."""
    restart: str | None = None
    """Value of the restart annotation. A new value makes the driver reload the topic: it drops the backoff and reads
    the table again."""


class KafkaConnection(Contract):
    """How to reach a profile's brokers. Secret values are named by file."""

    bootstrap_servers: str
    protocol: str = "PLAINTEXT"
    ca_path: str | None = None
    certificate_path: str | None = None
    certificate_key_path: str | None = None
    verify_hostname: bool = True
    sasl_mechanism: str | None = None
    sasl_username: str | None = None
    sasl_password_path: str | None = None

    @property
    def secret_files(self) -> tuple[str, ...]:
        """The files that it names."""
        files = (self.ca_path, self.certificate_path, self.certificate_key_path, self.sasl_password_path)
        return tuple(file for file in files if file is not None)


class CatalogConnection(Contract):
    """How to reach a catalog. ``properties`` are Iceberg's Java keys; ``secret_properties`` name files."""

    type: Literal["sql", "rest"]
    uri: str
    warehouse: str
    properties: dict[str, str] = Field(default_factory=dict)
    secret_properties: dict[str, str] = Field(default_factory=dict)

    @property
    def secret_files(self) -> tuple[str, ...]:
        """The files that it names."""
        return tuple(self.secret_properties.values())


class GroupSettings(Contract):
    """Settings of an ingestion application. With ``jobs_directory``, a directory replaces Kubernetes."""

    group: str
    namespace: str = ""
    cores: int = 1
    heap: str = "768m"
    bytes_per_commit: int = 128 * 1024 * 1024
    """A topic is due before its freshness once this many bytes wait."""
    buffer_bytes: int = 128 * 1024 * 1024
    """Decoded rows that one task may hold before it writes files."""
    executors: config.Executors | None = None
    executor_image: str | None = None
    executor_pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    service_account: str = ""
    spark_conf: dict[str, str] = Field(default_factory=dict)
    kafka: dict[str, KafkaConnection] = Field(default_factory=dict)
    catalogs: dict[str, CatalogConnection] = Field(default_factory=dict)
    jobs_directory: str | None = None
    listen: str = "0.0.0.0:8080"

    @property
    def secret_files(self) -> frozenset[str]:
        """Every file with a secret that some connection names."""
        connections: tuple[KafkaConnection | CatalogConnection, ...] = (*self.kafka.values(), *self.catalogs.values())
        return frozenset(file for connection in connections for file in connection.secret_files)

    @property
    def application(self) -> str:
        """Name of the Spark application."""
        return names.ingestion(self.group)

    @property
    def driver_host(self) -> str | None:
        """Return the host name at which executors find the driver."""
        return f"{self.application}.{self.namespace}.svc"

    @property
    def executor_labels(self) -> dict[str, str]:
        """Return the labels of this application's executors."""
        return {names.LABEL_GROUP: self.group}
