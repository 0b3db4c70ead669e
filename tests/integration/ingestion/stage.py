"""Operator and driver together, without nodes.

The operator is a process on an API server, and its drivers run in this process. The tests do the work of a kubelet:
they run the drivers with mounted Secrets, restart them, and report their state."""

import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from kubernetes import client
from kubernetes import config as kube

from firn.model import names
from firn.model.config import Config
from firn.model.errors import ExitCode, FirnError
from firn.model.jobs import GroupSettings
from firn.model.progress import ReportReader, TopicProgress
from firn_controllers.ingestion_group import settings as group_settings
from firn_spark.ingestion.driver import Driver
from firn_spark.ingestion.jobs import KubernetesJobs
from firn_spark.tables.catalogs import Catalogs, catalog_conf
from firn_spark.tables.commits import read_landed
from firn_spark.tables.java_tables import Tables
from tests.apiserver import SYSTEM, Manifest
from tests.integration.operator.conftest import World
from tests.servers.process import await_true
from tests.servers.spark import spark_conf

WAIT = 150.0
FIELDS = [{"name": "id", "type": "long", "required": True}]
OPERATOR = """
import json, sys
from firn.model import names
from firn_operator.adapters import progress
from firn_operator.__main__ import main
names.SECRETS_PATH, ports = sys.argv[1], json.loads(sys.argv[2])
progress.service_address = lambda namespace: lambda group: f"http://127.0.0.1:{ports[group]}/progress"
sys.exit(main())
"""
"""Return the configuration of the operator. Only the directory of Secrets and the addresses of Services differ from
a pod."""


class Secrets:
    """Mounted Secrets: the current values that pods get, and the correct ones."""

    def __init__(self, directory: Path) -> None:
        self.given, self.right = directory / "given", directory / "right"

    def put(self, secret: str, key: str, right: str, given: str | None = None) -> dict[str, str]:
        """Set the current and the correct value of a Secret's key, and return the reference to it."""
        for root, value in ((self.right, right), (self.given, right if given is None else given)):
            file = root / secret / key
            file.parent.mkdir(parents=True, exist_ok=True)
            draft = file.with_name(f".{key}")
            draft.write_text(value + "\n")
            draft.rename(file)
        return {"secret": secret, "key": key}


def driver_settings(config: Config, group: str, secrets: Path, listen: int) -> GroupSettings:
    """Return the settings that the operator renders for ``group``, with Secrets from a directory."""
    place = names.SECRETS_PATH
    names.SECRETS_PATH = str(secrets)
    try:
        settings = group_settings.group_settings(config, group)
    finally:
        names.SECRETS_PATH = place
    return settings.model_copy(update={"listen": f"127.0.0.1:{listen}", "spark_conf": spark_conf()})


class Pod:
    """The pod of a group's driver, as the API server stores it."""

    def __init__(self, stage: "Stage", group: str) -> None:
        self._stage = stage
        self._name = f"{names.ingestion(group)}-0"
        workload = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{names.ingestion(group)}"
        await_true(f"StatefulSet of group {group}", lambda: stage.operator.find(workload) is not None, WAIT)
        template = stage.api("GET", workload)["spec"]["template"]
        body = {"metadata": {**template["metadata"], "name": self._name}, "spec": template["spec"]}
        stage.api("POST", f"/api/v1/namespaces/{SYSTEM}/pods", body)

    def running(self) -> None:
        """Report that the driver runs and is ready."""
        container = {"name": "driver", "image": "i", "imageID": "i", "ready": True, "restartCount": 0}
        status = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{**container, "state": {"running": {}}}],
        }
        self._stage.api(
            "PATCH",
            f"/api/v1/namespaces/{SYSTEM}/pods/{self._name}/status",
            {"status": status},
            "application/merge-patch+json",
        )

    def delete(self) -> None:
        """Delete the pod, as with the last replica of its StatefulSet."""
        self._stage.api("DELETE", f"/api/v1/namespaces/{SYSTEM}/pods/{self._name}?gracePeriodSeconds=0")


