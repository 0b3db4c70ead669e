"""A diskless profile gets a listener with TLS and authentication while it runs, and then closes the other one."""

import base64
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from firn.model import names
from hack import quickstart
from hack.quickstart import SYSTEM, Manifest, apply, kubectl, say
from tests.e2e import intrusions, tenants
from tests.e2e.brokers import PATIENCE, await_rolled, await_until
from tests.e2e.topics import LONG, VALUES, Produce, await_ready, await_rows, numbered, rows, topic_manifest

pytestmark = pytest.mark.timeout(1800)

PROFILE, BROKERS, SECRET = "diskless", "firn-broker-diskless", "firn-broker-diskless-tls"
SECURE = f"{BROKERS}-bootstrap.{SYSTEM}.svc:9096"
PLAIN = f"{BROKERS}-bootstrap.{SYSTEM}.svc:9092"
CLIENTS = "e2e-secure-clients"
PASSWORD = "a-password-of-a-test"
REPLICAS = 2 if LONG else 1
"""Brokers of the profile while it has a secure listener."""
CLOSED = (
    *(("firn-broker-classic-0", 9098), (f"{BROKERS}-0", 9090), (f"{BROKERS}-0", 9095), ("firn-ingest-default-0", 8080)),
    *(("firn-postgres-0", 5432), ("firn-s3-0", 7070), ("operator", 9090)),
)
"""Pods and ports: controllers, metrics, direct reads, `/progress`, PostgreSQL, S3."""

SETTINGS = """
import json, sys, time
from pathlib import Path
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding, AclOperation, AclPermissionType, AdminClient, ResourcePatternType, ResourceType, ScramCredentialInfo,
    ScramMechanism, UserScramCredentialUpsertion,
)
bootstrap, topic, user, password = sys.argv[1:5]
by_token = {
    "bootstrap.servers": bootstrap, "security.protocol": "SASL_SSL", "ssl.ca.location": "/access/ca.crt",
    "sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (Path("/access/token").read_text(), time.time() + 600),
}
by_password = by_token | {"sasl.mechanism": "SCRAM-SHA-512", "sasl.username": user, "sasl.password": password}
del by_password["oauth_cb"]
"""
GRANT = (
    SETTINGS
    + """
admin = AdminClient(by_token)
info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
changed = admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user, info, password.encode())])
acls = [
    AclBinding(ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
    for operation in (AclOperation.WRITE, AclOperation.DESCRIBE)
]
for future in (*changed.values(), *admin.create_acls(acls).values()):
    future.result(60)
"""
)
PRODUCE = (
    SETTINGS
    + """
failed = []
producer = Producer(by_password | {"message.timeout.ms": 60000})
for line in sys.stdin:
    producer.produce(topic, on_delivery=lambda error, _: failed.append(str(error)) if error else None, **json.loads(line))
left = producer.flush(90)
print(json.dumps({"left": left, "failed": failed[:3]}))
"""
)
DESCRIBE = (
    SETTINGS
    + """
from confluent_kafka.admin import AclBindingFilter
own = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, f"User:{user}", None, AclOperation.ANY, AclPermissionType.ANY
)
admin = AdminClient(by_token)
found = admin.describe_acls(own).result(60)
print(json.dumps(sorted([each.restype.name, each.name, each.operation.name] for each in found)))
"""
)
CONSUME = """
import json, sys, time
from pathlib import Path
from confluent_kafka import Consumer, TopicPartition
token = sys.stdin.read()
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "security.protocol": "SASL_SSL", "ssl.ca.location": "/access/ca.crt", "group.id": "none",
    "sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: (token, time.time() + 600), "auto.offset.reset": "earliest",
})
answers = {}
for topic in sys.argv[2:]:
    consumer.assign([TopicPartition(topic, 0, 0)])
    answers[topic], until = "nothing", time.time() + 30
    while answers[topic] == "nothing" and time.time() < until:
        message = consumer.poll(1)
        if message is not None and (message.error() is None or message.error().name() != "GROUP_AUTHORIZATION_FAILED"):
            answers[topic] = "record" if message.error() is None else message.error().name()
print(json.dumps(answers))
"""
KNOCK = """
import socket, ssl, sys
def answers(port, context=None):
    try:
        with socket.create_connection((sys.argv[1], port), 5) as plain:
            connection = context.wrap_socket(plain, server_hostname=sys.argv[1]) if context else plain
            connection.settimeout(5)
            connection.sendall(bytes.fromhex("0000000e 0003 0001 00000001 0000 ffffffff"))  # Metadata of all topics
            return connection.recv(4) != b""
    except OSError:
        return False
print(answers(9092), answers(9096), answers(9096, ssl.create_default_context(cafile="/access/ca.crt")))
"""


