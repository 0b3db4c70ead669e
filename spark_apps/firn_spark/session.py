"""The Spark of an application: its JVM, its context and its SQL session, configured from `GroupSettings` or a `MaintenanceRun`.

Secrets are read from the files that the settings name. They reach Spark only as catalog properties whose names match
``spark.redaction.regex``. Nothing here logs a value.
"""

import contextlib
import json
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kubernetes import client
from kubernetes import config as kube
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from firn import trust
from firn.model import names
from firn.model.config import Executors
from firn.model.errors import InvalidSpecError
from firn.model.jobs import CatalogConnection
from firn_spark.tables.catalogs import catalog_conf

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
EXECUTOR_LABEL = "firn.dev/attempt"
# Spark keeps its local files in a volume of this name, whichever directories the driver uses.
EXECUTOR_TEMPLATE = """\
apiVersion: v1
kind: Pod
spec:
  automountServiceAccountToken: false
  securityContext:
    runAsNonRoot: true
    runAsUser: 185
    runAsGroup: 185
    fsGroup: 185
    seccompProfile: {type: RuntimeDefault}
  containers:
    - name: executor
      imagePullPolicy: %(pull_policy)s
      securityContext:
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
      # Spark adds CPU and memory.
      resources:
        requests: {ephemeral-storage: %(storage_request)s}
        limits: {ephemeral-storage: %(storage)s}
      volumeMounts:
        # Spark finds its local directory by this name. Otherwise it mounts one at SPARK_LOCAL_DIRS, which is /tmp too.
        - {name: spark-local-dir-1, mountPath: /tmp}
%(mounts)s
  volumes:
    - name: spark-local-dir-1
      emptyDir: {sizeLimit: %(storage)s}
%(volumes)s
"""
EXECUTOR_STORAGE = ("512Mi", "20Gi")
"""Request and limit for the disk space of an executor whose settings are of an earlier operator."""
LANDING_DAEMON = "firn_spark.worker_daemon"
MERGE_DAEMON = "firn_spark.merge_daemon"
HEAP_EXHAUSTED_EXIT = 3
"""Exit code of a JVM with ``-XX:+ExitOnOutOfMemoryError`` that ran out of heap."""
JVM_END_SECONDS = 10.0
"""Longest time between the JVM's last answer and its end."""
RESERVED_BYTES = 64 << 20
"""Heap that Spark keeps free of its own blocks and buffers in a JVM without rows."""
REDACTION = r"(?i)secret|password|token|access[.]?key|credential|jdbc[.]user"


