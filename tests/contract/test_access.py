"""Port `Access`: the fake passes the same suite as the adapter on Apache Kafka and on a diskless broker.

Clients of Apache Kafka then use the credentials, ACLs and quotas that the adapter wrote."""

import asyncio
import itertools
import json
import logging
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from firn.model.errors import AccessDeniedError, FirnError, InvalidSpecError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import CLUSTER, Access, AclRule, PrincipalState
from firn_operator.adapters.kafka import access as adapter
from firn_operator.adapters.kafka.access import KafkaAccess
from firn_spark.kafka.clients import client_config
from tests.fakes.users.access import FakeAccess
from tests.servers.firn_broker import embedded
from tests.servers.kafka import STRANGER, STRANGER_PASSWORD, Kafka, kafka
from tests.servers.process import await_true, free_port

PROFILE, PASSWORD = "classic", "kept-in-a-secret"
_numbers = itertools.count()
Connect = Callable[[KafkaConnection], KafkaAccess]


@dataclass(frozen=True)
class Subject:
    """A port, and the functions of an administrator that makes other ACLs of a principal."""

    access: Access
    deny: Callable[[str, AclRule], Any]
    """Denies a user what the rule allows."""
    denied: Callable[[str, AclRule], bool]
    """Returns True if the user is still denied it."""


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Return a function that makes the port, and close each port after the test."""
    with ExitStack() as ports:
        yield lambda connection: ports.enter_context(closing(KafkaAccess({PROFILE: connection})))


@pytest.fixture(scope="module")
def login() -> str:
    """Return the address of the diskless broker's listener with passwords."""
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory, login: str) -> Iterator[KafkaConnection]:
    """Run one diskless broker, which stores access and does not check it."""
    listener = {"login": {"bind": login, "authentication": ["ScramSha512"]}}
    directory = tmp_path_factory.mktemp("diskless") / "data"
    with embedded(directory, FIRN_BROKER_LISTENERS=json.dumps(listener)) as broker:
        yield KafkaConnection(bootstrap_servers=broker.bootstrap)


@pytest_asyncio.fixture(params=["fake", "kafka", "diskless"])
async def subject(request: pytest.FixtureRequest, connected: Connect) -> AsyncIterator[Subject]:
    if request.param == "fake":
        fake = FakeAccess()
        yield Subject(
            fake,
            lambda user, rule: fake.denied[PROFILE, user].add(rule),
            lambda user, rule: rule in fake.denied[PROFILE, user],
        )
        return
    if request.param == "kafka":
        broker: Kafka = request.getfixturevalue("broker")
        plain, connection = broker.connection, broker.secure_connection()
    else:
        plain = connection = request.getfixturevalue("diskless")
    admin = AdminClient({"bootstrap.servers": plain.bootstrap_servers})
    yield Subject(connected(connection), lambda *rule: _deny(admin, *rule), _denied(admin))


def _deny(admin: AdminClient, user: str, rule: AclRule) -> None:
    """Deny the user the rule, and allow it for one host. Return when the broker knows of both."""
    resource, pattern = ResourceType[rule.resource.upper()], ResourcePatternType[rule.pattern.upper()]
    acls = [
        AclBinding(resource, rule.name, pattern, f"User:{user}", host, AclOperation[rule.operation.upper()], permission)
        for host, permission in (("*", AclPermissionType.DENY), ("10.0.0.1", AclPermissionType.ALLOW))
    ]
    for made in admin.create_acls(acls).values():
        made.result(30)
    await_true("both ACLs are known", lambda: _denied(admin)(user, rule))


def _denied(admin: AdminClient) -> Callable[[str, AclRule], bool]:
    def denied(user: str, rule: AclRule) -> bool:
        resource, pattern = ResourceType[rule.resource.upper()], ResourcePatternType[rule.pattern.upper()]
        every: Any = None
        principal = f"User:{user}"
        acls = AclBindingFilter(resource, rule.name, pattern, principal, every, AclOperation.ANY, AclPermissionType.ANY)
        found = admin.describe_acls(acls).result(30)
        others = {(each.host, each.permission_type) for each in found}
        return others >= {("*", AclPermissionType.DENY), ("10.0.0.1", AclPermissionType.ALLOW)}

    return denied


@pytest.fixture
def user() -> str:
    return f"shop.user{next(_numbers)}.a"


