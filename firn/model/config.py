"""The operator's configuration: one YAML document that the chart renders (``values.yaml``) and the operator validates at start.

Keys are camelCase in YAML. Everything cluster-wide is here: profiles, ingestion groups, catalogs, images, sizes. A user's
IcebergTopic names a profile, a group and a catalog; secrets are named by reference and never stand here.
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
        raise ValueError("has credentials in it; name a Secret in secretProperties instead")
    return uri


BROKERS_OWN = frozenset(
    {
        "node.id", "broker.id", "process.roles", "listeners", "advertised.listeners", "listener.security.protocol.map", "log.dirs", "log.dir",
        "controller.quorum.voters", "controller.quorum.bootstrap.servers", "controller.listener.names", "inter.broker.listener.name",
        "metadata.log.dir",
    }
)  # fmt: skip
"""Keys that a profile's ``config`` may not set: pods could not find one another, or their data, any more."""


def _without_identity(properties: dict[str, str]) -> dict[str, str]:
    refused = sorted(BROKERS_OWN & properties.keys())
    if refused:
        raise ValueError(f"{', '.join(refused)} cannot be set, as the operator sets it for each broker; remove it")
    return properties


BROKER_SETTINGS_OWN = frozenset({"coordinator", "objects", "listener", "external", "nodeId", "zone", "metricsListen"})
"""Keys of a diskless broker's settings that a profile's ``config`` may not set, for the same reason."""


def _without_place(settings: dict[str, Any]) -> dict[str, Any]:
    refused = sorted(BROKER_SETTINGS_OWN & settings.keys())
    if refused:
        raise ValueError(f"{', '.join(refused)} cannot be set, as the operator sets it for each broker; remove it")
    return settings


BrokerConfig = Annotated[
    dict[str, str],
    AfterValidator(_without_identity),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKERS_OWN), False)}),
]
"""Keys of ``server.properties``."""
BrokerSettings = Annotated[
    dict[str, Any],
    AfterValidator(_without_place),
    Field(json_schema_extra={"properties": dict.fromkeys(sorted(BROKER_SETTINGS_OWN), False)}),
]
"""Keys of a diskless broker's settings document (``firn_broker.settings``)."""
Duration = Annotated[str, AfterValidator(_checked_duration)]
Size = Annotated[str, AfterValidator(_checked_size)]
"""A Kubernetes quantity of bytes."""
Heap = Annotated[str, AfterValidator(_checked_heap)]
"""A size as the JVM writes it."""


class Settings(BaseModel):
    """Base of every configuration model: camelCase keys, unknown keys refused, frozen."""

    model_config = ConfigDict(
        alias_generator=to_camel, validate_by_name=True, extra="forbid", frozen=True, use_attribute_docstrings=True
    )


class SecretKey(Settings):
    """A key of a Secret in the operator's namespace."""

    secret: str = Field(min_length=1, max_length=253)
    key: str = Field(min_length=1, max_length=253)

    @property
    def path(self) -> str:
        """File in which every pod that needs the value finds it."""
        return names.secret_file(self.secret, self.key)


class Image(Settings):
    """A container image, by full reference."""

    image: str = Field(min_length=1)
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"


class Images(Settings):
    """The images that the operator launches, and how to pull them."""

    spark: Image
    kafka: Image
    broker: Image | None = None
    """Needed by profiles of kind Diskless that name no image of their own."""
    pull_secrets: list[str] = []


class Resources(Settings):
    """Requests and limits of a container, as Kubernetes writes them."""

    requests: dict[str, str] = {}
    limits: dict[str, str] = {}


class Scheduling(Settings):
    """Placement of pods. The values are copied into pod templates unchanged."""

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
    """How to connect to a Kafka that exists: TLS (CA, client certificate) and SASL, by Secret."""

    tls: bool = False
    ca: SecretKey | None = None
    certificate: SecretKey | None = None
    certificate_key: SecretKey | None = None
    verify_hostname: bool = True
    sasl: Sasl | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.certificate is None) != (self.certificate_key is None):
            raise ValueError("certificate and certificateKey need each other")
        if not self.tls and (self.ca or self.certificate):
            raise ValueError("ca and certificate need tls: true")
        return self

    @property
    def protocol(self) -> str:
        """Kafka's ``security.protocol``."""
        return ("SASL_" if self.sasl else "") + ("SSL" if self.tls else "PLAINTEXT")


