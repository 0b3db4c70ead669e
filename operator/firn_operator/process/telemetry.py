"""The operator's metrics (Prometheus), probes and logs (JSON)."""

import asyncio
import logging
import os
import sys
from collections import Counter as Tally
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import structlog
from aiohttp import web
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from firn.event_loop import follow_stalls
from firn.model import names
from firn.model.conditions import ConditionType, Reason
from firn_controllers.board import Board
from firn_controllers.cache.topic_sets import SetEntry
from firn_controllers.cache.topic_users import UserEntry
from firn_controllers.cache.topics import Name, TopicEntry
from firn_controllers.fleet.health import FleetHealth
from firn_controllers.iceberg_topic.reports.completeness import retention_bytes, retention_ms
from firn_controllers.ingestion_group import health as group_health
from firn_controllers.policies.audits import open_finding
from firn_controllers.queue import Key, ReconcileVerdict
from firn_controllers.reconcilers.survey import Finding

METRICS_PORT = 9090
PROBES_PORT = 8081

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
RECONCILE_SECONDS = Histogram("firn_reconcile_seconds", "Duration of a reconcile", ["kind"], buckets=_SECONDS)
RECONCILES = Counter("firn_reconcile_total", "Reconciles by result: ok, retry or error", ["kind", "verdict"])
QUEUE_DEPTH = Gauge("firn_reconcile_queue_depth", "Keys that wait for a worker")
TOPICS = Gauge(
    "firn_topics",
    "IcebergTopics by the status of their Ready condition; Suspended if spec.suspend is true",
    ["ready"],
)
TOPIC_NOT_READY = Gauge(
    "firn_topic_not_ready", "1 for each IcebergTopic that is neither Ready nor suspended", ["namespace", "topic"]
)
TOPIC_INCOMPLETE = Gauge(
    "firn_topic_incomplete",
    "1 for each IcebergTopic with lost records that no annotation acknowledges: its condition Complete has the reason RecordsLost",
    ["namespace", "topic"],
)
GROUP_AVAILABLE = Gauge(
    "firn_group_available",
    "0 while the ingestion driver of a group does not answer although topics need it, else 1",
    ["group"],
)
FLEET_AVAILABLE = Gauge(
    "firn_fleet_available", "1 while the operator can manage topics on the brokers of a profile, else 0", ["profile"]
)
FLEET_ROLLING = Gauge("firn_fleet_rolling", "1 while brokers of a profile are being replaced, else 0", ["profile"])
FLEET_DEGRADED = Gauge(
    "firn_fleet_degraded",
    "1 while a broker does not run, or a roll-out has made no step for five minutes. Also 1 while a setting, a metadata version, token keys"
    " or certificates have a problem. The Event Degraded names the cause",
    ["profile"],
)
_RUN_SECONDS = (10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600)
_RESULTS = ("Succeeded", "Failed", "Unfinished", "Busy")
_POLICY = ["kind", "namespace", "policy"]
RUNS = Counter("firn_maintenance_runs_total", "Maintenance runs by result", [*_POLICY, "result"])
RUN_SECONDS = Histogram("firn_maintenance_run_seconds", "Duration of a maintenance run", ["kind"], buckets=_RUN_SECONDS)
RUN_TABLES = Counter("firn_maintenance_tables_total", "Tables that maintenance runs were created for", _POLICY)
REWRITTEN = Counter("firn_maintenance_rewritten_bytes_total", "Bytes of the files that compaction rewrote", _POLICY)
REMOVED_FILES = Counter("firn_maintenance_removed_files_total", "Files that retention deleted", [*_POLICY, "part"])
REMOVED_BYTES = Counter(
    "firn_maintenance_removed_bytes_total", "Bytes of files that retention deleted", [*_POLICY, "part"]
)
WATCH_BEHIND = Gauge(
    "firn_watch_behind_seconds", "Seconds for which a watch has not delivered an object that a list shows"
)
LEAST_STALL = 0.1
"""Seconds of the shortest stall of the event loop that is counted."""
LOOP_STALLS = Histogram(
    "firn_event_loop_stall_seconds",
    "Stalls of the operator's event loop of 0.1 s or more: one piece of work kept all others waiting. Time without a CPU does not count",
    buckets=(0.15, 0.25, 0.5, 1, 2.5, 5, 10),
)
LOOP_CPU_WAIT = Counter(
    "firn_event_loop_cpu_wait_seconds_total",
    "Seconds in which the operator's event loop was ready to run and waited for a CPU",
)


