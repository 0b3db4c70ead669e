"""Clients that authenticate at a listener with TLS, and clients that may not.

The broker has a second listener without TLS, at which the tests administer it."""

import json
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import jwt
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from tests.authority import Authority
from tests.integration.broker.admins import admin
from tests.integration.broker.secure_clients import CLIENTS, OAUTH, Login
from tests.integration.broker.secure_workers import WORKERS
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import await_true, free_port

USER, PASSWORD = "shop.checkout.a", "correct horse, =battery"
ISSUER, AUDIENCE = "https://kubernetes.default.svc", "firn-broker"
MECHANISMS = ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", OAUTH, "certificate"]
PRINCIPALS = {f"User:{USER}", "User:shop.checkout"}


@dataclass(frozen=True)
class Secure:
    """A broker with a listener that authenticates its clients."""

    broker: FirnBroker
    bootstrap: str
    authority: Authority
    clients: Authority
    """The CA of the clients with a certificate."""
    key: rsa.RSAPrivateKey
    """Signs the tokens of ServiceAccounts."""

    def login(self, mechanism: str, user: str = USER, password: str = PASSWORD) -> Login:
        if mechanism == "certificate":
            pair = self.clients.issue("shop.checkout", file=f"client-{time.monotonic_ns()}")
            return Login(self.bootstrap, self.authority.file, pair=pair)
        if mechanism == OAUTH:
            password = self.token()
        return Login(self.bootstrap, self.authority.file, mechanism, user, password)

    def token(self, **claims: object) -> str:
        """Return a token of the ServiceAccount ``checkout`` of the namespace ``shop``."""
        stated = {
            "iss": ISSUER, "aud": [AUDIENCE], "sub": "system:serviceaccount:shop:checkout", "iat": int(time.time()),
            "exp": int(time.time()) + 600,
        }  # fmt: skip
        return jwt.encode(stated | claims, self.key, "RS256", headers={"kid": "one"})


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secure]:
    directory = tmp_path_factory.mktemp("secure")
    authority, port, key = Authority(directory), free_port(), rsa.generate_private_key(65537, 2048)
    clients = Authority(directory, "clients")
    pair = authority.issue("broker", "127.0.0.1", "localhost")
    keys = directory / "keys.json"
    keys.write_text(json.dumps({"keys": [RSAAlgorithm.to_jwk(key.public_key(), as_dict=True) | {"kid": "one"}]}))
    tls = {
        "certFile": str(pair.certificate), "keyFile": str(pair.key), "clientCaFile": str(clients.file),
        "principalRules": ["RULE:^CN=(.*)$/$1/"],
    }  # fmt: skip
    listener = {
        "bind": f"127.0.0.1:{port}", "tls": tls,
        "authentication": ["ScramSha512", "ScramSha256", "Plain", "OAuth", "Certificate"],
    }  # fmt: skip
    settings = {
        "LISTENERS": {"secure": listener},
        "OAUTH": {"issuer": ISSUER, "audience": AUDIENCE, "jwksFile": str(keys), "kubernetes": True},
        "AUTHORIZATION": {"type": "Acl", "superUsers": ["User:ANONYMOUS"]},
        "GROUPS__INITIAL_REBALANCE_MS": 100,
    }
    environment = {f"FIRN_BROKER_{name}": json.dumps(value) for name, value in settings.items()}
    with embedded(directory / "data", **environment) as broker:
        for mechanism in (ScramMechanism.SCRAM_SHA_512, ScramMechanism.SCRAM_SHA_256):
            put_password(broker, USER, PASSWORD, mechanism)
        allow(broker, PRINCIPALS, "topic-", ResourceType.TOPIC)
        allow(broker, PRINCIPALS, "topic-", ResourceType.GROUP)
        yield Secure(broker, f"127.0.0.1:{port}", authority, clients, key)


def put_password(
    broker: FirnBroker, user: str, password: str, mechanism: ScramMechanism = ScramMechanism.SCRAM_SHA_512
) -> None:
    put: list[UserScramCredentialAlteration] = [
        UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), password.encode())
    ]
    for future in admin(broker).alter_user_scram_credentials(put).values():
        future.result(30)


def allow(broker: FirnBroker, principals: set[str], prefix: str, type: ResourceType) -> None:
    """Allow everything on the resources whose names begin with the prefix."""
    acls = [
        AclBinding(
            type, prefix, ResourcePatternType.PREFIXED, principal, "*", AclOperation.ALL, AclPermissionType.ALLOW
        )
        for principal in principals
    ]
    for future in admin(broker).create_acls(acls).values():
        future.result(30)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", [*CLIENTS, *(pytest.param(each, marks=pytest.mark.long) for each in WORKERS)])
