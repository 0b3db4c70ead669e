"""Limits of the configuration for each Kubernetes namespace: names, topic configs, table properties, partitions."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from firn.model.conditions import Reason
from firn.model.config import Config
from firn_controllers.cache.policies import Resolution, policy_entry
from firn_controllers.cache.topics import TopicCache, topic_entry
from firn_controllers.iceberg_topic import checks
from firn_controllers.iceberg_topic.failure import Failure
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from tests import gen

ROOT = Path(__file__).resolve().parents[3]


def limited(profile: dict[str, Any] | None = None, catalog: dict[str, Any] | None = None) -> Config:
    """Return the configuration with these limits of profile ``classic`` and catalog ``lake``."""
    lake = {"type": "sql", "uri": "postgresql://pg:5432/firn", "warehouse": "s3://firn/warehouse"}
    return gen.config(
        profiles={"classic": {"replicas": 3, "tenancy": profile or {}}},
        catalogs={"lake": {**lake, "tenancy": catalog or {}}},
    )


def failure(spec: dict[str, Any], config: Config, others: int = 0) -> Failure | None:
    return checks.first_failure(gen.observed(gen.topic(**spec), config, other_partitions=others))


OWN_NAMES = {"topicNames": ["{namespace}.*", "shared-*"]}
OWN_TABLES = {"tableNamespaces": ["{namespace}", "{namespace}_*"]}
RETENTION_ONLY = {"config": {"allow": ["retention.*", "max.message.bytes"], "deny": ["retention.bytes"]}}
LIMITS = {"config": {"max": {"max.message.bytes": "8Mi", "retention.ms": "7d", "segment.bytes": "1000"}}}


def documented_patterns() -> list[list[str]]:
    values = yaml.safe_load((ROOT / "charts/firn/values-production.yaml").read_text())
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs/how-to/production.md").read_text(), re.DOTALL)
    documents = [values, *(yaml.safe_load(block) for block in blocks)]
    catalogs = [each for document in documents for each in (document.get("catalogs") or {}).values()]
    tenancies = [each.get("tenancy") or {} for each in catalogs]
    return [each["tableNamespaces"] for each in tenancies if "tableNamespaces" in each]


def test_documented_limits_keep_a_namespace_out_of_the_tables_of_a_longer_name() -> None:
    found = documented_patterns()
    assert len(found) == 2, "the values for production and their page"
    for patterns in found:
        config = limited(None, {"tableNamespaces": patterns})
        assert failure({}, config) is None
        refusal = failure({"table": {"namespace": "demo_eu"}}, config)
        assert refusal is not None, "demo_eu is the default of the Kubernetes namespace demo-eu"
        assert refusal.reason is Reason.NOT_ALLOWED


@pytest.mark.parametrize(
    ("config", "spec", "field"),
    [
        (limited(OWN_NAMES), {"topicName": "finance.ledger"}, "spec.topicName"),
        (limited(OWN_NAMES), {}, "spec.topicName"),
        (limited(None, OWN_TABLES), {"table": {"namespace": "finance"}}, "spec.table.namespace"),
        (limited(None, OWN_TABLES), {"table": {"namespace": "demon"}}, "spec.table.namespace"),
        (limited(), {"table": {"properties": {"write.data.path": "s3://other"}}}, "write.data.path"),
        (limited(), {"table": {"properties": {"write.location-provider.impl": "Any"}}}, "write.location-provider.impl"),
        (limited(RETENTION_ONLY), {"config": {"cleanup.policy": "compact"}}, "cleanup.policy"),
        (limited(RETENTION_ONLY), {"config": {"retention.bytes": "1"}}, "retention.bytes"),
        (limited(LIMITS), {"config": {"max.message.bytes": "8388609"}}, "8Mi"),
        (limited(LIMITS), {"config": {"retention.ms": "604800001"}}, "7d"),
        (limited(LIMITS), {"config": {"retention.ms": "-1"}}, "7d"),
        (limited(LIMITS), {"config": {"segment.bytes": "1001"}}, "1000"),
        (limited({"partitionsPerNamespace": 2}), {"partitions": 3}, "spec.partitions"),
        (limited({"partitionsPerNamespace": 2}), {}, "spec.partitions"),
    ],
)
def test_a_spec_outside_its_namespaces_limits_is_refused(config: Config, spec: dict[str, Any], field: str) -> None:
    refusal = failure(spec, config)
    assert refusal is not None
    assert refusal.reason is Reason.NOT_ALLOWED
    assert field in refusal.message
    assert ".tenancy." in refusal.message


@pytest.mark.parametrize(
    ("config", "spec"),
    [
        (limited(OWN_NAMES), {"topicName": "demo.flights"}),
        (limited(OWN_NAMES), {"topicName": "shared-flights"}),
        (limited(None, OWN_TABLES), {"table": {"namespace": "demo_raw"}}),
        (limited(None, OWN_TABLES), {}),
        (limited(None, {"properties": {}}), {"table": {"properties": {"write.data.path": "s3://other"}}}),
        (limited(), {"table": {"properties": {"write.target-file-size-bytes": "1"}}}),
        (limited(RETENTION_ONLY), {"config": {"retention.ms": "-1"}}),
        (limited(LIMITS), {"config": {"max.message.bytes": "8388608", "retention.ms": "604800000"}}),
        (limited({"partitionsPerNamespace": 3}), {}),
        (limited(), {"topicName": "finance.ledger", "table": {"namespace": "finance"}}),
    ],
)
def test_a_spec_within_its_namespaces_limits_passes(config: Config, spec: dict[str, Any]) -> None:
    assert failure(spec, config) is None


def test_a_namespace_with_a_hyphen_may_use_its_default_table_namespace() -> None:
    observed = gen.observed(gen.topic(namespace="team-a"), limited(None, OWN_TABLES))
    assert checks.first_failure(observed) is None


def test_a_retention_policy_is_limited_like_the_spec() -> None:
    policy = gen.policy(kind="RetentionPolicy", selector={}, mode="Enforce", log={"maxAge": "8d"})
    config = limited(LIMITS)
    binding = PolicyBinding(Resolution(policy_entry(policy, config), "Selected"))
    maintenance = TopicMaintenance({"RetentionPolicy": binding})
    refusal = checks.first_failure(gen.observed(gen.topic(), config, maintenance=maintenance))
    assert refusal is not None
    assert "RetentionPolicy" in refusal.message


def test_partitions_of_a_namespace_are_counted_together() -> None:
    config = limited({"partitionsPerNamespace": 5})
    assert failure({}, config, others=2) is None
    refusal = failure({}, config, others=3)
    assert refusal is not None
    assert "have 3, and this topic asks for 3" in refusal.message


def test_a_topic_keeps_the_partitions_that_it_has() -> None:
    """A lower limit does not refuse what exists."""
    config = limited({"partitionsPerNamespace": 1})
    topic = gen.topic(partitions=4)
    topic["status"]["partitions"] = 4
    assert checks.first_failure(gen.observed(topic, config, other_partitions=9)) is None
    topic["spec"]["partitions"] = 5
    assert checks.first_failure(gen.observed(topic, config, other_partitions=9)) is not None


def test_older_topics_count_with_what_they_ask_for_and_younger_ones_with_what_they_have() -> None:
    config = gen.config()
    topics = TopicCache()

    def put(name: str, day: int, **spec: Any) -> None:
        live = spec.pop("live", None)
        manifest = gen.topic(name, **spec)
        manifest["metadata"]["creationTimestamp"] = f"2026-03-{day:02}T10:00:00Z"
        if live is not None:
            manifest["status"]["partitions"] = live
        topics.put(topic_entry(manifest, config))

    put("older", 1, partitions=7)
    put("older-and-default", 2)
    put("this", 3, partitions=50)
    put("younger", 4, partitions=100)
    put("younger-and-live", 5, partitions=100, live=20)
    put("elsewhere", 1, profile="outside", partitions=1000)
    this = topics.get(("demo", "this"))
    assert this is not None
    assert topics.other_partitions(this, 3) == 7 + 3 + 20


def test_topics_of_brokers_without_topic_ids_are_no_rivals() -> None:
    claims = []
    for name in ("first", "second"):
        manifest = gen.topic(name)
        manifest["status"]["topicId"] = "A" * 22
        claims.append(set(topic_entry(manifest, gen.config()).topic_claims))
    assert not claims[0] & claims[1]


@pytest.mark.parametrize("text", ["much", "1.5", "8MB", ""])
def test_a_limit_without_a_number_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="limit"):
        limited({"config": {"max": {"retention.ms": text}}})
