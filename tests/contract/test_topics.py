"""Port `Topics` against real brokers: Apache Kafka, and the diskless one wherever no certificate or password is asked for."""

import asyncio
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, InvalidSpecError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import TopicState
from firn_operator.adapters.kafka import Brokers, KafkaTopics
from firn_spark.kafka import admin
from tests.servers.firn_broker import embedded
from tests.servers.kafka import STRANGER, STRANGER_PASSWORD, Kafka
from tests.servers.process import free_port

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture(scope="module")
def diskless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaConnection]:
    """A diskless broker on its own."""
    with embedded(tmp_path_factory.mktemp("diskless") / "data") as broker:
        yield KafkaConnection(bootstrap_servers=broker.bootstrap)


@pytest.fixture(params=["classic", "diskless"])
def topics(request: pytest.FixtureRequest) -> KafkaTopics:
    """As the operator has them for a profile: of how many replicas a topic has, a diskless fleet is not asked anything but its default."""
    if request.param == "diskless":
        return KafkaTopics({"classic": Brokers(request.getfixturevalue("diskless"))})
    return KafkaTopics({"classic": Brokers(request.getfixturevalue("broker").connection, replication_factor=1)})


async def known(topics: KafkaTopics, *wanted: str, profile: str = "classic") -> list[TopicState]:
    """The topics, once the brokers have heard of them all from the controller."""
    while True:
        states = await asyncio.gather(*(topics.describe(profile, name) for name in wanted))
        found = [state for state in states if state is not None]
        if len(found) == len(wanted):
            return found
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
    """Until the brokers have heard from the controller that the topic is deleted."""
    while await topics.describe("classic", name) is not None:
        await asyncio.sleep(0.02)


async def test_a_missing_topic_is_none(topics: KafkaTopics) -> None:
    assert await topics.describe("classic", "nobody-made-this") is None


async def test_a_created_topic_is_described_with_what_was_set_on_it(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {"retention.ms": "60000"})
    (state,) = await known(topics, name)
    assert (state.name, state.partitions, dict(state.configs)) == (name, 3, {"retention.ms": "60000"})
    assert re.fullmatch(r"[A-Za-z0-9_-]{22}", state.topic_id)


async def test_creating_again_is_no_error_and_changes_nothing(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {})
    (before,) = await known(topics, name)
    await topics.create("classic", name, 5, {"retention.ms": "1"})
    assert await known(topics, name) == [before]


async def test_a_recreated_topic_has_another_id(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {})
    (first,) = await known(topics, name)
    await topics.delete("classic", name)
    await gone(topics, name)
    await topics.create("classic", name, 1, {})
    (second,) = await known(topics, name)
    assert first.topic_id != second.topic_id


async def test_deleting_a_missing_topic_is_no_error(topics: KafkaTopics) -> None:
    await topics.delete("classic", "nobody-made-this")


async def test_partitions_grow_and_growing_again_is_no_error(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {})
    await topics.grow("classic", name, 4)
    await topics.grow("classic", name, 4)
    await await_state(topics, name, lambda state: state.partitions == 4)


async def test_partitions_do_not_shrink(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 3, {})
    with pytest.raises(InvalidSpecError, match=name):
        await topics.grow("classic", name, 2)


async def test_configs_are_set_and_unset_one_by_one(topics: KafkaTopics, name: str) -> None:
    await topics.create("classic", name, 1, {"retention.ms": "60000", "max.message.bytes": "2000000"})
    await topics.alter_configs("classic", name, {"segment.ms": "700000"}, ["retention.ms"])
    expected = {"max.message.bytes": "2000000", "segment.ms": "700000"}
    await await_state(topics, name, lambda state: dict(state.configs) == expected)


@pytest.mark.parametrize(("key", "value"), [("no.such.config", "1"), ("retention.ms", "a while")])
async def test_a_config_that_kafka_refuses_is_named(topics: KafkaTopics, name: str, key: str, value: str) -> None:
    with pytest.raises(InvalidSpecError, match=key) as creating:
        await topics.create("classic", name, 1, {key: value})
    assert creating.value.reason == Reason.BAD_TOPIC_CONFIG
    await topics.create("classic", name, 1, {})
    with pytest.raises(InvalidSpecError, match=key) as altering:
        await topics.alter_configs("classic", name, {key: value}, [])
    assert altering.value.reason == Reason.BAD_TOPIC_CONFIG


async def test_one_refusal_does_not_touch_the_others_of_its_batch(topics: KafkaTopics, name: str) -> None:
    good = [topics.create("classic", f"{name}-{number}", 1, {}) for number in range(20)]
    bad = topics.create("classic", f"{name}-bad", 1, {"no.such.config": "1"})
    *made, refused = await asyncio.gather(*good, bad, return_exceptions=True)
    assert made == [None] * 20
    assert isinstance(refused, InvalidSpecError)
    states = await known(topics, *(f"{name}-{number}" for number in range(20)))
    assert all(state.partitions == 1 for state in states)


async def test_too_few_brokers_for_the_replication_factor_is_waited_for(broker: Kafka, name: str) -> None:
    topics = KafkaTopics({"classic": Brokers(broker.connection, replication_factor=3)})
    with pytest.raises(NotReadyError, match="eplication") as refusal:
        await topics.create("classic", name, 1, {})
    assert refusal.value.reason == Reason.BROKER_STARTING