class Storage(Settings):
    """The volume of one broker."""

    size: Size = "20Gi"
    storage_class_name: str | None = None


class External(Settings):
    """A listener for clients outside the cluster: one Service per broker and one to bootstrap from.

    Broker N is advertised as ``host:port+1+N`` (NodePort), where ``host`` is a name or address that clients reach; the bootstrap
    Service answers on ``port``. For LoadBalancer, ``hosts`` lists the advertised name of each broker, all on port 9094.
    """

    type: Literal["NodePort", "LoadBalancer"] = "NodePort"
    host: str = ""
    port: int = Field(default=32092, ge=1024, le=65000)
    hosts: list[str] = []
    annotations: dict[str, str] = {}


class Profile(Settings):
    """How the log of a topic is kept: what all kinds have."""

    namespaces: list[str] = []
    """Namespaces whose topics may use it; empty: all."""
    default_partitions: int = Field(default=3, ge=1, le=10000)
    replicas: int = Field(default=3, ge=1, le=99)
    image: Image | None = None
    external: External | None = None
    scheduling: Scheduling = Scheduling()

    @property
    def managed(self) -> bool:
        """True when the operator launches the brokers."""
        return True


class KafkaProfile(Profile):
    """Apache Kafka. With ``bootstrapServers``: one that exists; without: a fleet that the operator launches."""

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
        """True when the operator launches the brokers."""
        return self.bootstrap_servers is None


class Coordinator(Settings):
    """The PostgreSQL database in which diskless brokers keep offsets, topics and groups, in a schema for each profile."""

    uri: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^postgres(ql)?://")]
    """``postgresql://host:port/database`` (no credentials)."""
    user: Annotated[str, Field(min_length=1)] | SecretKey
    """Its name, or the Secret key that has it."""
    password: SecretKey | None = None

    def references(self) -> list[SecretKey]:
        """The Secret keys that are needed to connect."""
        return [it for it in (self.user, self.password) if isinstance(it, SecretKey)]


class ObjectStore(Settings):
    """The bucket in which diskless brokers keep records."""

    url: Annotated[str, AfterValidator(_without_credentials), Field(pattern=r"^(s3|gs|az)://[^/]+")]
    """``s3://bucket/prefix``, ``gs://`` or ``az://``; what this profile writes is below its own name there."""
    properties: dict[str, str] = {}
    """Keys of the brokers' object store client: ``aws_endpoint``, ``aws_region``, ... (docs.rs/object_store has them all)."""
    secret_properties: dict[str, SecretKey] = {}
    """Properties with values from Secrets: ``aws_access_key_id``, ``aws_secret_access_key``, ..."""


class DisklessProfile(Profile):
    """Brokers that keep nothing: records go to a bucket, their order to a database. They come and go without moving data."""

    kind: Literal["Diskless"]
    coordinator: Coordinator
    object_store: ObjectStore
    flush_interval: Duration = "250ms"
    """An object is written this long after its first record came; producers wait for it."""
    flush_bytes: Size = "8Mi"
    """An object is written before its time when it would grow past this."""
    topic_config: dict[str, str] = {}
    """Configs of topics that do not have their own, by their Kafka names."""
    resources: Resources = Resources(requests={"cpu": "100m", "memory": "512Mi"}, limits={"memory": "512Mi"})
    service_account: str = "firn-broker"
    environment: dict[str, str] = {}
    config: BrokerSettings = {}
    """Further settings of the brokers (``writer``, ``reader``, ``connections``, ``groups``, ``upkeep``, ...); they win over ours."""

    @model_validator(mode="after")
    def _flushes(self) -> Self:
        if durations.milliseconds(self.flush_interval) > 60_000:
            raise ValueError("flushInterval: at most 60s, as producers wait for it")
        if not 1024 <= quantities.size(self.flush_bytes) <= 256 * 2**20:
            raise ValueError("flushBytes: from 1Ki to 256Mi")
        return self

    def secret_names(self) -> list[str]:
        """Return the Secrets that only its brokers need, sorted."""
        references = [*self.object_store.secret_properties.values(), *self.coordinator.references()]
        return sorted({reference.secret for reference in references})


