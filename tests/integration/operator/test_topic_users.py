"""A TopicUser under a running operator: clients of Kafka and of a diskless broker use the files of the Secret that it wrote."""

import base64
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jwt
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from confluent_kafka.admin import ResourcePatternType as Pattern
from confluent_kafka.admin import ResourceType as Resource
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from firn.model import names
from firn.model.errors import AccessDeniedError
from firn_spark.worker.fetching import source
from firn_spark.worker.fetching.access import access
from firn_spark.worker.fetching.slices import Slice
from tests.apiserver import SYSTEM
from tests.authority import Authority
from tests.servers.firn_broker import embedded
from tests.servers.kafka import PASSWORD, SMALL, USER, Kafka, kafka, program
from tests.servers.process import await_true, free_port

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, Running, World

NAMESPACE = f"/apis/{names.API_VERSION}/namespaces/demo"
MERGE = "application/merge-patch+json"
ISSUER, AUDIENCE, DAY = "https://kubernetes.default.svc", "kafka", 86_400
COMMON_NAME = "RULE:^CN=([^,]+).*$/$1/"
_numbers = itertools.count()
OF_OPERATOR = ("DESCRIBE", "CREATE", "ALTER", "ALTER_CONFIGS", "DESCRIBE_CONFIGS", "DELETE")
"""Operations of the operator on topics."""


@dataclass(frozen=True)
class Issuer:
    """The issuer of tokens of ServiceAccounts, and of certificates of clients."""

    directory: Path
    key: rsa.RSAPrivateKey
    authority: Authority

    @property
    def keys(self) -> Path:
        """Return the file of its public key (JWKS)."""
        return self.directory / "keys.json"

    def token(self, account: str) -> tuple[str, float]:
        """Return a token of a ServiceAccount of the namespace ``demo``, and the time when it expires."""
        now = time.time()
        claims = {"iss": ISSUER, "aud": [AUDIENCE], "sub": f"system:serviceaccount:demo:{account}", "iat": int(now)}
        return jwt.encode(claims | {"exp": int(now) + DAY}, self.key, "RS256", headers={"kid": "one"}), now + DAY


