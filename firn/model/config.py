"""The operator's configuration: one YAML document that the chart renders (``values.yaml``) and the operator validates at start.

Keys are camelCase in YAML. The document has all cluster-wide settings: profiles, ingestion groups, catalogs, images, sizes. An
IcebergTopic names a profile, a group and a catalog. The document refers to Secrets by name and key and contains no secret values.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from firn.model import durations, names, quantities
from firn.model.errors import InvalidSpecError

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]


def _checked_duration(text: str) -> str:
    durations.milliseconds(text)
    return text


def _checked_size(text: str) -> str:
    quantities.size(text)
    return text


def _checked_heap(text: str) -> str:
    quantities.heap(text)
    return text


def _without_credentials(uri: str) -> str:
    if "@" in urlsplit(uri).netloc:
        raise ValueError("contains credentials; remove them and name a Secret in secretProperties")
    return uri


BROKERS_OWN = frozenset(
    {
        "node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs", "log.dir",
        "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names", "inter.broker.listener.name",
        "metadata.log.dir",
    }
)  # fmt: skip
"""Keys that a profile's ``config`` must not set, because brokers would lose each other or their data."""


def _without_identity(properties: dict[str, str]) -> dict[str, str]:
    refused = sorted(BROKERS_OWN & properties.keys())
    if refused:
        raise ValueError(f"the operator sets {', '.join(refused)} for each broker; remove it")
    return properties


BROKER_SETTINGS_OWN = frozenset({"coordinator", "objects", "listener", "external", "nodeId", "zone", "metricsListen"})
"""Settings of a diskless broker that a profile's ``config`` must not set, for the same reason."""


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    refused = sorted(BROKER_SETTINGS_OWN & settings.keys())
    if refused:
        raise ValueError(f"the operator sets {', '.join(refused)} for each broker; remove it")
    return settings


BrokerConfig = Annotated[
    dict[str, str],
    AfterValidator(_without_identity),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKERS_OWN), False)}),
]
"""Keys of Kafka's ``server.properties``."""
BrokerSettings = Annotated[
    dict[str, Any],
    AfterValidator(_without_place),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKER_SETTINGS_OWN), False)}),
]
"""Keys of a diskless broker's settings document (``firn_broker.settings``)."""
Duration = Annotated[str, AfterValidator(_checked_duration)]
Size = Annotated[str, AfterValidator(_checked_size)]
"""A Kubernetes quantity of bytes, such as ``512Mi``."""
Heap = Annotated[str, AfterValidator(_checked_heap)]
"""A size in the JVM's form, such as ``768m``."""


class Settings(BaseModel):
    """Base of every configuration model: camelCase keys, immutable. Unknown keys are errors."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class SecretKey(Settings):
    """A key of a Secret in the operator's namespace."""

    secret: str = Field(min_length=1, max_length=253)
    key: str = Field(min_length=1, max_length=253)

    @property
    def path(self) -> str:
        """Return the file with the value in every pod that needs it."""
        return names.secret_file(self.secret, self.key)


class Image(Settings):
    """A container image: its full reference, and when to pull it."""

    image: str = Field(min_length=1)
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


class Images(Settings):
    """The images that the operator launches, and how to pull them."""

    spark: Image
    kafka: Image
    broker: Image | None = None
    """Image of diskless brokers, for profiles that do not name one."""
    pull_secrets: list[str] = []


class Resources(Settings):
    """Resource requests and limits of a container, in Kubernetes' form."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Scheduling(Settings):
    """Scheduling fields that the operator copies into pod templates."""

    node_selector: dict[str, str] = {}
    tolerations: list[dict[str, object]] = []
    affinity: dict[str, object] = {}
    topology_spread_constraints: list[dict[str, object]] = []
    priority_class_name: str | None = None


class Sasl(Settings):
    """SASL credentials of the operator and the drivers."""

    mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]
    username: str
    password: SecretKey


class KafkaSecurity(Settings):
    """Connection to an existing Kafka: TLS (CA, client certificate) and SASL, from Secrets."""

    tls: bool = False
    ca: SecretKey | None = None
    certificate: SecretKey | None = None
    certificate_key: SecretKey | None = None
    verify_hostname: bool = True
    sasl: Sasl | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificateKey have to be set together")
        if not self.tls and (self.ca or self.certificate):
            raise ValueError("ca and certificate require tls: true")
        return self

    @property
    def protocol(self) -> str:
        """Return Kafka's ``security.protocol``."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


