"""Run a broker of Apache Kafka with ``access`` as the operator renders it: clients that authenticate, and clients that may not."""

import asyncio
import socket
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)
from cryptography import x509

from firn.model.errors import UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from tests import gen
from tests.authority import Authority
from tests.integration.broker.secure_clients import CLIENTS, OAUTH, Login
from tests.integration.broker.secure_workers import WORKERS
from tests.integration.kafka import fleets
from tests.integration.kafka.fleets import CERTIFICATES, ISSUER, NAMESPACE
from tests.servers.kafka import program
from tests.servers.process import await_true

SCRAM = "SCRAM-SHA-512"
MECHANISMS = [SCRAM, OAUTH, "certificate"]
EACH = CLIENTS | WORKERS
USER, PASSWORD = "shop.checkout.a", "correct horse, =battery"
ACCOUNT, COMMON_NAME = "system:serviceaccount:shop:checkout", "shop.checkout"
RULE = "RULE:^CN=([^,]+).*$/$1/"
OWNER = Owner(NAMESPACE, "u")


@dataclass(frozen=True)
class Secure:
    """The broker, and the ways to log in to it."""

    brokers: fleets.Brokers
    directory: Path

    def login(self, mechanism: str, password: str | None = None) -> Login:
        secure, certificate = (self.brokers.bootstrap(port) for port in (9096, 9097))
        authority = self.brokers.authority
        if mechanism == "certificate":
            pair = self.brokers.clients.issue(COMMON_NAME, file=f"client-{time.monotonic_ns()}")
            return Login(certificate, authority.file, pair=pair)
        if mechanism == OAUTH:
            return Login(secure, authority.file, OAUTH, password=password or self.token())
        return Login(secure, authority.file, mechanism, USER, password or PASSWORD)

    def token(self, **changes: Any) -> str:
        return self.brokers.issuer.token("shop", "checkout", **changes)

    def operator(self) -> Login:
        token = self.brokers.issuer.token(NAMESPACE, "firn-operator")
        return self.login(OAUTH, token)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    access = {"certificate": {"secret": "tls"}, "issuer": ISSUER, "principalRules": [RULE], **CERTIFICATES}
    configured = gen.config(profiles={"classic": {"replicas": 1, "access": access, "heap": "512m"}})
    fleet = kinds.managed_fleet(configured, "classic", OWNER, None)
    assert isinstance(fleet, KafkaFleet)
    directory = tmp_path_factory.mktemp("secure")
    with fleets.brokers(directory, fleet) as running:
        yield prepared(Secure(running, directory))


def prepared(secure: Secure) -> Secure:
    """Create topics, a password and ACLs with the operator's token."""
    admin = AdminClient(secure.operator().librdkafka())
    # The program of franz-go creates its topics itself.
    names = [f"topic-{mechanism}-{client}" for mechanism in MECHANISMS for client in EACH if client != "franz-go"]
    created = admin.create_topics([NewTopic(name, 1, 1) for name in (*names, "private")], operation_timeout=30)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4096)
    put: list[UserScramCredentialAlteration] = [UserScramCredentialUpsertion(USER, info, PASSWORD.encode())]
    passwords = admin.alter_user_scram_credentials(put)
    acls = [
        AclBinding(kind, "topic-", ResourcePatternType.PREFIXED, f"User:{name}", "*", AclOperation.ALL, AclPermissionType.ALLOW)
        for name in (USER, ACCOUNT, COMMON_NAME)
        for kind in (ResourceType.TOPIC, ResourceType.GROUP)
    ]  # fmt: skip
    for future in (*created.values(), *passwords.values(), *admin.create_acls(acls).values()):
        future.result(30)
    # The controller has answered. The broker follows, and answers from what it has.
    ours = AclBindingFilter(
        ResourceType.TOPIC, "topic-", ResourcePatternType.PREFIXED, f"User:{COMMON_NAME}", "*", AclOperation.ANY, AclPermissionType.ANY
    )  # fmt: skip
    await_true("the broker has the ACLs", lambda: bool(admin.describe_acls(ours).result(30)))
    return secure


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(
    "client", [each if each == "librdkafka" else pytest.param(each, marks=pytest.mark.long) for each in EACH]
)
def test_a_client_that_authenticates_produces_and_consumes(
    secure: Secure, client: str, mechanism: str, tmp_path: Path
) -> None:
    EACH[client](secure.login(mechanism), f"topic-{mechanism}-{client}", tmp_path)


