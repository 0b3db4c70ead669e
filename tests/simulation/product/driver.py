"""An ingestion driver: the real loop, rounds and commits, on a simulated log and a lake in memory.

Only what runs in Spark's tasks is simulated: a task reads a range of the log and stores one file for its rows.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

from typing_extensions import override

from firn.model.errors import FirnError
from firn.model.jobs import CatalogConnection, GroupSettings, IngestJob, KafkaConnection
from firn.model.progress import GroupProgress, ReportReader
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion import jobs as job_sources
from firn_spark.ingestion import loop, watcher
from firn_spark.ingestion.loop import Loop
from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.publishing import publisher as publishing
from firn_spark.ingestion.publishing.publisher import Publisher
from firn_spark.ingestion.rounds import ahead, committing, failures, planning, preparation, rounds
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.landing_job import LandingJobs
from firn_spark.ingestion.rounds.planning import Plan
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics import state
from firn_spark.tables import catalogs, commits, dead_letters, old_snapshots, swaps
from firn_spark.tables.branches import statistics
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.fetching.access import Bucket
from firn_spark.worker.fetching.slices import Slice
from firn_spark.worker.landing import Kind, LandingPlan, TopicLanding
from tests.fakes.cluster import FakeCluster
from tests.fakes.lake import java
from tests.fakes.lake.java import JavaError
from tests.fakes.lake.memory import Lake, Row
from tests.simulation.product.faults import Host
from tests.simulation.product.log import PROFILE, LogClient, SimulatedLog, read
from tests.simulation.product.threads import Event

GROUP, CATALOG = "default", "lake"
MODULES = (
    loop, watcher, rounds, ahead, committing, planning, failures, preparation, state, publishing, catalogs, commits, dead_letters, swaps,
)  # fmt: skip
"""Modules of the driver that know the time, threads or random numbers."""
POLL_SECONDS = 1.0
SLOT_MS = 8_000
"""Time between two removals of old snapshots, and between two of them that stay. A story has no five minutes."""


@contextmanager
def in_memory() -> Iterator[None]:
    """Let drivers remove old snapshots every few seconds, and read Java's iterators, which are Python's here."""
    with (
        patch.object(statistics, "elements", iter),
        patch.object(commits, "SLOT_MS", SLOT_MS),
        patch.object(old_snapshots, "SLOT_MS", 2 * SLOT_MS),
        patch.object(old_snapshots, "SLOTS_MS", 4 * SLOT_MS),
    ):
        yield


class ContractSource:
    """`JobSource` on the fake cluster: the contracts as ConfigMaps, a moment after they changed."""

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self._texts: dict[str, str] = {}
        self._jobs: Mapping[str, IngestJob] | None = None

    def start(self) -> None:
        """Implement `JobSource.start`."""

    def current(self) -> Mapping[str, IngestJob] | None:
        """Implement `JobSource.current`."""
        texts = {uid: live["data"][job_sources.JOB_KEY] for uid, live in self._cluster.contracts().items()}
        if self._jobs is None or texts != self._texts:
            parsed = (job_sources.parse(text, uid) for uid, text in texts.items())
            self._texts, self._jobs = texts, job_sources.jobs_of_group(parsed, GROUP)
        return self._jobs

    def stop(self) -> None:
        """Implement `JobSource.stop`."""


class Tasks(LandingJobs):
    """The Spark jobs of rounds, without Spark."""

    def __init__(self, host: Host, log: SimulatedLog, lake: Lake) -> None:
        nothing: Any = None
        super().__init__(None, nothing, tasks=1, buffer_bytes=0)
        self._host = host
        self._log = log
        self._lake = lake

    @override
    def _by_tasks(
        self, planned: Plan, plan: LandingPlan, groups: Sequence[Sequence[Slice]], bucket: Bucket | None
    ) -> Iterable[tuple[str, str, str]]:
        try:
            return [
                (topic.job.topic, kind, text)
                for topic, ranges in planned.items()
                for kind, text in self._land(plan.topics[topic.job.topic], plan.ingested_at, ranges)
            ]
        except FirnError as problem:
            # The text of an exception that Spark reports for a task.
            text = f"Job aborted\nfirn.model.errors.{type(problem).__name__}: {problem}"
            raise java.error("org.apache.spark.SparkException", text) from problem

    def _land(
        self, landing: TopicLanding, ingested_at: int, ranges: Mapping[int, tuple[int, int]]
    ) -> list[tuple[str, str]]:
        data: list[Row] = []
        dead: list[Row] = []
        results: list[tuple[str, str]] = []
        counts = {"rows": 0, "dead": 0, "skipped": 0, "excluded": 0, "unrouted": 0}
        bounds: dict[str, list[int]] = {}
        for part, (start, end) in ranges.items():
            records = self._host.request("task.read", partial(read, self._log, landing.job.topic, part, start, end))
            bounds[str(part)] = [len(records), start, end - 1]
            for offset, record in records.items():
                row = Row(part, offset, record.serial, ingested_at)
                forced = offset in landing.force_dead.get(part, ())
                if java.identity(record.serial) in landing.exclude.get(part, {}).get(offset, ()):
                    counts["excluded"] += 1
                elif not record.bad and not forced:
                    data.append(row)
                elif landing.job.on_bad_record == "DeadLetter" or forced:
                    dead.append(row)
                elif landing.job.on_bad_record == "Skip":
                    counts["skipped"] += 1
                else:
                    place = {
                        "partition": part,
                        "offset": offset,
                        "code": "TypeMismatch",
                        "stage": "",
                        "path": "$.id",
                        "rule": "",
                    }
                    results.append((Kind.HALT, json.dumps(place)))
                    break
        if dead and landing.dead_letters is None:
            return [(Kind.DEAD_LETTERS_MISSING, "{}")]
        try:
            results += self._write(landing.table.location, data, Kind.DATA)
            if landing.dead_letters is not None:
                results += self._write(landing.dead_letters.location, dead, Kind.DEAD)
        except JavaError as problem:
            return [(Kind.ERROR, json.dumps({"type": "OSError", "message": str(problem)}))]
        rejected = len(dead) + counts["skipped"]
        stats = {
            **counts, "rows": len(data), "dead": len(dead), "bytes": 100 * len(data),
            "partitions": bounds, "code": "TypeMismatch" if rejected else "", "path": "$.id" if rejected else "", "times": {},
            "rules": {}, "filtered": {},
        }  # fmt: skip
        return [*results, (Kind.STATS, json.dumps(stats))]

    def _write(self, location: str, content: list[Row], kind: Kind) -> list[tuple[str, str]]:
        if not content:
            return []
        path = f"{location}/data/{self._lake.number()}"
        self._host.request("store.put", lambda: self._lake.put(path, content))
        return [(kind, json.dumps({"path": path, "file-path": path, "record-count": len(content)}))]


class Driver:
    """A driver's process. ``start`` begins it, and it runs until `stop` or its death."""

    def __init__(self, host: Host, log: SimulatedLog, lake: Lake, cluster: FakeCluster, bytes_per_commit: int) -> None:
        self.host = host
        self.lake = lake
        self.progress: tuple[GroupProgress, float] | None = None
        """The newest answer of ``/progress``, and when it was given (monotonic seconds)."""
        self.ended = Event(host.scheduler)
        settings = GroupSettings(
            group=GROUP,
            kafka={PROFILE: KafkaConnection(bootstrap_servers="kafka:9092")},
            catalogs={CATALOG: CatalogConnection(type="sql", uri="postgresql://db/lake", warehouse="s3://firn/lake")},
            bytes_per_commit=bytes_per_commit,
        )
        spark = java.spark(lake, host)
        client: Any = LogClient(log, host)
        kafka: Callable[[str], Any] = lambda _: client  # noqa: E731
        points = Failpoints()
        tables = Tables(Catalogs(spark, settings))
        self.committer = Committer(tables, f"{GROUP}/{host.name}", points)
        source = ContractSource(cluster)
        prepared = Preparation(spark, tables, kafka, self.committer, points, contracts=source.current)
        publisher = Publisher(spark, tables, self.committer, points, prepared.begin)
        metrics = Metrics()
        landed = TopicCommits(tables, self.committer, prepared, points, metrics)
        landing = Tasks(host, log, lake)
        self.loop = Loop(
            settings,
            source,
            lambda loop: Rounds(kafka, prepared, landing, landed, points, loop, publisher),
            metrics,
            kafka,
            lambda: None,
        )

    def start(self) -> None:
        """Start the process's threads."""
        self.host.scheduler.spawn(self.host, self._run)
        self.host.scheduler.spawn(self.host, self._report)

    def stop(self) -> None:
        """Ask the process to end, as SIGTERM does."""
        self.loop.stop()

    def _run(self) -> None:
        self.loop.run()
        self.ended.set()
        self.host.dead = True

    def _report(self) -> None:
        while True:
            self.progress = (ReportReader().read(self.loop.report()), self.host.clock.monotonic())
            self.host.scheduler.sleep(POLL_SECONDS)