async def until(access: Access, user: str, fits: Callable[[PrincipalState], bool]) -> PrincipalState:
    """Return the first state that fits. Brokers learn of a change a moment after it."""
    while not fits(state := (await access.describe(PROFILE, [user]))[user]):
        pass
    return state


def rules(user: str) -> tuple[AclRule, AclRule, AclRule]:
    return (
        AclRule("Topic", f"{user}.orders", "Literal", "Write"),
        AclRule("Group", f"{user}.", "Prefixed", "Read"),
        AclRule("Cluster", CLUSTER, "Literal", "DescribeConfigs"),
    )


async def test_an_unknown_user_has_the_empty_state(subject: Subject, user: str) -> None:
    assert await subject.access.describe(PROFILE, [user]) == {user: PrincipalState()}
    assert await subject.access.describe(PROFILE, []) == {}


async def test_a_credential_is_put_and_removed_repeatedly(subject: Subject, user: str) -> None:
    for _ in range(2):
        await subject.access.put_credential(PROFILE, user, PASSWORD)
    await until(subject.access, user, lambda state: state == PrincipalState(credential=True))
    await subject.access.remove_credential(PROFILE, user)
    await until(subject.access, user, lambda state: not state.credential)
    await subject.access.remove_credential(PROFILE, user)


async def test_only_diskless_brokers_describe_the_last_use_of_a_credential(
    broker: Kafka, diskless: KafkaConnection, login: str, connected: Connect, user: str, tmp_path: Path
) -> None:
    kafka_access, access = connected(broker.secure_connection()), connected(diskless)
    for each in (kafka_access, access):
        await each.put_credential(PROFILE, user, PASSWORD)
    assert (await until(kafka_access, user, lambda state: state.credential)).last_used is None
    never = (await until(access, user, lambda state: state.credential)).last_used
    assert never == datetime.fromtimestamp(0, UTC)
    begun = datetime.now(UTC)
    (tmp_path / "password").write_text(PASSWORD)
    client = KafkaConnection(
        bootstrap_servers=login,
        protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username=user,
        sasl_password_path=str(tmp_path / "password"),
    )
    produced(client, "absent")
    used = (await until(access, user, lambda state: state.last_used != never)).last_used
    assert used is not None
    assert begun - timedelta(seconds=1) < used <= datetime.now(UTC)
    await access.put_credential(PROFILE, user, "another")
    assert (await until(access, user, lambda state: state.last_used != used)).last_used == never


async def test_acls_are_created_and_deleted_repeatedly(subject: Subject, user: str) -> None:
    write, read, cluster = rules(user)
    for _ in range(2):
        await subject.access.change_acls(PROFILE, user, frozenset({write, read}), frozenset())
    await until(subject.access, user, lambda state: state.acls == {write, read})
    for _ in range(2):
        await subject.access.change_acls(PROFILE, user, frozenset({cluster}), frozenset({write}))
    await until(subject.access, user, lambda state: state.acls == {cluster, read})
    found = await subject.access.describe_acls(PROFILE, [user, f"{user}2"])
    assert found == {user: {cluster, read}, f"{user}2": frozenset()}
    await subject.access.change_acls(PROFILE, user, frozenset(), frozenset())


async def test_rights_on_transactional_ids_are_created_and_deleted(subject: Subject, user: str) -> None:
    found = frozenset(
        {
            AclRule("TransactionalId", user, "Literal", "Write"),
            AclRule("TransactionalId", f"{user}-", "Prefixed", "Describe"),
        }
    )
    await subject.access.change_acls(PROFILE, user, found, frozenset())
    await until(subject.access, user, lambda state: state.acls == found)
    await subject.access.change_acls(PROFILE, user, frozenset(), found)
    await until(subject.access, user, lambda state: state.acls == set())


async def test_a_transactional_client_may_do_what_its_rules_allow(broker: Kafka, connected: Connect, user: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(user, 1)])[user].result(30)
    access = connected(broker.secure_connection())
    await access.put_credential(PROFILE, user, PASSWORD)
    given = {AclRule("Topic", user, "Literal", operation) for operation in ("Write", "Describe")}
    given |= {AclRule("TransactionalId", f"{user}-", "Prefixed", operation) for operation in ("Write", "Describe")}
    await access.change_acls(PROFILE, user, frozenset(given), frozenset())
    await until(access, user, lambda state: state.acls == given and state.credential)

    def outcome(id: str) -> str:
        settings = client_config(broker.secure_connection(user, PASSWORD)) | {"transactional.id": id, "log_level": 0}
        producer = Producer(settings)
        try:
            producer.init_transactions(30)
            producer.begin_transaction()
            producer.produce(user, b"x")
            producer.commit_transaction(30)
        except KafkaException as error:
            return str(error.args[0].name())
        return "committed"

    await_true("the transaction is committed", lambda: outcome(f"{user}-1") == "committed")
    assert outcome("foreign") == "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


