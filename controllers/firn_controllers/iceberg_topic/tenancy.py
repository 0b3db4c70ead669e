"""Checks of a spec against the limits that the configuration sets for each Kubernetes namespace.

A limit that a later configuration sets refuses specs, and does not stop ingestion. `firn.model.config` has the limits.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Protocol

from firn.model import names
from firn.model.conditions import Reason
from firn.model.config import Allowance, ConfigAllowance, limit, matches
from firn.model.jobs import TableTarget
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.iceberg_topic.observed import ObservedTopic

_ADOPTABLE_TOPICS = {"Owned": "only topics that it made", "Never": "no existing topic"}
_ADOPTABLE_TABLES = {"Owned": "only its own tables", "Never": "no existing table"}


def topic_name_allowed(observed: ObservedTopic) -> Failure | None:
    """Check that the namespace may use the name of the Kafka topic."""
    profile, name = observed.entry.profile, observed.resource.topic_name
    allowed = _patterns(observed.config.profiles[profile].tenancy.topic_names, observed.entry.name[0])
    if not allowed or matches(name, allowed):
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"spec.topicName: namespace {observed.entry.name[0]} may not use the topic name {name} in profile {profile}; allowed are"
        f" {', '.join(allowed)}; create this IcebergTopic again with an allowed name, or change"
        f" profiles.{profile}.tenancy.topicNames in the operator's configuration",
    )


def table_namespace_allowed(observed: ObservedTopic) -> Failure | None:
    """Check that the Kubernetes namespace may use the table's namespace."""
    target = observed.target
    if not isinstance(target, TableTarget):
        return None
    namespace = default_table_namespace(observed)
    allowed = _patterns(observed.config.catalogs[target.catalog].tenancy.table_namespaces, namespace)
    if not allowed or matches(target.namespace, allowed):
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"spec.table.namespace: namespace {observed.entry.name[0]} may not use the table namespace {target.namespace} in catalog"
        f" {target.catalog}; allowed are {', '.join(allowed)}; create this IcebergTopic again with an allowed table.namespace, or"
        f" change catalogs.{target.catalog}.tenancy.tableNamespaces in the operator's configuration",
    )


class Maker(Protocol):
    """The resource that made a Kafka topic."""

    @property
    def namespace(self) -> str:
        """Return the namespace of the resource."""
        ...

    @property
    def uid(self) -> str:
        """Return the uid of the resource."""
        ...


def topic_adoption_allowed(observed: ObservedTopic, maker: Maker | None, *, landed: bool = False) -> Failure | None:
    """Check that a new resource may have a Kafka topic that exists.

    ``maker``: the resource that made the topic, if known. ``landed``: records of the topic are in the resource's table.
    """
    namespace, profile = observed.entry.name[0], observed.entry.profile
    rule = observed.config.profiles[profile].tenancy.adopt
    made = landed or (maker is not None and maker.namespace == namespace)
    if rule == "Any" or (rule == "Owned" and made) or (maker is not None and maker.uid == observed.entry.uid):
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"Kafka topic {observed.resource.topic_name} exists already, and in profile {profile} namespace {namespace} may adopt"
        f" {_ADOPTABLE_TOPICS[rule]}; create this IcebergTopic again with another topicName, delete the Kafka topic, or set"
        f" profiles.{profile}.tenancy.adopt to Any in the operator's configuration",
    )


def table_adoption_allowed(observed: ObservedTopic, target: TableTarget, tenant: str) -> Failure | None:
    """Check that a new resource may adopt a table that exists and does not consent.

    ``tenant``: the Kubernetes namespace of the table; empty if it has none.
    """
    namespace, name = observed.entry.name
    rule = observed.config.catalogs[target.catalog].tenancy.adopt
    if rule == "Any" or (rule == "Owned" and tenant == namespace):
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"table {target.identifier} exists already, and in catalog {target.catalog} namespace {namespace} may adopt"
        f" {_ADOPTABLE_TABLES[rule]}; create this IcebergTopic again with another table.name, set the table property"
        f" {names.TABLE_ADOPT} to {namespace}/{name}, or set catalogs.{target.catalog}.tenancy.adopt to Any in the operator's"
        " configuration",
    )


def topic_configs_allowed(observed: ObservedTopic) -> Failure | None:
    """Check the topic configs that the spec and the RetentionPolicy set."""
    profile = observed.entry.profile
    allowance, spec = observed.config.profiles[profile].tenancy.config, observed.resource.spec.config
    of_policy = {key: value for key, value in observed.log_retention.configs.items() if key not in spec}
    for key, value in chain(spec.items(), of_policy.items()):
        field = "spec.config" if key in spec else "spec.log of the RetentionPolicy"
        if not allowance.permits(key):
            return Failure(
                Reason.NOT_ALLOWED,
                f"{field}: profile {profile} does not allow the topic config {key}; remove it, or change"
                f" profiles.{profile}.tenancy.config in the operator's configuration",
            )
        if _exceeds(allowance, key, value):
            return Failure(
                Reason.NOT_ALLOWED,
                f"{field}: {key}={value} is more than profile {profile} allows, which is {allowance.max[key]}; lower it, or change"
                f" profiles.{profile}.tenancy.config.max in the operator's configuration",
            )
    return None


def table_properties_allowed(observed: ObservedTopic) -> Failure | None:
    """Check the table properties that the spec sets."""
    target = observed.target
    if not isinstance(target, TableTarget):
        return None
    refused = _refused(observed.config.catalogs[target.catalog].tenancy.properties, target.properties)
    if refused is None:
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"spec.table.properties: catalog {target.catalog} does not allow {refused}; remove it, or change"
        f" catalogs.{target.catalog}.tenancy.properties in the operator's configuration",
    )


def partitions_allowed(observed: ObservedTopic) -> Failure | None:
    """Check that the topics of the namespace do not have too many partitions together."""
    namespace, profile = observed.entry.name[0], observed.entry.profile
    configured = observed.config.profiles[profile]
    allowed, others = configured.tenancy.partitions_per_namespace, observed.other_partitions
    wanted = observed.entry.partitions(configured.default_partitions)
    if (
        allowed is None
        or observed.entry.parent is not None
        or wanted <= observed.entry.live_partitions
        or others + wanted <= allowed
    ):
        return None
    return Failure(
        Reason.NOT_ALLOWED,
        f"spec.partitions: the topics of namespace {namespace} may have {allowed} partitions in profile {profile}; its"
        f" other topics have {others}, and this topic asks for {wanted}; lower partitions, delete a topic, or change"
        f" profiles.{profile}.tenancy.partitionsPerNamespace in the operator's configuration",
    )


def default_table_namespace(observed: ObservedTopic) -> str:
    """Return the default of spec.table.namespace. No other Kubernetes namespace has the same."""
    return observed.entry.name[0].replace("-", "_")


def _patterns(patterns: list[str], namespace: str) -> list[str]:
    return [pattern.replace("{namespace}", namespace) for pattern in patterns]


def _refused(allowance: Allowance, names: Mapping[str, str]) -> str | None:
    return next((name for name in sorted(names) if not allowance.permits(name)), None)


def _exceeds(allowance: ConfigAllowance, key: str, value: str) -> bool:
    """Return whether a config is above its limit. Brokers judge values that are no numbers."""
    if key not in allowance.max:
        return False
    try:
        number = int(value)
    except ValueError:
        return False
    # Kafka's -1 means without limit.
    return number < 0 or number > limit(allowance.max[key])