@pytest.fixture
def clients(release: None) -> Iterator[None]:
    """Create the namespace of the clients, and delete it at the end."""
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLIENTS}})
    yield
    kubectl("delete", "namespace", CLIENTS, "--wait=false")


def authority() -> str:
    """Return the CA that the signer has created."""
    secret = await_until("the signer has issued a certificate", lambda: quickstart.get("secret", SECRET))
    return base64.b64decode(secret["data"]["ca.crt"]).decode()


def start_client() -> None:
    """Run a pod with a Kafka client, the CA, and a token of its ServiceAccount for the brokers."""
    data = {"ca.crt": authority()}
    apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ca", "namespace": CLIENTS}, "data": data})
    manifest = quickstart.client_pod("client", CLIENTS)
    token = {"audience": names.TOKEN_AUDIENCE, "expirationSeconds": 3600, "path": "token"}
    sources = [{"configMap": {"name": "ca"}}, {"serviceAccountToken": token}]
    spec = manifest["spec"]
    spec["volumes"] = [{"name": "access", "projected": {"sources": sources, "defaultMode": 0o444}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "access", "mountPath": "/access"}]
    apply(manifest)
    kubectl("-n", CLIENTS, "wait", "--for=condition=Ready", "pod/client", "--timeout=120s")


def install(plaintext: str, namespace: str) -> None:
    """Install the release with ``access`` of the profile and users in a namespace, and wait for its brokers."""
    say(f"helm upgrade: {plaintext}")
    profile = {
        "replicas": REPLICAS,
        "users": {"namespaces": [namespace, CLIENTS]},
        "access": {
            "certificate": {"selfSigned": {"authorityDuration": "400d"}},
            "plaintext": plaintext,
            "superUsers": [f"User:{names.service_account(CLIENTS, 'default')}"],
        },
    }
    values = {"users": {"enabled": True}, "quickStart": {"diskless": {"profile": profile}}}
    # Helm cannot set keys below the null of the other values, but merges files.
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(values, file)
        file.flush()
        quickstart.install(VALUES, Path(file.name))
    await_ports(REPLICAS, *(("kafka", "secure") if plaintext == "Keep" else ("secure",)))


def await_ports(brokers: int, *expected: str) -> None:
    """Wait until this number of brokers has these ports for clients, and the operator knows it."""

    def template() -> bool:
        live = quickstart.get("statefulset", BROKERS) or {}
        (container,) = live["spec"]["template"]["spec"]["containers"]
        ports = {port["name"] for port in container["ports"]} & {"kafka", "secure"}
        secured = live["metadata"]["annotations"].get(names.SECURED) == "true"
        return ports == set(expected) and secured == ("secure" in expected)

    await_until(f"the brokers have the ports {expected}", template)
    await_rolled(BROKERS, brokers)


def uninstall() -> None:
    """Install the release without ``access``."""
    quickstart.install(VALUES)
    await_ports(1, "kafka")


def run(script: str, *arguments: str, stdin: str = "") -> str:
    """Run a script in the pod of the clients, and return its output."""
    return kubectl("-n", CLIENTS, "exec", "-i", "client", "--", "python", "-c", script, *arguments, stdin=stdin)


def check_own_rights(topic: str) -> None:
    """Check that the driver has only rights to read topics, and that the operator may not read them."""
    driver, operator = (names.service_account(SYSTEM, name) for name in ("firn-ingest", "firn-operator"))
    rules = json.loads(run(DESCRIBE, SECURE, topic, driver, ""))
    assert ["TOPIC", topic, "READ"] in rules
    assert {(kind, operation) for kind, _, operation in rules} == {("TOPIC", "READ")}
    assert json.loads(run(DESCRIBE, SECURE, topic, operator, "")) == []
    for account, expected in (("firn-ingest", "record"), ("firn-operator", "TOPIC_AUTHORIZATION_FAILED")):
        token = kubectl(
            "-n", SYSTEM, "create", "token", account, f"--audience={names.TOKEN_AUDIENCE}", "--duration=10m"
        ).strip()
        answers = json.loads(run(CONSUME, SECURE, topic, stdin=token))
        assert answers == {topic: expected}, account


