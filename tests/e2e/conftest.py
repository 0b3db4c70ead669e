"""The cluster with a quick-start release on it, shared by every story; each test gets a namespace of its own."""

import json
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import quickstart
from quickstart import Manifest, await_until, conditions, get, kubectl

VALUES = Path(__file__).with_name("values.yaml")


@pytest.fixture(scope="session")
def release() -> None:
    """The chart, installed from this checkout with the profiles and groups that the stories need."""
    quickstart.cluster_up()
    quickstart.install(VALUES)


@pytest.fixture
def namespace(release: None) -> Iterator[str]:
    """A namespace under PodSecurity ``restricted``."""
    name = f"t-{uuid.uuid4().hex[:8]}"
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    quickstart.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}})
    yield name
    kubectl("-n", name, "delete", "icebergtopics", "--all", "--timeout=60s", check=False)
    kubectl("delete", "namespace", name, "--wait=false")


def topic_manifest(name: str, namespace: str, **spec: Any) -> Manifest:
    """An IcebergTopic of three plain columns whose names are unique to the namespace; ``spec`` overrides."""
    base: dict[str, Any] = {
        "topicName": f"{namespace}.{name}",
        "partitions": 2,
        "schema": {
            "format": "Json",
            "fields": [
                {"name": "id", "type": "long", "required": True},
                {"name": "note", "type": "string"},
                {"name": "at", "type": "timestamptz"},
            ],
        },
        "ingestion": {"freshness": "5s"},
    }
    return {
        "apiVersion": "firn.dev/v1alpha1",
        "kind": "IcebergTopic",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**base, **spec},
    }


def await_condition(
    name: str, namespace: str, type_: str, status: str, reason: str | None = None, timeout: float = 120
) -> Manifest:
    """The topic once its condition says so for the current generation; fails with all conditions it has instead."""

    def look() -> Manifest | None:
        topic = get("icebergtopic", name, namespace)
        found = conditions(topic).get(type_)
        if topic is None or found is None or found["status"] != status or reason not in (None, found["reason"]):
            return None
        return topic if found["observedGeneration"] == topic["metadata"]["generation"] else None

    try:
        return await_until(f"{namespace}/{name}: {type_}={status}/{reason}", look, timeout)
    except TimeoutError as error:
        seen = {
            kind: (item["status"], item["reason"], item["message"])
            for kind, item in conditions(get("icebergtopic", name, namespace)).items()
        }
        raise AssertionError(f"{error}; conditions: {json.dumps(seen, indent=1)}") from None


def await_ready(name: str, namespace: str, timeout: float = 240) -> Manifest:
    """The topic once it is Ready."""
    return await_condition(name, namespace, "Ready", "True", timeout=timeout)


Produce = Callable[..., None]

PRODUCE = """
import json, sys
from confluent_kafka import Producer
bootstrap, topic = sys.argv[1:3]
settings = json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
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
left = producer.flush(60)
sys.exit(f"{left} unsent, {failed[:3]}" if left or failed else 0)
"""


@pytest.fixture(scope="session")
def client(release: None) -> Iterator[str]:
    """A pod with an ordinary Kafka client, in a namespace of its own."""
    name = "e2e-clients"
    quickstart.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    quickstart.apply(quickstart.client_pod("client", name))
    kubectl("-n", name, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")
    yield name
    kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def produce(client: str) -> Produce:
    """Produce records (keyword arguments of a Kafka client's produce) from the client pod; returns when all are acknowledged."""

    def send(topic: Manifest, records: list[dict[str, Any]], **settings: Any) -> None:
        status = topic["status"]
        lines = "\n".join(json.dumps(record) for record in records)
        arguments = [status["bootstrapServers"], status["topicName"], json.dumps(settings)]
        kubectl("-n", client, "exec", "-i", "client", "--", "python", "-c", PRODUCE, *arguments, stdin=lines)

    return send


def numbered(start: int, count: int) -> list[dict[str, Any]]:
    """Good records with ids from ``start``."""
    return [
        {"key": str(number), "value": json.dumps({"id": number, "note": f"n{number}"})}
        for number in range(start, start + count)
    ]


def rows(sql: str) -> list[dict[str, Any]]:
    """Rows of a query by ``firn sql``."""
    return list(json.loads(quickstart.firn("sql", "--output", "json", sql)))


def await_rows(table: str, count: int, timeout: float = 120) -> None:
    """Wait until the table has exactly ``count`` rows; more is a failure at once."""

    def look() -> bool:
        found = rows(f"select count(*) as n from {table}")[0]["n"]
        assert found <= count, f"{table} has {found} rows, more than the {count} produced"
        return bool(found == count)

    await_until(f"{table} has {count} rows", look, timeout, every=2)