def test_a_client_that_authenticates_produces_and_consumes(
    secure: Secure, client: str, mechanism: str, name: str, tmp_path: Path
) -> None:
    (CLIENTS | WORKERS)[client](secure.login(mechanism), name, tmp_path)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
@pytest.mark.parametrize(("user", "password"), [(USER, "wrong"), ("nobody", PASSWORD)])
def test_a_wrong_password_or_user_is_refused(secure: Secure, mechanism: str, user: str, password: str) -> None:
    assert "the broker does not accept" in errors_of(secure.login(mechanism, user, password))
    await_true(
        "the audit log names the user",
        lambda: any(
            user in str(line["reason"]) for line in audit(secure, "authentication failed", mechanism=mechanism)
        ),
    )
    assert PASSWORD not in secure.broker.log.read_text()


@pytest.mark.parametrize("claims", [{"exp": 1}, {"aud": ["https://kubernetes.default.svc"]}, {"iss": "https://other"}])
def test_a_token_that_is_not_for_the_broker_is_refused(secure: Secure, claims: dict[str, object]) -> None:
    token = secure.token(**claims)
    errors = errors_of(Login(secure.bootstrap, secure.authority.file, OAUTH, password=token))
    assert "the broker does not accept the token" in errors
    assert token not in secure.broker.log.read_text()


def test_a_certificate_of_the_ca_of_the_brokers_is_refused(secure: Secure) -> None:
    pair = secure.authority.issue("shop.checkout", file="of-brokers")
    context = ssl.create_default_context(cafile=str(secure.authority.file))
    context.load_cert_chain(pair.certificate, pair.key)
    host, port = secure.bootstrap.split(":")
    with socket.create_connection((host, int(port)), 30) as plain, suppress(OSError):
        assert not context.wrap_socket(plain, server_hostname=host).recv(1)
    failed = audit(secure, "authentication failed", mechanism="certificate")
    assert [line["reason"] for line in failed] == ["self-signed certificate in certificate chain"]


def test_a_client_may_use_only_what_acls_allow_and_denials_are_in_the_audit_log(secure: Secure) -> None:
    producer = Producer(secure.login("SCRAM-SHA-512").librdkafka() | {"message.timeout.ms": 10_000})
    errors: list[KafkaError | None] = []
    producer.produce("private", b"v", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert [error and error.code() for error in errors] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    assert "private" not in producer.list_topics(timeout=30).topics
    line = audit(secure, "access denied", resource="Topic:private")[0]
    assert (line["principal"], line["address"]) == (f"User:{USER}", "127.0.0.1")


def test_a_client_without_encryption_is_in_the_audit_log(secure: Secure) -> None:
    producer = Producer({"bootstrap.servers": secure.broker.bootstrap, "client.id": "old-billing"})
    assert producer.list_topics(timeout=30).brokers
    assert audit(secure, "connection without encryption", client="old-billing")


def test_a_deleted_password_ends_the_connections_that_used_it(secure: Secure) -> None:
    user = "shop.leaver"
    put_password(secure.broker, user, PASSWORD)
    errors: list[str] = []
    config = secure.login("SCRAM-SHA-512", user).librdkafka()
    producer = Producer(config | {"error_cb": lambda error: errors.append(str(error))})
    producer.list_topics(timeout=30)
    unwanted: list[UserScramCredentialAlteration] = [UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_512)]
    for future in admin(secure.broker).alter_user_scram_credentials(unwanted).values():
        future.result(30)

    def refused() -> bool:
        producer.poll(0.1)
        return any("the broker does not accept" in error for error in errors)

    # The client sends nothing. The broker closes its connection, and its next one is refused.
    await_true("the client cannot connect again", refused)


def errors_of(login: Login) -> str:
    """Return the errors of a client that cannot connect."""
    errors: list[str] = []
    producer = Producer(login.librdkafka() | {"error_cb": lambda error: errors.append(str(error))})
    with pytest.raises(KafkaException):
        producer.list_topics(timeout=2)
    await_true("the client has an error", lambda: producer.poll(0) >= 0 and bool(errors))
    return "; ".join(errors)


def audit(secure: Secure, event: str, **fields: str) -> Sequence[dict[str, object]]:
    """Return the lines of the audit log about an event with these fields, as soon as there are some."""
    expected = {"event": event, **fields}

    def lines() -> list[dict[str, object]]:
        parsed = [json.loads(line) for line in secure.broker.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in parsed if line.get("audit") and expected.items() <= line.items()]

    await_true(f"audit log: {expected}", lambda: bool(lines()))
    return lines()