class Stage(AbstractContextManager["Stage"]):
    """The operator, the driver of group ``default``, and the questions of a test to them. Every topic has one
    partition."""

    def __init__(self, operator: World, config: Manifest, secrets: Secrets, spark: Any, ports: dict[str, int]) -> None:
        self.operator = operator
        self.config = Config.model_validate(config)
        self.secrets = secrets
        self.ports = ports
        self.settings = driver_settings(self.config, "default", secrets.given, ports["default"])
        self.driver: Driver | None = None
        self._spark = spark
        self._tables = Tables(Catalogs(spark, driver_settings(self.config, "default", secrets.right, 0)))
        self._configured = config
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run_driver, name="node", daemon=True)
        self._producer = Producer({"bootstrap.servers": operator.broker.bootstrap, "linger.ms": 5})

    def __enter__(self) -> "Stage":
        operator = self.operator
        operator.program = ("-c", OPERATOR, str(self.secrets.given), json.dumps(self.ports))
        self.process = operator.start(self._configured)
        await_true("the operator is ready", self.process.ready, WAIT)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        with suppress(AttributeError):
            self.driver.loop.stop()  # type: ignore[union-attr]
        if self._thread.is_alive():
            self._thread.join(60)
        self.process.process.terminate()
        assert self.process.process.wait(60) == 0

    def api(self, method: str, path: str, body: object = None, content: str = "application/json") -> Manifest:
        return self.operator.api.call(method, path, body, content)

    def jobs(self, group: str) -> KubernetesJobs:
        """Return the source of a group's contracts: the API server."""
        connection = kube.new_client_from_config(str(self.operator.api.kubeconfig))
        return KubernetesJobs(client.CoreV1Api(connection), SYSTEM, group, resync=5)

    def _run_driver(self) -> None:
        pod = Pod(self, "default")
        while not self._stopping.is_set():
            for key, setting in catalog_conf(self.settings).items():
                self._spark.conf.set(key, setting)
            self.driver = Driver(self.settings, self._spark, self.jobs("default"))
            pod.running()
            code = self.driver.run()
            if code != ExitCode.TEMPORARY:
                break

    # What a user does

    def apply(self, name: str, **spec: Any) -> None:
        """Apply an IcebergTopic. The first topic of group ``default`` starts its driver."""
        fields = {"schema": {"format": "Json", "fields": FIELDS}, "partitions": 1, "ingestion": {"freshness": "5s"}}
        self.operator.apply(name, {**fields, **spec})
        if "group" not in spec.get("ingestion", {}) and not self._thread.is_alive():
            self._thread.start()

    def rotate(self, secret: str, key: str, value: str) -> None:
        """Write the correct value into a Secret, and return when the driver has restarted with it.

        Until then no topic of its group stays Ready."""
        before = self.driver
        self.secrets.put(secret, key, value)
        if self._thread.is_alive():
            await_true("the driver starts with the new Secret", lambda: self.driver is not before, WAIT)

    def produce(self, name: str, first: int, count: int) -> None:
        for number in range(first, first + count):
            self._producer.produce(name, json.dumps({"id": number}))
        assert self._producer.flush(60) == 0

    def job(self, name: str) -> str:
        """Return the job contract of a topic after the operator has created it."""
        topic = self.operator.topic(name)
        assert topic is not None
        place = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.job(topic['metadata']['uid'])}"
        await_true(f"the contract of {name}", lambda: self.operator.find(place) is not None, WAIT)
        return str(self.api("GET", place)["data"]["job.json"])

    # What a user sees

    def status_and_reason(self, name: str, type_: str) -> tuple[str, str]:
        """Return status and reason of a condition."""
        return self.operator.condition(name, type_)[:2]

    def await_condition(
        self, name: str, type_: str, status: str, reason: str | None = None, saying: Iterable[str] = ()
    ) -> str:
        """Return the message of a condition after it has this status, and this reason and these texts if given.

        Before that the message may differ: the driver is about to start, or does not answer yet."""
        deadline = time.monotonic() + WAIT
        while True:
            condition = self.operator.condition(name, type_)
            if (
                condition[0] == status
                and reason in (None, condition[1])
                and all(part in condition[2] for part in saying)
            ):
                return condition[2]
            if time.monotonic() > deadline:
                topic = self.operator.topic(name)
                raise AssertionError(
                    f"{name}: no {type_}={status} {reason} {saying}, but {json.dumps(topic and topic['status'], indent=1)}; "
                    f"the driver: {self.progress(name)}"
                )
            time.sleep(0.1)

    def progress(self, name: str) -> TopicProgress | None:
        resource = self.operator.topic(name)
        if self.driver is None or resource is None:
            return None
        topics = ReportReader().read(self.driver.loop.report()).topics
        return next((topic for topic in topics if topic.uid == resource["metadata"]["uid"]), None)

    def await_landed(self, name: str, catalog: str, count: int) -> None:
        """Wait until ``count`` records have landed, each as one row."""
        try:
            await_true(f"{count} records of {name}", lambda: self.landed(name, catalog) == {0: count}, WAIT)
        except AssertionError as error:
            raise AssertionError(f"{error}; the driver: {self.progress(name)}") from None
        assert self._table(name, catalog).currentSnapshot().summary()["total-records"] == str(count)

    def landed(self, name: str, catalog: str) -> Mapping[int, int]:
        """Return the landed offsets of the table."""
        read = read_landed(self._table(name, catalog))
        return read.offsets if read is not None else {}

    def _table(self, name: str, catalog: str) -> Any:
        """Load the table with the correct credentials."""
        try:
            return self._tables.load(catalog, "demo", name.replace("-", "_"))
        except FirnError:
            # The catalog was opened with the former correct values.
            self._tables = Tables(Catalogs(self._spark, driver_settings(self.config, "default", self.secrets.right, 0)))
            return self._tables.load(catalog, "demo", name.replace("-", "_"))