@pytest.fixture(scope="module")
def issuer(tmp_path_factory: pytest.TempPathFactory) -> Issuer:
    directory = tmp_path_factory.mktemp("issuer")
    made = Issuer(directory, rsa.generate_private_key(65537, 2048), Authority(directory))
    public = RSAAlgorithm.to_jwk(made.key.public_key(), as_dict=True) | {"kid": "one", "alg": "RS256", "use": "sig"}
    made.keys.write_text(json.dumps({"keys": [public]}))
    return made


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Kafka]:
    """Run a Kafka that accepts tokens of ServiceAccounts, and names clients by the common names of their certificates."""
    handler = "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler"
    login = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;"
    keys = issuer.keys.as_uri()
    with kafka(
        tmp_path_factory.mktemp("strict") / "broker",
        secure=True,
        java=(*SMALL, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={keys}"),
        sasl__enabled__mechanisms="SCRAM-SHA-512,OAUTHBEARER",
        listener__name__sasl_ssl__oauthbearer__sasl__jaas__config=login,
        listener__name__sasl_ssl__oauthbearer__sasl__server__callback__handler__class=handler,
        listener__name__sasl_ssl__oauthbearer__sasl__oauthbearer__jwks__endpoint__url=keys,
        sasl__oauthbearer__expected__audience=AUDIENCE,
        sasl__oauthbearer__expected__issuer=ISSUER,
        listener__name__ssl__ssl__truststore__location=str(issuer.authority.file),
        ssl__principal__mapping__rules=COMMON_NAME,
    ) as running:
        yield running


@pytest.fixture(scope="module")
def waves(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[tuple[str, str, Path]]:
    """Run a diskless broker. Yield its listener without TLS for administrators, the one for users, and its CA."""
    directory = tmp_path_factory.mktemp("waves")
    # OpenSSL adds CAs to a chain by their names, so the CA of the clients must have another name.
    authority, port = Authority(directory, "ca-of-brokers"), free_port()
    pair = authority.issue("broker", "127.0.0.1", "localhost")
    tls = {
        "certFile": str(pair.certificate), "keyFile": str(pair.key), "clientCaFile": str(issuer.authority.file),
        "principalRules": [COMMON_NAME],
    }  # fmt: skip
    ways = ["ScramSha512", "OAuth", "Certificate"]
    settings = {
        "LISTENERS": {"secure": {"bind": f"127.0.0.1:{port}", "tls": tls, "authentication": ways}},
        "OAUTH": {"issuer": ISSUER, "audience": AUDIENCE, "jwksFile": str(issuer.keys)},
        "AUTHORIZATION": {"type": "Acl", "superUsers": ["User:ANONYMOUS"], "operators": [f"User:{USER}"]},
        "GROUPS__INITIAL_REBALANCE_MS": 100,
    }
    environment = {f"FIRN_BROKER_{name}": json.dumps(value) for name, value in settings.items()}
    with embedded(directory / "data", **environment) as broker:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
        put: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
        admin = AdminClient(
            {"bootstrap.servers": broker.bootstrap}
        )  # referenced, because a collected client fails its futures
        for future in admin.alter_user_scram_credentials(put).values():
            future.result(30)
        yield broker.bootstrap, f"127.0.0.1:{port}", authority.file


@pytest.fixture(scope="module")
def operator(world: "World", waves: tuple[str, str, Path], strict: Kafka) -> Iterator["Running"]:
    def brokers(name: str, bootstrap: str, authority: Path) -> "Manifest":
        mounted = world.directory / "secrets" / name
        mounted.mkdir()
        (mounted / "ca.crt").write_bytes(authority.read_bytes())
        (mounted / "password").write_text(PASSWORD)
        sasl = {"mechanism": "SCRAM-SHA-512", "username": USER, "password": {"secret": name, "key": "password"}}
        security = {"tls": True, "ca": {"secret": name, "key": "ca.crt"}, "sasl": sasl}
        return {"bootstrapServers": bootstrap, "security": security, "users": {"namespaces": ["demo"]}}

    assert world.broker.secure is not None
    assert strict.secure is not None
    profiles = {
        "apart": apart(world),
        "strict": brokers("strict", strict.secure, strict.directory / "tls" / "ca.crt"),
        "classic": brokers("kafka", world.broker.secure, world.broker.directory / "tls" / "ca.crt"),
        "waves": brokers("waves", *waves[1:]),
    }
    with world.operator(profiles=profiles, users={"enabled": True}) as running:
        yield running


def apart(world: "World") -> "Manifest":
    """Return the profile of an existing Kafka in which the operator, the drivers and the runs are different users."""
    secrets = world.directory / "secrets"
    for name in ("apart-firn", "apart-ingest", "apart-runs"):
        (secrets / name).mkdir()
        (secrets / name / "password").write_text(PASSWORD)
    (secrets / "apart-ca").mkdir()
    (secrets / "apart-ca" / "ca.crt").write_bytes((world.broker.directory / "tls" / "ca.crt").read_bytes())
    create_users(world.broker, "apart-firn", "apart-ingest", "apart-runs")

    def login(name: str) -> "Manifest":
        password = {"secret": name, "key": "password"}
        return {"sasl": {"mechanism": "SCRAM-SHA-512", "username": name, "password": password}}

    return {
        "bootstrapServers": world.broker.secure,
        "security": {"tls": True, "ca": {"secret": "apart-ca", "key": "ca.crt"}, **login("apart-firn")},
        "drivers": {
            "groups": {"default": login("apart-ingest")},
            "maintenance": login("apart-runs"),
            "manageAcls": True,
        },
    }


def create_users(broker: Kafka, operator: str, *drivers: str) -> None:
    """Create users with passwords. The operator's gets the rights that its page names, on topics with a prefix."""
    # A variable keeps the client, because a collected client fails its futures.
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    put: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, info, PASSWORD.encode()) for user in (operator, *drivers)
    ]
    for made in admin.alter_user_scram_credentials(put).values():
        made.result(30)
    rights = [
        *((Resource.TOPIC, "apart-", Pattern.PREFIXED, operation) for operation in OF_OPERATOR),
        *((Resource.BROKER, "kafka-cluster", Pattern.LITERAL, operation) for operation in ("DESCRIBE", "ALTER")),
    ]
    rules = [
        AclBinding(resource, name, pattern, f"User:{operator}", "*", AclOperation[operation], AclPermissionType.ALLOW)
        for resource, name, pattern, operation in rights
    ]
    for created in admin.create_acls(rules).values():
        created.result(30)