class Storage(Settings):
    """The volume of each broker."""

    size: Size = "20Gi"
    storage_class_name: str | None = None


class External(Settings):
    """A listener for clients outside the cluster: a Service for each broker and a bootstrap Service.

    NodePort: broker N is advertised as ``host:port+1+N``. ``host`` is a name or address that clients reach. The bootstrap Service
    listens on ``port``. LoadBalancer: ``hosts`` has the advertised name of each broker; all listen on port 9094.
    """

    type: Literal["NodePort", "LoadBalancer"] = "NodePort"
    host: str = ""
    port: int = Field(default=32092, ge=1024, le=65000)
    hosts: list[str] = []
    annotations: dict[str, str] = {}


class Profile(Settings):
    """Brokers and defaults of topics: the keys that all kinds of profiles have."""

    namespaces: list[str] = []
    """Namespaces whose topics may use it. Empty: all."""
    default_partitions: int = Field(default=3, ge=1, le=10000)
    replicas: int = Field(default=3, ge=1, le=99)
    image: Image | None = None
    external: External | None = None
    scheduling: Scheduling = Scheduling()

    @property
    def managed(self) -> bool:
        """Return True if the operator runs the brokers."""
        return True


class KafkaProfile(Profile):
    """Apache Kafka. With ``bootstrapServers``: an existing Kafka. Without: brokers that the operator runs."""

    kind: Literal["Kafka"] = "Kafka"
    bootstrap_servers: str | None = None
    security: KafkaSecurity = KafkaSecurity()
    metadata_version: str | None = None
    heap: Heap = "1g"
    resources: Resources = Resources()
    storage: Storage = Storage()
    config: BrokerConfig = {}

    @property
    def managed(self) -> bool:
        """Return True if the operator runs the brokers."""
        return self.bootstrap_servers is None


class Coordinator(Settings):
    """PostgreSQL database for offsets, topics and groups of diskless brokers; each profile has its own schema."""

    uri: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^postgres(ql)?://")]
    """Address as ``postgresql://HOST:PORT/DATABASE``, without credentials."""
    user: Annotated[str, Field(min_length=1)] | SecretKey
    """User of the database, or the Secret key with its name."""
    password: SecretKey | None = None

    def references(self) -> list[SecretKey]:
        """Return the Secret keys that a connection needs."""
        return [it for it in (self.user, self.password) if isinstance(it, SecretKey)]


class ObjectStore(Settings):
    """Bucket for the records of diskless brokers."""

    url: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^(s3|gs|az)://[^/]+")]
    """Place of objects: ``s3://BUCKET/PREFIX``, ``gs://...`` or ``az://...``. Each profile writes below its own name."""
    properties: dict[str, str] = {}
    """Keys of the object store client, such as ``aws_endpoint`` and ``aws_region``. docs.rs/object_store lists them."""
    secret_properties: dict[str, SecretKey] = {}
    """Properties from Secret keys, such as ``aws_access_key_id`` and ``aws_secret_access_key``."""


