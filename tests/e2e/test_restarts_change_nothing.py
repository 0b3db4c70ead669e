"""An operator that dies, is upgraded with the same values or looks again writes nothing that was right already."""

import json

import quickstart
from quickstart import SYSTEM, apply, await_until, kubectl
from topics import VALUES, await_ready, topic_manifest


def versions(namespace: str) -> dict[str, str]:
    """resourceVersion of the topics, and generation or uid of every workload, pod and contract of the system namespace."""
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


def settled(before: dict[str, str], namespace: str) -> None:
    """The operator has reconciled everything again after its start, and nothing differs."""
    await_until(
        "the operator is ready again",
        lambda: (
            "True"
            in kubectl(
                "-n",
                SYSTEM,
                "get",
                "deploy",
                "firn-operator",
                "-o",
                "jsonpath={.status.conditions[?(@.type=='Available')].status}",
            )
        ),
    )
    path = f"/api/v1/namespaces/{SYSTEM}/services/firn-operator:metrics/proxy/metrics"

    def reconciled() -> bool:
        text = kubectl("get", "--raw", path, check=False)
        counts = [
            float(line.split()[-1]) for line in text.splitlines() if line.startswith("firn_reconcile_seconds_count")
        ]
        return sum(counts) >= 3

    await_until("the operator has reconciled again", reconciled)
    after = versions(namespace)
    assert after == before


def test_a_killed_operator_comes_back_and_changes_nothing(namespace: str) -> None:
    apply(topic_manifest("steady", namespace))
    await_ready("steady", namespace)
    before = await_stable(namespace)
    kubectl("-n", SYSTEM, "delete", "pod", operator_pod(), "--grace-period=0", "--force")
    settled(before, namespace)


def test_an_upgrade_with_the_same_values_restarts_no_workload(namespace: str) -> None:
    apply(topic_manifest("steady", namespace))
    await_ready("steady", namespace)
    before = await_stable(namespace)
    quickstart.install(VALUES)
    settled(before, namespace)


def await_stable(namespace: str) -> dict[str, str]:
    """Versions once two looks, some reconciles apart, agree."""
    last: dict[str, str] = {}

    def look() -> dict[str, str] | None:
        nonlocal last
        now = versions(namespace)
        same, last = now == last, now
        return now if same else None

    return await_until("two looks agree", look, timeout=60, every=6)
