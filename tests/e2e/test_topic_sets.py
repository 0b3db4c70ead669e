"""A TopicSet on the cluster: records of existing topics become rows, and the IcebergTopics stay after the set."""

import json

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model import names
from hack.quickstart import await_until, get, kubectl
from tests.e2e.topics import await_ready, await_rows

BOOTSTRAP: dict[str, str | int | float | bool] = {"bootstrap.servers": "127.0.0.1:30010"}


def produce(namespace: str, *topics: str) -> None:
    """Create topics and write a record to each, as an ordinary client does."""
    full = [f"{namespace}.{name}" for name in topics]
    admin = AdminClient(BOOTSTRAP)
    for future in admin.create_topics([NewTopic(name, 1) for name in full]).values():
        future.result(30)
    producer = Producer(BOOTSTRAP)
    for number, name in enumerate(full):
        producer.produce(name, json.dumps({"id": number}))
    assert producer.flush(30) == 0


def made(namespace: str) -> set[str]:
    """Return the IcebergTopics that the set made."""
    label = f"{names.LABEL_TOPIC_SET}=events"
    found = kubectl("-n", namespace, "get", "icebergtopics", "-l", label, "-o", "jsonpath={.items[*].metadata.name}")
    return set(found.split())


def test_existing_topics_become_tables_and_stay_after_the_set(namespace: str) -> None:
    produce(namespace, "orders", "carts", "clicks")
    schema = {"format": "Json", "fields": [{"name": "id", "type": "long"}]}
    topic_set = {
        "apiVersion": names.API_VERSION,
        "kind": "TopicSet",
        "metadata": {"name": "events", "namespace": namespace},
        "spec": {
            "profile": "classic",
            "match": rf"^{namespace}\.(?P<name>[a-z]+)$",
            "template": {
                "metadata": {"name": "$name"},
                "spec": {"schema": schema, "table": {"name": "$name"}, "ingestion": {"freshness": "5s"}},
            },
        },
    }
    kubectl("apply", "-f", "-", stdin=json.dumps(topic_set))
    kubectl("-n", namespace, "wait", "--for=condition=Ready", "tset/events", "--timeout=60s")
    assert made(namespace) == {"orders", "carts", "clicks"}
    for name in ("orders", "carts", "clicks"):
        await_rows(await_ready(name, namespace)["status"]["table"]["identifier"], 1)
    produce(namespace, "visits")
    await_until("the fourth topic has its IcebergTopic", lambda: get("icebergtopic", "visits", namespace), 60)
    kubectl("-n", namespace, "delete", "tset", "events", "--timeout=30s")
    assert made(namespace) == {"orders", "carts", "clicks", "visits"}
    await_rows(await_ready("visits", namespace)["status"]["table"]["identifier"], 1)