@pytest.mark.parametrize("operation", ["Read", "Create", "Delete", "Alter", "Describe", "AlterConfigs"])
async def test_each_operation_is_described_as_it_was_created(subject: Subject, user: str, operation: Any) -> None:
    rule = AclRule("Topic", f"{user}.", "Prefixed", operation)
    await subject.access.change_acls(PROFILE, user, frozenset({rule}), frozenset())
    await until(subject.access, user, lambda state: state.acls == {rule})


async def test_acls_of_administrators_stay_and_are_not_described(subject: Subject, user: str) -> None:
    write, read, _ = rules(user)
    subject.deny(user, write)
    await subject.access.change_acls(PROFILE, user, frozenset({write, read}), frozenset())
    await until(subject.access, user, lambda state: state.acls == {write, read})
    await subject.access.change_acls(PROFILE, user, frozenset(), frozenset({write, read}))
    await until(subject.access, user, lambda state: state.acls == set())
    assert subject.denied(user, write)


async def test_each_quota_is_set_and_removed_separately(subject: Subject, user: str) -> None:
    first: Mapping[str, float | None] = {"producer_byte_rate": 1048576.0, "request_percentage": 12.5}
    for _ in range(2):
        await subject.access.change_quotas(PROFILE, user, first)
    await until(subject.access, user, lambda state: state.quotas == first)
    second: Mapping[str, float | None] = {"producer_byte_rate": None, "consumer_byte_rate": 2048.0}
    for _ in range(2):
        await subject.access.change_quotas(PROFILE, user, second)
    wanted = {"request_percentage": 12.5, "consumer_byte_rate": 2048.0}
    await until(subject.access, user, lambda state: state.quotas == wanted)
    await subject.access.change_quotas(PROFILE, user, {})


async def test_a_refused_quota_is_invalid_and_the_quotas_of_others_are_set(subject: Subject, user: str) -> None:
    wrong, right = (
        subject.access.change_quotas(PROFILE, user, {"no_such_rate": 1.0}),
        subject.access.change_quotas(PROFILE, f"{user}2", {"producer_byte_rate": 1024.0}),
    )
    results = await asyncio.gather(wrong, right, return_exceptions=True)
    assert isinstance(results[0], InvalidSpecError)
    assert "no_such_rate" in str(results[0])
    assert results[1] is None
    await until(subject.access, f"{user}2", lambda state: state.quotas == {"producer_byte_rate": 1024.0})


async def test_many_users_are_described_in_one_call(subject: Subject, user: str) -> None:
    users = [f"{user}{number}" for number in range(40)]
    write, read, _ = rules(user)
    await subject.access.change_acls(PROFILE, users[7], frozenset({write}), frozenset())
    await subject.access.change_acls(PROFILE, users[8], frozenset({read}), frozenset())
    await subject.access.change_quotas(PROFILE, users[8], {"producer_byte_rate": 1.0})
    await subject.access.put_credential(PROFILE, users[9], PASSWORD)
    wanted = {
        **dict.fromkeys(users, PrincipalState()),
        users[7]: PrincipalState(frozenset({write})),
        users[8]: PrincipalState(frozenset({read}), {"producer_byte_rate": 1.0}),
        users[9]: PrincipalState(credential=True),
    }
    while await subject.access.describe(PROFILE, users) != wanted:
        pass


# ---- Apache Kafka


@pytest.fixture(scope="module")
def open_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """Run a broker without an authorizer."""
    with kafka(tmp_path_factory.mktemp("open") / "broker") as server:
        yield server