class DisklessProfile(Profile):
    """Diskless brokers: a bucket has the records, a database their order. Brokers start and stop without moving data."""

    kind: Literal["Diskless"]
    coordinator: Coordinator
    object_store: ObjectStore
    flush_interval: Duration = "250ms"
    """Longest time between the first record of an object and its upload. Producers wait for the upload."""
    flush_bytes: Size = "8Mi"
    """Size from which an object is uploaded early."""
    topic_config: dict[str, str] = {}
    """Default topic configs, by Kafka's names. Configs of a topic have precedence."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "512Mi"})
    service_account: str = "firn-broker"
    environment: dict[str, str] = {}
    config: BrokerSettings = {}
    """Further settings of the brokers, such as ``writer`` and ``reader``. They have precedence over the settings of the operator."""

    @model_validator(mode="after")
    def _flushes(self) -> Self:
        if durations.milliseconds(self.flush_interval) > 60_000:
            raise ValueError("flushInterval is at most 60s, because producers wait for the upload")
        if not 1024 <= quantities.size(self.flush_bytes) <= 256 * 2**20:
            raise ValueError("flushBytes: from 1Ki to 256Mi")
        return self

    def secret_names(self) -> list[str]:
        """Return the names of the Secrets that only its brokers need, sorted."""
        references = [*self.object_store.secret_properties.values(), *self.coordinator.references()]
        return sorted({reference.secret for reference in references})


def _kind(profile: Any) -> Any:
    if isinstance(profile, dict):
        return profile.get("kind", "Kafka")
    return getattr(profile, "kind", None)


def _by_kind(schema: dict[str, Any]) -> None:
    """Errors then name the intended kind only; with ``oneOf`` they would name all kinds."""
    kafka, diskless = schema.pop("oneOf")
    schema["if"] = {"properties": {"kind": {"const": "Diskless"}}, "required": ["kind"]}
    schema |= {"then": diskless, "else": kafka}


AnyProfile = Annotated[
    Annotated[KafkaProfile, Tag("Kafka")] | Annotated[DisklessProfile, Tag("Diskless")],
    Discriminator(_kind, custom_error_type="kind", custom_error_message="kind is neither Kafka nor Diskless"),
    Field(json_schema_extra=_by_kind),
]
"""A profile of any kind. The default kind is Kafka."""


class Catalog(Settings):
    """An Iceberg catalog. ``properties`` are keys of Iceberg's Java implementation, such as ``s3.endpoint`` and ``client.region``."""

    type: Literal["sql", "rest"]
    uri: Annotated[str, AfterValidator(_without_credentials)]
    """For sql: ``postgresql://HOST:PORT/DATABASE``, without credentials. For rest: the base URI."""
    warehouse: str
    namespaces: list[str] = []
    """Kubernetes namespaces whose topics may use it. Empty: all."""
    properties: dict[str, str] = {}
    secret_properties: dict[str, SecretKey] = {}
    """Properties from Secret keys. For sql, ``user`` and ``password`` are those of the database."""


class Executors(Settings):
    """Spark executors of an ingestion group or a maintenance run, as pods."""

    instances: int = Field(ge=1, le=100)
    cores: int = Field(default=1, ge=1, le=64)
    cpu: str = "500m"
    """CPU request of each executor, such as ``500m``. Executors have no CPU limit."""
    memory: Heap = "2g"
    overhead: Heap = "1g"
    """Memory of each executor beside its heap, for Python workers and off-heap data."""


class IngestionGroup(Settings):
    """An ingestion application: a driver pod that serves many topics."""

    namespaces: list[str] = []
    """Namespaces whose topics may use it. Empty: all."""
    image: Image | None = None
    """Image instead of ``images.spark``, to test a new version with this group first."""
    cores: int = Field(default=1, ge=1, le=64)
    """Number of topics or parts of topics that land at the same time; N of Spark's local[N] without executors."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    heap: Heap = "768m"
    """Heap of the driver's JVM, such as ``768m``. Python uses the rest of ``memory``."""
    cpu: str = "500m"
    executors: Executors | None = None
    bytes_per_commit: Size = "128Mi"
    """Size of waiting records from which a topic lands before its freshness requires it."""
    spark_conf: dict[str, str] = {}
    scheduling: Scheduling = Scheduling()
    environment: dict[str, str] = {}
    service_account: str = "firn-ingest"


class RunSize(Settings):
    """Resources of a maintenance run of this size."""

    cores: int = Field(default=1, ge=1, le=64)
    """Number of tables that a run handles at the same time; N of Spark's local[N] without executors."""
    heap: Heap = "1g"
    """Heap of the driver's JVM, such as ``1g``. Python and off-heap data use the rest of ``memory``."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    cpu: str = "500m"
    executors: Executors | None = None


class Maintenance(Settings):
    """Runs of CompactionPolicies and RetentionPolicies."""

    sizes: dict[Name, RunSize] = {"small": RunSize()}
    """Sizes that a policy's ``run.size`` may name. If there is a size ``large``, large tables use it."""
    large_table: Size = "16Gi"
    """Bytes to rewrite from which a table gets its own run. For retention of rows, bytes of the whole table."""
    max_runs: int = Field(default=4, ge=1, le=100)
    """Most runs at the same time, of all policies together. Each policy also has its own limit."""
    tables_per_run: int = Field(default=24, ge=1, le=24)
    """Most small tables that share a run. Their reports have to fit a termination message."""
    debt_interval: Duration = "1m"
    """Interval between measurements of each table's debt. A table without new commits is not read again."""
    lowest_orphan_age: Duration = "1d"
    """Lowest age for ``orphanFiles.minAge`` of policies. Younger files may belong to a commit in progress."""
    lowest_snapshot_age: Duration = "5m"
    """Lowest age for ``snapshots.maxAge`` of policies. Readers may still use younger snapshots."""
    ttl: Duration = "1h"
    """Time for which Jobs of finished runs, and their logs, stay in the cluster."""
    service_account: str = "firn-maintain"
    image: Image | None = None
    """Image of runs instead of ``images.spark``."""
    spark_conf: dict[str, str] = {}
    scheduling: Scheduling = Scheduling()
    environment: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if "small" not in self.sizes:
            raise ValueError("sizes: add a size named small, the default of policies")
        return self


