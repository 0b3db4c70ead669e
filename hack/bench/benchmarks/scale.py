"""Measure many IcebergTopics at once on the test cluster: seconds until all are Ready (topic and table), and the cost for the operator.

The quick-start release serves them with a real API server, etcd, broker, PostgreSQL, S3 server and ingestion driver. The peer is Strimzi's
topic operator, which creates only topics. It is not available as an artifact, so its figures are recorded ones from a similar machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from kubernetes import client, config, watch
from prometheus_client.parser import text_string_to_metric_families
from urllib3.exceptions import HTTPError

from firn.model import names
from firn.model.progress import GroupProgress
from hack import quickstart
from hack.bench.measuring.commits import percentile
from hack.bench.measuring.figures import Figure
from hack.bench.options import Options
from hack.support.progress import step
from tests.servers.process import await_true

NAMESPACE = "bench-scale"
PEER = "Strimzi Topic Operator 0.49.0, 1,000 topics without tables, recorded"
PEER_READY_SECONDS = 33.5
PEER_CPU_SECONDS = 13.1
PEER_MEGABYTES = 526.0
PEER_DELETED_SECONDS = 10.3
PEER_TOPICS = 1000
PLURAL = "icebergtopics"
READY_WITHIN = 600.0
STEADY_SECONDS = 60.0
REPORTED = frozenset({"Running", "CaughtUp"})
"""States of a topic in the driver's report in which the operator makes it Ready."""
STALLS = "firn_event_loop_stall_seconds"
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_APPLIERS = 8


@dataclass(frozen=True)
class Reading:
    """Metrics of the operator since its start. ``cpu`` is in seconds; ``writes`` are requests to the Kubernetes API;
    ``stalls`` of its event loop took 100 ms or more."""

    time: float
    cpu: float
    resident_bytes: float
    writes: float
    stalls: float


def reading(text: str, moment: float) -> Reading:
    """Read the operator's metrics document."""
    cpu, memory, stalls = "process_cpu_seconds_total", "process_resident_memory_bytes", f"{STALLS}_count"
    values = {cpu: 0.0, memory: 0.0, stalls: 0.0}
    writes = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in values:
                values[sample.name] = sample.value
            elif sample.name == "firn_kubernetes_requests_total" and sample.labels["method"].upper() in WRITES:
                writes += sample.value
    return Reading(moment, values[cpu], values[memory], writes, values[stalls])


class Cluster:
    """The test cluster, the operator in it, and a namespace for the topics."""

    def __init__(self, namespace: str = NAMESPACE) -> None:
        self._namespace = namespace
        config.load_kube_config(str(quickstart.STATE / "kubeconfig"))
        self.core = client.CoreV1Api()
        self.objects = client.CustomObjectsApi()

    def read_operator(self) -> Reading:
        """Return the operator's current metrics."""
        selector = "app.kubernetes.io/name=firn,app.kubernetes.io/component=operator"
        pods = self.core.list_namespaced_pod(
            quickstart.SYSTEM, label_selector=selector, field_selector="status.phase=Running"
        )
        (name,) = (pod.metadata.name for pod in pods.items if pod.metadata and not pod.metadata.deletion_timestamp)
        answer: Any = self.core.connect_get_namespaced_pod_proxy_with_path(
            f"{name}:9090", quickstart.SYSTEM, "metrics", _preload_content=False
        )
        return reading(answer.data.decode(), time.time())

    def read_driver(self) -> set[str]:
        """Return the uids of the topics that the driver reports as prepared; none while it does not answer."""
        with suppress(client.ApiException, HTTPError, OSError):
            answer: Any = self.core.connect_get_namespaced_service_proxy_with_path(
                f"{names.ingestion('default')}:8080", quickstart.SYSTEM, "progress", _preload_content=False
            )
            document = GroupProgress.model_validate_json(answer.data)
            return {topic.uid for topic in document.topics if topic.table_ready and topic.state in REPORTED}
        return set()

    def create(self, topic: dict[str, Any]) -> None:
        """Create an IcebergTopic."""
        self.objects.create_namespaced_custom_object(names.GROUP, names.VERSION, self._namespace, PLURAL, topic)

    def count(self) -> int:
        """Return the number of IcebergTopics in the namespace."""
        topics: Any = self.objects.list_namespaced_custom_object(names.GROUP, names.VERSION, self._namespace, PLURAL)
        return len(topics["items"])

    def delete_all(self) -> None:
        """Delete every IcebergTopic of the namespace, without waiting."""
        self.objects.delete_collection_namespaced_custom_object(names.GROUP, names.VERSION, self._namespace, PLURAL)

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """Have the namespace inside the with block. Its topics are deleted before it."""
        body = client.V1Namespace(metadata=client.V1ObjectMeta(name=self._namespace))
        with suppress(client.ApiException):  # An earlier run may have left it.
            self.core.create_namespace(body)
        try:
            yield
        finally:
            self.delete_all()
            await_true("no IcebergTopic exists", lambda: self.count() == 0, READY_WITHIN)
            # Waits, so that the next run does not find a namespace in deletion.
            quickstart.kubectl("delete", "namespace", self._namespace)


