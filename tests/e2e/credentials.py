"""Search logs, Events, objects and argument lists for the credentials that the tests have created."""

import base64
import json
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hack import quickstart

SECRET_KEYS = ("password", "secret-key", "token", "tls.key", "ca.key", "client-secret")
"""Keys of Secrets whose values are secret. The other keys contain names, addresses, certificates, or these values."""
SHORTEST = 12
"""Characters of a credential. Shorter ones could be in a text by accident."""
KINDS = (
    "/api/v1/configmaps", "/api/v1/events", "/api/v1/pods", "/api/v1/services", "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs", "/apis/coordination.k8s.io/v1/leases",
    *(f"/apis/firn.dev/v1alpha1/{kind}" for kind in (
        "icebergtopics", "topicusers", "topicgrants", "topicsets", "deadletterreplays", "compactionpolicies",
        "retentionpolicies",
    )),
)  # fmt: skip


class Collector:
    """Collects the credentials in all Secrets of the cluster while tests run, because tests delete their Secrets."""

    def __init__(self) -> None:
        self.found: set[str] = set()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="credentials", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._end.set()
        self._thread.join(60)

    def look(self) -> None:
        """Add the credentials of the Secrets that exist now."""
        for secret in _items("/api/v1/secrets"):
            if secret["type"] not in ("Opaque", "kubernetes.io/tls"):
                continue
            for key, value in (secret.get("data") or {}).items():
                text = base64.b64decode(value).decode(errors="replace").strip()
                if key.endswith(SECRET_KEYS) and len(text) >= SHORTEST:
                    self.found.add(text)

    def _run(self) -> None:
        while not self._end.wait(2):
            self.look()


COLLECTOR = Collector()


def places_with(values: Iterable[str]) -> set[str]:
    """Return the places whose text contains one of the values, also in base64: objects, logs, and processes."""
    wanted = [form for value in values for form in _forms(value)]
    return {place for place, text in _texts() if any(form in text for form in wanted)}


def _forms(value: str) -> Iterator[str]:
    """Yield a value as it is, in JSON, and in base64. A key in PEM is searched by a line of its body."""
    if value.startswith("-----BEGIN"):
        value = value.splitlines()[1]
    yield value
    yield json.dumps(value)[1:-1]
    yield base64.b64encode(value.encode()).decode().rstrip("=")[:-1]


def _texts() -> Iterator[tuple[str, str]]:
    for path in KINDS:
        for item in _items(path):
            metadata = item["metadata"]
            yield f"{path.rpartition('/')[2]} {metadata['namespace']}/{metadata['name']}", json.dumps(item)
    for pod in _items("/api/v1/pods"):
        yield from _logs(pod)
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield f"process {process.parent.name}", process.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # The process has ended.
            continue


def _logs(pod: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the logs of a pod's containers, of this run and of the one before."""
    namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
    spec = pod["spec"]
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        for previous in ("false", "true"):
            path = f"/api/v1/namespaces/{namespace}/pods/{name}/log?container={container['name']}&previous={previous}"
            code, body = quickstart.read(path)
            if code == 200:
                yield f"log {namespace}/{name}", body.decode(errors="replace")


def _items(path: str) -> list[dict[str, Any]]:
    code, body = quickstart.read(path)
    assert code == 200, f"GET {path}: {code}"
    items: list[dict[str, Any]] = json.loads(body)["items"]
    return items
