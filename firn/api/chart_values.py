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
    IngestionGroup,
    KafkaProfile,
    Maintenance,
    Name,
    Resources,
    Scheduling,
    Settings,
    Storage,
)

KubernetesName = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
ImageReference = Annotated[str, Field(pattern=r"^\S*$")]
Duration = Annotated[str, Field(pattern=r"^[1-9][0-9]*(ms|s|m|h|d)$")]


class ImageValues(Settings):
    """Container images: the project's own from a registry of yours, and those of the parts that it runs."""

    registry: ImageReference
    """Registry of firn-operator, firn-spark and firn-broker, such as registry.example.com/data."""
    tag: ImageReference
    """Tag of these three images. Empty: the chart's appVersion."""
    pull_policy: Literal["Always", "IfNotPresent", "Never"]
    """Pull policy of every image."""
    pull_secrets: list[KubernetesName]
    """Image pull Secrets in the release's namespace."""
    operator: ImageReference
    """Full reference of firn-operator. It replaces registry and tag."""
    spark: ImageReference
    """Full reference of firn-spark. It replaces registry and tag."""
    broker: ImageReference
    """Full reference of firn-broker, for profiles of kind Diskless. It replaces registry and tag."""
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
    """Keep the CRDs, and every IcebergTopic and policy, in the cluster when the release is uninstalled."""


class Store(Settings):
    """A bundled store: one pod with a persistent volume."""

    resources: Resources
    storage: Storage
    scheduling: Scheduling


class QuickStartDiskless(Settings):
    """Profile diskless on the bundled stores."""

    enabled: bool
    profile: DisklessProfile


class QuickStart(Settings):
    """Profile classic and catalog lake on bundled stores."""

    enabled: bool
    profile: KafkaProfile
    """The profile `classic`."""
    diskless: QuickStartDiskless
    """The profile `diskless`."""
    postgres: Store
    """The catalog's database, and the coordinator of diskless brokers."""
    s3: Store
    """The warehouse s3://firn/warehouse, and records of diskless topics."""


class OperatorValues(Settings):
    """The operator's pod."""

    log_level: Literal["debug", "info", "warning", "error"]
    resync: Duration
    """Longest time between two reconciles of a resource."""
    progress_interval: Duration
    """Interval between two reads of an ingestion application's progress."""
    workers: int = Field(ge=1, le=64)
    """Number of reconciles that run at the same time."""
    writes_per_second: int = Field(ge=1, le=1000)
    """Most writes to the Kubernetes API per second, on average."""
    write_burst: int = Field(ge=1, le=10000)
    """Most writes to the Kubernetes API in a burst."""
    resources: Resources
    scheduling: Scheduling
    pod_annotations: dict[str, str]
    pod_labels: dict[str, str]
    environment: dict[str, str]
    """Environment variables."""


class ServiceAccount(Settings):
    """A ServiceAccount that the chart creates."""

    annotations: dict[str, str]
    """Annotations, such as eks.amazonaws.com/role-arn or iam.gke.io/gcp-service-account."""


class ServiceAccounts(Settings):
    """Workload identity."""

    operator: ServiceAccount
    """The operator: creates and changes tables."""
    ingest: ServiceAccount
    """Ingestion applications: write tables."""
    maintain: ServiceAccount
    """Maintenance runs: rewrite tables and delete their files."""
    broker: ServiceAccount
    """Diskless brokers: write, read and delete objects of their bucket."""


class Rbac(Settings):
    """Rights of users."""

    aggregate: bool
    """Add IcebergTopics and policies to the cluster's roles view, edit and admin."""


class NetworkPolicyValues(Settings):
    """NetworkPolicies of the operator, the ingestion applications and the bundled stores."""

    enabled: bool
    metrics_from: list[dict[str, Any]]
    """Peers in NetworkPolicy's form that may read metrics. Empty: all."""


class ServiceMonitor(Settings):
    """ServiceMonitors of the Prometheus Operator."""

    enabled: bool
    interval: str
    labels: dict[str, str]


class PrometheusRule(Settings):
    """Alerts for the Prometheus Operator."""

    enabled: bool
    labels: dict[str, str]
    lag_seconds: int = Field(ge=5)
    """Lag of a topic's table, in seconds, that raises an alert after ten minutes."""
    compaction_lag_seconds: int = Field(ge=60)
    """Compaction lag of a table, in seconds, that raises an alert after fifteen minutes."""
    runbook_url: str
    """Address of the alerts page; each alert links its section there. Empty: no links."""


class Metrics(Settings):
    """The Prometheus Operator's objects."""

    service_monitor: ServiceMonitor
    prometheus_rule: PrometheusRule


class PodDisruptionBudget(Settings):
    """Disruption budget of the operator's one pod."""

    enabled: bool
    max_unavailable: int = Field(ge=0, le=1)


class Values(Settings):
    """Values of the chart firn."""

    images: ImageValues
    crds: CrdValues
    watch_namespaces: list[KubernetesName]
    """Namespaces whose IcebergTopics and policies the operator manages. Empty: all."""
    default_profile: Name
    default_catalog: Name
    default_group: Name
    profiles: dict[Name, AnyProfile]
    """Brokers, by name. The quick start adds classic, and diskless if it is enabled there."""
    catalogs: dict[Name, Catalog]
    """Iceberg catalogs, by name. The quick start adds lake."""
    groups: dict[Name, IngestionGroup]
    maintenance: Maintenance
    quick_start: QuickStart
    operator: OperatorValues
    service_accounts: ServiceAccounts
    rbac: Rbac
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
