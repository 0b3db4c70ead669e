"""Manifests of policies, requests for runs, and waiting for the results of runs."""

import json
from collections.abc import Callable
from typing import Any

from hack import quickstart
from hack.quickstart import Manifest, await_until, get, kubectl

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
KINDS = {"CompactionPolicy": "compactionpolicy", "RetentionPolicy": "retentionpolicy"}
SECTIONS = {"CompactionPolicy": "compaction", "RetentionPolicy": "retention"}
AT_ONCE: dict[str, Any] = {"openGrace": "1ms", "targetFileSize": "16Mi"}
"""A compaction that takes young files, too."""


def policy(kind: str, name: str, namespace: str, **spec: Any) -> Manifest:
    """Return the manifest of a policy."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "firn.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def run_now(kind: str, name: str, namespace: str, value: str) -> None:
    """Request a run of a topic, or of all topics that a policy governs."""
    kubectl("-n", namespace, "annotate", "--overwrite", kind, name, f"firn.dev/run-now={value}")


def last_run(topic: str, namespace: str, kind: str) -> Manifest | None:
    """Return the result of the topic's last run under a policy of this kind."""
    status = (get("icebergtopic", topic, namespace) or {}).get("status", {})
    run: Manifest | None = status.get("maintenance", {}).get(SECTIONS[kind], {}).get("lastRun")
    return run


def await_run(
    topic: str, namespace: str, kind: str, such: Callable[[Manifest], bool] = lambda run: True, timeout: float = 240
) -> Manifest:
    """Return the last run of the topic after it satisfies ``such``.

    Fails with the maintenance status of the topic and the Jobs."""

    def matching_run() -> Manifest | None:
        run = last_run(topic, namespace, kind)
        return run if run is not None and such(run) else None

    try:
        return await_until(f"a run of {namespace}/{topic} by a {kind}", matching_run, timeout, every=1)
    except TimeoutError as error:
        status = (get("icebergtopic", topic, namespace) or {}).get("status", {})
        jobs = kubectl("-n", quickstart.SYSTEM, "get", "jobs,pods", "-l", "firn.dev/run", "-o", "wide")
        maintenance = json.dumps(status.get("maintenance"), indent=1)
        raise AssertionError(f"{error}; maintenance: {maintenance}; runs:\n{jobs}") from None


def runs_of(name: str, namespace: str) -> list[Manifest]:
    """Return the Jobs of the policies with this name."""
    selector = f"firn.dev/policy={name},firn.dev/policy-namespace={namespace}"
    text = kubectl("-n", quickstart.SYSTEM, "get", "jobs", "-l", selector, "-o", "json")
    jobs: list[Manifest] = json.loads(text)["items"]
    return jobs
