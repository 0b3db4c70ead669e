"""Port `Topics` against real brokers: Apache Kafka, and the diskless broker in tests without certificates and
passwords."""

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import TopicState
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_spark.kafka import admin
from tests.servers.firn_broker import embedded
from tests.servers.kafka import STRANGER, STRANGER_PASSWORD, Kafka
from tests.servers.process import free_port

_numbers = itertools.count()
Connect = Callable[[Mapping[str, Brokers]], KafkaTopics]


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """Run one diskless broker."""
    with embedded(tmp_path_factory.mktemp("diskless") / "data") as broker:
        yield KafkaConnection(bootstrap_servers=broker.bootstrap)


@pytest.fixture
def connected() -> Iterator[Connect]:
    """Return a function that makes the port, and close each port after the test."""
    with ExitStack() as ports:
        yield lambda profiles: ports.enter_context(closing(KafkaTopics(profiles)))


@pytest.fixture(params=["classic", "diskless"])
def topics(request: pytest.FixtureRequest, connected: Connect) -> KafkaTopics:
    """Return the port as the operator has it for a profile.

    The port asks a diskless fleet only for its default replication factor."""
    if request.param == "diskless":
        return connected({"classic": Brokers(request.getfixturevalue("diskless"))})
    return connected({"classic": Brokers(request.getfixturevalue("broker").connection, replication_factor=1)})


async def await_visible(topics: KafkaTopics, *wanted: str, profile: str = "classic") -> list[TopicState]:
    """Return the topics after the brokers have learned of all of them from the controller."""
    while True:
        states = await asyncio.gather(*(topics.describe(profile, name) for name in wanted))
        existing = [state for state in states if state is not None]
        if len(existing) == len(wanted):
            return existing
        await asyncio.sleep(0.02)


async def await_state(topics: KafkaTopics, name: str, expected: Callable[[TopicState], bool]) -> None:
    """Wait until the brokers have heard of a change from the controller; fails with the state that they describe instead."""
    state: TopicState | None = None
    try:
        async with asyncio.timeout(60):
            while state is None or not expected(state):
                await asyncio.sleep(0.02)
                state = await topics.describe("classic", name)
    except TimeoutError:
        raise AssertionError(f"after 60 s the topic is still {state}") from None


async def gone(topics: KafkaTopics, name: str) -> None:
    """Wait until the brokers have learned from the controller that the topic is deleted."""
    while await topics.describe("classic", name) is not None:
        await asyncio.sleep(0.02)


async def test_a_missing_topic_is_none(topics: KafkaTopics) -> None:
    assert await topics.describe("classic", "nobody-made-this") is None


async def test_a_created_topic_is_described_with_its_configs(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {"retention.ms": "60000"})
    (state,) = await await_visible(topics, name)
    assert (state.name, state.partitions, dict(state.configs)) == (name, 3, {"retention.ms": "60000"})
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", state.topic_id)


async def test_the_retention_of_a_topic_that_sets_none_is_that_of_the_brokers(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {})
    (state,) = await await_visible(topics, name)
    assert state.configs == {}
    assert state.defaults["cleanup.policy"] == "delete"
    assert state.defaults["retention.ms"] in ("-1", "604800000")  # of the Kafka server of the tests, and of firn-broker


async def test_a_repeated_create_succeeds_and_changes_nothing(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {})
    (before,) = await await_visible(topics, name)
    await topics.create("classic", name, 5, {"retention.ms": "1"})
    assert await await_visible(topics, name) == [before]


async def test_a_recreated_topic_has_another_id(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {})
    (first,) = await await_visible(topics, name)
    await topics.delete("classic", name)
    await gone(topics, name)
    await topics.create("classic", name, 1, {})
    (second,) = await await_visible(topics, name)
    assert first.topic_id != second.topic_id


async def test_deleting_a_missing_topic_succeeds(topics: KafkaTopics) -> None:
    await topics.delete("classic", "nobody-made-this")


async def test_partitions_grow_and_a_repeated_growth_succeeds(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {})
    await topics.grow("classic", name, 4)
    await topics.grow("classic", name, 4)
    await await_state(topics, name, lambda state: state.partitions == 4)


async def test_partitions_do_not_shrink(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {})
    with pytest.raises(InvalidSpecError, match=name):
        await topics.grow("classic", name, 2)


