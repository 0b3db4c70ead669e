"""Measure many IcebergTopics at once on the test cluster: seconds until all are Ready (topic and table), and the cost for the operator.

The quick-start release serves them with a real API server, etcd, broker, PostgreSQL, S3 server and ingestion driver. Three policies govern
them, one of them with a schedule. Meanwhile the catalog fails for a moment again and again, Prometheus reads the operator's metrics, and a
user edits other topics. The peer is Strimzi's topic operator, which creates only topics. It is not available as an artifact, so its figures
are recorded ones from a similar machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Self

from kubernetes import client, config, watch
from prometheus_client.parser import text_string_to_metric_families
from urllib3.exceptions import HTTPError, ProtocolError

from firn.model import names
from firn.model.progress import ReportReader
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
"""Seconds until 1,000 topics are Ready or deleted. More topics get more time."""
LATE_SECONDS, LATE_SECONDS_PER_TOPIC = 120.0, 0.03
"""Seconds in which the operator writes Events and first measurements of debt after all topics are Ready: at least the former."""
STEADY_SECONDS = 60.0
SCRAPE_SECONDS = 15.0
"""Seconds between two reads of the operator's metrics, as Prometheus reads them by default."""
REPORTS_PER_SECOND = 4000
"""Number of topics whose reports the benchmark reads a second. With more, it reads the driver's report less often."""
EDITED = 5
"""Number of topics that exist before, and that a user edits in turn."""
EDIT_SECONDS = 5.0
OUTAGE_EVERY, OUTAGE_SECONDS = 30.0, 2.0
"""Seconds for which the catalog rejects connections, again and again."""
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
        self._reports = ReportReader()
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
            document = self._reports.read(answer.data)
            return {topic.uid for topic in document.topics if topic.table_ready and topic.state in REPORTED}
        return set()

    def create(self, topic: dict[str, Any]) -> None:
        """Create an IcebergTopic."""
        self.create_other(PLURAL, topic)

    def create_other(self, plural: str, manifest: dict[str, Any]) -> None:
        """Create a resource."""
        self.objects.create_namespaced_custom_object(names.GROUP, names.VERSION, self._namespace, plural, manifest)

    def edit(self, name: str, spec: dict[str, Any]) -> int:
        """Change fields of an IcebergTopic's spec, and return its generation."""
        live: Any = self.objects.patch_namespaced_custom_object(
            names.GROUP, names.VERSION, self._namespace, PLURAL, name, {"spec": spec}
        )
        generation: int = live["metadata"]["generation"]
        return generation

    def count(self) -> int:
        """Return the number of IcebergTopics in the namespace."""
        page: Any = self.objects.list_namespaced_custom_object(
            names.GROUP, names.VERSION, self._namespace, PLURAL, limit=1
        )
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount") or 0)

    def delete_all(self) -> None:
        """Delete every IcebergTopic of the namespace, without waiting for the operator."""
        until = time.monotonic() + patience(self.count())
        while True:
            try:
                self.objects.delete_collection_namespaced_custom_object(
                    names.GROUP, names.VERSION, self._namespace, PLURAL
                )
            except (client.ApiException, ProtocolError) as error:
                # The API server gives up after a minute and has deleted only some of the topics. It may also end its answer early.
                gave_up = getattr(error, "status", HTTPStatus.GATEWAY_TIMEOUT) == HTTPStatus.GATEWAY_TIMEOUT
                if not gave_up or time.monotonic() > until:
                    raise
            else:
                return

    @contextmanager
    def namespace(self) -> Iterator[None]:
        """Have the namespace inside the with block. Its topics are deleted before it."""
        body = client.V1Namespace(metadata=client.V1ObjectMeta(name=self._namespace))
        with suppress(client.ApiException):  # An earlier run may have left it.
            self.core.create_namespace(body)
        try:
            yield
        finally:
            within = patience(self.count())
            self.delete_all()
            await_true("no IcebergTopic exists", lambda: self.count() == 0, within)
            # Waits, so that the next run does not find a namespace in deletion.
            quickstart.kubectl("delete", "namespace", self._namespace)


def patience(count: int) -> float:
    """Return the seconds that the benchmark waits until ``count`` topics are Ready or deleted."""
    return max(READY_WITHIN, READY_WITHIN * count / 4000)