async def measure_stalls() -> None:
    """Observe each stall of the running event loop, until cancelled."""
    await follow_stalls(_observe_stall, LOOP_CPU_WAIT.inc)


def _observe_stall(seconds: float) -> None:
    if seconds >= LEAST_STALL:
        LOOP_STALLS.observe(seconds)


class QueueMeter:
    """Feeds the metrics of the queue (port `firn_controllers.queue.ReconcileMeter`)."""

    def depth(self, waiting: int) -> None:
        """Set the gauge of waiting keys."""
        QUEUE_DEPTH.set(waiting)

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        """Count a reconcile and its duration."""
        RECONCILE_SECONDS.labels(key[0]).observe(seconds)
        RECONCILES.labels(key[0], verdict).inc()


def watch_fleets(profiles: Iterable[str], board: Board) -> None:
    """Make the metrics of fleets read ``board`` at each scrape."""
    for profile in profiles:
        for gauge, read in (
            (FLEET_AVAILABLE, lambda health: health.problem is None),
            (FLEET_ROLLING, lambda health: health.rolling),
            (FLEET_DEGRADED, lambda health: bool(health.degraded)),
        ):
            gauge.labels(profile).set_function(partial(_fleet_value, board, profile, read))


def watch_groups(groups: Iterable[str], board: Board) -> None:
    """Make the metric of ingestion groups read ``board`` at each scrape."""
    for group in groups:
        GROUP_AVAILABLE.labels(group).set_function(partial(_group_value, board, group))


def _group_value(board: Board, group: str) -> float:
    health = board.group(group)
    return float(health.heard or health == group_health.UNSEEN)  # unseen: no topic needs the driver


def _fleet_value(board: Board, profile: str, read: Callable[[FleetHealth], bool]) -> float:
    return float(read(board.fleet(profile)))


class RunMeter:
    """Feeds the metrics of maintenance runs (port `firn_controllers.ports.RunMeter`)."""

    def register(self, kind: str, namespace: str, policy: str) -> None:
        """Create the counters of a policy, so that they start at 0."""
        for result in _RESULTS:
            RUNS.labels(kind, namespace, policy, result)

    def forget(self, kind: str, namespace: str, policy: str) -> None:
        """Remove the counters of a deleted policy."""
        labels = {"kind": kind, "namespace": namespace, "policy": policy}
        for counter in (RUNS, RUN_TABLES, REWRITTEN, REMOVED_FILES, REMOVED_BYTES):
            counter.remove_by_labels(labels)

    def ended(self, kind: str, namespace: str, policy: str, run: Mapping[str, Any]) -> None:
        """Count a run that ended, with its duration, tables and bytes."""
        labels = (kind, namespace, policy)
        RUNS.labels(*labels, run["result"]).inc()
        started, finished = (datetime.fromisoformat(run[key]) for key in ("startTime", "finishTime"))
        RUN_SECONDS.labels(kind).observe((finished - started).total_seconds())
        RUN_TABLES.labels(*labels).inc(run.get("tables", 0))
        REWRITTEN.labels(*labels).inc(run.get("bytesRewritten", 0))
        if run.get("mode") != "Enforce":
            return
        for part in ("rows", "snapshots", "orphanFiles", "metadataFiles"):
            if part in run:
                REMOVED_FILES.labels(*labels, part).inc(run[part]["files"])
                REMOVED_BYTES.labels(*labels, part).inc(run[part]["bytes"])