async def test_each_config_is_set_and_unset_separately(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {"retention.ms": "60000", "max.message.bytes": "2000000"})
    await topics.alter_configs("classic", name, {"segment.ms": "700000"}, ["retention.ms"])
    expected = {"max.message.bytes": "2000000", "segment.ms": "700000"}
    await await_state(topics, name, lambda state: dict(state.configs) == expected)


@pytest.mark.parametrize(("key", "value"), [("no.such.config", "1"), ("retention.ms", "a while")])
async def test_an_error_names_the_config_that_kafka_rejects(
    topics: KafkaTopics, name: str, key: str, value: str
) -> None:
    with pytest.raises(InvalidSpecError, match=key) as creating:
        await topics.create("classic", name, 1, {key: value})
    assert creating.value.reason == Reason.BAD_TOPIC_CONFIG
    await topics.create("classic", name, 1, {})
    with pytest.raises(InvalidSpecError, match=key) as altering:
        await topics.alter_configs("classic", name, {key: value}, [])
    assert altering.value.reason == Reason.BAD_TOPIC_CONFIG


async def test_one_rejected_request_fails_no_other_of_its_batch(topics: KafkaTopics, name: str) -> None:
    good = [topics.create("classic", f"{name}-{number}", 1, {}) for number in range(20)]
    bad = topics.create("classic", f"{name}-bad", 1, {"no.such.config": "1"})
    *made, refused = await asyncio.gather(*good, bad, return_exceptions=True)
    assert made == [None] * 20
    assert isinstance(refused, InvalidSpecError)
    states = await await_visible(topics, *(f"{name}-{number}" for number in range(20)))
    assert all(state.partitions == 1 for state in states)


async def test_too_few_brokers_for_the_replication_factor_is_not_ready(
    connected: Connect, broker: Kafka, name: str
) -> None:
    topics = connected({"classic": Brokers(broker.connection, replication_factor=3)})
    with pytest.raises(NotReadyError, match="eplication") as refusal:
        await topics.create("classic", name, 1, {})
    assert refusal.value.reason == Reason.BROKER_STARTING


async def test_the_fleet_state_counts_brokers(topics: KafkaTopics) -> None:
    for replicas in (False, True):
        fleet = await topics.fleet("classic", replicas=replicas)
        assert (fleet.brokers, fleet.under_replicated) == (1, 0)


async def test_the_fleet_state_creates_no_topic(connected: Connect, diskless: KafkaConnection) -> None:
    # This broker creates each topic that a client asks for.
    admin = AdminClient({"bootstrap.servers": diskless.bootstrap_servers})
    before = admin.list_topics(timeout=30).topics.keys()
    await connected({"classic": Brokers(diskless)}).fleet("classic")
    assert admin.list_topics(timeout=30).topics.keys() == before