def fails(settings: dict[str, Any], *causes: str) -> bool:
    """Return whether a client cannot connect, with an error that names one of the causes."""
    errors: list[str] = []
    producer = Producer(settings | {"error_cb": lambda error: errors.append(str(error))})

    def named() -> bool:
        producer.poll(0.05)
        return any(cause in error for cause in causes for error in errors)

    await_true(f"an error of {causes} among {errors}", named, seconds=30)
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=0.1)
    return True


def refused(login: Login) -> bool:
    """Return whether the broker refuses the login itself, and not only a request."""
    return fails(
        login.librdkafka(), "uthentication failed", "uthentication failure", "nvalid credentials", "AUTHENTICATION"
    )


@pytest.mark.parametrize(
    "claims",
    [
        {"aud": ["https://kubernetes.default.svc"]},
        {"iss": "https://elsewhere"},
        {"iat": 1_700_000_000, "exp": 1_700_003_600},
        {"sub": None},
    ],
    ids=["audience", "issuer", "expired", "subject"],
)
def test_a_token_that_is_not_for_the_brokers_is_refused(secure: Secure, claims: dict[str, Any]) -> None:
    kept = {name: value for name, value in claims.items() if value is not None}
    token = secure.token(**kept) if kept else jwt.encode(
        {"iss": ISSUER, "aud": ["firn-broker"], "iat": int(time.time()), "exp": int(time.time()) + 600},
        secure.brokers.issuer.keys["one"], "RS256", headers={"kid": "one"},
    )  # fmt: skip
    assert refused(secure.login(OAUTH, token))


def test_a_token_that_the_api_server_has_not_signed_is_refused(secure: Secure) -> None:
    claims = jwt.decode(secure.token(), options={"verify_signature": False})
    foreign = fleets.Issuer().token("firn-system", "firn-operator")
    unsigned = jwt.encode(claims, "", "none", headers={"kid": "one"})
    for token in (foreign, unsigned):
        assert refused(secure.login(OAUTH, token))


def test_a_wrong_password_and_other_mechanisms_are_refused(secure: Secure) -> None:
    assert refused(secure.login(SCRAM, "wrong"))
    assert "Failed authentication with /" in secure.brokers.log(0)
    assert fails(secure.login("PLAIN").librdkafka(), "nsupported SASL mechanism")


def test_certificates_of_others_and_expired_ones_are_refused(secure: Secure, tmp_path: Path) -> None:
    own, clients, bootstrap = secure.brokers.authority, secure.brokers.clients, secure.brokers.bootstrap(9097)
    foreign, of_brokers = Authority(tmp_path, "foreign").issue(COMMON_NAME), own.issue(COMMON_NAME, file="of-brokers")
    pairs = [foreign, of_brokers, clients.issue("old", days=-1), None]
    for pair in pairs:
        assert fails(Login(bootstrap, own.file, pair=pair).librdkafka(), "SSL", "down")
    # At the ports for tokens and passwords, a certificate is no login.
    context = ssl.create_default_context(cafile=str(own.file))
    pair = clients.issue(COMMON_NAME, file="beside")
    context.load_cert_chain(pair.certificate, pair.key)
    assert [answered(secure, port, context) for port in (9096, 9097, 9098)] == [False, True, False]


def answered(secure: Secure, port: int, context: ssl.SSLContext | None = None) -> bool:
    """Return whether the broker answers a request for the metadata of all topics."""
    address = secure.brokers.address(0)
    try:
        with socket.create_connection((address, port), 10) as plain:
            connection = context.wrap_socket(plain, server_hostname=address) if context else plain
            connection.sendall(bytes.fromhex("0000000e 0003 0001 00000001 0000 ffffffff"))
            return connection.recv(8)[4:] == bytes.fromhex("00000001")
    except OSError:
        return False


