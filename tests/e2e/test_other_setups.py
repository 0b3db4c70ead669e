"""Executors on Kubernetes, clients outside the cluster, and an existing Kafka with TLS and SASL."""

import json

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from kubernetes.aio import config as kube_config
from kubernetes.aio.client import Configuration

from firn_operator.adapters.kube.api_client import Api, RateLimit
from firn_operator.adapters.kube.cluster import KubeCluster
from firn_operator.adapters.kube.workloads import Workloads
from hack.quickstart import STATE, SYSTEM, apply, await_until, kubectl
from tests.e2e import secure_kafka
from tests.e2e.brokers import events
from tests.e2e.topics import LONG, Produce, await_ready, await_rows, numbered, rows, topic_manifest


def test_a_group_with_executors_lands_records(namespace: str, produce: Produce) -> None:
    apply(topic_manifest("spread", namespace, ingestion={"group": "executors", "freshness": "5s"}))
    topic = await_ready("spread", namespace)
    produce(topic, numbered(0, 1_000))
    table = topic["status"]["table"]["identifier"]
    await_rows(table, 1_000, timeout=240)
    pods = json.loads(kubectl("-n", SYSTEM, "get", "pods", "-l", "spark-role=executor", "-o", "json"))["items"]
    assert pods, "no executor pod ran"
    for pod in pods:
        given = {variable["name"]: variable.get("value", "") for variable in pod["spec"]["containers"][0]["env"]}
        assert given["_SPARK_AUTH_SECRET"]
        assert {"-Dspark.authenticate=true", "-Dspark.network.crypto.enabled=true"} <= set(given.values())
    if LONG:  # The executors are killed. Others replace them, and no row is missing or duplicated.
        kubectl("-n", SYSTEM, "delete", "pods", "-l", "spark-role=executor", "--grace-period=0", "--force")
        produce(topic, numbered(1_000, 1_000))
        await_rows(table, 2_000, timeout=240)
        assert rows(f"select count(distinct id) as n from {table}") == [{"n": 2_000}]
    kubectl("-n", namespace, "delete", "icebergtopic", "spread", "--timeout=60s")
    await_until(
        "driver and executors of the unused group are deleted",
        lambda: not kubectl("-n", SYSTEM, "get", "pods", "-l", "firn.dev/group=executors", "-o", "name").strip(),
        timeout=180,
    )


def test_clients_outside_the_cluster_produce_and_consume(namespace: str) -> None:
    apply(topic_manifest("outside", namespace, partitions=1))
    topic = await_ready("outside", namespace)
    producer = Producer({"bootstrap.servers": "127.0.0.1:30010"})
    for number in range(20):
        producer.produce(topic["status"]["topicName"], json.dumps({"id": number}))
    assert producer.flush(30) == 0
    consumer = Consumer(
        {"bootstrap.servers": "127.0.0.1:30010", "group.id": namespace, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic["status"]["topicName"]])
        seen: list[int] = []

        def all_seen() -> bool:
            message = consumer.poll(1)
            if message is not None and message.error() is None:
                seen.append(json.loads(message.value() or b"")["id"])
            return len(seen) >= 20

        await_until("20 records are read", all_seen, timeout=60, every=0)
        assert sorted(seen) == list(range(20))
    finally:
        consumer.close()
    await_rows(topic["status"]["table"]["identifier"], 20)


def test_an_existing_kafka_may_require_tls_and_sasl(namespace: str, produce: Produce) -> None:
    secure_kafka.start()
    try:
        apply(topic_manifest("guarded", namespace, profile="secure"))
        topic = await_ready("guarded", namespace)
        assert topic["status"]["bootstrapServers"] == f"{secure_kafka.HOST}:9093"
        produce(topic, numbered(0, 100), **secure_kafka.client_settings())
        await_rows(topic["status"]["table"]["identifier"], 100)
    finally:
        kubectl("-n", namespace, "delete", "icebergtopic", "guarded", "--timeout=60s", check=False)
        secure_kafka.stop()


async def test_clients_without_encryption_are_reported_from_the_logs_of_brokers(release: None) -> None:
    configuration = Configuration()
    await kube_config.load_kube_config(str(STATE / "kubeconfig"), client_configuration=configuration)
    api = Api(configuration, RateLimit(100, 100))
    try:
        log = await KubeCluster(api, SYSTEM, Workloads()).pod_log("firn-broker-classic-0", 86400)
    finally:
        await api.close()
    assert "metadata.version" in log
    # The chart gives the right to the operator for plaintext: Keep, and to no other account.
    for account, expected in (("firn-operator", "yes"), ("firn-ingest", "no"), ("firn-maintain", "no")):
        user = f"--as=system:serviceaccount:{SYSTEM}:{account}"
        asked = kubectl("-n", SYSTEM, "auth", "can-i", "get", "pods", "--subresource=log", user, check=False)
        assert asked.strip() == expected, account
    AdminClient({"bootstrap.servers": "127.0.0.1:30010"}).list_topics(timeout=60)

    def reported() -> bool:
        found = [each for each in events("UnencryptedClients") if each.startswith("profile classic:")]
        return any("port 9094" in each for each in found)

    # Port 30010 of the node leads to this port of the broker.
    await_until("an Event names a client of the external listener", reported, timeout=180)