class ReadyTimes:
    """Times at which a watch first saw each topic Ready, and each generation of it."""

    def __init__(self, objects: Any) -> None:
        self._objects = objects
        self._watch = watch.Watch()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._ended = False
        self.seen: dict[str, float] = {}
        self.generations: dict[tuple[str, int], float] = {}
        """Name and generation of a topic -> when that generation was Ready."""
        self.names: dict[str, str] = {}
        """The name of each topic by its uid."""

    def __enter__(self) -> ReadyTimes:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._watch.stop()

    def _follow(self) -> None:
        # The API server ends a watch whose client reads too slowly. The next watch starts after the last event, because another
        # list of all topics would cost API server and benchmark much CPU time.
        version = ""
        while not self._ended:
            try:
                version = version or self._list()
                for event in self._watch.stream(
                    self._objects.list_namespaced_custom_object,
                    names.GROUP,
                    names.VERSION,
                    NAMESPACE,
                    PLURAL,
                    resource_version=version,
                    timeout_seconds=600,
                    deserialize=False,
                ):
                    self._note(event["object"])
                    version = event["object"]["metadata"]["resourceVersion"]
            except (client.ApiException, HTTPError, OSError, ValueError, KeyError):
                # For example, the version is too old: the client fails with a KeyError.
                version = ""
                time.sleep(1.0)

    def _list(self) -> str:
        """Note all topics, and return the version at which a watch starts."""
        listed = self._objects.list_namespaced_custom_object(names.GROUP, names.VERSION, NAMESPACE, PLURAL)
        for topic in listed["items"]:
            self._note(topic)
        return str(listed["metadata"]["resourceVersion"])

    def _note(self, topic: dict[str, Any]) -> None:
        metadata = topic["metadata"]
        self.names[metadata["uid"]] = metadata["name"]
        if quickstart.is_ready(topic):
            now = time.time()
            self.seen.setdefault(metadata["name"], now)
            self.generations.setdefault((metadata["name"], metadata["generation"]), now)


class Repeated:
    """A thread that repeats an action inside the with block, at an interval in seconds."""

    def __init__(self, interval: float) -> None:
        self._interval = interval
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(self._interval):
            with suppress(client.ApiException, HTTPError, OSError, RuntimeError):
                self.act()

    def act(self) -> None:
        """Act once."""
        raise NotImplementedError


class ReportTimes(Repeated):
    """Times at which the driver first reported each topic as prepared, by uid."""

    def __init__(self, cluster: Cluster, count: int) -> None:
        super().__init__(max(1.0, count / REPORTS_PER_SECOND))
        self._cluster = cluster
        self.seen: dict[str, float] = {}

    def act(self) -> None:
        """Read the report."""
        moment = time.time()  # Before the request: a delay is rather too long than too short.
        for uid in self._cluster.read_driver():
            self.seen.setdefault(uid, moment)


class Scrapes(Repeated):
    """Readings of the operator's metrics, as Prometheus takes them."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(SCRAPE_SECONDS)
        self._cluster = cluster
        self.readings: list[Reading] = []

    def act(self) -> None:
        """Take a reading."""
        self.readings.append(self._cluster.read_operator())


class Edits(Repeated):
    """The edits of a user, one topic after the other. ``made`` has name, generation and time of each edit."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(EDIT_SECONDS)
        self._cluster = cluster
        self.made: list[tuple[str, int, float]] = []

    def act(self) -> None:
        """Edit a topic."""
        number = len(self.made)
        name, moment = f"edited{number % EDITED}", time.time()
        generation = self._cluster.edit(name, {"ingestion": {"freshness": f"{60 + number}s"}})
        self.made.append((name, generation, moment))

    def waits(self, ready: ReadyTimes) -> list[float | None]:
        """Return the seconds from each edit until its generation, or a later one, was Ready; None if it is not Ready yet."""
        generations = list(ready.generations.items())
        ends = [
            min((at for (of, ready_for), at in generations if of == name and ready_for >= generation), default=None)
            for name, generation, _ in self.made
        ]
        return [None if end is None else end - moment for end, (_, _, moment) in zip(ends, self.made, strict=True)]


class Outages(Repeated):
    """A catalog that rejects connections for a moment, again and again."""

    def __init__(self) -> None:
        super().__init__(OUTAGE_EVERY)

    def act(self) -> None:
        """Fail once."""
        ended = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'firn'"
        try:
            self._run("alter database firn allow_connections false", ended)
            time.sleep(OUTAGE_SECONDS)
        finally:
            self._run("alter database firn allow_connections true")

    @staticmethod
    def _run(*statements: str) -> None:
        commands = [word for statement in statements for word in ("-c", statement)]
        quickstart.kubectl(
            "-n", quickstart.SYSTEM, "exec", "firn-postgres-0", "--", "psql", "-qU", "firn", "-d", "postgres", *commands
        )


