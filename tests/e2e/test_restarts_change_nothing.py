"""An operator that restarts, is upgraded with the same values, or reconciles again changes nothing."""

import json
from pathlib import Path

import pytest

from hack import quickstart
from hack.quickstart import SYSTEM, apply, await_until, kubectl
from tests.e2e.brokers import await_rolled, uids
from tests.e2e.topics import VALUES, Produce, await_ready, await_rows, numbered, topic_manifest

BROKER = "firn.dev/profile=classic,app.kubernetes.io/component=broker"


def versions(namespace: str) -> dict[str, str]:
    """Return the resourceVersion of the topics, and generation or uid of every workload, pod and contract of the
    system namespace."""
    seen = {}
    for item in json.loads(kubectl("-n", namespace, "get", "icebergtopics", "-o", "json"))["items"]:
        seen[f"topic/{item['metadata']['name']}"] = item["metadata"]["resourceVersion"]
    selector = "app.kubernetes.io/managed-by=firn"
    kinds = "statefulsets,services,poddisruptionbudgets,pods,configmaps"
    for item in json.loads(kubectl("-n", SYSTEM, "get", kinds, "-l", selector, "-o", "json"))["items"]:
        meta = item["metadata"]
        key = f"{item['kind']}/{meta['name']}"
        seen[key] = (
            f"{meta['uid']} {meta.get('generation')} {meta['resourceVersion'] if item['kind'] == 'ConfigMap' else ''}"
        )
    return seen


def operator_pod() -> str:
    selector = "app.kubernetes.io/name=firn,app.kubernetes.io/component=operator"
    return kubectl("-n", SYSTEM, "get", "pods", "-l", selector, "-o", "jsonpath={.items[0].metadata.name}")


def reconciles() -> tuple[float, float]:
    """Return the start time of the operator process and the number of topic reconciles since. Zeros while it does
    not answer."""
    path = f"/api/v1/namespaces/{SYSTEM}/services/firn-operator:metrics/proxy/metrics"
    lines = quickstart.read(path)[1].decode().splitlines()

    def value(start: str) -> float:
        return next((float(line.split()[-1]) for line in lines if line.startswith(start)), 0.0)

    return value("process_start_time_seconds"), value('firn_reconcile_seconds_count{kind="topic"}')


def settled(before: dict[str, str], reconciled: tuple[float, float], namespace: str) -> None:
    """Wait until every topic was reconciled again, and check that no version changed."""
    topics = len(kubectl("get", "icebergtopics", "-A", "-o", "name").split())
    began, count = reconciled

    def again() -> bool:
        began_now, count_now = reconciles()
        return count_now >= topics + (count if began_now == began else 0)

    await_until("the operator has reconciled every topic again", again, timeout=180)
    assert versions(namespace) == before


def test_a_killed_operator_restarts_and_changes_nothing(namespace: str) -> None:
    apply(topic_manifest("steady", namespace))
    await_ready("steady", namespace)
    before, reconciled = await_stable(namespace), reconciles()
    kubectl("-n", SYSTEM, "delete", "pod", operator_pod(), "--grace-period=0", "--force")
    settled(before, reconciled, namespace)


def test_an_upgrade_with_the_same_values_restarts_no_workload(namespace: str) -> None:
    apply(topic_manifest("steady", namespace))
    await_ready("steady", namespace)
    before, reconciled = await_stable(namespace), reconciles()
    quickstart.install(VALUES)
    settled(before, reconciled, namespace)


def await_stable(namespace: str) -> dict[str, str]:
    """Return the versions after two reads, some reconciles apart, agree."""
    last: dict[str, str] = {}

    def stable_versions() -> dict[str, str] | None:
        nonlocal last
        now = versions(namespace)
        same, last = now == last, now
        return now if same else None

    return await_until("two reads agree", stable_versions, timeout=60, every=6)


@pytest.mark.long
def test_a_changed_broker_setting_restarts_only_the_brokers(namespace: str, produce: Produce, tmp_path: Path) -> None:
    apply(topic_manifest("steady", namespace))
    topic = await_ready("steady", namespace)
    produce(topic, numbered(0, 100))
    broker, driver = uids(BROKER), uids("firn.dev/group=default")
    changed = tmp_path / "values.yaml"
    changed.write_text("quickStart: {profile: {config: {num.io.threads: '5'}}}")
    try:
        quickstart.install(VALUES, changed)
        await_rolled("firn-broker-classic", 1)
        assert uids(BROKER) != broker
        assert uids("firn.dev/group=default") == driver
        config = kubectl("-n", SYSTEM, "exec", "firn-broker-classic-0", "--", "cat", "/tmp/server.properties")
        assert "num.io.threads=5" in config.splitlines()
        produce(topic, numbered(100, 100))
        await_rows(topic["status"]["table"]["identifier"], 200)
    finally:
        quickstart.install(VALUES)
        await_rolled("firn-broker-classic", 1)
