"""Each state has its condition, and one failing resource stops no other."""

from typing import Any

import pytest

from hack.quickstart import apply, conditions, get, kubectl
from tests.e2e.topics import await_condition, await_ready, topic_manifest

FIELDS = [{"name": "id", "type": "long"}]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        pytest.param({"profile": "nope"}, "ProfileNotFound", id="an unknown profile"),
        pytest.param({"ingestion": {"group": "nope"}}, "GroupNotFound", id="an unknown group"),
        pytest.param({"table": {"catalog": "nope"}}, "CatalogNotFound", id="an unknown catalog"),
        pytest.param(
            {"schema": {"format": "Json", "fields": [{"name": "a", "type": "strin"}]}},
            "BadSchema",
            id="an unknown type",
        ),
        pytest.param(
            {"table": {"partitionBy": ["month(id)"]}}, "BadTransform", id="a transform that does not fit its column"
        ),
        pytest.param({"table": {"partitionBy": ["bucket(4, nope)"]}}, "UnknownColumn", id="a missing column"),
        pytest.param({"config": {"no.such.config": "1"}}, "BadTopicConfig", id="a config that Kafka rejects"),
    ],
)
def test_a_condition_reports_an_invalid_spec(namespace: str, spec: dict[str, Any], reason: str) -> None:
    apply(topic_manifest("bad", namespace, **spec))
    topic = await_condition("bad", namespace, "SpecValid", "False", reason)
    assert conditions(topic)["Ready"]["status"] == "False"
    assert topic["status"]["observedGeneration"] == topic["metadata"]["generation"]


def test_the_older_of_two_resources_keeps_the_topic(namespace: str) -> None:
    apply(topic_manifest("first", namespace, topicName=f"{namespace}.shared"))
    await_ready("first", namespace)
    apply(topic_manifest("second", namespace, topicName=f"{namespace}.shared"))
    second = await_condition("second", namespace, "Ready", "False", "ResourceConflict")
    assert f"{namespace}/first" in conditions(second)["SpecValid"]["message"]
    kubectl("-n", namespace, "delete", "icebergtopic", "second", "--timeout=60s")
    first = await_ready("first", namespace)
    assert first["status"]["topicId"]
    kubectl("-n", namespace, "delete", "icebergtopic", "first", "--timeout=60s")


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        ("unpullable", "ImagePullFailed"),
        ("oversized", "Unschedulable"),
        ("starved", "OutOfMemory"),
        ("crowded", "Unschedulable"),
    ],
)
def test_a_condition_reports_why_a_driver_or_executor_does_not_run(namespace: str, group: str, reason: str) -> None:
    apply(topic_manifest("waiting", namespace, ingestion={"group": group, "freshness": "5s"}))
    topic = await_condition("waiting", namespace, "IngestionReady", "False", reason, timeout=180)
    by_type = conditions(topic)
    assert by_type["TopicReady"]["status"] == "True"
    assert by_type["TableReady"]["status"] == "True"


def test_conditions_report_silent_brokers_and_catalogs(namespace: str) -> None:
    apply(topic_manifest("no-broker", namespace, profile="absent"))
    apply(topic_manifest("no-catalog", namespace, table={"catalog": "down"}))
    await_condition("no-broker", namespace, "TopicReady", "False", "BrokerUnreachable")
    no_catalog = await_condition("no-catalog", namespace, "TableReady", "False", "CatalogUnreachable")
    assert conditions(no_catalog)["TopicReady"]["status"] == "True"
    apply(topic_manifest("good", namespace))
    await_ready("good", namespace)


def test_suspended_and_paused_topics_have_different_conditions(namespace: str) -> None:
    apply(topic_manifest("quiet", namespace, suspend=True))
    await_condition("quiet", namespace, "Ready", "False", "Suspended")
    kubectl("-n", namespace, "annotate", "icebergtopic", "quiet", "firn.dev/pause-reconciliation=true")
    await_condition("quiet", namespace, "Paused", "True", "PausedByAnnotation")
    apply(topic_manifest("quiet", namespace, suspend=False))
    kubectl("-n", namespace, "annotate", "icebergtopic", "quiet", "firn.dev/pause-reconciliation-")
    topic = await_ready("quiet", namespace)
    assert "Paused" not in conditions(topic)


def test_the_api_server_rejects_fewer_partitions(namespace: str) -> None:
    apply(topic_manifest("narrow", namespace, partitions=3))
    await_ready("narrow", namespace)
    with pytest.raises(RuntimeError, match="partitions"):
        apply(topic_manifest("narrow", namespace, partitions=2))
    live = get("icebergtopic", "narrow", namespace)
    assert live is not None
    assert live["spec"]["partitions"] == 3