def policies(namespace: str = NAMESPACE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield plural and manifest of three policies: one for all topics with a schedule, one with triggers, and one for snapshots."""
    everything: dict[str, Any] = {"selector": {}}
    few: dict[str, Any] = {"selector": {"matchLabels": {"bench": "edited"}}}
    schedule = {"cron": "0 2 * * *", "timeZone": "Europe/Berlin", "jitter": "15m"}
    for kind, name, spec in (
        ("CompactionPolicy", "nightly", {**everything, "schedule": schedule}),
        ("CompactionPolicy", "triggered", {**few, "triggers": {"smallFiles": 100, "minInterval": "10m"}}),
        ("RetentionPolicy", "snapshots", {**everything, "snapshots": {"maxAge": "7d"}}),
    ):
        metadata = {"name": name, "namespace": namespace}
        plural = "compactionpolicies" if kind == "CompactionPolicy" else "retentionpolicies"
        yield plural, {"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}


def topic(name: str, namespace: str = NAMESPACE, **labels: str) -> dict[str, Any]:
    """Return an IcebergTopic with a few typed columns, which is deleted with its topic and table."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
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
    """Create all topics at once, wait until they are Ready and the operator has made its late writes, and delete them at once."""
    count = options.resources
    with step("the quick-start release"):
        quickstart.cluster_up()
        quickstart.install()
    cluster = Cluster()
    edited = [f"edited{number}" for number in range(EDITED)]
    with cluster.namespace(), ReadyTimes(cluster.objects) as ready, Scrapes(cluster) as scrapes:
        with step("creating policies and a few topics, so that broker and driver run"):
            for plural, policy in policies():
                cluster.create_other(plural, policy)
            for name in edited:
                cluster.create(topic(name, bench="edited"))
            await_true("these topics are Ready", lambda: ready.seen.keys() >= set(edited), READY_WITHIN)
        before = cluster.read_operator()
        started = time.time()
        with ReportTimes(cluster, count) as reports, Outages(), Edits(cluster) as edits:
            with step(f"creating {count} IcebergTopics"), ThreadPoolExecutor(_APPLIERS) as pool:
                list(pool.map(cluster.create, [topic(f"t{number:05d}") for number in range(count)]))
            created = time.time()
            with step("waiting until all are Ready"):
                await_true(f"{count} IcebergTopics Ready", lambda: len(ready.seen) >= count + EDITED, patience(count))
        after = cluster.read_operator()
        await_true("the edited topics are Ready", lambda: None not in edits.waits(ready), READY_WITHIN)
        with step("the operator's late writes, then a minute without changes"):
            late = max(LATE_SECONDS, LATE_SECONDS_PER_TOPIC * count)
            time.sleep(max(0.0, after.time + late - time.time()))
            settled = cluster.read_operator()
            time.sleep(STEADY_SECONDS)
        idle = cluster.read_operator()
        readings = [before, *scrapes.readings, after, settled, idle]
        yield from _figures(
            count, _Run(started, created, ready, reports, edits, before, after, settled, idle, readings)
        )
        deleting = time.time()
        with step("deleting the IcebergTopics"):
            cluster.delete_all()
            await_true("all IcebergTopics are deleted", lambda: cluster.count() == 0, patience(count))
        deleted = time.time() - deleting
    yield _figure(count, "all_deleted", deleted, "s, topics and tables", PEER_DELETED_SECONDS)


@dataclass(frozen=True)
class _Run:
    """Everything that was measured before the deletion. Times are Unix seconds."""

    started: float
    created: float
    ready: ReadyTimes
    reports: ReportTimes
    edits: Edits
    before: Reading
    after: Reading
    settled: Reading
    idle: Reading
    readings: list[Reading]


def _figures(count: int, run: _Run) -> Iterator[Figure]:
    ready, before, after, settled, idle = run.ready, run.before, run.after, run.settled, run.idle
    reported = {ready.names[uid]: moment for uid, moment in run.reports.seen.items() if uid in ready.names}
    bulk = {name: moment for name, moment in ready.seen.items() if not name.startswith("edited")}
    waited = [moment - reported.get(name, moment) for name, moment in bulk.items()]
    took = sorted(moment - run.started for moment in bulk.values())
    edit_waits = [wait for wait in run.edits.waits(ready) if wait is not None]
    minutes = (idle.time - settled.time) / 60
    figure = partial(_figure, count)
    yield figure("all_ready", took[-1], "s", PEER_READY_SECONDS)
    yield figure("half_ready", took[len(took) // 2], "s")
    yield figure("first_ready", took[0], "s")
    yield figure("ready_after_report", percentile(waited, 0.99), "s from the driver's report to Ready, p99")
    if edit_waits:
        yield figure("edit_ready", percentile(edit_waits, 0.99), "s from an edit of another topic to Ready, p99")
    yield figure("created", run.created - run.started, "s")
    yield figure("operator_cpu", after.cpu - before.cpu, "CPU s until all Ready", PEER_CPU_SECONDS)
    peak = max(each.resident_bytes for each in run.readings) / 1e6
    yield figure("operator_memory", peak, "MB (RSS, highest)", PEER_MEGABYTES)
    yield figure("api_writes_per_topic", (after.writes - before.writes) / count, "requests by the operator")
    late = (settled.writes - after.writes) / count
    yield figure(
        "late_api_writes_per_topic", late, "requests by the operator after all are Ready, in at least two minutes"
    )
    yield figure("steady_cpu", (idle.cpu - settled.cpu) / minutes, "CPU s per minute, with a scrape each 15 s")
    yield figure("steady_api_writes", (idle.writes - settled.writes) / minutes, "requests per minute")
    yield figure("stalls", idle.stalls - before.stalls, "stalls of the event loop of 100 ms or more")


def _figure(count: int, name: str, value: float, unit: str, peer_value: float | None = None) -> Figure:
    like_peer = count == PEER_TOPICS
    peer = PEER if like_peer and peer_value is not None else None
    return Figure(
        f"scale_{'' if like_peer else f'{count}_'}{name}", value, unit, "lower", peer, peer_value if peer else None
    )