class Application(Protocol):
    """The settings of an application that its session needs."""

    @property
    def application(self) -> str:
        """The application's name; its executors are named after it."""
        ...

    @property
    def driver_host(self) -> str | None:
        """The address at which executors reach the driver; None for the address of its pod."""
        ...

    @property
    def executor_labels(self) -> dict[str, str]:
        """Labels that distinguish its executors from those of other applications."""
        ...

    @property
    def rows_in_jvm(self) -> bool:
        """True if rows pass through the driver's JVM. Otherwise the JVM plans and commits, and its compiler C2 does not pay."""
        ...

    @property
    def namespace(self) -> str: ...  # noqa: D102
    @property
    def cores(self) -> int: ...  # noqa: D102
    @property
    def heap(self) -> str: ...  # noqa: D102
    @property
    def executors(self) -> Executors | None: ...  # noqa: D102
    @property
    def executor_image(self) -> str | None: ...  # noqa: D102
    @property
    def executor_pull_policy(self) -> str: ...  # noqa: D102
    @property
    def executor_storage(self) -> str | None: ...  # noqa: D102
    @property
    def executor_storage_request(self) -> str | None: ...  # noqa: D102
    @property
    def pull_secrets(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def service_account(self) -> str: ...  # noqa: D102
    @property
    def spark_conf(self) -> dict[str, str]: ...  # noqa: D102
    @property
    def catalogs(self) -> dict[str, CatalogConnection]: ...  # noqa: D102


def java_options(cores: int, environment: Mapping[str, str], *, rows_in_jvm: bool = True) -> str:
    """Return the options of the driver's JVM for this number of cores.

    FIRN_CLASS_ARCHIVE in ``environment`` names the archive of classes that the image's build wrote
    (hack/images/spark/class_archive.py). A JVM that cannot use the archive ignores it.
    """
    options = ["-XX:+ExitOnOutOfMemoryError", "-XX:+UseSerialGC" if cores <= 2 else "-XX:+UseG1GC"]
    if not rows_in_jvm:
        # By default, the heap starts at a 64th of the machine's memory, which is more than commits need.
        options += ["-XX:TieredStopAtLevel=1", "-Xms64m"]
    if archive := environment.get("FIRN_CLASS_ARCHIVE"):
        # By default, this JVM maps the archive at a random address, and so writes to each page with an address. This takes
        # 0.2 CPU seconds. It also makes 130 MB private to the process, which the kernel can neither share nor drop.
        fixed = ["-XX:+UnlockDiagnosticVMOptions", "-XX:ArchiveRelocationMode=0"]
        options += [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds*=off", *fixed]
    return " ".join(options)


def spark_conf(
    settings: Application, environment: Mapping[str, str], attempt: str, daemon: str = LANDING_DAEMON
) -> dict[str, str]:
    """Return Spark's configuration for ``settings``. ``daemon`` is the module from which Python workers are forked.

    ``environment`` holds POD_NAME and POD_IP if there are executors, and what `java_options` reads; ``attempt`` names this start of the driver.
    ``settings.spark_conf`` takes precedence. Raises InvalidSpecError for settings that cannot work.
    """
    conf = {
        "spark.app.name": settings.application,
        "spark.driver.memory": settings.heap,
        "spark.driver.extraJavaOptions": java_options(settings.cores, environment, rows_in_jvm=settings.rows_in_jvm),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.retainedJobs": "20",
        "spark.ui.retainedStages": "20",
        "spark.ui.retainedTasks": "200",
        "spark.sql.ui.retainedExecutions": "5",
        "spark.scheduler.mode": "FAIR",
        "spark.task.maxFailures": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(max(2, settings.cores)),
        "spark.sql.execution.arrow.maxRecordsPerBatch": "65536",
        "spark.sql.execution.arrow.maxBytesPerBatch": str(16 * 1024 * 1024),
        "spark.python.daemon.module": daemon,
        "spark.redaction.regex": REDACTION,
        "spark.cleaner.periodicGC.interval": "10min",
    }
    if settings.rows_in_jvm:
        # Procedures and other SQL of Iceberg. Ingestion has none.
        conf["spark.sql.extensions"] = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
    else:
        # Spark keeps 300 MB of the heap free for itself, and refuses a heap of less than 450 MB.
        conf["spark.testing.reservedMemory"] = str(RESERVED_BYTES)
    if settings.executors is None:
        conf |= {
            "spark.master": f"local[{settings.cores},2]",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
        }
    else:
        conf |= _executor_conf(settings, environment, attempt)
    conf |= settings.spark_conf
    files = trusted_files(settings)
    return conf | (_trust_conf(conf, environment, files) if files else {})


def trusted_files(settings: Application) -> list[str]:
    """Return the files with CA certificates that the JVM of the driver and of executors needs, sorted."""
    return sorted({file for connection in settings.catalogs.values() for file in connection.process_trust})


def _trust_conf(conf: Mapping[str, str], environment: Mapping[str, str], files: Sequence[str]) -> dict[str, str]:
    """Return the options of the JVMs for their trust stores. They are added to the options that ``conf`` has."""
    options = {"driver": trust.java_options(_trust_store(environment))}
    added = {}
    if "spark.kubernetes.container.image" in conf:
        options["executor"] = trust.java_options(trust.TRUST_STORE)
        added[f"spark.executorEnv.{trust.EXECUTOR_FILES}"] = ":".join(files)
    for process, text in options.items():
        key = f"spark.{process}.extraJavaOptions"
        added[key] = f"{conf.get(key, '')} {text}".strip()
    return added


def _trust_store(environment: Mapping[str, str]) -> str:
    return str(Path(environment.get("TMPDIR", "/tmp")) / f"firn-trust-{os.getpid()}.jks")


def executor_template(settings: Application) -> str:
    """Return the pod template of executors. They get the CA certificates of `trusted_files`, and no other key of a Secret."""
    keys: dict[tuple[str, str], list[str]] = {}
    for path in trusted_files(settings):
        if source := names.trust_source(path):
            keys.setdefault(source[:2], []).append(source[2])
    mounts, volumes = [], []
    for number, ((kind, name), found) in enumerate(sorted(keys.items())):
        items = [{"key": key, "path": key} for key in found]
        field, reference = ("secret", "secretName") if kind == "secret" else ("configMap", "name")
        volume = {field: {reference: name, "items": items, "defaultMode": 0o440, "optional": True}}
        mount = {"name": f"trust-{number}", "mountPath": f"{names.TRUST_PATH}/{kind}-{name}", "readOnly": True}
        # JSON is YAML too.
        volumes.append(f"    - {json.dumps({'name': f'trust-{number}', **volume})}")
        mounts.append(f"        - {json.dumps(mount)}")
    return EXECUTOR_TEMPLATE % {
        "pull_policy": settings.executor_pull_policy,
        "storage_request": settings.executor_storage_request or EXECUTOR_STORAGE[0],
        "storage": settings.executor_storage or EXECUTOR_STORAGE[1],
        "mounts": "\n".join(mounts),
        "volumes": "\n".join(volumes),
    }


def _executor_conf(settings: Application, environment: Mapping[str, str], attempt: str) -> dict[str, str]:
    executors = settings.executors
    assert executors is not None
    if settings.executor_image is None or not settings.namespace:
        raise InvalidSpecError(f"{settings.application}: executors need executor_image and namespace in its settings")
    pod, address = environment.get("POD_NAME"), environment.get("POD_IP")
    if not pod or not address:
        raise InvalidSpecError(
            f"{settings.application}: executors need POD_NAME and POD_IP in the driver's environment"
        )
    conf = {
        "spark.master": "k8s://https://kubernetes.default.svc",
        "spark.submit.deployMode": "client",
        "spark.kubernetes.namespace": settings.namespace,
        "spark.kubernetes.container.image": settings.executor_image,
        "spark.kubernetes.container.image.pullPolicy": settings.executor_pull_policy,
        "spark.kubernetes.driver.pod.name": pod,
        "spark.kubernetes.executor.podNamePrefix": f"{settings.application[:31].rstrip('-')}-{attempt}",
        "spark.kubernetes.executor.podTemplateFile": str(Path(environment.get("TMPDIR", "/tmp")) / "executor.yaml"),
        "spark.kubernetes.executor.podTemplateContainerName": "executor",
        f"spark.kubernetes.executor.label.{EXECUTOR_LABEL}": attempt,
        **{f"spark.kubernetes.executor.label.{label}": value for label, value in settings.executor_labels.items()},
        f"spark.kubernetes.executor.label.{names.LABEL_MANAGED_BY}": names.MANAGED_BY,
        "spark.kubernetes.executor.terminationGracePeriodSeconds": "10s",
        # The driver's account may change pods, not ConfigMaps or volumes.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        # Tasks carry passwords of brokers and keys of storage. Spark's scheduler for Kubernetes makes a new secret at each start and
        # passes it to executors in their environment.
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.authEngineVersion": "2",
        "spark.network.crypto.saslFallback": "false",
        "spark.driver.bindAddress": address,
        "spark.driver.host": settings.driver_host or address,
        "spark.driver.port": str(DRIVER_PORT),
        "spark.driver.blockManager.port": str(BLOCK_MANAGER_PORT),
        "spark.executor.instances": str(executors.instances),
        "spark.executor.cores": str(executors.cores),
        # The scheduler reserves this much. Tasks may use more while the node has more, as the driver's own threads do.
        "spark.kubernetes.executor.request.cores": executors.cpu,
        "spark.executor.memory": executors.memory,
        "spark.executor.memoryOverhead": executors.overhead,
        "spark.executor.maxNumFailures": "20",
        "spark.executor.failuresValidityInterval": "1h",
        "spark.kubernetes.allocation.executor.timeout": "600s",
        "spark.scheduler.minRegisteredResourcesRatio": "0",
    }
    if settings.service_account:
        conf["spark.kubernetes.authenticate.driver.serviceAccountName"] = settings.service_account
    if settings.pull_secrets:
        conf["spark.kubernetes.container.image.pullSecrets"] = ",".join(settings.pull_secrets)
    return conf


def start(settings: Application, environment: Mapping[str, str] = os.environ, *, daemon: str = LANDING_DAEMON) -> Any:
    """Start the application's SparkSession. ``daemon`` is as in `spark_conf`.

    The heap has to be known before the JVM starts, so call this before any other use of Spark. Raises
    InvalidSpecError as `spark_conf` does.
    """
    return start_context(settings, environment, daemon=daemon).sql_session


def start_context(
    settings: Application, environment: Mapping[str, str] = os.environ, *, daemon: str = LANDING_DAEMON
) -> "Spark":
    """Start Spark as `start` does, without its SQL session, which starts at its first use."""
    # Executors may survive a container restart inside one pod. The label distinguishes those of other attempts.
    attempt = secrets.token_hex(3)
    conf = spark_conf(settings, environment, attempt, daemon)
    catalogs = catalog_conf(settings)
    if files := trusted_files(settings):
        trust.write_trust_store(_trust_store(environment), files)
    if settings.executors is not None:
        Path(conf["spark.kubernetes.executor.podTemplateFile"]).write_text(executor_template(settings))
        delete_executors(settings)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # The JVM starts with this configuration as its arguments, including the heap.
    context = SparkContext.getOrCreate(SparkConf(loadDefaults=False).setAll(list(conf.items())))
    context.setLogLevel(conf.get("spark.log.level", "WARN"))
    return Spark(context, catalogs)


class Spark:
    """A running Spark whose SQL session starts at its first use: only a few rounds need it, and its start takes seconds.

    It has those attributes of a SparkSession that ingestion uses.
    """

    def __init__(self, context: SparkContext, catalogs: Mapping[str, str]) -> None:
        self.sparkContext = context
        self._jvm = context._jvm
        self._jsc = context._jsc
        self._catalogs = catalogs
        self._sql: SparkSession | None = None
        self._starting = threading.Lock()

    @property
    def sql_session(self) -> SparkSession:
        """The SQL session, with the application's catalogs."""
        with self._starting:
            if self._sql is None:
                session = SparkSession.builder.getOrCreate()
                for key, value in self._catalogs.items():
                    session.conf.set(key, value)
                self._sql = session
            return self._sql

    @property
    def read(self) -> Any:
        """The SQL session's reader of data frames."""
        return self.sql_session.read

    @property
    def _jsparkSession(self) -> Any:
        return self.sql_session._jsparkSession

    def warm(self, tasks: int) -> None:
        """Start the Python workers of ``tasks`` tasks in the background, so that the first round does not wait for them."""
        threading.Thread(target=self._run_empty_job, args=(tasks,), name="warm", daemon=True).start()

    def _run_empty_job(self, tasks: int) -> None:
        # The first round reports the same error, with its topic.
        with contextlib.suppress(Exception):
            self.sparkContext.parallelize(range(tasks), tasks).mapPartitions(list).collect()


def delete_executors(settings: Application) -> None:
    """Delete the executor pods that earlier attempts of this application's driver left behind."""
    kube.load_incluster_config()
    client.CoreV1Api().delete_collection_namespaced_pod(
        settings.namespace,
        label_selector=",".join(
            [*(f"{label}={value}" for label, value in settings.executor_labels.items()), EXECUTOR_LABEL]
        ),
    )


def heap_exhausted() -> bool:
    """Return True if this process's JVM ended because it ran out of heap (``ExitOnOutOfMemoryError``).

    Call it only when the JVM has ended or is about to: it waits up to `JVM_END_SECONDS` for the end.
    """
    process = getattr(SparkContext._gateway, "proc", None)
    try:
        return process is not None and process.wait(JVM_END_SECONDS) == HEAP_EXHAUSTED_EXIT
    except subprocess.TimeoutExpired:
        return False


def running(spark: Any) -> bool:
    """Return False if the JVM behind ``spark`` has ended. The process cannot use Spark again then."""
    process = spark.sparkContext._gateway.proc
    return process is None or process.poll() is None
