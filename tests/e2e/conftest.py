"""Install a quick-start release that the end-to-end tests share. Each test gets its own namespace."""

import fcntl
import json
import uuid
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from hack import quickstart
from hack.quickstart import RELEASE, SYSTEM, Manifest, kubectl
from tests.e2e import registry, secure_kafka
from tests.e2e.commands import COMMANDS, STATEMENTS
from tests.e2e.credentials import COLLECTOR
from tests.e2e.topics import VALUES, Produce, topic_manifest
from tests.servers.apicurio import Apicurio

RESIDENT = "e2e-resident"
AFTER = ExitStack()
"""Steps after the last test of the release."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Uninstall the release if other tests follow in this process. Its pods would take CPU time from them."""
    yield
    follows = nextitem is not None and not nextitem.nodeid.startswith("tests/e2e/")
    if follows and isinstance(item, pytest.Function) and "release" in item.fixturenames:
        AFTER.close()
        quickstart.run("helm", "uninstall", RELEASE, "--namespace", SYSTEM)


@contextmanager
def only_installer() -> Iterator[None]:
    """Wait until no other process of tests installs objects of the whole cluster, and keep the others waiting."""
    quickstart.cluster_up()
    with (quickstart.STATE / "install.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def crds() -> None:
    """Apply the CRDs of this checkout unless a release has applied them."""
    with only_installer():
        if "icebergtopics.firn.dev" not in kubectl("get", "crds", "-o", "name"):
            kubectl("apply", "--server-side", "-f", str(quickstart.ROOT / "crds"))
        kubectl("wait", "--for=condition=Established", "crd/icebergtopics.firn.dev", "--timeout=60s")


@pytest.fixture(scope="session")
def release() -> Iterator[None]:
    """Install the chart from this checkout, with the profiles and groups of the tests.

    One topic keeps the driver of group ``default`` alive across tests. The driver would end with its last topic, and
    it takes long to start."""
    with only_installer():
        secure_kafka.prepare()
        quickstart.install(VALUES)
    quickstart.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": RESIDENT}})
    quickstart.apply(topic_manifest("resident", RESIDENT))
    COLLECTOR.start()
    AFTER.callback(kubectl, "delete", "namespace", RESIDENT, "--wait=false")
    AFTER.callback(kubectl, "-n", RESIDENT, "delete", "icebergtopics", "--all", "--timeout=60s", check=False)
    for end in (STATEMENTS.close, COMMANDS.close, COLLECTOR.stop):
        AFTER.callback(end)
    with AFTER:
        yield


@pytest.fixture
def schemas(release: None) -> Iterator[Apicurio]:
    """Run the schema registry ``main`` of the release, without schemas."""
    yield registry.start()
    registry.stop()


@pytest.fixture
def namespace(release: None) -> Iterator[str]:
    """Create a namespace under PodSecurity ``restricted``."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    quickstart.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    kubectl("-n", name, "delete", "icebergtopics", "--all", "--timeout=60s", check=False)
    kubectl("delete", "namespace", name, "--wait=false")


PRODUCE = """
import json, sys
from confluent_kafka import Producer
bootstrap, topic = sys.argv[1:3]
settings = json.loads(sys.stdin.readline())  # no arguments, because they may have a password
failed = []
producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **settings})
for line in sys.stdin:
    record = json.loads(line)
    while True:
        try:
            producer.produce(topic, on_delivery=lambda error, _: failed.append(str(error)) if error else None, **record)
            break
        except BufferError:
            producer.poll(0.1)
left = producer.flush(240)
sys.exit(f"{left} unsent, {failed[:3]}" if left or failed else 0)
"""


@pytest.fixture(scope="session")
def client(release: None) -> Iterator[str]:
    """Run a pod with an ordinary Kafka client in its own namespace."""
    name = "e2e-clients"
    quickstart.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    quickstart.apply(quickstart.client_pod("client", name))
    kubectl("-n", name, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def produce(client: str) -> Produce:
    """Produce records from the client pod, and return when all are acknowledged.

    A record is the keyword arguments of the client's ``produce``."""

    def send(topic: Manifest, records: list[dict[str, Any]], **settings: Any) -> None:
        status = topic["status"]
        lines = "\n".join(json.dumps(each) for each in (settings, *records))
        arguments = [status["bootstrapServers"], status["topicName"]]
        kubectl("-n", client, "exec", "-i", "client", "--", "python", "-c", PRODUCE, *arguments, stdin=lines)

    return send
