"""A client with rights on its own topic tries each request of Kafka's protocol on the topic and the group of another."""

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
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.authority import Authority
from tests.clients import attacks
from tests.integration.broker.admins import admin
from tests.integration.broker.secure_clients import Login
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import await_true, free_port

USER, PASSWORD = "shop.intruder.a", "the password of the intruder"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[tuple[FirnBroker, Login]]:
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
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        upsertion = UserScramCredentialUpsertion(USER, info, PASSWORD.encode())
        rules = [
            AclBinding(
                type,
                "own",
                ResourcePatternType.PREFIXED,
                f"User:{USER}",
                "*",
                AclOperation.ALL,
                AclPermissionType.ALLOW,
            )
            for type in (ResourceType.TOPIC, ResourceType.GROUP)
        ]
        for future in (
            *admin(running).alter_user_scram_credentials([upsertion]).values(),
            *admin(running).create_acls(rules).values(),
            *admin(running).create_topics([NewTopic("victim", 1), NewTopic("own", 1)]).values(),
        ):
            future.result(30)
        yield running, Login(f"127.0.0.1:{port}", authority.file, "SCRAM-SHA-512", USER, PASSWORD)


def test_every_request_for_a_topic_of_another_tenant_is_refused_and_audited(broker: tuple[FirnBroker, Login]) -> None:
    running, intruder = broker
    plain = {"bootstrap.servers": running.bootstrap}
    producer = Producer(plain)
    producer.produce("victim", b"v")
    producer.flush(30)
    consumer = Consumer(plain | {"group.id": "victims", "auto.offset.reset": "earliest", "enable.auto.commit": False})
    consumer.subscribe(["victim"])
    message = consumer.poll(30)
    assert message is not None
    assert message.value() == b"v"
    consumer.commit(message=message, asynchronous=False)
    consumer.close()

    done = subprocess.run(
        [sys.executable, "-c", attacks.KAFKA, "victim", "victims", "own.reader"],
        input=json.dumps(intruder.librdkafka()), capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == attacks.REFUSED | {"topics": ["own"], "groups": []}

    def audited() -> set[tuple[str, str]]:
        lines = [json.loads(line) for line in running.log.read_text().splitlines() if line.startswith("{")]
        denied = [line for line in lines if line.get("audit") and line["event"] == "access denied"]
        return {(line["operation"], line["resource"]) for line in denied if line["principal"] == f"User:{USER}"}

    await_true("the audit log has each refused request", lambda: attacks.denials("victim", "victims") <= audited())
