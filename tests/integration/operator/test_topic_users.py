"""A TopicUser under a running operator: clients of a real Kafka use the files of the Secret that it wrote."""

import base64
import itertools
import json
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AclBindingFilter, AclOperation, AclPermissionType, AdminClient
from confluent_kafka.admin import ResourcePatternType as Pattern
from confluent_kafka.admin import ResourceType as Resource

from firn.model import names
from tests.servers.kafka import PASSWORD, USER, program
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, Running, World

NAMESPACE = f"/apis/{names.API_VERSION}/namespaces/demo"
MERGE = "application/merge-patch+json"
_numbers = itertools.count()


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    mounted = world.directory / "secrets" / "kafka"
    mounted.mkdir()
    (mounted / "ca.crt").write_bytes((world.broker.directory / "tls" / "ca.crt").read_bytes())
    (mounted / "password").write_text(PASSWORD)
    sasl = {"mechanism": "SCRAM-SHA-512", "username": USER, "password": {"secret": "kafka", "key": "password"}}
    security = {"tls": True, "ca": {"secret": "kafka", "key": "ca.crt"}, "sasl": sasl}
    brokers = {"bootstrapServers": world.broker.secure, "security": security, "users": {"namespaces": ["demo"]}}
    with world.operator(profiles={"classic": brokers}, users={"enabled": True}) as running:
        yield running


