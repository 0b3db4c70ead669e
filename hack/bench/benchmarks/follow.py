"""Measure the delay of the condition Ready after changes in Kubernetes.

The benchmark kills the pod of the ingestion driver, then the pod of the broker, and each pod returns. The goal is 15 s. Watches of this
process record the times of both cause and effect, so the figures show the delay of the operator alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from kubernetes import client, config, watch
from urllib3.exceptions import HTTPError

from firn.model import names
from hack import quickstart
from hack.bench.benchmarks.scale import PLURAL, Cluster, topic
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.support.progress import step
from tests.servers.process import await_true

NAMESPACE = "bench-follow"
ROUNDS = 3
DRIVER, BROKER = "firn-ingest-default-0", "firn-broker-classic-0"
WITHIN = 300.0


class States:
    """Times at which a watch saw a value become True or False; each change once."""

    def __init__(
        self, is_true: Callable[[Any], bool], lister: Callable[..., Any], *arguments: str, **options: str
    ) -> None:
        self._is_true = is_true
        self._list = lister
        self._arguments, self._options = arguments, options
        self.changes: list[tuple[float, bool]] = []
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while True:
            with suppress(client.ApiException, HTTPError, OSError):
                for event in watch.Watch().stream(self._list, *self._arguments, **self._options, timeout_seconds=600):
                    now = event["type"] != "DELETED" and self._is_true(event["raw_object"])
                    if not self.changes or self.changes[-1][1] != now:
                        self.changes.append((time.time(), now))

    def since(self, moment: float, value: bool) -> float | None:
        """Return the first time at ``moment`` or later with this value, None if the value has not had it yet."""
        return next((at for at, now in self.changes if at >= moment and now == value), None)

    def await_since(self, description: str, moment: float, value: bool) -> float:
        """Wait until `since` has a result, and return it."""
        await_true(description, lambda: self.since(moment, value) is not None, WITHIN)
        seconds = self.since(moment, value)
        assert seconds is not None
        return seconds


def pod_ready(pod: dict[str, Any]) -> bool:
    """Return True if the kubelet reports the pod ready and the pod is not being deleted."""
    conditions = pod.get("status", {}).get("conditions", ())
    statuses = {condition["type"]: condition["status"] for condition in conditions}
    return statuses.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


def measure(options: Options) -> Iterator[Figure]:
    """Kill each of the two pods several times. Figures are the longest times."""
    with step("the quick-start release"):
        quickstart.cluster_up()
        quickstart.install()
    config.load_kube_config(str(quickstart.STATE / "kubeconfig"))
    core, objects = client.CoreV1Api(), client.CustomObjectsApi()
    cluster = Cluster(NAMESPACE)
    with cluster.namespace():
        cluster.create(topic("followed", NAMESPACE))
        ready = States(
            quickstart.is_ready, objects.list_namespaced_custom_object, names.GROUP, names.VERSION, NAMESPACE, PLURAL
        )
        with step("creating a topic, so that broker and driver run"):
            ready.await_since("the topic is Ready", 0, True)
        for component, pod in (("driver", DRIVER), ("broker", BROKER)):
            gone, back = [], []
            for number in range(ROUNDS):
                shown = States(
                    pod_ready, core.list_namespaced_pod, quickstart.SYSTEM, field_selector=f"metadata.name={pod}"
                )
                shown.await_since(f"{pod} is ready", 0, True)
                started = time.time()
                with step(f"killing {pod}, {number + 1} of {ROUNDS}"):
                    quickstart.kubectl("-n", quickstart.SYSTEM, "delete", "pod", pod, "--grace-period=0", "--force")
                    down = shown.await_since(f"{pod} is gone", started, False)
                    up = shown.await_since(f"{pod} is ready again", down, True)
                    reported = ready.since(down, False)
                    if reported is None and not ready.changes[-1][1]:
                        reported = down
                    if reported is not None:
                        gone.append(reported - down)
                        back.append(max(0.0, ready.await_since("the topic is Ready again", reported, True) - up))
            if gone:
                yield Figure(f"follow_{component}_gone", max(gone), "s from pod to Ready=False, longest", "lower")
                yield Figure(f"follow_{component}_back", max(back), "s from pod to Ready=True, longest", "lower")
            else:
                # The pod was back before its end was noticed.
                yield Figure(
                    f"follow_{component}_gone",
                    None,
                    "s from pod to Ready=False; the pod was back before its end was noticed",
                    "lower",
                )
