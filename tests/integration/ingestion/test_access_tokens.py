"""Clients log in to brokers with access tokens of an identity provider (SASL OAUTHBEARER)."""

import base64
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model.errors import AccessDeniedError, NotReadyError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn.sasl.tokens import TokenClient
from firn_operator.adapters.kafka.access import KafkaAccess
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_spark.kafka.admin import Kafka as Admin
from firn_spark.kafka.clients import client_config, spark_options
from firn_spark.worker.fetching import batches, cluster, source
from firn_spark.worker.fetching.access import access
from firn_spark.worker.fetching.connection import Connection
from firn_spark.worker.fetching.slices import Slice
from tests.integration.ingestion.identity_provider import Tokens, provider
from tests.servers.kafka import PASSWORD, SMALL, STRANGER, STRANGER_PASSWORD, USER, Kafka, certificates, kafka, program
from tests.servers.process import await_true

RECORDS = 2_000
SLICE = Slice("orders", 0, 0, RECORDS)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a broker with certificates."""
    directory = tmp_path_factory.mktemp("kafka")
    certificates(directory / "tls", "localhost")
    return directory


@pytest.fixture(scope="module")
def tokens(directory: Path) -> Iterator[Tokens]:
    with provider(
        directory / "tokens", {USER: PASSWORD, STRANGER: STRANGER_PASSWORD}, directory / "tls" / "server.pem"
    ) as found:
        yield found


@pytest.fixture(scope="module")
def broker(directory: Path, tokens: Tokens) -> Iterator[Kafka]:
    """Run a broker that has some records."""
    with kafka(directory, secure=True, java=(*SMALL, tokens.java_flag), **tokens.broker_settings) as server:
        admin = AdminClient({"bootstrap.servers": server.bootstrap})
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(30)
        producer = Producer({"bootstrap.servers": server.bootstrap, "batch.size": 2_000})
        for number in range(RECORDS):
            producer.produce("orders", b"%d" % number)
        assert producer.flush(30) == 0
        yield server


def read(connection: KafkaConnection) -> list[int]:
    return [offset for block in source.read(access(connection), [SLICE]) for offset in block.offsets.tolist()]


def test_a_task_reads_with_a_token(broker: Kafka, tokens: Tokens) -> None:
    assert read(broker.token_connection(tokens.url)) == list(range(RECORDS))


@pytest.fixture
def by_file(broker: Kafka, tokens: Tokens) -> KafkaConnection:
    """Return a connection with a token in a file, as in a pod with a projected token."""
    file = broker.directory / "token"
    login = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    file.write_text(tokens.answer(f"Basic {login}", "grant_type=client_credentials")[1]["access_token"])
    connection = broker.token_connection(tokens.url)
    return connection.model_copy(update={"sasl_tokens": None, "sasl_token_path": str(file), "sasl_username": None})


async def test_operator_driver_and_tasks_use_a_token_in_a_file(by_file: KafkaConnection) -> None:
    assert read(by_file) == list(range(RECORDS))
    with closing(Admin("events", by_file)) as driver:
        assert not isinstance(driver.topics(["orders"])["orders"], AccessDeniedError)
    with closing(KafkaTopics({"events": Brokers(by_file)})) as operator:
        state = await operator.describe("events", "orders")
        assert state is not None
        assert state.partitions == 1
    with closing(KafkaAccess({"events": by_file})) as users:
        assert not (await users.describe("events", ["shop.nobody"]))["shop.nobody"].quotas


async def test_a_missing_token_file_is_named_at_once(by_file: KafkaConnection) -> None:
    missing = by_file.model_copy(update={"sasl_token_path": "/no/such/token"})
    with (
        closing(KafkaTopics({"events": Brokers(missing)})) as operator,
        pytest.raises(NotReadyError, match="/no/such/token"),
    ):
        await operator.describe("events", "orders")
    with pytest.raises(NotReadyError, match="/no/such/token"):
        access(missing)


def test_a_token_is_requested_with_the_scope_and_kept(broker: Kafka, tokens: Tokens) -> None:
    connection = broker.token_connection(tokens.url)
    assert connection.sasl_tokens is not None
    scoped = connection.sasl_tokens.model_copy(update={"scope": "orders billing"})
    tokens.scopes.clear()
    for _ in range(2):
        read(connection.model_copy(update={"sasl_tokens": scoped}))
    assert tokens.scopes == ["orders billing"]


def test_the_admin_client_of_operator_and_driver_uses_a_token(broker: Kafka, tokens: Tokens) -> None:
    settings: dict[str, Any] = client_config(broker.token_connection(tokens.url))
    assert list(AdminClient(settings).list_topics(timeout=30).topics) == ["orders"]


@pytest.mark.parametrize("password", [PASSWORD, "wrong"])
async def test_the_operator_reads_and_sets_quotas_with_a_token(broker: Kafka, tokens: Tokens, password: str) -> None:
    quotas = {"producer_byte_rate": 1024.0}
    with closing(KafkaAccess({"events": broker.token_connection(tokens.url, password=password)})) as access:
        if password == "wrong":
            with pytest.raises(AccessDeniedError, match="rejects the client firn: invalid_client"):
                await access.change_quotas("events", "shop.checkout", quotas)
            return
        await access.change_quotas("events", "shop.checkout", quotas)
        while (await access.describe("events", ["shop.checkout"]))["shop.checkout"].quotas != quotas:
            pass


def test_the_admin_client_names_a_wrong_secret(broker: Kafka, tokens: Tokens) -> None:
    answer = Admin("events", broker.token_connection(tokens.url, password="wrong")).topics(["orders"])["orders"]
    assert isinstance(answer, AccessDeniedError)
    assert "Failed to acquire SASL OAUTHBEARER token" in str(answer)


def test_the_java_client_uses_a_token(broker: Kafka, tokens: Tokens, tmp_path: Path) -> None:
    options = spark_options(broker.token_connection(tokens.url))
    properties = {name.removeprefix("kafka."): value for name, value in options.items() if name.startswith("kafka.")}
    file = tmp_path / "client.properties"
    escaped = {name: value.replace("\\", "\\\\").replace("\n", "\\n") for name, value in properties.items()}
    file.write_text("".join(f"{name}={value}\n" for name, value in escaped.items()))
    command = program(
        "org.apache.kafka.tools.GetOffsetShell",
        *("--bootstrap-server", broker.secure or "", "--command-config", str(file), "--topic", "orders"),
        flags=(*SMALL, tokens.java_flag),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [f"orders:0:{RECORDS}"], done.stderr


def test_a_connection_outlives_the_token_with_which_it_began(
    broker: Kafka, tokens: Tokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker ends a session together with its token (KIP-368)."""
    made: list[Connection] = []

    class Counted(Connection):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr(cluster, "Connection", Counted)
    monkeypatch.setattr(source, "ANSWER_BYTES", 4_000)
    monkeypatch.setattr(batches, "BLOCK_RECORDS", 100)
    monkeypatch.setattr(tokens, "seconds", 2)
    client = access(broker.token_connection(tokens.url, password=PASSWORD))
    assert isinstance(client.tokens, TokenClient)
    reading = source.read(replace(client, tokens=replace(client.tokens, scope="short")), [SLICE])
    offsets = next(reading).offsets.tolist()
    end = time.monotonic() + 2.5
    await_true("the token has expired", lambda: time.monotonic() > end)
    offsets += [offset for block in reading for offset in block.offsets.tolist()]
    assert (offsets, len(made)) == (list(range(RECORDS)), 2)


