"""A deletion keeps data unless the manifest wants it deleted, and a condition reports a blocked deletion."""

import pytest

from hack import quickstart
from hack.quickstart import apply, await_until, conditions, get, kubectl
from tests.e2e.topics import Produce, await_condition, await_ready, await_rows, numbered, rows, topic_manifest


def test_a_retained_topic_is_adopted_and_continues_at_its_offsets(namespace: str, produce: Produce) -> None:
    manifest = topic_manifest("kept", namespace)
    apply(manifest)
    topic = await_ready("kept", namespace)
    table = topic["status"]["table"]["identifier"]
    produce(topic, numbered(0, 50))
    await_rows(table, 50)
    kubectl("-n", namespace, "delete", "icebergtopic", "kept", "--timeout=60s")
    uid = topic["metadata"]["uid"]
    await_until("the job contract is deleted", lambda: get("configmap", f"firn-job-{uid}") is None)
    produce(topic, numbered(50, 50))
    apply(manifest)
    again = await_condition("kept", namespace, "TableReady", "True", "Adopted")
    assert again["status"]["topicId"] == topic["status"]["topicId"]
    await_rows(table, 100)
    assert rows(f"select count(distinct id) as n from {table}") == [{"n": 100}]


def test_the_delete_policy_removes_topic_and_table(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("gone", namespace, deletionPolicy={"topic": "Delete", "table": "Delete"}))
    topic = await_ready("gone", namespace)
    produce(topic, numbered(0, 5))
    table = topic["status"]["table"]["identifier"]
    await_rows(table, 5)
    kubectl("-n", namespace, "delete", "icebergtopic", "gone", "--timeout=120s")
    with pytest.raises(RuntimeError, match=r"(?i)not exist|not found|no such"):
        quickstart.firn("sql", f"select count(*) from {table}")
    apply(topic_manifest("gone", namespace))
    fresh = await_ready("gone", namespace)
    assert fresh["status"]["topicId"] != topic["status"]["topicId"]


def test_a_deletion_without_brokers_is_blocked_and_can_be_forced(namespace: str) -> None:
    apply(topic_manifest("stuck", namespace, profile="absent", deletionPolicy={"topic": "Delete", "table": "Retain"}))
    await_condition("stuck", namespace, "TopicReady", "False", "BrokerUnreachable")
    kubectl("-n", namespace, "delete", "icebergtopic", "stuck", "--wait=false")
    blocked = await_until(
        "a condition reports the blocked deletion",
        lambda: conditions(get("icebergtopic", "stuck", namespace)).get("DeletionBlocked"),
    )
    assert blocked["reason"] == "BrokerUnreachable"
    assert "firn.dev/allow-forced-deletion" in blocked["message"]
    kubectl("-n", namespace, "annotate", "icebergtopic", "stuck", "firn.dev/allow-forced-deletion=true")
    await_until("the resource is deleted", lambda: get("icebergtopic", "stuck", namespace) is None)
