"""A client with rights on its own topic tries each request of Kafka's protocol on the topic and the group of another.

Apache Kafka and a diskless broker give the same results."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.authority import Authority
from tests.integration.broker import attacks
from tests.integration.broker.secure_clients import Login
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.kafka import Kafka
from tests.servers.process import await_true, free_port

USER, PASSWORD = "shop.intruder.a", "the password of the intruder"
VICTIM, OWN = "victim-of-attacks", "own-of-intruder"


@pytest.fixture
def diskless(tmp_path: Path) -> Iterator[tuple[FirnBroker, Login]]:
    """Run a diskless broker, and return the login of the intruder at its secure listener."""
    authority, port = Authority(tmp_path), free_port()
    pair = authority.issue("broker", "127.0.0.1")
    listener = {
        "bind": f"127.0.0.1:{port}", "authentication": ["ScramSha512"],
        "tls": {"certFile": str(pair.certificate), "keyFile": str(pair.key)},
    }  # fmt: skip
    settings = {
        "LISTENERS": {"secure": listener},
        "AUTHORIZATION": {"type": "Acl", "superUsers": ["User:ANONYMOUS"]},
        "GROUPS__INITIAL_REBALANCE_MS": 100,
    }
    environment = {f"FIRN_BROKER_{name}": json.dumps(value) for name, value in settings.items()}
    with embedded(tmp_path / "data", **environment) as running:
        yield running, Login(f"127.0.0.1:{port}", authority.file, "SCRAM-SHA-512", USER, PASSWORD)


def prepare(bootstrap: str) -> None:
    """Create the intruder with its topic, and the topic and group of the victim, at a listener without authentication."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    allowed = (f"User:{USER}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
    rules = [
        AclBinding(type, OWN, ResourcePatternType.PREFIXED, *allowed)
        for type in (ResourceType.TOPIC, ResourceType.GROUP)
    ]
    for future in (
        *admin.alter_user_scram_credentials([UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]).values(),
        *admin.create_acls(rules).values(),
        *admin.create_topics([NewTopic(VICTIM, 1), NewTopic(OWN, 1)]).values(),
    ):
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(VICTIM, b"v")
    producer.flush(30)
    settings = {"group.id": f"{VICTIM}-group", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": bootstrap, **settings})
    consumer.subscribe([VICTIM])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"v"
    consumer.commit(message=message, asynchronous=False)
    consumer.close()


def attack(intruder: Login) -> None:
    """Try each request, and check its result."""
    done = subprocess.run(
        [sys.executable, "-c", attacks.KAFKA, VICTIM, f"{VICTIM}-group", f"{OWN}.reader"],
        input=json.dumps(intruder.librdkafka()), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == attacks.REFUSED | {"topics": [OWN], "groups": []}


def await_audited(log: Path) -> None:
    """Wait until the log of a broker has each refused request."""
    expected = attacks.denials(VICTIM, f"{VICTIM}-group")
    await_true("the log has each refused request", lambda: expected <= attacks.audited(log.read_text(), f"User:{USER}"))


def test_a_diskless_broker_refuses_and_audits_each_request(diskless: tuple[FirnBroker, Login]) -> None:
    running, intruder = diskless
    prepare(running.bootstrap)
    attack(intruder)
    await_audited(running.log)


def test_apache_kafka_refuses_and_logs_the_same_requests(broker: Kafka) -> None:
    prepare(broker.bootstrap)
    assert broker.secure is not None
    attack(Login(broker.secure, broker.directory / "tls" / "ca.crt", "SCRAM-SHA-512", USER, PASSWORD))
    await_audited(broker.directory / "server.log")