def _kind(profile: Any) -> Any:
    if isinstance(profile, dict):
        return profile.get("kind", "Kafka")
    return getattr(profile, "kind", None)


def _by_kind(schema: dict[str, Any]) -> None:
    """Replace ``oneOf`` by a condition on the kind, so that errors name only the problems of that kind."""
    kafka, diskless = schema.pop("oneOf")
    schema["if"] = {"properties": {"kind": {"const": "Diskless"}}, "required": ["kind"]}
    schema |= {"then": diskless, "else": kafka}


AnyProfile = Annotated[
    Annotated[KafkaProfile, Tag("Kafka")] | Annotated[DisklessProfile, Tag("Diskless")],
    Discriminator(_kind, custom_error_type="kind", custom_error_message="kind is neither Kafka nor Diskless"),
    Field(json_schema_extra=_by_kind),
]
"""A profile of any kind; one that names none is of kind Kafka."""


class Catalog(Settings):
    """An Iceberg catalog. ``properties`` are Iceberg's own keys as Java writes them (``s3.endpoint``, ``client.region``, ...)."""

    type: Literal["sql", "rest"]
    uri: Annotated[str, AfterValidator(_without_credentials)]
    """For sql: ``postgresql://host:port/database`` (no credentials). For rest: the base URI."""
    warehouse: str
    namespaces: list[str] = []
    """Kubernetes namespaces whose topics may use it; empty: all."""
    properties: dict[str, str] = {}
    secret_properties: dict[str, SecretKey] = {}
    """Property -> Secret key; for sql, ``user`` and ``password`` are the database's."""


class Executors(Settings):
    """Spark executors on Kubernetes, of an ingestion group or a maintenance run."""

    instances: int = Field(ge=1, le=100)
    cores: int = Field(default=1, ge=1, le=64)
    cpu: str = "500m"
    """CPU request of one executor; there is no limit."""
    memory: Heap = "2g"
    overhead: Heap = "1g"
    """Memory beside the executor's heap: Python workers and off-heap."""


class IngestionGroup(Settings):
    """An ingestion application: a driver pod that serves many topics."""

    namespaces: list[str] = []
    """Namespaces whose topics may use it; empty: all."""
    image: Image | None = None
    """Instead of ``images.spark``: to try a new version on one group first."""
    cores: int = Field(default=1, ge=1, le=64)
    """Spark's local[N] when there are no executors; threads that land topics either way."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    heap: Heap = "768m"
    """Heap of the driver's JVM; the rest of ``memory`` is for Python."""
    cpu: str = "500m"
    executors: Executors | None = None
    bytes_per_commit: Size = "128Mi"
    """A topic is due before its freshness once this much waits."""
    spark_conf: dict[str, str] = {}
    scheduling: Scheduling = Scheduling()
    environment: dict[str, str] = {}
    service_account: str = "firn-ingest"


class RunSize(Settings):
    """Resources of a maintenance run that names this size."""

    cores: int = Field(default=1, ge=1, le=64)
    """Spark's local[N] when there are no executors; tables that are worked on at the same time either way."""
    heap: Heap = "1g"
    """Heap of the driver's JVM; the rest of ``memory`` is for Python and off-heap."""
    memory: Size = "2Gi"
    """Memory request and limit of the driver pod."""
    cpu: str = "500m"
    executors: Executors | None = None


