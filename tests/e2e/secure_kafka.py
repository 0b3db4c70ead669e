"""Run an existing Kafka with TLS and SCRAM in its own pod beside the release."""

import base64
import json
import secrets
import tempfile
from pathlib import Path

from hack import quickstart
from hack.quickstart import SYSTEM, apply, kubectl
from tests.servers.kafka import certificates

NAMESPACE = "e2e-secure"
HOST = f"secure-kafka.{NAMESPACE}.svc"
SECRET = "e2e-secure-kafka"

START = """
set -eu
cat > /tmp/server.properties <<END
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9094
controller.listener.names=CONTROLLER
listeners=SASL_SSL://:9093,CONTROLLER://:9094
advertised.listeners=SASL_SSL://$HOST:9093
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_SSL
sasl.mechanism.inter.broker.protocol=SCRAM-SHA-512
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \
username="firn" password="$PASSWORD";
ssl.keystore.type=PEM
ssl.keystore.location=/etc/kafka-tls/server.pem
ssl.truststore.type=PEM
ssl.truststore.location=/etc/kafka-tls/ca.crt
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:firn;User:ANONYMOUS
log.dirs=/tmp/log
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
END
# The password is in a file of arguments, because any process of the node can read the arguments of a process.
cat > /tmp/format <<END
kafka.tools.StorageTool format -t MkU3OEVBNTcwNTJENDM2Qk -c /tmp/server.properties
-S SCRAM-SHA-512=[name=firn,password=$PASSWORD]
END
/opt/kafka/bin/kafka-run-class.sh @/tmp/format
exec /opt/kafka/bin/kafka-server-start.sh /tmp/server.properties
"""


def prepare() -> None:
    """Create the Secret of profile ``secure`` before the release is installed."""
    if quickstart.read(f"/api/v1/namespaces/{SYSTEM}")[0] == 404:
        apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}})
    apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    if quickstart.get("secret", SECRET) is not None and quickstart.get("secret", SECRET, NAMESPACE) is not None:
        return
    with tempfile.TemporaryDirectory() as directory:
        tls = Path(directory) / "tls"
        certificates(tls, HOST)
        files = {name: (tls / name).read_text() for name in ("ca.crt", "server.pem")}
    password = secrets.token_urlsafe(24)
    for namespace, data in (
        (SYSTEM, {"ca.crt": files["ca.crt"], "password": password}),
        (NAMESPACE, {**files, "password": password}),
    ):
        apply(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": SECRET, "namespace": namespace},
                "stringData": data,
            }
        )


def start() -> None:
    """Run the broker and wait until it is ready."""
    container = {
        "name": "kafka",
        "image": quickstart.images()["firn-kafka"],
        "command": ["/bin/sh", "-c", START],
        "env": [
            {"name": "HOST", "value": HOST},
            {"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "password"}}},
            {"name": "KAFKA_HEAP_OPTS", "value": "-Xmx384m"},
            {"name": "LOG_DIR", "value": "/tmp/logs"},
        ],
        "ports": [{"containerPort": 9093}],
        "readinessProbe": {"tcpSocket": {"port": 9093}, "periodSeconds": 2},
        "volumeMounts": [{"name": "tls", "mountPath": "/etc/kafka-tls"}],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "secure-kafka", "namespace": NAMESPACE, "labels": {"app": "secure-kafka"}},
        "spec": {"containers": [container], "volumes": [{"name": "tls", "secret": {"secretName": SECRET}}]},
    }
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "secure-kafka", "namespace": NAMESPACE},
        "spec": {"selector": {"app": "secure-kafka"}, "ports": [{"port": 9093}]},
    }
    kubectl("-n", NAMESPACE, "delete", "pod", "secure-kafka", "--ignore-not-found", "--grace-period=1")
    kubectl("apply", "-f", "-", stdin=json.dumps(service))
    apply(pod)
    kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "pod/secure-kafka", "--timeout=180s")


def stop() -> None:
    """Stop the broker. The Secrets stay for the release."""
    kubectl("-n", NAMESPACE, "delete", "pod", "secure-kafka", "--grace-period=1", "--wait=false")


def client_settings() -> dict[str, str]:
    """Return settings of a librdkafka client that may write to the broker."""
    secret = quickstart.get("secret", SECRET, NAMESPACE)
    assert secret is not None
    value = {key: base64.b64decode(text).decode() for key, text in secret["data"].items()}
    return {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "firn",
        "sasl.password": value["password"],
        "ssl.ca.pem": value["ca.crt"],
    }