async def test_a_closed_port_is_unavailable_and_named(connected: Connect) -> None:
    port = free_port()
    topics = connected({"classic": Brokers(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"))})
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}.*refused") as down:
        await topics.describe("classic", "orders")
    assert down.value.reason == Reason.BROKER_UNREACHABLE


async def test_requests_to_stopped_brokers_share_one_timeout(connected: Connect) -> None:
    topics = connected({"classic": Brokers(KafkaConnection(bootstrap_servers=f"127.0.0.1:{free_port()}"))})
    states = await asyncio.gather(*(topics.describe("classic", f"t{n}") for n in range(300)), return_exceptions=True)
    assert all(isinstance(state, UnavailableError) for state in states)
    with pytest.raises(UnavailableError):
        await topics.describe("classic", "one-more")


async def test_closed_clients_end_their_threads() -> None:
    def threads() -> int:
        return len(os.listdir("/proc/self/task"))

    connection = KafkaConnection(bootstrap_servers=f"127.0.0.1:{free_port()}")
    before = threads()
    topics, driver = KafkaTopics({"classic": Brokers(connection)}), admin.Kafka("classic", connection)
    with pytest.raises(UnavailableError):
        await topics.describe("classic", "orders")
    assert threads() > before
    topics.close()
    driver.close()
    assert threads() <= before


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_connection_may_use_tls_and_sasl(connected: Connect, broker: Kafka, name: str, mechanism: str) -> None:
    topics = connected({"secure": Brokers(broker.secure_connection(mechanism=mechanism), replication_factor=1)})
    await topics.create("secure", name, 1, {})
    await await_visible(topics, name, profile="secure")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_access_denied(connected: Connect, broker: Kafka, mechanism: str) -> None:
    connection = broker.secure_connection(username="firn", mechanism=mechanism)
    wrong = Path(str(connection.sasl_password_path) + "-wrong")
    wrong.write_text("wrong")
    topics = connected(
        {"secure": Brokers(connection.model_copy(update={"sasl_password_path": str(wrong)}), replication_factor=1)}
    )
    with pytest.raises(AccessDeniedError, match="[Aa]uthentication"):
        await topics.describe("secure", "orders")


async def test_new_connections_use_a_changed_password_file(connected: Connect, broker: Kafka) -> None:
    connection = broker.secure_connection()
    right = Path(str(connection.sasl_password_path))
    rotated = right.with_name("rotated")
    rotated.write_text("old")
    topics = connected({"secure": Brokers(connection.model_copy(update={"sasl_password_path": str(rotated)}))})
    with pytest.raises(AccessDeniedError):
        await topics.describe("secure", "orders")
    replacement = right.with_name("replacement")
    replacement.write_bytes(right.read_bytes())
    os.replace(replacement, rotated)
    assert await topics.describe("secure", "orders") is None


async def test_an_error_names_a_missing_secret_file(connected: Connect, broker: Kafka, tmp_path: Path) -> None:
    missing = tmp_path / "password"
    connection = broker.secure_connection().model_copy(update={"sasl_password_path": str(missing)})
    topics = connected({"secure": Brokers(connection)})
    with pytest.raises(NotReadyError, match=str(missing)):
        await topics.describe("secure", "orders")


async def test_a_certificate_of_an_unknown_authority_is_access_denied(connected: Connect, broker: Kafka) -> None:
    other = broker.directory / "tls" / "other-ca.crt"
    topics = connected({"secure": Brokers(broker.secure_connection(ca=other))})
    with pytest.raises(AccessDeniedError, match="certificate"):
        await topics.describe("secure", "orders")


async def test_a_connection_may_use_a_client_certificate(connected: Connect, broker: Kafka, name: str) -> None:
    connection = broker.mutual_connection()
    topics = connected({"mutual": Brokers(connection, replication_factor=1)})
    await topics.create("mutual", name, 1, {})
    (made,) = await await_visible(topics, name, profile="mutual")
    with closing(admin.Kafka("mutual", connection)) as driver:
        (seen,) = driver.topics([name, name]).values()  # as of routes, whose tables have the same topic
    assert seen == admin.TopicInfo(made.topic_id, (0,)), "the driver logs in like the operator"


async def test_a_missing_client_certificate_is_access_denied(connected: Connect, broker: Kafka) -> None:
    topics = connected({"mutual": Brokers(broker.mutual_connection(None))})
    with pytest.raises(AccessDeniedError, match="certificate"):
        await topics.describe("mutual", "orders")


def test_an_untrusted_client_certificate_is_denied_in_the_driver(
    broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 3.0)
    with closing(admin.Kafka("mutual", broker.mutual_connection("other-ca"))) as driver:
        (denial,) = driver.topics(["orders"]).values()
    assert isinstance(denial, AccessDeniedError), denial


@pytest.mark.parametrize("topics", ["classic"], indirect=True)
async def test_a_user_without_grants_is_access_denied(
    connected: Connect, broker: Kafka, topics: KafkaTopics, name: str
) -> None:
    stranger = broker.secure_connection(STRANGER, STRANGER_PASSWORD)
    denied = connected({"secure": Brokers(stranger, replication_factor=1)})
    with pytest.raises(AccessDeniedError, match=f"{name}.*[Aa]uthoriz"):
        await denied.create("secure", name, 1, {})
    await topics.create("classic", name, 1, {})
    with pytest.raises(AccessDeniedError, match=f"{name}.*[Aa]uthoriz"):
        await denied.alter_configs("secure", name, {"retention.ms": "1"}, [])


async def test_requests_for_many_topics_are_batched(topics: KafkaTopics, name: str) -> None:
    await asyncio.gather(*(topics.create("classic", f"{name}-{number}", 1, {}) for number in range(300)))
    await await_visible(topics, *(f"{name}-{number}" for number in range(300)))
    batch = topics._profiles["classic"].describes
    requests = 0
    real = batch._run

    async def counted(items: object) -> object:
        nonlocal requests
        requests += 1
        return await real(items)  # type: ignore[arg-type]

    batch._run = counted  # type: ignore[assignment]
    states = await asyncio.gather(*(topics.describe("classic", f"{name}-{number}") for number in range(300)))
    assert all(state is not None for state in states)
    assert requests <= 3