class Config(Settings):
    """The whole configuration document. `load` reads and checks it."""

    namespace: str
    watch_namespaces: list[str] = []
    """Namespaces whose resources the operator manages. Empty: all."""
    images: Images
    default_profile: str
    profiles: dict[Name, AnyProfile]
    default_catalog: str
    catalogs: dict[Name, Catalog]
    default_group: str = "default"
    groups: dict[Name, IngestionGroup]
    maintenance: Maintenance = Maintenance()
    resync: Duration = "5m"
    """Longest time between two reconciles of a resource."""
    progress_interval: Duration = "5s"
    """Interval between two reads of a group's /progress."""
    workers: int = Field(default=8, ge=1, le=64)
    writes_per_second: int = Field(default=100, ge=1, le=1000)
    """Most writes to the Kubernetes API per second, on average. Events are not counted."""
    write_burst: int = Field(default=200, ge=1, le=10000)
    """Most writes to the Kubernetes API in a burst."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _defaults_exist(self) -> Self:
        for kind, name, known in (
            ("defaultProfile", self.default_profile, self.profiles),
            ("defaultCatalog", self.default_catalog, self.catalogs),
            ("defaultGroup", self.default_group, self.groups),
        ):
            if name not in known:
                raise ValueError(f"{kind}: {name!r} is not in the configuration, which has {sorted(known)}")
        return self

    @model_validator(mode="after")
    def _brokers_have_an_image(self) -> Self:
        for name, profile in self.profiles.items():
            if isinstance(profile, DisklessProfile) and profile.image is None and self.images.broker is None:
                raise ValueError(f"profiles.{name} is Diskless and has no image; set images.broker or its own image")
        return self

    def secret_names(self) -> list[str]:
        """Return the names of the Secrets that the operator and the ingestion applications need, sorted."""
        return sorted({reference.secret for reference in self._references()})

    def _references(self) -> Iterator[SecretKey]:
        for profile in self.profiles.values():
            if isinstance(profile, KafkaProfile):
                yield from security_references(profile.security)
        for catalog in self.catalogs.values():
            yield from catalog.secret_properties.values()


def security_references(security: KafkaSecurity) -> Iterator[SecretKey]:
    """Return the Secret keys that a connection with ``security`` needs."""
    yield from (ref for ref in (security.ca, security.certificate, security.certificate_key) if ref is not None)
    if security.sasl is not None:
        yield security.sasl.password


def load(path: str | Path) -> Config:
    """Read the configuration from the YAML file at ``path``. Raises InvalidSpecError that names file and key."""
    try:
        document = yaml.safe_load(Path(path).read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise InvalidSpecError(f"configuration {path}: {error}") from error
    try:
        return Config.model_validate(document)
    except ValidationError as error:
        lines = [f"{_place(item['loc'])}: {item['msg']}" for item in error.errors()]
        raise InvalidSpecError(f"configuration {path}: " + "; ".join(lines)) from error


def _place(location: tuple[int | str, ...]) -> str:
    """Return the place of an error in the document. Pydantic adds the kind of a profile to it."""
    parts = [str(part) for part in location]
    if parts[:1] == ["profiles"] and len(parts) > 2 and parts[2] in ("Kafka", "Diskless"):
        del parts[2]
    return ".".join(parts) or "(document)"