def test_a_client_without_encryption_gets_no_answer(secure: Secure) -> None:
    assert not any(answered(secure, port) for port in (9092, 9093, 9096, 9097, 9098))


def test_a_session_ends_after_an_hour(secure: Secure) -> None:
    address, client = secure.brokers.address(0), b"\0\x04test"
    context = ssl.create_default_context(cafile=str(secure.brokers.authority.file))
    with (
        socket.create_connection((address, 9096), 10) as plain,
        context.wrap_socket(plain, server_hostname=address) as connection,
        connection.makefile("rwb") as stream,
    ):

        def ask(head: str, body: bytes) -> bytes:
            request = bytes.fromhex(head) + client + body
            stream.write(len(request).to_bytes(4, "big") + request)
            stream.flush()
            return stream.read(int.from_bytes(stream.read(4), "big"))

        ask("0011 0001 00000001", len(OAUTH).to_bytes(2, "big") + OAUTH.encode())
        token = f"n,,\1auth=Bearer {secure.token()}\1\1".encode()
        answer = ask("0024 0001 00000002", len(token).to_bytes(4, "big") + token)
    assert answer[4:6] == b"\0\0", answer
    assert int.from_bytes(answer[-8:], "big") == 3_600_000, "milliseconds, as the last field of SaslAuthenticate"


def test_what_no_acl_allows_is_denied(secure: Secure) -> None:
    for mechanism in (SCRAM, OAUTH, "certificate"):
        producer = Producer(secure.login(mechanism).librdkafka())
        errors: list[int | None] = []

        def delivered(error: KafkaError | None, _: Message, kept: list[int | None] = errors) -> None:
            kept.append(None if error is None else error.code())

        producer.produce("private", b"x", on_delivery=delivered)
        assert producer.flush(30) == 0
        assert errors == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
        assert "private" not in producer.list_topics(timeout=30).topics
    log = secure.brokers.log(0)
    for name in (USER, ACCOUNT, COMMON_NAME):
        assert f"Principal = User:{name} is Denied operation = DESCRIBE from host = " in log


def test_controllers_refuse_the_token_of_a_tenant(secure: Secure, tmp_path: Path) -> None:
    """A tenant's token is valid, but gives no right to speak to controllers. That of the brokers does."""
    bootstrap = secure.brokers.bootstrap(9098)
    answers = {}
    for name, token in (("tenant", secure.token()), ("brokers", secure.brokers.issuer.token(NAMESPACE, "firn-broker"))):
        home = tmp_path / name
        home.mkdir()
        login = Login(bootstrap, secure.brokers.authority.file, OAUTH, password=token)
        command = [
            "--bootstrap-controller",
            bootstrap,
            "--command-config",
            str(login.java(home)),
            "describe",
            "--status",
        ]
        called = program("org.apache.kafka.tools.MetadataQuorumCommand", *command, flags=login.flags(home))
        ended = subprocess.run(called, capture_output=True, text=True, timeout=60)
        answers[name] = ended.stdout + ended.stderr
    assert "ClusterAuthorizationException" in answers["tenant"], answers["tenant"]
    assert "LeaderId:" in answers["brokers"], answers["brokers"]


def test_keys_of_the_api_server_change_without_a_restart(secure: Secure) -> None:
    issuer = secure.brokers.issuer
    issuer.rotate("two")
    token = secure.token(kid="two")
    assert refused(secure.login(OAUTH, token))
    secure.brokers.publish_keys()

    def accepted() -> bool:
        return bool(Producer(secure.login(OAUTH, token).librdkafka()).list_topics(timeout=10).brokers)

    await_true("the broker accepts a token of the new key", accepted)


