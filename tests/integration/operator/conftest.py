"""The operator as a process against real servers: API server, Kafka, PostgreSQL. Without nodes no driver runs."""

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from firn.model import names
from tests import apiserver
from tests.apiserver import SYSTEM, ApiServer, Refused
from tests.servers.kafka import Kafka
from tests.servers.postgres import Postgres
from tests.servers.process import await_true, free_port, stop, tail

REPOSITORY = Path(__file__).resolve().parents[3]
TOPICS = f"/apis/{names.API_VERSION}/namespaces/demo/icebergtopics"
Manifest = dict[str, Any]
_numbers = itertools.count()


@dataclass
class Running:
    """An operator process, its probes and its metrics."""

    process: subprocess.Popen[bytes]
    log: Path
    metrics: int
    probes: int

    def probe(self, name: str) -> httpx.Response | None:
        """Return the answer of a probe, None while the port is closed."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.probes}/{name}", timeout=5)
        except httpx.TransportError:
            return None

    def ready(self) -> bool:
        """Return True if the process reports ready. Fails if the process has ended."""
        assert self.process.poll() is None, tail(self.log)
        answer = self.probe("readyz")
        return answer is not None and answer.status_code == 200

    def metric(self, name: str) -> float:
        """Return the value of a metric, summed over its labels."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics", timeout=5).text
        lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


PROGRAM = """
import sys
from firn.model import names
from firn_operator.__main__ import main
names.SECRETS_PATH = sys.argv[1]
sys.exit(main())
"""
"""Run the operator with Secrets from a directory."""


@dataclass
class World:
    """The servers, and operators that run against them."""

    api: ApiServer
    broker: Kafka
    database: Postgres
    directory: Path
    program: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Mount the Secret with the database's password."""
        secrets = self.directory / "secrets"
        (secrets / "database").mkdir(parents=True, exist_ok=True)
        (secrets / "database" / "password").write_text(self.database.password)
        self.program = self.program or ("-c", PROGRAM, str(secrets))

    def configuration(self, **changes: object) -> Manifest:
        """Return a configuration for these servers."""
        return {
            "namespace": SYSTEM,
            "images": {"spark": {"image": "example.com/firn-spark:1"}, "kafka": {"image": "example.com/kafka:1"}},
            "defaultProfile": "classic",
            "profiles": {"classic": {"bootstrapServers": self.broker.bootstrap, "defaultPartitions": 2}},
            "defaultCatalog": "lake",
            "catalogs": {
                "lake": {
                    "type": "sql",
                    "uri": self.database.uri,
                    "warehouse": f"file://{self.directory}/warehouse",
                    "properties": {"user": self.database.user},
                    "secretProperties": {"password": {"secret": "database", "key": "password"}},
                }
            },
            "groups": {"default": {}},
            **changes,
        }

    def start(self, configuration: Manifest) -> Running:
        """Start an operator process, which may not be ready yet."""
        number = next(_numbers)
        file = self.directory / f"config-{number}.yaml"
        file.write_text(yaml.safe_dump(configuration))
        log = self.directory / f"operator-{number}.log"
        metrics, probes = free_port(), free_port()
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.api.kubeconfig),
            "FIRN_CONFIG": str(file),
            "FIRN_METRICS_LISTEN": f"127.0.0.1:{metrics}",
            "FIRN_PROBES_LISTEN": f"127.0.0.1:{probes}",
            "PYTHONPATH": os.pathsep.join(str(REPOSITORY / part) for part in (".", "operator", "controllers")),
        }
        with log.open("wb") as output:
            command = [sys.executable, *self.program]
            process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        return Running(process, log, metrics, probes)

    @contextmanager
    def operator(self, **changes: object) -> Iterator[Running]:
        """Run a ready operator. It receives SIGTERM at the end, and must exit with code 0."""
        running = self.start(self.configuration(**changes))
        try:
            await_true("the operator is ready", running.ready)
            yield running
            if running.process.poll() is None:
                running.process.send_signal(signal.SIGTERM)
                assert running.process.wait(60) == 0, tail(running.log)
        finally:
            stop(running.process, signal.SIGKILL)

    def apply(self, name: str, spec: Manifest) -> Manifest:
        """Apply an IcebergTopic in namespace demo."""
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "IcebergTopic",
            "metadata": {"name": name, "namespace": "demo"},
            "spec": spec,
        }
        place = f"{TOPICS}/{name}?fieldManager=user&force=true"
        return self.api.call("PATCH", place, body, "application/apply-patch+yaml")

    def topic(self, name: str) -> Manifest | None:
        """Return the live IcebergTopic, or None."""
        return self.find(f"{TOPICS}/{name}")

    def find(self, path: str) -> Manifest | None:
        """Return an object, or None."""
        try:
            return self.api.call("GET", path)
        except Refused as refusal:
            if refusal.code == 404:
                return None
            raise

    def condition(self, name: str, type_: str) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        topic = self.topic(name)
        assert topic is not None
        for condition in topic["status"]["conditions"]:
            if condition["type"] == type_:
                return condition["status"], condition["reason"], condition["message"]
        return "", "", ""

    def await_condition(self, name: str, type_: str, status: str, *reasons: str) -> None:
        """Wait until a condition has this status, and one of these reasons if any are given."""

        def met() -> bool:
            condition = self.condition(name, type_)
            return condition[0] == status and (not reasons or condition[1] in reasons)

        try:
            await_true(f"{name}: {type_}={status} {reasons}", met, 120)
        except AssertionError as error:
            topic = self.topic(name)
            raise AssertionError(f"{error}: {json.dumps(topic and topic['status'])}") from None

    def await_made(self, name: str) -> None:
        """Wait until topic and table exist and the job contract is written."""
        self.await_condition(name, "TopicReady", "True")
        self.await_condition(name, "TableReady", "True")
        topic = self.topic(name)
        assert topic is not None
        job = f"/api/v1/namespaces/{SYSTEM}/configmaps/{names.job(topic['metadata']['uid'])}"
        await_true("the job contract", lambda: self.find(job) is not None)

    def versions(self) -> dict[str, str]:
        """Return the resource versions of everything that the operator writes."""
        places = (
            TOPICS,
            f"/api/v1/namespaces/{SYSTEM}/configmaps",
            f"/api/v1/namespaces/{SYSTEM}/services",
            f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets",
        )
        return {
            f"{place}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for place in places
            for item in self.api.call("GET", place)["items"]
        }


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, broker: Kafka, database: Postgres) -> Iterator[World]:
    with apiserver.prepared() as api:
        owner = {"metadata": {"name": names.CONFIG_OBJECT}}
        api.call("POST", f"/api/v1/namespaces/{SYSTEM}/configmaps", owner)
        yield World(api, broker, database, tmp_path_factory.mktemp("world"))


@pytest.fixture
def name(world: World) -> Iterator[str]:
    name = f"orders-{next(_numbers)}"
    yield name
    topic = world.topic(name)
    if topic is not None:
        world.api.call("PATCH", f"{TOPICS}/{name}", {"metadata": {"finalizers": None}}, "application/merge-patch+json")
        world.api.call("DELETE", f"{TOPICS}/{name}")