class Account:
    """A TopicUser of a test, its Secret, and its clients."""

    def __init__(self, world: "World", profile: str, plain: str, number: int) -> None:
        self.world, self.profile, self.plain = world, profile, plain
        self.name, self.topic, self.other = f"checkout{number}", f"owned{number}", f"foreign{number}"
        self.place = f"{NAMESPACE}/topicusers/{self.name}"

    def apply(self, **spec: Any) -> None:
        grants = [{"topics": [{"name": self.topic}], "roles": ["Produce", "Consume"]}]
        body = {
            "apiVersion": names.API_VERSION,
            "kind": "TopicUser",
            "metadata": {"name": self.name, "namespace": "demo"},
            "spec": {"profile": self.profile, "grants": grants, **spec},
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

    def shows_last_use(self) -> bool:
        """Let the operator look at the user again, and return whether the status has the last use of the previous password."""
        self.apply(quotas={"requestPercent": 1000 + next(_numbers)})
        self.await_ready()
        return "previousLastUsed" in self.status()["credentials"]

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


@pytest.fixture(params=["classic", "waves"])
def account(
    request: pytest.FixtureRequest, world: "World", operator: "Running", waves: tuple[str, str, Path]
) -> Iterator[Account]:
    """Return the TopicUser of a test on Kafka or on a diskless broker. Its topic exists, and another one without a grant."""
    plain = world.broker.bootstrap if request.param == "classic" else waves[0]
    account = Account(world, request.param, plain, next(_numbers))
    for name in (account.topic, account.other):
        world.apply(name, {"profile": request.param, "table": {"name": name}})
    for name in (account.topic, account.other):
        world.await_condition(name, "TopicReady", "True")
    account.apply()
    account.await_ready()
    yield account
    if world.find(account.place):
        world.api.call("DELETE", account.place)
        await_true("the user is gone", lambda: world.find(account.place) is None)
    for name in (account.topic, account.other):
        world.api.call("DELETE", f"{NAMESPACE}/icebergtopics/{name}")


@pytest.mark.parametrize("kind", ["OAuth", "Certificate"])
@pytest.mark.parametrize("profile", ["strict", "waves"])
def test_a_client_with_a_token_or_certificate_uses_its_topic_and_no_other(
    world: "World",
    operator: "Running",
    issuer: Issuer,
    strict: Kafka,
    waves: tuple[str, str, Path],
    profile: str,
    kind: str,
) -> None:
    bootstrap, authority = (strict.secure, strict.directory / "tls" / "ca.crt") if profile == "strict" else waves[1:]
    if (profile, kind) == ("strict", "Certificate"):
        bootstrap = strict.mutual
    account = Account(world, profile, "", next(_numbers))
    servers = {"bootstrap.servers": bootstrap, "ssl.ca.location": str(authority)}

    def login(name: str) -> dict[str, Any]:
        """Return the settings of a client with the token of a ServiceAccount, or with the certificate of a user."""
        if kind == "OAuth":
            mechanism = {"security.protocol": "SASL_SSL", "sasl.mechanisms": "OAUTHBEARER"}
            return servers | mechanism | {"oauth_cb": lambda _: issuer.token(name)}
        pair = issuer.authority.issue(f"demo.{name}", file=f"client-{next(_numbers)}")
        files = {"ssl.certificate.location": str(pair.certificate), "ssl.key.location": str(pair.key)}
        return servers | files | {"security.protocol": "SSL"}

    for name in (account.topic, account.other):
        world.apply(name, {"profile": profile, "table": {"name": name}})
    for name in (account.topic, account.other):
        world.await_condition(name, "TopicReady", "True")
    extra = {"serviceAccount": account.name} if kind == "OAuth" else {}
    account.apply(authentication={"type": kind, **extra})
    account.await_ready()
    topic, other, denied = (
        kafka_name(world, account.topic),
        kafka_name(world, account.other),
        "TOPIC_AUTHORIZATION_FAILED",
    )

    def outcome(name: str, topic: str) -> str:
        error = produced(login(name), topic, "first")
        return "sent" if error is None else str(error.name())

    await_true("the client may produce", lambda: outcome(account.name, topic) == "sent", 60)
    assert consumed(login(account.name), topic, f"demo.{account.name}.readers") == "first"
    assert outcome(account.name, other) == denied
    assert outcome("another", topic) == denied, "another client of the same issuer"
    world.api.call("DELETE", account.place)
    await_true("the user is gone", lambda: world.find(account.place) is None)
    await_true("it has no rights any more", lambda: outcome(account.name, topic) == denied, 60)
    for name in (account.topic, account.other):
        world.api.call("DELETE", f"{NAMESPACE}/icebergtopics/{name}")


def test_operator_and_drivers_have_rights_of_their_own_in_an_existing_kafka(
    world: "World", operator: "Running"
) -> None:
    admin = AdminClient({"bootstrap.servers": world.broker.bootstrap})
    admin.create_topics([NewTopic("apart-other", 1)])["apart-other"].result(30)
    name = f"apart{next(_numbers)}"
    world.apply(name, {"profile": "apart", "topicName": "apart-orders", "partitions": 1, "table": {"name": name}})
    world.await_made(name)
    for topic in ("apart-orders", "apart-other"):
        assert produced({"bootstrap.servers": world.broker.bootstrap}, topic, "first") is None

    def outcome(user: str, topic: str) -> str:
        """Return the first record, read as a task of ingestion reads it, or the kind of the error."""
        try:
            blocks = source.read(access(world.broker.secure_connection(user)), [Slice(topic, 0, 0, 1)])
            return b"".join(bytes(value or b"") for block in blocks for value in block.values.to_list()).decode()
        except AccessDeniedError:
            return "denied"

    def await_outcome(user: str, wanted: str) -> None:
        await_true(f"{user} gets {wanted}", lambda: outcome(user, "apart-orders") == wanted, 60)

    for user in ("apart-ingest", "apart-runs"):
        await_outcome(user, "first")
        assert outcome(user, "apart-other") == "denied"
    assert outcome("apart-firn", "apart-orders") == "denied", "the operator reads no records"
    place = f"/apis/apps/v1/namespaces/{SYSTEM}/statefulsets/{names.ingestion('default')}"

    def mounted() -> set[str]:
        pod = world.api.call("GET", place)["spec"]["template"]["spec"]
        return {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}

    await_true("the driver mounts its credential", lambda: "apart-ingest" in mounted(), 60)
    assert not {"apart-firn", "apart-runs"} & mounted()
    world.api.call("DELETE", f"{NAMESPACE}/icebergtopics/{name}")
    for user in ("apart-ingest", "apart-runs"):
        await_outcome(user, "denied")


def kafka_name(world: "World", name: str) -> str:
    topic = world.topic(name)
    assert topic is not None
    return str(topic["status"]["topicName"])


def test_a_client_with_the_files_of_the_secret_uses_its_topic_and_no_other(
    world: "World", account: Account, tmp_path: Path
) -> None:
    settings, topic = account.librdkafka(), kafka_name(world, account.topic)
    other = kafka_name(world, account.other)
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
    if account.profile == "waves":
        await_true("the last use is shown", account.shows_last_use, 60)

    account.apply(authentication={"rotation": {"overlap": "1s"}})
    await_true("the overlap is over", lambda: "previousUntil" not in account.status()["credentials"], 60)
    await_true("the old credential is refused", lambda: produced(first, topic, "late") is not None, 60)
    assert produced(second, topic, "still with the new one") is None


def test_a_deleted_user_has_no_rights_and_no_password(world: "World", account: Account) -> None:
    settings, topic = account.librdkafka(), kafka_name(world, account.topic)
    world.api.call("DELETE", account.place)
    await_true("the user is gone", lambda: world.find(account.place) is None, 60)
    admin = AdminClient({"bootstrap.servers": account.plain})
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