REFUSED: dict[str, tuple[Callable[[Kafka, str], KafkaConnection], str]] = {
    "a wrong secret": (lambda broker, url: broker.token_connection(url, password="wrong"), "invalid_client"),
    "no rights": (lambda broker, url: broker.token_connection(url, STRANGER, STRANGER_PASSWORD), "grant"),
    "an unknown authority": (
        lambda broker, url: broker.token_connection(url, ca=broker.directory / "tls" / "other-ca.crt"),
        "certificate verify failed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_error_of_a_rejected_client_names_the_cause(broker: Kafka, tokens: Tokens, name: str) -> None:
    connection, cause = REFUSED[name]
    with pytest.raises(AccessDeniedError, match=cause):
        read(connection(broker, tokens.url))


def test_a_token_that_the_broker_rejects_is_not_used_again(broker: Kafka, tmp_path: Path) -> None:
    with provider(tmp_path / "other", {USER: PASSWORD}) as other:
        for _ in range(2):
            with pytest.raises(AccessDeniedError, match="rejects the token"):
                read(broker.token_connection(other.url))
        assert len(other.scopes) == 2


def test_a_failing_provider_is_an_outage(broker: Kafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "STALL_SECONDS", 0.5)
    with provider(tmp_path / "failing", {USER: PASSWORD}) as failing:
        failing.status = 503
        with pytest.raises(UnavailableError, match="HTTP status 503"):
            read(broker.token_connection(failing.url))
    with pytest.raises(UnavailableError, match="ConnectionRefusedError"):
        read(broker.token_connection(failing.url))
