"""Brokers that answer without the id of a broker, as a Kafka does that starts. librdkafka must not abort the process."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn.model.jobs import KafkaConnection
from firn_controllers.ports import FleetState
from firn_operator.adapters.kafka import Brokers, KafkaTopics
from firn_spark.kafka.admin import Kafka
from tests.unit.fetching import broker
from tests.unit.fetching.broker import Broker


class Restarting(Broker):
    """A broker that knows itself, until it starts again."""

    starting = False

    def _metadata(self) -> dict[str, Any]:
        itself = {"node_id": self.node, "host": "127.0.0.1", "port": self.port, "rack": None}
        brokers = [] if self.starting else [itself]
        return {"error_code": 0, "brokers": brokers, "cluster_id": "c", "controller_id": self.node, "topics": []}


@pytest.fixture
def server() -> Iterator[Restarting]:
    server = Restarting(1, [])
    with server:
        yield server


def connection_to(server: Broker) -> KafkaConnection:
    return KafkaConnection(bootstrap_servers=f"127.0.0.1:{server.port}")


async def test_the_operator_waits_for_them(server: Restarting) -> None:
    with closing(KafkaTopics({"classic": Brokers(connection_to(server))})) as topics:
        assert await topics.fleet("classic") == FleetState(1, 0)
        server.starting = True
        with pytest.raises(UnavailableError):
            await topics.fleet("classic")
        server.starting = False
        assert await topics.fleet("classic") == FleetState(1, 0)


def test_the_driver_waits_for_them(server: Restarting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "CLIENT", b"rdkafka")
    with closing(Kafka("classic", connection_to(server))) as kafka:
        assert kafka.cluster_id() == "c"
        server.starting = True
        with pytest.raises(UnavailableError):
            kafka.cluster_id()
        server.starting = False
        assert kafka.cluster_id() == "c"
