"""Brokers that answer without a broker, as a Kafka does that starts or is fenced, or without the id of the cluster."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from firn import client_renewal
from firn.kafka_clients import NO_TOPIC
from firn.model.errors import FirnError, UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import FleetState
from firn_operator.adapters.kafka import admin as operator_client
from firn_operator.adapters.kafka import topics as operator_topics
from firn_operator.adapters.kafka.topics import Brokers, KafkaTopics
from firn_spark.kafka import admin as driver_client
from firn_spark.kafka.admin import Kafka
from tests.servers.process import await_true
from tests.unit.fetching import broker
from tests.unit.fetching.broker import Broker


class Restarting(Broker):
    """A broker that knows itself, until it starts again."""

    starting = False
    cluster_id: str | None = "c"
    asked_for_no_topic = 0
    """Number of requests for the metadata of `NO_TOPIC`."""

    def _answer(self, api: int, version: int, frame: memoryview, place: int) -> bytes | None:
        self.asked_for_no_topic += api == broker.METADATA and NO_TOPIC.encode() in bytes(frame)
        return super()._answer(api, version, frame, place)

    def _metadata(self) -> dict[str, Any]:
        itself = {"node_id": self.node, "host": "127.0.0.1", "port": self.port, "rack": None}
        brokers = [] if self.starting else [itself]
        return {
            "error_code": 0,
            "brokers": brokers,
            "cluster_id": self.cluster_id,
            "controller_id": self.node,
            "topics": [],
        }


class Fenced(Broker):
    """The only broker of a cluster. While it is fenced, it names topics, and no broker."""

    fenced = False

    def _metadata(self) -> dict[str, Any]:
        answer = {**super()._metadata(), "error_code": 0}
        return {**answer, "brokers": [], "controller_id": -1} if self.fenced else answer


@pytest.fixture
def server() -> Iterator[Restarting]:
    server = Restarting(1, [])
    with server:
        yield server


def connection_to(server: Broker) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=f"127.0.0.1:{server.port}")


@pytest.fixture
def clients_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker answer clients without a name of their own."""
    monkeypatch.setattr(broker, "CLIENT", b"rdkafka")


async def test_the_operator_waits_for_them(server: Restarting) -> None:
    with closing(KafkaTopics({"classic": Brokers(connection_to(server))})) as topics:
        assert await topics.fleet("classic") == FleetState(1, 0)
        server.starting = True
        with pytest.raises(UnavailableError):
            await topics.fleet("classic")
        server.starting = False
        assert await topics.fleet("classic") == FleetState(1, 0)


def test_the_driver_waits_for_them(server: Restarting, clients_of_the_driver: None) -> None:
    with closing(Kafka("classic", connection_to(server))) as kafka:
        assert kafka.cluster_id() == "c"
        server.starting = True
        with pytest.raises(UnavailableError):
            kafka.cluster_id()
        server.starting = False
        assert kafka.cluster_id() == "c"


def test_brokers_may_have_no_id_of_the_cluster(server: Restarting, clients_of_the_driver: None) -> None:
    server.cluster_id = None
    with closing(Kafka("classic", connection_to(server))) as kafka:
        assert kafka.cluster_id() == ""


def test_the_driver_does_not_repeat_the_request_for_no_topic(server: Restarting, clients_of_the_driver: None) -> None:
    with closing(Kafka("classic", connection_to(server))) as kafka:
        kafka.cluster_id()
        asked = server.asked_for_no_topic
        assert asked
        time.sleep(2.5)  # librdkafka repeats the request each second
        assert server.asked_for_no_topic == asked


def test_the_driver_sees_another_cluster_behind_the_same_address(
    server: Restarting, clients_of_the_driver: None
) -> None:
    with closing(Kafka("classic", connection_to(server))) as kafka:
        assert kafka.cluster_id() == "c"
        server.cluster_id = "d"
        assert kafka.cluster_id() == "d"


ROUNDS = 5
"""Without renewal, a client of librdkafka 2.16 stays without a connection after 7 of 24 rounds (driver) and 2 of 8 (operator)."""


@pytest.fixture
def fenced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fenced]:
    monkeypatch.setattr(client_renewal, "RENEWAL_SECONDS", 0.0)
    for module in (driver_client, operator_client, operator_topics):
        monkeypatch.setattr(module, "REQUEST_SECONDS" if module is driver_client else "REQUEST_TIMEOUT", 0.5)
    monkeypatch.setattr(operator_client, "REST_SECONDS", 0.0)
    server = Fenced(1, [])
    server.leaders = {0: 1}
    with server:
        yield server


def test_the_driver_finds_a_broker_that_was_fenced(fenced: Fenced, clients_of_the_driver: None) -> None:
    with closing(Kafka("classic", connection_to(fenced))) as kafka:

        def answered() -> bool:
            with suppress(FirnError):
                return bool(kafka.topics(["orders"]))
            return False

        for _ in range(ROUNDS):
            fenced.fenced = True
            await_true("requests time out", lambda: not answered())
            fenced.fenced = False
            await_true("the client finds the broker", answered)


async def test_the_operator_finds_a_broker_that_was_fenced(fenced: Fenced) -> None:
    with closing(KafkaTopics({"classic": Brokers(connection_to(fenced))})) as topics:

        async def answered() -> bool:
            with suppress(FirnError):
                return (await topics.fleet("classic")).brokers == 1
            return False

        for _ in range(ROUNDS):
            fenced.fenced = True
            while await answered():
                await asyncio.sleep(0.05)
            fenced.fenced = False
            while not await answered():
                await asyncio.sleep(0.05)