_DEBT = {
    "firn_table_data_files": (
        "Data files of the newest snapshots, of the table and its dead-letter table",
        "data_files",
    ),
    "firn_table_data_bytes": (
        "Bytes of the data files of the newest snapshots, of the table and its dead-letter table",
        "data_bytes",
    ),
    "firn_table_small_files": (
        "Data files below three quarters of the target size, of the table and its dead-letter table",
        "small_files",
    ),
    "firn_table_delete_files": (
        "Delete files and deletion vectors of the newest snapshots, of the table and its dead-letter table",
        "delete_files",
    ),
    "firn_table_manifests": (
        "Iceberg manifests of the newest snapshots, of the table and its dead-letter table",
        "manifests",
    ),
    "firn_table_snapshots": ("Snapshots that have not expired, of the table and its dead-letter table", "snapshots"),
    "firn_table_metadata_bytes": (
        "Bytes of the metadata files and of the newest snapshots' Iceberg manifests, of the table and its dead-letter table",
        "metadata_bytes",
    ),
    "firn_compaction_due_files": (
        "Data files that a compaction would rewrite now, of the table and its dead-letter table",
        "due_files",
    ),
    "firn_compaction_due_bytes": (
        "Bytes of the data files that a compaction would rewrite now, of the table and its dead-letter table",
        "due_bytes",
    ),
}
"""Metric -> its help, and the field of `firn_controllers.ports.TableDebt`, which includes the dead-letter table."""


class TopicFamily(Metric):
    """A gauge with a value for each topic, which only `exposition` shows.

    With 10,000 topics, samples of the client library would take 1.5 s of processor time at each scrape.
    """

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name, text, "gauge")
        self._labelnames = ("namespace", "topic")  # as the client library's families have them
        self._lines = [f"# HELP {name} {text}\n# TYPE {name} gauge\n"]

    def add(self, labels: str, value: float) -> None:
        """Add the value of a topic. ``labels`` are the result of `topic_labels`."""
        self._lines.append(f"{self.name}{labels} {value}\n")

    def text(self) -> str:
        """Return the family in Prometheus' format."""
        return "".join(self._lines)


def topic_labels(name: Name) -> str:
    """Return the labels of a topic's metrics in Prometheus' format. Names of Kubernetes need no escapes."""
    return f'{{namespace="{name[0]}",topic="{name[1]}"}}'


def exposition(registry: CollectorRegistry = REGISTRY) -> bytes:
    """Return the text of all metrics in Prometheus' format."""
    others: list[Metric] = []
    texts: list[str] = []
    for family in registry.collect():
        if isinstance(family, TopicFamily):
            texts.append(family.text())
        else:
            others.append(family)
    return generate_latest(_Collected(others)) + "".join(texts).encode()


class _Collected(CollectorRegistry):
    """Families that were collected already."""

    def __init__(self, families: Iterable[Metric]) -> None:
        super().__init__()
        self._families = families

    def collect(self) -> Iterable[Metric]:
        """Return the families."""
        return self._families