@pytest.fixture
def topics(secure: Secure) -> Iterator[KafkaTopics]:
    """Return the operator's client."""
    token = secure.directory / "operator-token"
    token.write_text(secure.brokers.issuer.token(NAMESPACE, "firn-operator"))
    connection = KafkaConnection(
        bootstrap_servers=secure.brokers.bootstrap(9096), protocol="SASL_SSL", ca_path=str(secure.brokers.authority.file),
        sasl_mechanism=OAUTH, sasl_token_path=str(token),
    )  # fmt: skip
    with closing(KafkaTopics({"classic": Brokers(connection)})) as found:
        yield found


async def test_brokers_use_a_changed_ca_of_clients_without_a_restart(
    secure: Secure, topics: KafkaTopics, tmp_path: Path
) -> None:
    before, after = secure.brokers.clients, Authority(tmp_path, "next")
    contexts = {}
    for authority in (before, after):
        pair = authority.issue(COMMON_NAME, file="changing")
        contexts[authority] = ssl.create_default_context(cafile=str(secure.brokers.authority.file))
        contexts[authority].load_cert_chain(pair.certificate, pair.key)

    def accepts_only(expected: set[Authority]) -> bool:
        return {authority for authority, context in contexts.items() if answered(secure, 9097, context)} == expected

    def copied(text: str) -> bool:
        return (secure.directory / "broker-0" / "keystore" / "clients.pem").read_text() == text

    for authorities in ({before, after}, {after}, {before}):
        secure.brokers.trust_clients(*authorities)
        trusted = "".join(authority.file.read_text() for authority in authorities)
        await asyncio.to_thread(await_true, "the broker has a copy", partial(copied, trusted))
        await topics.reload_certificates("classic")
        await asyncio.to_thread(await_true, "the broker accepts these clients", partial(accepts_only, authorities))


async def test_the_operator_sees_the_brokers_and_reloads_their_certificates(
    secure: Secure, topics: KafkaTopics
) -> None:
    state = await topics.fleet("classic", replicas=True)
    assert (state.brokers, state.under_replicated) == (1, 0)
    ports = (9096, 9097, 9098)
    assert {subject(secure, port) for port in ports} == {"CN=brokers"}
    before = await topics.certificate_end(secure.brokers.address(0), 9096)
    assert before == certificate_end(secure)
    secure.brokers.certify("renewed", days=2)
    keystore = secure.directory / "broker-0" / "keystore" / "keystore.pem"
    certificate = (secure.brokers.files / "tls" / "tls.crt").read_text()
    await asyncio.to_thread(await_true, "the keystore is new", lambda: certificate in keystore.read_text())
    await topics.reload_certificates("classic")
    await asyncio.to_thread(
        await_true,
        "each port has the new certificate",
        lambda: {subject(secure, port) for port in ports} == {"CN=renewed"},
    )
    for port in (9096, 9097):
        assert before < await topics.certificate_end(secure.brokers.address(0), port) == certificate_end(secure)
    with pytest.raises(UnavailableError, match="cannot read the certificate"):
        await topics.certificate_end(secure.brokers.address(0), 9092)


def certificate_end(secure: Secure) -> datetime:
    """Return the end of the certificate in the Secret."""
    encoded = (secure.brokers.files / "tls" / "tls.crt").read_bytes()
    return x509.load_pem_x509_certificate(encoded).not_valid_after_utc


def subject(secure: Secure, port: int) -> str:
    """Return the subject of the certificate at a port of the broker."""
    context = ssl.create_default_context(cafile=str(secure.brokers.authority.file))
    address = secure.brokers.address(0)
    with (
        socket.create_connection((address, port), 10) as plain,
        context.wrap_socket(plain, server_hostname=address) as wrapped,
    ):
        encoded = wrapped.getpeercert(binary_form=True)
    assert encoded is not None
    return x509.load_der_x509_certificate(encoded).subject.rfc4514_string()


def test_nothing_secret_is_in_the_log_of_the_broker(secure: Secure) -> None:
    log = secure.brokers.log(0)
    key = (secure.brokers.files / "tls" / "tls.key").read_text().splitlines()[1]
    token = (secure.brokers.files / "tokens" / "token").read_text()
    assert not [part for part in (key, token, PASSWORD) if part in log]