class Account:
    """A TopicUser of a test, its Secret, and its clients."""

    def __init__(self, world: "World", name: str, topic: str) -> None:
        self.world, self.name, self.topic = world, name, topic
        self.place = f"{NAMESPACE}/topicusers/{name}"

    def apply(self, **spec: Any) -> None:
        grants = [{"topics": [{"name": self.topic}], "roles": ["Produce", "Consume"]}]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "TopicUser",
            "metadata": {"name": self.name, "namespace": "demo"},
            "spec": {"profile": "classic", "grants": grants, **spec},
        }
        place = f"{self.place}?fieldManager=user&force=true"
        self.world.api.call("PATCH", place, body, "application/apply-patch+yaml")

    def status(self) -> "Manifest":
        found: Manifest = self.world.api.call("GET", self.place)["status"]
        return found

    def await_ready(self) -> None:
        def ready() -> bool:
            live = self.world.api.call("GET", self.place)
            condition = next(each for each in live["status"]["conditions"] if each["type"] == "Ready")
            return (condition["status"], condition["observedGeneration"]) == ("True", live["metadata"]["generation"])

        try:
            await_true(f"{self.name} is ready", ready, 90)
        except AssertionError as error:
            raise AssertionError(f"{error}: {json.dumps(self.status())}") from None

    def secret(self) -> dict[str, str]:
        """Return the content of the Secret, which only the test reads."""
        data = self.world.api.call("GET", f"/api/v1/namespaces/demo/secrets/{self.name}-kafka")["data"]
        return {key: base64.b64decode(value).decode() for key, value in data.items()}

    def librdkafka(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(self.secret()["librdkafka.json"])
        return settings


def produced(settings: dict[str, Any], topic: str, value: str) -> KafkaError | None:
    """Produce one record with librdkafka, and return the error."""
    errors: list[KafkaError | None] = []
    fatal: list[KafkaError] = []
    producer = Producer({**settings, "message.timeout.ms": 15000, "error_cb": fatal.append, "log_level": 0})
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    while not errors and not any(each.code() == KafkaError._AUTHENTICATION for each in fatal):
        producer.poll(0.1)
    if not errors:
        producer.purge()
        producer.flush(5)
        return next(each for each in fatal if each.code() == KafkaError._AUTHENTICATION)
    return errors[0]


def consumed(settings: dict[str, Any], topic: str, group: str) -> str:
    """Return the value of the first record, read with a consumer group."""
    settings = {**settings, "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        while True:
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            return (message.value() or b"").decode()


@pytest.fixture
def account(world: "World", operator: "Running") -> Iterator[Account]:
    """Return the TopicUser of a test, whose topic exists, and another topic without a grant."""
    number = next(_numbers)
    topic, other = f"owned{number}", f"foreign{number}"
    for name in (topic, other):
        world.apply(name, {"table": {"name": name}})
    for name in (topic, other):
        world.await_condition(name, "TopicReady", "True")
    account = Account(world, f"checkout{number}", topic)
    account.apply()
    account.await_ready()
    yield account
    if world.find(account.place):
        world.api.call("DELETE", account.place)
        await_true("the user is gone", lambda: world.find(account.place) is None)
    for name in (topic, other):
        world.api.call("DELETE", f"{NAMESPACE}/icebergtopics/{name}")


def kafka_name(world: "World", name: str) -> str:
    topic = world.topic(name)
    assert topic is not None
    return str(topic["status"]["topicName"])


def test_a_client_with_the_files_of_the_secret_uses_its_topic_and_no_other(
    world: "World", account: Account, tmp_path: Path
) -> None:
    settings, topic = account.librdkafka(), kafka_name(world, account.topic)
    other = kafka_name(world, account.topic.replace("owned", "foreign"))
    assert produced(settings, topic, "first") is None
    assert consumed(settings, topic, f"demo.{account.name}.readers") == "first"
    denied = produced(settings, other, "no")
    assert denied is not None
    assert denied.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as refused:
        consumed(settings, topic, "demo.others")
    assert refused.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED

    file = tmp_path / "client.properties"
    file.write_text(account.secret()["client.properties"])
    tool = program("org.apache.kafka.tools.GetOffsetShell", "--command-config", str(file), "--topic", topic)
    command = [*tool, "--bootstrap-server", account.secret()["bootstrap.servers"]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert [line for line in done.stdout.splitlines() if line.startswith(f"{topic}:0:")], done.stdout + done.stderr


def test_both_credentials_work_until_the_end_of_the_overlap(world: "World", account: Account) -> None:
    first, topic = account.librdkafka(), kafka_name(world, account.topic)
    annotation = {"metadata": {"annotations": {names.ROTATE: "now"}}}
    world.api.call("PATCH", account.place, annotation, MERGE)
    await_true("the Secret has another credential", lambda: account.librdkafka() != first, 60)
    second = account.librdkafka()
    assert second["sasl.username"] == first["sasl.username"].removesuffix(".a") + ".b"
    assert produced(second, topic, "with the new one") is None, "the Secret is written after Kafka has the credential"
    assert produced(first, topic, "with the old one") is None, "clients have time to read the Secret again"
    assert "previousUntil" in account.status()["credentials"]

    account.apply(authentication={"rotation": {"overlap": "1s"}})
    await_true("the overlap is over", lambda: "previousUntil" not in account.status()["credentials"], 60)
    await_true("the old credential is refused", lambda: produced(first, topic, "late") is not None, 60)
    assert produced(second, topic, "still with the new one") is None


def test_a_deleted_user_has_no_rights_and_no_password(world: "World", account: Account) -> None:
    settings, topic = account.librdkafka(), kafka_name(world, account.topic)
    world.api.call("DELETE", account.place)
    await_true("the user is gone", lambda: world.find(account.place) is None, 60)
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    every: Any = None

    def rules() -> list[Any]:
        principal = f"User:{settings['sasl.username']}"
        filters = (Resource.ANY, every, Pattern.ANY, principal, every, AclOperation.ANY, AclPermissionType.ANY)
        return list(admin.describe_acls(AclBindingFilter(*filters)).result(30))

    await_true("its ACLs are gone", lambda: rules() == [], 30)
    await_true("its password is refused", lambda: produced(settings, topic, "late") is not None, 60)


def test_no_password_is_outside_of_the_secret(world: "World", operator: "Running", account: Account) -> None:
    password = account.secret()["password"]
    places = ("/api/v1/namespaces/demo/events", account.place, f"{NAMESPACE}/icebergtopics")
    shown = "".join(json.dumps(world.api.call("GET", place)) for place in places)
    shown += operator.log.read_text() + Path(f"/proc/{operator.process.pid}/cmdline").read_text()
    assert "CredentialIssued" in shown
    assert password not in shown
    assert base64.b64encode(password.encode()).decode() not in shown