class DebtMetrics(Collector):
    """Metrics of maintenance debt per topic, read from the newest findings at each scrape. A deleted topic leaves no
    series."""

    def __init__(
        self, findings: Callable[[], Iterable[Finding]], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._findings = findings
        self._now = now

    def collect(self) -> Iterable[TopicFamily]:
        """Return the metric families of all findings."""
        families = {name: TopicFamily(name, text) for name, (text, _) in _DEBT.items()}
        lag = TopicFamily(
            "firn_compaction_lag_seconds",
            "Seconds for which the oldest data file that the topic's policy would rewrite has been due; 0 if it would rewrite none",
        )
        now = self._now()
        for finding in self._findings():
            labels = topic_labels(finding.name)
            for name, (_, field) in _DEBT.items():
                families[name].add(labels, getattr(finding.debt, field))
            seconds = finding.lag_seconds(now)
            if seconds is not None:
                lag.add(labels, seconds)
        return [*families.values(), lag]


class AuditMetrics(Collector):
    """Metrics of the audits of topics, read from their statuses at each scrape. A paused topic has no audits."""

    def __init__(
        self, topics: Callable[[], Iterable[TopicEntry]], now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._topics = topics
        self._now = now

    def collect(self) -> Iterable[TopicFamily]:
        """Return the metric families of all topics."""
        age = TopicFamily(
            "firn_audit_age_seconds",
            "Seconds since the last audit that compared offsets, or, before the first, since its audits began; absent before records land",
        )
        wrong = TopicFamily(
            "firn_audit_wrong_offsets",
            "Offsets that an audit found missing, doubled or stray and that are not acknowledged",
        )
        now = self._now()
        for entry in self._topics():
            audit = entry.status.get("audit") or {}
            last = _last_audit(audit)
            if last is None or entry.metadata.annotations.get(names.PAUSE) == "true":
                continue
            labels = topic_labels(entry.name)
            if "excluded" not in audit:
                age.add(labels, max(0.0, (now - last).total_seconds()))
            failed = open_finding(entry.status, entry.metadata.annotations) or {}
            wrong.add(labels, sum(failed.get(part, 0) for part in ("missing", "doubled", "stray")))
        return [age, wrong]


def _last_audit(audit: Mapping[str, Any]) -> datetime | None:
    """Return the time of the last audit in a status, or of the last schedule before the first audit.

    A run that succeeded may have compared nothing, so its time says nothing.
    """
    text = audit.get("time") or audit.get("lastScheduleTime")
    return datetime.fromisoformat(text) if text else None


class LogMetrics(Collector):
    """Metrics of the retention of each topic's log, as far as the operator knows it, read at each scrape."""

    def __init__(
        self, topics: Callable[[], Iterable[TopicEntry]], configs: Callable[[str], Mapping[str, str] | None]
    ) -> None:
        self._topics = topics
        self._configs = configs

    def collect(self) -> Iterable[TopicFamily]:
        """Return the metric families of all topics."""
        seconds = TopicFamily(
            "firn_log_retention_seconds", "Seconds after which the topic's log deletes records; absent if it does not"
        )
        size = TopicFamily(
            "firn_log_retention_bytes",
            "Bytes of a partition above which the topic's log deletes records; absent if it does not",
        )
        for entry in self._topics():
            configs = self._configs(entry.uid)
            if configs is None:
                continue
            labels = topic_labels(entry.name)
            if (milliseconds := retention_ms(configs)) is not None:
                seconds.add(labels, milliseconds / 1000)
            if (limit := retention_bytes(configs)) is not None:
                size.add(labels, limit)
        return [seconds, size]


class TopicSetMetrics(Collector):
    """Metrics of TopicSets, read from their statuses at each scrape."""

    def __init__(self, sets: Callable[[], Iterable[SetEntry]]) -> None:
        self._sets = sets

    def collect(self) -> Iterable[Metric]:
        """Return the metric family of all sets."""
        topics = GaugeMetricFamily(
            "firn_topic_set_topics",
            "Topics of a TopicSet by state: matched, made (they have an IcebergTopic), refused; kept: IcebergTopics whose topic does not match",
            labels=["namespace", "topic_set", "state"],
        )
        for entry in self._sets():
            for state, key in _SET_STATES.items():
                if key in entry.status:
                    topics.add_metric([*entry.name, state], entry.status[key])
        return [topics]


_SET_STATES = {"matched": "matched", "made": "made", "kept": "kept", "refused": "topicsRefused"}
"""Value of the label ``state`` -> field of the status of a TopicSet."""


class TopicUserMetrics(Collector):
    """Metrics of TopicUsers, read from their statuses at each scrape."""

    def __init__(self, users: Callable[[], Iterable[UserEntry]]) -> None:
        self._users = users

    def collect(self) -> Iterable[Metric]:
        """Return the metric families of all users."""
        labels = ["namespace", "user"]
        ready = GaugeMetricFamily(
            "firn_topic_user_ready", "1 if the condition Ready of a TopicUser is True, else 0", labels=labels
        )
        refused = GaugeMetricFamily(
            "firn_topic_user_refused_grants", "Roles on topics that a TopicUser does not get", labels=labels
        )
        expires = GaugeMetricFamily(
            "firn_topic_user_expiry_timestamp_seconds",
            "Time of the next rotation of the credential of a TopicUser, in seconds since 1970; absent without one",
            labels=labels,
        )
        for entry in self._users():
            conditions = {item["type"]: item["status"] for item in entry.status.get("conditions") or ()}
            ready.add_metric(entry.name, float(conditions.get(ConditionType.READY) == "True"))
            if "grantsRefused" in entry.status:
                refused.add_metric(entry.name, entry.status["grantsRefused"])
            text = (entry.status.get("credentials") or {}).get("expires")
            if text:
                expires.add_metric(entry.name, datetime.fromisoformat(text).timestamp())
        return [ready, refused, expires]


class CertificateMetrics(Collector):
    """The time until certificates end, by profile and certificate, computed at each scrape.

    The operator has it for those that cert-manager issued or that brokers of Apache Kafka present, and the signer for its own.
    """

    _name = "firn_certificate_expiry_seconds"
    _help = (
        "Seconds until a certificate of a profile ends: brokers (issued), presented (by brokers of Apache Kafka) or"
        " authority (the CA of the signer)"
    )
    _owner = "profile"

    def __init__(
        self,
        ends: Callable[[], Mapping[tuple[str, str], datetime]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._ends = ends
        self._now = now

    def collect(self) -> Iterable[Metric]:
        """Return the metric family of all owners of certificates."""
        family = GaugeMetricFamily(self._name, self._help, labels=[self._owner, "certificate"])
        for labels, end in self._ends().items():
            family.add_metric(labels, (end - self._now()).total_seconds())
        return [family]


class StoreCertificateMetrics(CertificateMetrics):
    """The time until certificates of the quick start's stores end, by store and certificate, computed at each scrape."""

    _name = "firn_store_certificate_expiry_seconds"
    _help = (
        "Seconds until a certificate of a store of the quick start ends: server (of the store) or authority (its CA)"
    )
    _owner = "store"


class OpenFleetMetrics(Collector):
    """The profiles at whose brokers clients may connect without encryption, among those whose brokers the operator runs."""

    def __init__(self, openness: Callable[[], Mapping[str, bool]]) -> None:
        self._openness = openness

    def collect(self) -> Iterable[Metric]:
        """Return the metric family of all profiles."""
        family = GaugeMetricFamily(
            "firn_fleet_open",
            "1 if clients without encryption may do everything at a broker of a profile, else 0; the Event BrokersOpen names the cause",
            labels=["profile"],
        )
        for profile, is_open in self._openness().items():
            family.add_metric([profile], int(is_open))
        return [family]


class PlainClientMetrics(Collector):
    """The number of clients without encryption, by profile of Apache Kafka with ``plaintext: Keep``."""

    def __init__(self, found: Callable[[], Mapping[str, Collection[str]]]) -> None:
        self._found = found

    def collect(self) -> Iterable[Metric]:
        """Return the metric family of all profiles."""
        family = GaugeMetricFamily(
            "firn_unencrypted_clients",
            "Clients that connected without encryption in the last ten minutes; the Event UnencryptedClients names them",
            labels=["profile"],
        )
        for profile, clients in self._found().items():
            family.add_metric([profile], len(clients))
        return [family]


class TopicTally:
    """Counts topics by the status of their Ready condition, and marks the topics that need attention, for the metrics."""

    def __init__(self) -> None:
        self._ready: dict[tuple[str, str], str] = {}
        self._counts: Tally[str] = Tally()

    def seen(self, manifest: Mapping[str, Any]) -> None:
        """Count an IcebergTopic with its present status."""
        conditions = {item["type"]: item for item in manifest.get("status", {}).get("conditions", [])}
        ready = conditions.get(ConditionType.READY, {"status": "Unknown"})
        suspended = ready.get("reason") == Reason.SUSPENDED
        self._put(manifest, str(Reason.SUSPENDED) if suspended else ready["status"])
        complete = conditions.get(ConditionType.COMPLETE, {"status": "Unknown"})
        _mark(TOPIC_INCOMPLETE, manifest, complete.get("reason") == Reason.RECORDS_LOST)

    def gone(self, manifest: Mapping[str, Any]) -> None:
        """Remove a deleted IcebergTopic from the counts."""
        self._put(manifest, None)
        _mark(TOPIC_INCOMPLETE, manifest, False)

    def _put(self, manifest: Mapping[str, Any], ready: str | None) -> None:
        name = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
        old = self._ready.pop(name, None)
        if old is not None:
            self._counts[old] -= 1
        if ready is not None:
            self._ready[name] = ready
            self._counts[ready] += 1
        _mark(TOPIC_NOT_READY, manifest, ready in ("False", "Unknown"))
        for status in ("True", "False", "Unknown", str(Reason.SUSPENDED)):
            TOPICS.labels(status).set(self._counts[status])


def _mark(gauge: Gauge, manifest: Mapping[str, Any], marked: bool) -> None:
    name = (manifest["metadata"]["namespace"], manifest["metadata"]["name"])
    if marked:
        gauge.labels(*name).set(1)
    else:
        gauge.remove(*name)


class Health:
    """Answers of the probes. ``starting`` is the reason why the process is not ready yet. ``checks`` return problems."""

    def __init__(self) -> None:
        self.starting: str | None = "starting"
        self.checks: list[Callable[[], str | None]] = []

    def problems(self) -> list[str]:
        """Return the problems that need a restart of the process."""
        return [problem for check in self.checks if (problem := check()) is not None]

    async def livez(self, request: web.Request) -> web.Response:
        """Answer 200 while the queue moves and the watches deliver, else 500 with the problems."""
        problems = self.problems()
        return web.Response(status=500 if problems else 200, text="\n".join(problems) or "ok")

    async def readyz(self, request: web.Request) -> web.Response:
        """Answer 200 while resources are reconciled, else 503 with the reason."""
        return web.Response(status=200 if self.starting is None else 503, text=self.starting or "ok")


async def _metrics(request: web.Request) -> web.Response:
    # With ten thousand topics, the text takes tenths of a second of processor time. Reconciles must not wait for it.
    text = await asyncio.to_thread(exposition)
    return web.Response(body=text, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def serve(health: Health, metrics: tuple[str, int], probes: tuple[str, int]) -> list[web.AppRunner]:
    """Start both servers. The caller cleans up the runners at the end."""
    probing = [web.get("/livez", health.livez), web.get("/readyz", health.readyz)]
    return [await serve_routes(metrics, [web.get("/metrics", _metrics)]), await serve_routes(probes, probing)]


async def serve_routes(address: tuple[str, int], routes: Iterable[web.RouteDef]) -> web.AppRunner:
    """Start a server with these routes and nothing else. The caller cleans up the runner at the end."""
    application = web.Application()
    application.add_routes(routes)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, *address).start()
    return runner


def address(variable: str, port: int) -> tuple[str, int]:
    """Return the address in an environment variable, as ``HOST:PORT``; without it, ``port`` on all interfaces."""
    host, _, given = os.environ.get(variable, f"0.0.0.0:{port}").rpartition(":")
    return host, int(given)


def configure_logs(level: str) -> None:
    """Log one JSON object per line to standard error, from structlog and from the standard library."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.EventRenamer("message"),
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    for noisy in ("kopf", "pyiceberg", "aiohttp", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