def calls(access: Access, user: str = "shop.checkout.a") -> list[Any]:
    """Return one call of each method."""
    rule = frozenset({AclRule("Topic", "orders", "Literal", "Read")})
    return [
        access.describe(PROFILE, [user]),
        access.change_acls(PROFILE, user, rule, frozenset()),
        access.change_acls(PROFILE, user, frozenset(), rule),
        access.put_credential(PROFILE, user, PASSWORD),
        access.remove_credential(PROFILE, user),
        access.change_quotas(PROFILE, user, {"producer_byte_rate": 1024.0}),
        access.describe_acls(PROFILE, [user]),
    ]


def produced(connection: KafkaConnection, topic: str) -> int:
    """Produce a record. Return the code of the error, or 0."""
    errors: list[int] = []
    settings: dict[str, Any] = {**client_config(connection), "message.timeout.ms": 5000, "log_level": 0}
    settings["error_cb"] = lambda error: errors.append(error.code())
    producer = Producer(settings)
    producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error.code() if error else 0))
    while not errors:
        producer.poll(0.1)
    producer.purge()
    return errors[0]


def consumed(connection: KafkaConnection, group: str, topic: str) -> int:
    """Read a record as a member of the group. Return the code of the error, or 0."""
    settings = {**client_config(connection), "group.id": group, "auto.offset.reset": "earliest", "log_level": 0}
    with closing(Consumer(settings)) as consumer:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        error = message.error()
        return int(error.code()) if error else 0


async def test_a_client_may_do_what_its_rules_allow(broker: Kafka, connected: Connect, user: str) -> None:
    orders, payments = f"{user}.orders", f"{user}.payments"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for made in admin.create_topics([NewTopic(name, 1) for name in (orders, payments)]).values():
        made.result(30)
    access = connected(broker.secure_connection())
    await access.put_credential(PROFILE, user, PASSWORD)
    await until(access, user, lambda state: state.credential)
    client = broker.secure_connection(user, PASSWORD)
    assert produced(client, orders) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    write = frozenset({AclRule("Topic", orders, "Literal", "Write"), AclRule("Topic", orders, "Literal", "Read")})
    group = frozenset({AclRule("Group", f"{user}.", "Prefixed", "Read")})
    await access.change_acls(PROFILE, user, write | group, frozenset())
    await until(access, user, lambda state: state.acls == write | group)
    await_true("the client may produce", lambda: produced(client, orders) == 0)
    assert produced(client, payments) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert consumed(client, f"{user}.billing", orders) == 0
    assert consumed(client, "billing", orders) == KafkaError.GROUP_AUTHORIZATION_FAILED
    await access.change_acls(PROFILE, user, frozenset(), write)
    await_true("no longer", lambda: produced(client, orders) == KafkaError.TOPIC_AUTHORIZATION_FAILED)


async def test_a_replaced_or_removed_password_is_refused(broker: Kafka, connected: Connect, user: str) -> None:
    access = connected(broker.secure_connection())
    refused = KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED
    await access.put_credential(PROFILE, user, "first")
    await until(access, user, lambda state: state.credential)
    assert produced(broker.secure_connection(user, "first"), "absent") not in refused
    await access.put_credential(PROFILE, user, "second")
    await_true(
        "the first one is refused", lambda: produced(broker.secure_connection(user, "first"), "absent") in refused
    )
    assert produced(broker.secure_connection(user, "second"), "absent") not in refused
    await access.remove_credential(PROFILE, user)
    await_true("the second one, too", lambda: produced(broker.secure_connection(user, "second"), "absent") in refused)


async def test_brokers_limit_a_client_to_its_quota(broker: Kafka, connected: Connect, user: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(user, 1)])[user].result(30)
    access = connected(broker.secure_connection())
    await access.put_credential(PROFILE, user, PASSWORD)
    await access.change_acls(PROFILE, user, frozenset({AclRule("Topic", user, "Literal", "Write")}), frozenset())
    await access.change_quotas(PROFILE, user, {"producer_byte_rate": 10_000.0})
    await until(access, user, lambda state: bool(state.quotas and state.acls and state.credential))
    throttled: list[float] = []
    settings: dict[str, Any] = client_config(broker.secure_connection(user, PASSWORD))
    settings |= {"linger.ms": 0, "throttle_cb": lambda event: throttled.append(event.throttle_time)}
    producer = Producer(settings)
    deadline = time.monotonic() + 60
    while not throttled and time.monotonic() < deadline:
        producer.produce(user, bytes(50_000))
        producer.poll(0.2)
    assert throttled
    producer.purge()


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "certificate"])
async def test_quotas_are_set_over_each_way_of_authentication(
    broker: Kafka, connected: Connect, user: str, mechanism: str
) -> None:
    mutual = mechanism == "certificate"
    connection = broker.mutual_connection() if mutual else broker.secure_connection(mechanism=mechanism)
    access = connected(connection)
    await access.change_quotas(PROFILE, user, {"producer_byte_rate": 1024.0})
    await until(access, user, lambda state: state.quotas == {"producer_byte_rate": 1024.0})