class Maintenance(Settings):
    """The runs that carry out CompactionPolicies and RetentionPolicies."""

    sizes: dict[Name, RunSize] = {"small": RunSize()}
    """Sizes that a policy's ``run.size`` may name; ``large``, where there is one, is used for large tables by itself."""
    large_table: Size = "16Gi"
    """A table with so many bytes to rewrite, or in all where retention drops rows, gets a run of its own."""
    max_runs: int = Field(default=4, ge=1, le=100)
    """Runs at the same time, of all policies together; each policy has its own limit below that."""
    tables_per_run: int = Field(default=24, ge=1, le=24)
    """Small tables share a run, at most so many: their reports have to fit a termination message."""
    debt_interval: Duration = "1m"
    """Every table's metadata is looked at so often; nothing is read where nothing was committed."""
    lowest_orphan_age: Duration = "1d"
    """No policy may take files younger than this for orphans: a writer may be about to commit them."""
    lowest_snapshot_age: Duration = "5m"
    """No policy may expire snapshots younger than this: a reader may still use them."""
    ttl: Duration = "1h"
    """Finished runs stay in the cluster this long, with their logs."""
    service_account: str = "firn-maintain"
    image: Image | None = None
    """Instead of ``images.spark``."""
    spark_conf: dict[str, str] = {}
    scheduling: Scheduling = Scheduling()
    environment: dict[str, str] = {}

    @model_validator(mode="after")
    def _has_a_size(self) -> Self:
        if "small" not in self.sizes:
            raise ValueError("sizes: there has to be one named small, which policies use that name none")
        return self


class Config(Settings):
    """The whole configuration document. `load` reads and checks it."""

    namespace: str
    watch_namespaces: list[str] = []
    """Namespaces whose resources count; empty: all."""
    images: Images
    default_profile: str
    profiles: dict[Name, AnyProfile]
    default_catalog: str
    catalogs: dict[Name, Catalog]
    default_group: str = "default"
    groups: dict[Name, IngestionGroup]
    maintenance: Maintenance = Maintenance()
    resync: Duration = "5m"
    """Every resource is looked at again at least this often."""
    progress_interval: Duration = "5s"
    """How often a group's /progress is read."""
    workers: int = Field(default=8, ge=1, le=64)
    writes_per_second: int = Field(default=100, ge=1, le=1000)
    """Writes to the Kubernetes API that the operator allows itself, on average; Events come on top."""
    write_burst: int = Field(default=200, ge=1, le=10000)
    """Writes to the Kubernetes API at once, before the average counts."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="after")
    def _defaults_exist(self) -> Self:
        for kind, name, known in (
            ("defaultProfile", self.default_profile, self.profiles),
            ("defaultCatalog", self.default_catalog, self.catalogs),
            ("defaultGroup", self.default_group, self.groups),
        ):
            if name not in known:
                raise ValueError(f"{kind}: {name!r} is not among {sorted(known)}")
        return self

    @model_validator(mode="after")
    def _brokers_have_an_image(self) -> Self:
        for name, profile in self.profiles.items():
            if isinstance(profile, DisklessProfile) and profile.image is None and self.images.broker is None:
                raise ValueError(f"profiles.{name} is Diskless and has no image; set images.broker, or its own")
        return self

    def secret_names(self) -> list[str]:
        """Every Secret that the operator and the ingestion applications need, sorted. Those of diskless brokers are for these alone."""
        return sorted({reference.secret for reference in self._references()})

    def _references(self) -> Iterator[SecretKey]:
        for profile in self.profiles.values():
            if isinstance(profile, KafkaProfile):
                yield from security_references(profile.security)
        for catalog in self.catalogs.values():
            yield from catalog.secret_properties.values()


def security_references(security: KafkaSecurity) -> Iterator[SecretKey]:
    """The Secret keys that connecting with ``security`` needs."""
    yield from (ref for ref in (security.ca, security.certificate, security.certificate_key) if ref is not None)
    if security.sasl is not None:
        yield security.sasl.password


def load(path: str | Path) -> Config:
    """The configuration in the YAML file at ``path``. Raises InvalidSpecError that names file and key."""
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
    """Return the place of an error in the document, without the kind of a profile that pydantic adds."""
    parts = [str(part) for part in location]
    if parts[:1] == ["profiles"] and len(parts) > 2 and parts[2] in ("Kafka", "Diskless"):
        del parts[2]
    return ".".join(parts) or "(document)"