class ReadyTimes:
    """Times at which a watch first saw each topic Ready for its generation."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects
        self._watch = watch.Watch()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._ended = False
        self.seen: dict[str, float] = {}
        self.names: dict[str, str] = {}
        """The name of each topic by its uid."""

    def __enter__(self) -> ReadyTimes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._watch.stop()

    def _follow(self) -> None:
        while not self._ended:
            with suppress(client.ApiException, HTTPError, OSError):
                for event in self._watch.stream(
                    self._objects.list_namespaced_custom_object,
                    names.GROUP,
                    names.VERSION,
                    NAMESPACE,
                    PLURAL,
                    timeout_seconds=600,
                ):
                    topic = event["object"]
                    self.names[topic["metadata"]["uid"]] = topic["metadata"]["name"]
                    if quickstart.is_ready(topic):
                        self.seen.setdefault(topic["metadata"]["name"], time.time())


class ReportTimes:
    """Times at which the driver first reported each topic as prepared, by uid. Reads the report once a second."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.seen: dict[str, float] = {}

    def __enter__(self) -> ReportTimes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(1):
            moment = time.time()  # Before the request: a delay is rather too long than too short.
            for uid in self._cluster.read_driver():
                self.seen.setdefault(uid, moment)


def topic(name: str, namespace: str = NAMESPACE) -> dict[str, Any]:
    """Return an IcebergTopic with a few typed columns, which is deleted with its topic and table."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "topicName": f"{namespace}.{name}",
            "partitions": 1,
            "schema": {
                "format": "Json",
                "fields": [
                    {"name": "id", "type": "long", "required": True},
                    {"name": "at", "type": "timestamptz"},
                    {"name": "device", "type": "string"},
                    {"name": "reading", "type": "double"},
                ],
            },
            "deletionPolicy": {"topic": "Delete", "table": "Delete"},
        },
    }


def measure(options: Options) -> Iterator[Figure]:
    """Create all at once, wait until all are Ready, wait a minute, and delete all at once."""
    count = options.resources
    with step("the quick-start release"):
        quickstart.cluster_up()
        quickstart.install()
    cluster = Cluster()
    with cluster.namespace(), ReadyTimes(cluster.objects) as ready, ReportTimes(cluster) as reports:
        with step("creating a first topic, so that broker and driver run"):
            cluster.create(topic("first"))
            await_true("the first topic is Ready", lambda: "first" in ready.seen, READY_WITHIN)
        before = cluster.read_operator()
        started = time.time()
        with step(f"creating {count} IcebergTopics"), ThreadPoolExecutor(_APPLIERS) as pool:
            list(pool.map(cluster.create, [topic(f"t{number:04d}") for number in range(count)]))
        created = time.time()
        readings = [before]

        def all_ready() -> bool:
            if time.time() - readings[-1].time > 2:
                readings.append(cluster.read_operator())
            return len(ready.seen) > count

        with step("waiting until all are Ready"):
            await_true(f"{count} IcebergTopics Ready", all_ready, READY_WITHIN)
        reported = {ready.names[uid]: moment for uid, moment in reports.seen.items() if uid in ready.names}
        waited = [moment - reported.get(name, moment) for name, moment in ready.seen.items() if name != "first"]
        took = sorted(moment - started for name, moment in ready.seen.items() if name != "first")
        after = cluster.read_operator()
        with step("a minute without changes"):
            time.sleep(STEADY_SECONDS)
        idle = cluster.read_operator()
        deleting = time.time()
        with step("deleting the IcebergTopics"):
            cluster.delete_all()
            await_true("all IcebergTopics are deleted", lambda: cluster.count() == 0, READY_WITHIN)
        deleted = time.time() - deleting
    peak = max(each.resident_bytes for each in [*readings, after, idle]) / 1e6
    minutes = (idle.time - after.time) / 60

    def figure(name: str, value: float, unit: str, peer_value: float | None = None) -> Figure:
        like_peer = peer_value is not None and count == PEER_TOPICS
        return Figure(
            f"scale_{name}", value, unit, "lower", PEER if like_peer else None, peer_value if like_peer else None
        )

    yield figure("all_ready", took[-1], "s", PEER_READY_SECONDS)
    yield figure("half_ready", took[len(took) // 2], "s")
    yield figure("ready_after_report", percentile(waited, 0.99), "s from the driver's report to Ready, p99")
    yield figure("created", created - started, "s")
    yield figure("operator_cpu", after.cpu - before.cpu, "CPU s until all Ready", PEER_CPU_SECONDS)
    yield figure("operator_memory", peak, "MB (RSS, highest)", PEER_MEGABYTES)
    yield figure("api_writes_per_topic", (after.writes - before.writes) / count, "requests by the operator")
    yield figure("steady_cpu", (idle.cpu - after.cpu) / minutes, "CPU s per minute")
    yield figure("steady_api_writes", (idle.writes - after.writes) / minutes, "requests per minute")
    yield figure("stalls", idle.stalls - before.stalls, "stalls of the event loop of 100 ms or more")
    yield figure("all_deleted", deleted, "s, topics and tables", PEER_DELETED_SECONDS)
