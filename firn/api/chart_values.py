"""The values of the Helm chart as a model, for ``charts/firn/values.schema.json``. Profiles, catalogs and groups are those of the
operator's own configuration (`firn.model.config`), so the chart refuses what the operator would refuse. No defaults here: they stand
in ``values.yaml``."""

import json
from typing import Annotated, Any, Literal

from pydantic import Field

from firn.model.config import (
    AnyProfile,
    Catalog,
    DisklessProfile,
    ImageReference,
    IngestionGroup,
    KafkaProfile,
    Maintenance,
    Name,
    Registry,
    Resources,
    Salt,
    Scheduling,
    Settings,
    Storage,
)

KubernetesName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
ImageTag = Annotated[str, Field(pattern=r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$")]
ImageDigest = Annotated[str, Field(pattern=r"^(sha256:[0-9a-f]{64})?$")]
Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m|h|d)$")]


class ImageDigests(Settings):
    """Digests of Firn's own images, such as those that `docker buildx imagetools inspect` shows."""

    operator: ImageDigest = ""
    """Digest of firn-operator, as sha256:... Empty: the tag decides."""
    spark: ImageDigest = ""
    """Digest of firn-spark."""
    broker: ImageDigest = ""
    """Digest of firn-broker."""


class ImageValues(Settings):
    """Container images: Firn's own images from your registry, and public images of Kafka and the bundled stores."""

    registry: Annotated[str, Field(pattern=r"^[^\s@]*$")]
    """Registry of firn-operator, firn-spark and firn-broker, such as registry.example.com/data."""
    tag: ImageTag
    """Tag of these three images. Empty: the chart's appVersion."""
    digests: ImageDigests
    """Digests of these three images. They replace the tag, so the nodes run exactly these images."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"]
    """Pull policy of every image."""
    pull_secrets: list[KubernetesName]
    """Names of image pull Secrets in the release's namespace. Every pod uses them."""
    operator: ImageReference
    """Full reference of firn-operator. It replaces registry, tag and digest."""
    spark: ImageReference
    """Full reference of firn-spark. It replaces registry, tag and digest."""
    broker: ImageReference
    """Full reference of firn-broker, for profiles of kind Diskless. It replaces registry, tag and digest."""
    kafka: Annotated[ImageReference, Field(min_length=1)]
    """Apache Kafka, with the layout of the official image."""
    postgres: Annotated[ImageReference, Field(min_length=1)]
    """PostgreSQL of the quick start, with the layout of the official image."""
    s3: Annotated[ImageReference, Field(min_length=1)]
    """S3 server of the quick start: versitygw."""


class CrdValues(Settings):
    """CustomResourceDefinitions."""

    enabled: bool
    """Install and upgrade the CRDs with the chart."""
    keep: bool
    """Keep the CRDs, and every IcebergTopic and policy, in the cluster after `helm uninstall`."""


class Store(Settings):
    """A store of the quick start: one pod with a persistent volume."""

    resources: Resources
    """Resources of the pod."""
    storage: Storage
    """Volume of the pod."""
    scheduling: Scheduling
    """Scheduling of the pod."""


class QuickStartDiskless(Settings):
    """The profile `diskless` with the stores of the quick start."""

    enabled: bool
    """Add the profile."""
    profile: DisklessProfile
    """Values of the profile."""


class QuickStart(Settings):
    """The profile `classic` and the catalog `lake`, with a PostgreSQL and an S3 server in the cluster."""

    enabled: bool
    """Install the quick start."""
    tls: bool | None = None
    """PostgreSQL and the S3 server accept connections with TLS only. Null: like true, but an upgrade of stores without TLS fails."""
    profile: KafkaProfile
    """The profile `classic`."""
    diskless: QuickStartDiskless
    """The profile `diskless`, in addition to `classic`."""
    postgres: Store
    """PostgreSQL: the catalog's database, and the coordinator of diskless brokers."""
    s3: Store
    """The S3 server: it stores the warehouse s3://firn/warehouse and the records of diskless topics."""


class OperatorValues(Settings):
    """The operator's pod."""

    log_level: Literal["debug", "info", "warning", "error"]
    """Lowest level of log messages."""
    resync: Duration
    """Longest time between two reconciles of a resource. The time is longer with more than ten IcebergTopics for each
    of its seconds, such as 3,000 for five minutes."""
    progress_interval: Duration
    """Longest interval between two reads of an ingestion application's progress."""
    workers: int = Field(ge=1, le=64)
    """Number of reconciles that run at the same time."""
    writes_per_second: int = Field(ge=1, le=1000)
    """Highest number of writes to the Kubernetes API per second, on average. Events do not count."""
    write_burst: int = Field(ge=1, le=10000)
    """Highest number of writes to the Kubernetes API in a burst."""
    resources: Resources
    """Resources of the pod."""
    scheduling: Scheduling
    """Scheduling of the pod."""
    pod_annotations: dict[str, str]
    """Annotations of the pod."""
    pod_labels: dict[str, str]
    """Labels of the pod."""
    environment: dict[str, str]
    """Environment variables, such as AWS_REGION or HTTPS_PROXY."""


class SignerValues(Settings):
    """The pod of `firn-signer`, which issues the certificates of profiles with `selfSigned`, and of the quick start's stores."""

    resources: Resources
    """Resources of the pod."""
    scheduling: Scheduling
    """Scheduling of the pod."""


class Queries(Settings):
    """The pod in which ``firn sql`` runs."""

    enabled: bool
    """Create the pod. Without it, ``firn sql`` runs in the operator's pod."""
    resources: Resources
    """Resources of the pod. A statement ends when it uses four fifths of the memory limit."""
    deadline_seconds: int = Field(ge=1, le=86400)
    """Longest time of a statement, in seconds."""
    scheduling: Scheduling
    """Scheduling of the pod."""


class ServiceAccount(Settings):
    """A ServiceAccount that the chart creates."""

    annotations: dict[str, str]
    """Annotations, such as eks.amazonaws.com/role-arn or iam.gke.io/gcp-service-account."""


class ServiceAccounts(Settings):
    """ServiceAccounts that the chart creates, for workload identity."""

    operator: ServiceAccount
    """The operator creates and changes tables."""
    ingest: ServiceAccount
    """Ingestion applications write tables."""
    maintain: ServiceAccount
    """Maintenance runs rewrite tables and delete their files."""
    query: ServiceAccount
    """``firn sql`` reads tables."""
    broker: ServiceAccount
    """Diskless brokers write, read and delete the objects in their bucket."""


class Rbac(Settings):
    """Rights of users."""

    aggregate: bool
    """Add IcebergTopics and policies to the cluster's roles view, edit and admin."""


class ApiServerPeers(Settings):
    """The Kubernetes API server in egress rules. It is no pod, so a selector cannot name it."""

    ports: list[Annotated[int, Field(ge=1, le=65535)]] = Field(min_length=1)
    """Ports of the API server. Most clusters compare a connection after its translation, so they need the port of the endpoint."""
    to: list[dict[str, Any]]
    """Peers, such as an ipBlock. Empty: every address."""


class ExecutorPolicy(Settings):
    """ValidatingAdmissionPolicy for the pods that drivers with executors create, change and delete."""

    enabled: bool
    """Install the policy if a group or a size of maintenance has executors. Without it, a driver could run any pod in the release's
    namespace. Admission webhooks that add containers or volumes to pods need an exception for executors."""


class UsersValues(Settings):
    """TopicUsers and TopicGrants."""

    enabled: bool | None
    """Manage TopicUsers. The operator may then create and patch Secrets in the namespaces that it watches. An attacker with its token can
    read them, because the API server answers a patch with the Secret. The operator asks for the metadata only. Null: true if
    a profile of the quick start has ``users``."""


class NetworkPolicyValues(Settings):
    """NetworkPolicies of all pods of the release. The cluster's network plugin enforces them."""

    enabled: bool
    """Install the NetworkPolicies."""
    strict: bool
    """Deny every connection from and to Firn's pods, except those that the configuration needs. The other keys except
    `metricsFrom` need it."""
    metrics_from: list[dict[str, Any]]
    """Peers that may read metrics, as in a NetworkPolicy. Empty: all, or none if `strict`."""
    clients_from: dict[Name, list[dict[str, Any]]]
    """Peers that may connect to the brokers of a profile, by its name. Other profiles: pods in the namespaces of the profile, or all
    pods if the profile has no namespaces."""
    gateways_from: dict[Name, list[dict[str, Any]]]
    """Peers that are the pods of the Gateways of a profile with ``external.type: TLSRoute``, by its name. Other profiles: all pods in the
    namespaces of their Gateways."""
    stores_from: list[dict[str, Any]]
    """Peers that may connect to the PostgreSQL and the S3 server of the quick start, besides Firn's own pods."""
    dns: list[dict[str, Any]]
    """Peers of DNS. Empty: every address at port 53."""
    api_server: ApiServerPeers
    stores: list[dict[str, Any]]
    """Peers of catalogs, object stores, databases, schema registries and existing brokers outside this release. Empty: every
    address at the ports of the configuration."""
    egress: list[dict[str, Any]]
    """More egress rules of the operator, drivers, runs and diskless brokers, as in a NetworkPolicy."""


class ServiceMonitor(Settings):
    """ServiceMonitors of the Prometheus Operator."""

    enabled: bool
    """Install the ServiceMonitors."""
    interval: str
    """Interval between two reads of the metrics."""
    labels: dict[str, str]
    """Labels of the ServiceMonitors."""


class PrometheusRule(Settings):
    """Alerts for the Prometheus Operator."""

    enabled: bool
    """Install the PrometheusRule."""
    labels: dict[str, str]
    """Labels of the PrometheusRule."""
    lag_seconds: int = Field(ge=5)
    """Lag in seconds. An alert fires if a topic exceeds it for 10 minutes."""
    compaction_lag_seconds: int = Field(ge=60)
    """Compaction lag in seconds. An alert fires if a table exceeds it for 15 minutes."""
    audit_age_seconds: int = Field(ge=60)
    """Age of an audit in seconds. An alert fires if the last audit of a topic is older for 15 minutes."""
    certificate_seconds: int = Field(ge=60)
    """Remaining time in seconds. An alert fires if a certificate of brokers, or the CA of the signer, ends sooner for an hour."""
    runbook_url: str
    """Address at which you publish docs/operations/alerts.md. Each alert links its section. Empty: no links."""


class Metrics(Settings):
    """Objects of the Prometheus Operator."""

    service_monitor: ServiceMonitor
    prometheus_rule: PrometheusRule


class PodDisruptionBudget(Settings):
    """PodDisruptionBudget of the operator, which has one pod."""

    enabled: bool
    """Install the PodDisruptionBudget."""
    max_unavailable: int = Field(ge=0, le=1)
    """With 0, a drain of the operator's node waits until you act. With 1, the drain continues."""


class Values(Settings):
    """Values of the chart firn."""

    images: ImageValues
    crds: CrdValues
    watch_namespaces: list[KubernetesName]
    """Namespaces whose IcebergTopics and policies the operator manages. Empty: all."""
    former_clusters: list[str]
    """Uids of the namespace `kube-system` of earlier Kubernetes clusters. IcebergTopics may adopt the tables of these clusters."""
    default_profile: Name
    """Profile of topics that do not name one."""
    default_catalog: Name
    """Catalog of topics that do not name one."""
    default_group: Name
    """Ingestion group of topics that do not name one."""
    profiles: dict[Name, AnyProfile]
    """Brokers, by name. The quick start adds `classic`, and `diskless` if it is enabled there."""
    catalogs: dict[Name, Catalog]
    """Iceberg catalogs, by name. The quick start adds `lake`."""
    registries: dict[Name, Registry]
    """Schema registries, by name. A topic with Avro records can name one in `spec.schema.registry`."""
    salts: dict[Name, Salt]
    """Salts of digests, by name. A column with `with: Sha256` can name one in `salt`."""
    groups: dict[Name, IngestionGroup]
    """Ingestion applications, by name."""
    maintenance: Maintenance
    users: UsersValues
    quick_start: QuickStart
    operator: OperatorValues
    signer: SignerValues
    queries: Queries
    service_accounts: ServiceAccounts
    rbac: Rbac
    executor_policy: ExecutorPolicy
    network_policy: NetworkPolicyValues
    metrics: Metrics
    pod_disruption_budget: PodDisruptionBudget
    global_: dict[str, Any] = Field(default={}, alias="global")
    """Not used. Helm adds this key when the chart is a dependency."""


def json_schema() -> str:
    """The text of ``values.schema.json``."""
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", **Values.model_json_schema()}
    return json.dumps(_tidy(schema), indent=2, ensure_ascii=False) + "\n"


def _tidy(node: Any) -> Any:
    """Without pydantic's titles, which only repeat the keys; keys that do not match a pattern refused; docstrings on one line."""
    if isinstance(node, list):
        return [_tidy(item) for item in node]
    if not isinstance(node, dict):
        return node
    tidy = {key: _tidy(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "patternProperties" in tidy:
        tidy["additionalProperties"] = False
    if isinstance(tidy.get("description"), str):
        tidy["description"] = " ".join(tidy["description"].split())
    return tidy
