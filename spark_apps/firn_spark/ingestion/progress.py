"""The driver's HTTP server: ``/progress`` for the operator, ``/metrics`` for Prometheus, ``/readyz`` and ``/livez``
for the kubelet.
"""

import sys
import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest

from firn.model.jobs import Publish
from firn.model.progress import PublishProgress, TopicProgress
from firn_spark.ingestion.rounds.landing_job import TopicResult
from firn_spark.ingestion.topics.topic import Topic

LABELS = ("namespace", "topic")


class Metrics:
    """The metrics of an ingestion application, and the `Meter` of its rounds."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._add_publishing()
        self._rows = self._counter("firn_ingest_rows", "Rows landed in the topic's table")
        self._bytes = self._counter("firn_ingest_bytes", "Bytes of keys and values read")
        self._dead = self._counter("firn_ingest_dead_letters", "Records landed as dead letters")
        self._skipped = self._counter("firn_ingest_skipped", "Records dropped because of onBadRecord: Skip")
        self._filtered = self._counter("firn_ingest_filtered", "Records that the filter of the topic left out")
        self._failures = self._counter("firn_ingest_failures", "Failed rounds, and failed starts of work on a topic")
        self._lost = self._counter(
            "firn_ingest_lost_records", "Offsets that did not land, because the log deleted them first or was cut back"
        )
        self._disagreements = self._counter(
            "firn_ingest_audit_failures",
            "Rounds that were not committed, because their files did not agree with their offsets",
        )
        self._empty = self._counter(
            "firn_ingest_empty_offsets",
            "Offsets that passed without a record: markers of transactions, aborted records, compaction",
        )
        self._detours = self._counter(
            "firn_ingest_detours",
            "Partitions of rounds that brokers served, although the profile has directReads. The driver's log has most causes",
        )
        self._failed_rules = Counter(
            "firn_ingest_quality_failures",
            "Records that failed a quality rule",
            (*LABELS, "rule"),
            registry=self.registry,
        )
        self._rules: dict[tuple[Counter, tuple[str, str]], Mapping[str, int]] = {}
        """Counter, and namespace and name of a topic -> the rules or checks that have series, and their values."""
        self._lag_records = self._gauge("firn_ingest_lag_records", "Offsets that have not landed yet")
        self._lag_seconds = self._gauge(
            "firn_ingest_lag_seconds", "Seconds for which the oldest record that has not landed may have waited"
        )
        self._lag_bytes = self._gauge(
            "firn_ingest_lag_bytes",
            "Estimated bytes, before compression, of the records that wait in the partition with the most of them. Absent "
            "from a restart of the driver until its first round",
        )
        self._uncommitted = self._gauge(
            "firn_ingest_uncommitted_records",
            "Offsets of the lag whose files are written and whose commit has not ended",
        )
        self._freshness = self._gauge("firn_ingest_freshness_seconds", "Freshness that the spec states")
        self._suspended = self._gauge("firn_ingest_suspended", "1 while spec.suspend stops the topic, else 0")
        self._commit_age = self._gauge(
            "firn_ingest_last_commit_age_seconds", "Seconds since the newest commit of records; absent before the first"
        )
        self._seconds = Histogram(
            "firn_ingest_commit_seconds",
            "Seconds from the start of a topic's round to its commit",
            LABELS,
            buckets=(0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120),
            registry=self.registry,
        )

    def _add_publishing(self) -> None:
        self._failed_checks = Counter(
            "firn_ingest_publish_check_failures",
            "Failures of a check of the rows that wait for publishing",
            (*LABELS, "check"),
            registry=self.registry,
        )
        self._unpublished = self._gauge(
            "firn_ingest_unpublished_rows", "Rows on the branch of spec.quality.publish that main of the table lacks"
        )
        self._unpublished_seconds = self._gauge(
            "firn_ingest_unpublished_seconds", "Seconds since the oldest commit that main of the table lacks"
        )
        self._publish_every = self._gauge(
            "firn_ingest_publish_every_seconds",
            "Seconds of spec.quality.publish.every: the age of a commit at which the driver checks and publishes its rows",
        )

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, LABELS, registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, LABELS, registry=self.registry)

    @property
    def _counters(self) -> tuple[Counter, ...]:
        return (
            self._rows, self._bytes, self._dead, self._skipped, self._filtered, self._failures, self._lost, self._disagreements, self._empty,
            self._detours,
        )  # fmt: skip

    def landed(self, topic: Topic, result: TopicResult, seconds: float) -> None:
        """Count a commit."""
        labels = (topic.job.namespace, topic.job.name)
        self._rows.labels(*labels).inc(result.rows)
        self._bytes.labels(*labels).inc(result.bytes)
        self._dead.labels(*labels).inc(result.dead_rows)
        self._skipped.labels(*labels).inc(result.skipped)
        self._filtered.labels(*labels).inc(sum(result.filtered.values()))
        self._detours.labels(*labels).inc(result.detours)
        self._seconds.labels(*labels).observe(seconds)

    def lost(self, topic: Topic, offsets: int) -> None:
        """Count offsets that did not land."""
        self._lost.labels(topic.job.namespace, topic.job.name).inc(offsets)

    def audited(self, topic: Topic, empty: int, *, agrees: bool) -> None:
        """Count the audit of a round, and its offsets without a record."""
        labels = (topic.job.namespace, topic.job.name)
        self._empty.labels(*labels).inc(empty)
        self._disagreements.labels(*labels).inc(not agrees)

    def failed(self, topic: Topic, times: int) -> None:
        """Count failures."""
        self._failures.labels(topic.job.namespace, topic.job.name).inc(times)

    def reported(self, topic: Topic, progress: TopicProgress, wall: float) -> None:
        """Set the gauges of a topic from its report at ``wall`` (Unix seconds).

        Start its counters at 0: Prometheus sees an increase only after the series exists.
        """
        labels = (topic.job.namespace, topic.job.name)
        for counter in self._counters:
            counter.labels(*labels)
        self._follow_rules(self._failed_rules, labels, progress.failed_rules)
        self._follow_branch(labels, topic.job.publish, progress.publish, wall)
        self._freshness.labels(*labels).set(topic.job.freshness_ms / 1000)
        self._suspended.labels(*labels).set(topic.job.suspended)
        if progress.lag_records is not None:
            self._lag_records.labels(*labels).set(progress.lag_records)
            self._lag_seconds.labels(*labels).set(progress.lag_seconds or 0.0)
            self._uncommitted.labels(*labels).set(min(topic.reading.uncommitted, progress.lag_records))
        else:
            # The last known value would hide that the lag is not known.
            for gauge in (self._lag_records, self._lag_seconds, self._uncommitted):
                gauge.remove_by_labels(dict(zip(LABELS, labels, strict=True)))
        if progress.lag_bytes is not None:
            self._lag_bytes.labels(*labels).set(progress.lag_bytes)
        else:
            self._lag_bytes.remove_by_labels(dict(zip(LABELS, labels, strict=True)))
        if progress.last_commit is not None:
            self._commit_age.labels(*labels).set(max(0.0, wall - progress.last_commit))

    def _follow_branch(
        self, labels: tuple[str, str], spec: Publish | None, publish: PublishProgress | None, wall: float
    ) -> None:
        self._follow_rules(self._failed_checks, labels, publish.failures if publish is not None else {})
        if spec is None or publish is None:
            for gauge in (self._unpublished, self._unpublished_seconds, self._publish_every):
                gauge.remove_by_labels(dict(zip(LABELS, labels, strict=True)))
            return
        self._unpublished.labels(*labels).set(publish.rows)
        self._publish_every.labels(*labels).set(spec.every_ms / 1000)
        waiting = 0.0 if publish.since is None else max(0.0, wall - publish.since)
        self._unpublished_seconds.labels(*labels).set(waiting)

    def _follow_rules(self, counter: Counter, labels: tuple[str, str], counts: Mapping[str, int]) -> None:
        """Set the counters of a topic's rules or checks, and remove those that it no longer has. A changed one counts from 0."""
        before = self._rules.pop((counter, labels), {})
        if counts:
            self._rules[counter, labels] = counts
        for rule, count in before.items():
            if counts.get(rule, -1) < count:
                counter.remove(*labels, rule)
        for rule, count in counts.items():
            known = before.get(rule, 0)
            counter.labels(*labels, rule).inc(count - known if count >= known else count)

    def forget(self, topic: Topic) -> None:
        """Remove the series of a topic that left the group."""
        for counter in (self._failed_rules, self._failed_checks):
            self._rules.pop((counter, (topic.job.namespace, topic.job.name)), None)
        for metric in (
            *self._counters, self._lag_records, self._lag_seconds, self._lag_bytes, self._uncommitted,
            self._freshness, self._suspended, self._commit_age, self._seconds, self._failed_rules,
            self._failed_checks, self._unpublished, self._unpublished_seconds, self._publish_every,
        ):  # fmt: skip
            metric.remove_by_labels({"namespace": topic.job.namespace, "topic": topic.job.name})


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a client that disconnected, such as a probe that timed out. Print every other error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Server:
    """The HTTP server. ``report`` returns the `/progress` document, and ``measure`` sets the metrics of all topics. ``ready`` and
    ``alive`` return None or the problem."""

    def __init__(
        self,
        listen: str,
        metrics: Metrics,
        report: Callable[[], bytes],
        measure: Callable[[], None],
        ready: Callable[[], str | None],
        alive: Callable[[], str | None],
    ) -> None:
        host, _, port = listen.rpartition(":")

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                match self.path.partition("?")[0]:
                    case "/progress":
                        self._answer(200, "application/json", report())
                    case "/metrics":
                        measure()
                        self._answer(200, "text/plain; version=0.0.4; charset=utf-8", generate_latest(metrics.registry))
                    case "/readyz":
                        self._probe(ready())
                    case "/livez":
                        self._probe(alive())
                    case _:
                        self._answer(404, "text/plain", b"not found\n")

            def _probe(self, problem: str | None) -> None:
                self._answer(200 if problem is None else 503, "text/plain", f"{problem or 'ok'}\n".encode())

            def _answer(self, code: int, kind: str, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self._server = _HttpServer((host or "0.0.0.0", int(port)), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http", daemon=True)

    @property
    def port(self) -> int:
        """The port on which the server listens."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Start to answer requests."""
        self._thread.start()

    def stop(self) -> None:
        """Stop answering requests."""
        self._server.shutdown()
        self._server.server_close()