async def test_the_fleet_is_counted(topics: KafkaTopics) -> None:
    fleet = await topics.fleet("classic")
    assert (fleet.brokers, fleet.under_replicated) == (1, 0)


async def test_nobody_listening_is_unavailable_and_says_where() -> None:
    port = free_port()
    topics = KafkaTopics({"classic": Brokers(KafkaConnection(bootstrap_servers=f"127.0.0.1:{port}"))})
    with pytest.raises(UnavailableError, match=f"127.0.0.1:{port}.*refused") as down:
        await topics.describe("classic", "orders")
    assert down.value.reason == Reason.BROKER_UNREACHABLE


async def test_many_that_ask_brokers_that_are_down_wait_together() -> None:
    topics = KafkaTopics({"classic": Brokers(KafkaConnection(bootstrap_servers=f"127.0.0.1:{free_port()}"))})
    states = await asyncio.gather(*(topics.describe("classic", f"t{n}") for n in range(300)), return_exceptions=True)
    assert all(isinstance(state, UnavailableError) for state in states)
    with pytest.raises(UnavailableError):
        await topics.describe("classic", "one-more")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_tls_and_sasl(broker: Kafka, name: str, mechanism: str) -> None:
    topics = KafkaTopics({"secure": Brokers(broker.secure_connection(mechanism=mechanism), replication_factor=1)})
    await topics.create("secure", name, 1, {})
    await known(topics, name, profile="secure")


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-512"])
async def test_a_wrong_password_is_access_denied(broker: Kafka, mechanism: str) -> None:
    connection = broker.secure_connection(username="firn", mechanism=mechanism)
    wrong = Path(str(connection.sasl_password_path) + "-wrong")
    wrong.write_text("wrong")
    topics = KafkaTopics(
        {"secure": Brokers(connection.model_copy(update={"sasl_password_path": str(wrong)}), replication_factor=1)}
    )
    with pytest.raises(AccessDeniedError, match="[Aa]uthentication"):
        await topics.describe("secure", "orders")


async def test_a_changed_password_file_is_taken_up(broker: Kafka) -> None:
    connection = broker.secure_connection()
    right = Path(str(connection.sasl_password_path))
    rotated = right.with_name("rotated")
    rotated.write_text("old")
    topics = KafkaTopics({"secure": Brokers(connection.model_copy(update={"sasl_password_path": str(rotated)}))})
    with pytest.raises(AccessDeniedError):
        await topics.describe("secure", "orders")
    replacement = right.with_name("replacement")
    replacement.write_bytes(right.read_bytes())
    os.replace(replacement, rotated)
    assert await topics.describe("secure", "orders") is None


async def test_a_missing_secret_file_is_named(broker: Kafka, tmp_path: Path) -> None:
    missing = tmp_path / "password"
    connection = broker.secure_connection().model_copy(update={"sasl_password_path": str(missing)})
    topics = KafkaTopics({"secure": Brokers(connection)})
    with pytest.raises(NotReadyError, match=str(missing)):
        await topics.describe("secure", "orders")


async def test_a_certificate_of_an_unknown_authority_is_access_denied(broker: Kafka) -> None:
    other = broker.directory / "tls" / "other-ca.crt"
    topics = KafkaTopics({"secure": Brokers(broker.secure_connection(ca=other))})
    with pytest.raises(AccessDeniedError, match="certificate"):
        await topics.describe("secure", "orders")


async def test_a_client_s_certificate(broker: Kafka, name: str) -> None:
    connection = broker.mutual_connection()
    topics = KafkaTopics({"mutual": Brokers(connection, replication_factor=1)})
    await topics.create("mutual", name, 1, {})
    (made,) = await known(topics, name, profile="mutual")
    (seen,) = admin.Kafka("mutual", connection).topics([name]).values()
    assert seen == admin.TopicInfo(made.topic_id, (0,)), "the driver logs in as the operator does"


async def test_a_missing_certificate_of_a_client_is_access_denied(broker: Kafka) -> None:
    topics = KafkaTopics({"mutual": Brokers(broker.mutual_connection(None))})
    with pytest.raises(AccessDeniedError, match="certificate"):
        await topics.describe("mutual", "orders")


def test_a_certificate_of_a_client_that_nobody_trusts_is_access_denied_for_the_driver_too(
    broker: Kafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin, "REQUEST_SECONDS", 3.0)
    (denial,) = admin.Kafka("mutual", broker.mutual_connection("other-ca")).topics(["orders"]).values()
    assert isinstance(denial, AccessDeniedError), denial


@pytest.mark.parametrize("topics", ["classic"], indirect=True)
async def test_a_user_without_grants_is_access_denied(broker: Kafka, topics: KafkaTopics, name: str) -> None:
    stranger = broker.secure_connection(STRANGER, STRANGER_PASSWORD)
    denied = KafkaTopics({"secure": Brokers(stranger, replication_factor=1)})
    with pytest.raises(AccessDeniedError, match=f"{name}.*[Aa]uthoriz"):
        await denied.create("secure", name, 1, {})
    await topics.create("classic", name, 1, {})
    with pytest.raises(AccessDeniedError, match=f"{name}.*[Aa]uthoriz"):
        await denied.alter_configs("secure", name, {"retention.ms": "1"}, [])


async def test_many_topics_take_few_requests(topics: KafkaTopics, name: str) -> None:
    await asyncio.gather(*(topics.create("classic", f"{name}-{number}", 1, {}) for number in range(300)))
    await known(topics, *(f"{name}-{number}" for number in range(300)))
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