@pytest.mark.parametrize("number", range(7))
async def test_a_user_without_rights_is_denied_each_call(broker: Kafka, connected: Connect, number: int) -> None:
    access = connected(broker.secure_connection(STRANGER, STRANGER_PASSWORD))
    all_calls = calls(access)
    with pytest.raises(AccessDeniedError, match="[Aa]uthorization failed; grant the operator's user") as denial:
        await all_calls.pop(number)
    assert "Request(" not in str(denial.value), "it differs each time"
    for call in all_calls:
        call.close()


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("fault", ["password", "authority", "certificate"])
async def test_wrong_credentials_are_denied(broker: Kafka, connected: Connect, number: int, fault: str) -> None:
    connection = {
        "password": lambda: broker.secure_connection(password="wrong"),
        "authority": lambda: broker.secure_connection(ca=broker.directory / "tls" / "other-ca.crt"),
        "certificate": lambda: broker.mutual_connection("other-ca"),
    }[fault]()
    all_calls = calls(connected(connection))
    with pytest.raises(AccessDeniedError, match="correct the profile's credentials"):
        await all_calls.pop(number)
    for call in all_calls:
        call.close()


@pytest.mark.parametrize("number", range(6))
async def test_brokers_that_do_not_answer_are_unavailable_soon(connected: Connect, number: int) -> None:
    access = connected(KafkaConnection(bootstrap_servers=f"127.0.0.1:{free_port()}"))
    all_calls = calls(access)
    started = time.monotonic()
    with pytest.raises(UnavailableError, match="profile classic"):
        await all_calls.pop(number)
    assert time.monotonic() - started < 10
    for call in all_calls:
        call.close()


@pytest.mark.parametrize("number", range(6))
async def test_brokers_that_accept_connections_and_do_not_answer_are_unavailable(
    connected: Connect, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(adapter, "REQUEST_TIMEOUT", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        access = connected(KafkaConnection(bootstrap_servers=f"127.0.0.1:{silent.getsockname()[1]}"))
        all_calls = calls(access)
        with pytest.raises(UnavailableError, match="profile classic"):
            await asyncio.wait_for(all_calls.pop(number), 10)
        for call in all_calls:
            call.close()


async def test_brokers_without_an_authorizer_have_no_acls(open_broker: Kafka, connected: Connect) -> None:
    access = connected(open_broker.connection)
    describe, create, delete, put, remove, change, acls = calls(access)
    for call in (describe, create, delete, acls):
        with pytest.raises(InvalidSpecError, match="No Authorizer is configured.*set authorizer.class.name"):
            await call
    for call in (put, remove, change):
        await call


@pytest.mark.parametrize("connection", ["rights", "password", "address"])
async def test_no_error_and_no_log_has_a_password(
    broker: Kafka, connected: Connect, caplog: pytest.LogCaptureFixture, connection: str
) -> None:
    caplog.set_level(logging.DEBUG)
    access = connected(
        {
            "rights": lambda: broker.secure_connection(STRANGER, STRANGER_PASSWORD),
            "password": lambda: broker.secure_connection(password="not-the-password"),
            "address": lambda: KafkaConnection(bootstrap_servers=f"127.0.0.1:{free_port()}"),
        }[connection]()
    )
    with pytest.raises(FirnError) as failure:
        await access.put_credential(PROFILE, "shop.checkout.a", PASSWORD)
    with pytest.raises(FirnError) as quota:
        await access.change_quotas(PROFILE, "shop.checkout.a", {"producer_byte_rate": 1.0})
    texts = [caplog.text]
    for error in (failure.value, quota.value):
        cause: BaseException | None = error
        while cause is not None:
            texts += [str(cause), repr(cause)]
            cause = cause.__cause__ or cause.__context__
    for secret in (PASSWORD, STRANGER_PASSWORD, "not-the-password"):
        assert not [text for text in texts if secret in text]
