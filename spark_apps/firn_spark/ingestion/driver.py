"""The process of an ingestion driver: reads its settings, starts Spark, and serves topics until it is stopped."""

import os
import signal
import socket
import sys
import threading
import uuid
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import structlog
from confluent_kafka import KafkaException
from kubernetes import client
from kubernetes import config as kube

from firn.model import names
from firn.model.errors import ExitCode, InvalidSpecError, NotReadyError
from firn.model.jobs import GroupSettings
from firn_spark import documents, failpoints, logs, session
from firn_spark.credentials import Credentials
from firn_spark.ingestion.history.naming import HistoryNaming
from firn_spark.ingestion.jobs import DirectoryJobs, JobSource, KubernetesJobs
from firn_spark.ingestion.lease import LEASE_SECONDS, LeasedJobs, holder
from firn_spark.ingestion.loop import Loop
from firn_spark.ingestion.progress import Metrics, Server
from firn_spark.ingestion.publishing.publisher import Publisher
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.landing_job import LandingJobs
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.writer_schemas import registries
from firn_spark.kafka.admin import Kafka
from firn_spark.leases import KubernetesLeases, Leases
from firn_spark.tables.catalogs import Catalogs
from firn_spark.tables.commits import Committer
from firn_spark.tables.java_tables import Tables

log = structlog.get_logger()


class Driver:
    """An ingestion application on a running Spark session: its loop, its rounds and its HTTP server."""

    def __init__(
        self,
        settings: GroupSettings,
        spark: Any,
        jobs: JobSource,
        points: failpoints.Failpoints | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Compose the application. ``credentials`` must have been read before ``spark`` was started."""
        self.settings = settings
        self._spark = spark
        self._credentials = credentials or Credentials(settings.secret_files)
        self.metrics = Metrics()
        self._kafkas: dict[str, Kafka] = {}
        self._lock = threading.Lock()
        self._catalogs = Catalogs(spark, settings)
        tables = Tables(self._catalogs, settings.cluster, settings.former_clusters)
        writer = f"{settings.group}/{socket.gethostname()}/{uuid.uuid4().hex[:12]}"
        points = points or failpoints.Failpoints()
        committer = Committer(tables, writer, points)
        preparation = Preparation(
            spark, tables, self.kafka, committer, points, registries(settings), settings.salts, jobs.current
        )
        landing = LandingJobs(
            spark,
            self.kafka,
            tasks=settings.tasks,
            buffer_bytes=settings.buffer_bytes,
            direct=settings.direct,
            salts=settings.salts,
        )
        commits = TopicCommits(tables, committer, preparation, points, self.metrics)
        publisher = Publisher(spark, tables, committer, points, preparation.begin)
        self.loop = Loop(
            settings,
            jobs,
            lambda loop: Rounds(self.kafka, preparation, landing, commits, points, loop, publisher),
            self.metrics,
            self.kafka,
            self._unfit,
            _version(),
        )
        self.history = HistoryNaming(tables, settings.direct, self.loop.topics, settings.history_ms / 1000)
        self.server = Server(
            settings.listen, self.metrics, self.loop.report, self.loop.measure, self.loop.ready, self.loop.alive
        )

    def kafka(self, profile: str) -> Kafka:
        """Return the client of a profile's brokers.

        Raises NotReadyError if the settings do not name the profile, or if its secrets cannot be read, and InvalidSpecError if
        the client rejects its settings.
        """
        with self._lock:
            if profile not in self._kafkas:
                connection = self.settings.kafka.get(profile)
                if connection is None:
                    raise NotReadyError(
                        f"profile {profile} is not in the settings of group {self.settings.group}; wait for the operator to restart the driver"
                        " with it, or add the profile to profiles in the operator's configuration"
                    )
                try:
                    self._kafkas[profile] = Kafka(profile, connection)
                except KafkaException as error:
                    raise InvalidSpecError(
                        f"profile {profile}: the Kafka client rejects its settings: {error.args[0].str()}"
                    ) from error
            return self._kafkas[profile]

    def _unfit(self) -> str | None:
        if not session.running(self._spark):
            return "Spark's JVM has exited"
        return "secrets have changed" if self._credentials.replaced() else None

    def run(self) -> ExitCode:
        """Serve until `Loop.stop`, or until Spark ended or secrets changed."""
        self.server.start()
        self.history.start()
        try:
            code = self.loop.run()
        finally:
            self.history.stop()
            self.server.stop()
            self._catalogs.close()
        gone = code is ExitCode.TEMPORARY and not session.running(self._spark)
        return ExitCode.OUT_OF_MEMORY if gone and session.heap_exhausted() else code


def job_source(settings: GroupSettings) -> JobSource:
    """Return the source of job contracts that the settings name. In Kubernetes, one driver of the group has them."""
    if settings.jobs_directory is not None:
        return DirectoryJobs(settings.jobs_directory, settings.group)
    kube.load_incluster_config()
    jobs = KubernetesJobs(client.CoreV1Api(), settings.namespace, settings.group)
    store = KubernetesLeases(client.CoordinationV1Api(), settings.namespace, {names.LABEL_GROUP: settings.group})
    leases = Leases(store, holder(os.environ, socket.gethostname()), LEASE_SECONDS)
    return LeasedJobs(jobs, leases, names.ingestion(settings.group))


def run(path: str) -> int:
    """Run the process from start to end and return its exit code."""
    logs.configure(os.environ.get("FIRN_LOG_LEVEL", "INFO").upper())
    try:
        settings = documents.load(GroupSettings, path)
        points = failpoints.from_environment()
        credentials = Credentials(settings.secret_files)
        spark = session.start_context(settings)
        spark.warm(settings.tasks)
        driver = Driver(settings, spark, job_source(settings), points, credentials)
    except InvalidSpecError as error:
        log.error("cannot start", error=str(error))
        return ExitCode.CONFIGURATION
    except Exception:
        if not session.heap_exhausted():
            raise
        log.exception("cannot start, because Spark's JVM ran out of heap; raise the group's heap", heap=settings.heap)
        return ExitCode.OUT_OF_MEMORY
    signal.signal(signal.SIGTERM, lambda *_: driver.loop.stop())
    signal.signal(signal.SIGINT, lambda *_: driver.loop.stop())
    log.info("driver ready", group=settings.group, listen=settings.listen, cores=settings.cores)
    code = ExitCode.BUG
    try:
        code = driver.run()
    except Exception:
        log.exception("ended with an unexpected error")
    log.info("driver stopped", code=code.name)
    # A call that hangs in a dead connection must not keep the pod from ending. All rounds have ended or were fenced.
    sys.stderr.flush()
    os._exit(code)


def _version() -> str:
    try:
        return version("firn")
    except PackageNotFoundError:
        return ""