def check_direct_reads(topic: Manifest, user: str, produce: Produce) -> None:
    """Check that the driver reads the bucket. Closed brokers tell it where the records are, for its token."""
    meta, table = topic["metadata"], topic["status"]["table"]["identifier"]

    def read_without_detour() -> bool:
        before, count = detours(meta["name"]), rows(f"select count(*) as n from {table}")[0]["n"]
        produce(topic, numbered(count, 100), **intrusions.settings(user, meta["namespace"]))
        await_rows(table, count + 100, timeout=PATIENCE)
        return detours(meta["name"]) == before

    # Tasks fetched while brokers and driver changed to TLS. The driver asks again after a pause.
    await_until("the tasks read the bucket again", read_without_detour)


def attack(topic: Manifest) -> None:
    """Attack a topic, its table and the release from the pod of another tenant."""
    intrusions.check_requests(CLIENTS, PROFILE, topic, tuple(f"{BROKERS}-{number}" for number in range(REPLICAS)))
    intrusions.check_resources(CLIENTS, PROFILE, topic)
    intrusions.check_connections(CLIENTS, *CLOSED)
    assert tenants.allowed_requests(f"{CLIENTS}:default", topic["metadata"]["namespace"]) == []
    intrusions.clean(CLIENTS)


def detours(topic: str) -> float:
    """Return how many partitions of a topic the tasks of the driver fetched from brokers, instead of reading the bucket."""
    script = "import sys, urllib.request; sys.stdout.write(urllib.request.urlopen('http://localhost:8080/metrics').read().decode())"
    text = kubectl("-n", SYSTEM, "exec", "firn-ingest-default-0", "--", "python", "-c", script)
    samples = [line for line in text.splitlines() if line.startswith("firn_ingest_detours_total{")]
    [own] = [line for line in samples if f'topic="{topic}"' in line]
    return float(own.split()[-1])


def driver_connection() -> dict[str, Any]:
    """Return the connection to the brokers in the settings of the driver."""
    settings = quickstart.get("configmap", "firn-ingest-default")
    assert settings is not None
    connection: dict[str, Any] = json.loads(settings["data"]["group.json"])["kafka"][PROFILE]
    return connection


def test_clients_move_to_a_listener_with_tls_and_authentication(
    namespace: str, clients: None, produce: Produce
) -> None:
    apply(topic_manifest("moving", namespace, profile=PROFILE))
    topic = await_ready("moving", namespace, timeout=PATIENCE)
    table = topic["status"]["table"]["identifier"]
    produce(topic, numbered(0, 100))
    await_rows(table, 100, timeout=PATIENCE)

    install("Keep", namespace)
    start_client()
    await_until("the driver uses the secure listener", lambda: driver_connection()["bootstrap_servers"] == SECURE)
    topic = await_ready("moving", namespace, timeout=PATIENCE)
    assert topic["status"]["bootstrapServers"] == PLAIN
    produce(topic, numbered(100, 100))
    mover, name = "mover", topic["status"]["topicName"]
    run(GRANT, SECURE, name, mover, PASSWORD)
    await_rows(table, 200, timeout=PATIENCE)

    install("Close", namespace)
    topic = await_ready("moving", namespace, timeout=PATIENCE)
    topic = await_until(
        "the status names the secure listener",
        lambda: (found := await_ready("moving", namespace)) and found["status"]["bootstrapServers"] == SECURE and found,
    )
    lines = "\n".join(json.dumps(record) for record in numbered(200, 100))
    assert json.loads(run(PRODUCE, SECURE, name, mover, PASSWORD, stdin=lines)) == {"left": 0, "failed": []}
    await_rows(table, 300, timeout=PATIENCE)

    intrusions.user("checkout", namespace, PROFILE, {"topics": [{"name": "moving"}], "roles": ["Produce"]})
    produce(topic, numbered(300, 100), **intrusions.settings("checkout", namespace))
    await_rows(table, 400, timeout=PATIENCE)
    check_direct_reads(topic, "checkout", produce)
    kubectl("-n", namespace, "delete", "topicuser", "checkout", "--timeout=120s")

    check_own_rights(name)

    refused = json.loads(run(PRODUCE, SECURE, name, mover, "another password", stdin=lines))
    assert refused["failed"], refused
    refused = json.loads(run(PRODUCE, SECURE, "no-grant", mover, PASSWORD, stdin=lines))
    assert "authorization" in refused["failed"][0].lower(), refused
    knocked = run(KNOCK, f"{BROKERS}-0.{BROKERS}.{SYSTEM}.svc").split()
    assert knocked == ["False", "False", "False"], "a client without authentication gets no answer at any port"

    attack(topic)

    apply(topic_manifest("closed", namespace, profile=PROFILE))
    await_ready("closed", namespace, timeout=PATIENCE)
    if LONG:  # The way back goes over Keep, so that the operator can always reach all brokers.
        install("Keep", namespace)
        uninstall()
        await_ready("moving", namespace, timeout=PATIENCE)
