"""Policies as the stories use them: manifests, requests, and waiting for what became of runs."""

import json
from collections.abc import Callable
from typing import Any

from hack import quickstart
from hack.quickstart import Manifest, await_until, get, kubectl

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
KINDS = {"CompactionPolicy": "compactionpolicy", "RetentionPolicy": "retentionpolicy"}
SECTIONS = {"CompactionPolicy": "compaction", "RetentionPolicy": "retention"}
AT_ONCE: dict[str, Any] = {"openGrace": "1ms", "targetFileSize": "16Mi"}
"""Compaction that leaves nothing to the writer."""


def policy(kind: str, name: str, namespace: str, **spec: Any) -> Manifest:
    """A policy."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "firn.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


def run_now(kind: str, name: str, namespace: str, value: str) -> None:
    """Ask for a run, of a topic or of all that a policy governs."""
    kubectl("-n", namespace, "annotate", "--overwrite", kind, name, f"firn.dev/run-now={value}")


def last_run(topic: str, namespace: str, kind: str) -> Manifest | None:
    """Return the result of the topic's last run under a policy of this kind."""
    status = (get("icebergtopic", topic, namespace) or {}).get("status", {})
    found: Manifest | None = status.get("maintenance", {}).get(SECTIONS[kind], {}).get("lastRun")
    return found


def await_run(
    topic: str, namespace: str, kind: str, such: Callable[[Manifest], bool] = lambda run: True, timeout: float = 240
) -> Manifest:
    """The topic's last run once it is one ``such``; fails with the status of the topic's maintenance and the Jobs instead."""

    def look() -> Manifest | None:
        run = last_run(topic, namespace, kind)
        return run if run is not None and such(run) else None

    try:
        return await_until(f"a run of {namespace}/{topic} by a {kind}", look, timeout, every=1)
    except TimeoutError as error:
        status = (get("icebergtopic", topic, namespace) or {}).get("status", {})
        jobs = kubectl("-n", quickstart.SYSTEM, "get", "jobs,pods", "-l", "firn.dev/run", "-o", "wide")
        told = json.dumps(status.get("maintenance"), indent=1)
        raise AssertionError(f"{error}; maintenance: {told}; runs:\n{jobs}") from None


def runs_of(name: str, namespace: str) -> list[Manifest]:
    """Jobs of the policies of this name."""
    selector = f"firn.dev/policy={name},firn.dev/policy-namespace={namespace}"
    text = kubectl("-n", quickstart.SYSTEM, "get", "jobs", "-l", selector, "-o", "json")
    found: list[Manifest] = json.loads(text)["items"]
    return found
