"""Run a broker of Apache Kafka with ``plaintext: Keep``: it logs the addresses of clients without encryption, and of no others."""

import asyncio
import socket
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka import plain_clients
from firn_controllers.fleet.kafka.layout import KafkaFleet
from tests import gen
from tests.integration.broker.secure_clients import OAUTH, Login
from tests.integration.kafka import fleets
from tests.integration.kafka.fleets import ISSUER, NAMESPACE
from tests.servers.process import await_true

pytestmark = pytest.mark.long


async def test_a_broker_logs_clients_without_encryption(tmp_path: Path) -> None:
    access = {"certificate": {"secret": "tls"}, "issuer": ISSUER, "plaintext": "Keep"}
    profile = {"replicas": 1, "access": access, "heap": "512m", "external": {"host": "127.0.0.1", "port": 32092}}
    configured = gen.config(profiles={"classic": profile})
    fleet = kinds.managed_fleet(configured, "classic", Owner(NAMESPACE, "u"), None)
    assert isinstance(fleet, KafkaFleet)
    with fleets.brokers(tmp_path, fleet) as brokers:
        token = brokers.issuer.token(NAMESPACE, "firn-operator")
        secure = Login(brokers.bootstrap(9096), brokers.authority.file, OAUTH, password=token).librdkafka()
        plain = AdminClient({"bootstrap.servers": brokers.bootstrap(9092)})
        encrypted = AdminClient(secure)
        assert [len(client.list_topics(timeout=30).brokers) for client in (plain, encrypted)] == [1, 1]

        def found() -> set[str]:
            log = brokers.log(0)
            return plain_clients.clients(log) if plain_clients.ALIVE in log else set()

        # A client of the external listener, and clients with addresses of their own.
        client, outside = brokers.address(7), brokers.address(8)
        with (
            socket.create_connection((brokers.address(0), 9092), source_address=(client, 0)),
            socket.create_connection((brokers.address(0), 9094), source_address=(outside, 0)),
            socket.create_connection((brokers.address(0), 9096), source_address=(brokers.address(9), 0)),
        ):
            expected = {f"{client}, port 9092", f"{outside}, port 9094"}
            await asyncio.to_thread(await_true, "the broker logs both clients", lambda: expected <= found())
        # Clients of librdkafka choose their address; on loopback, it is that of the machine.
        assert any(each.startswith("127.0.0.1, ") or each.startswith(brokers.address(0)) for each in found())
        assert not [each for each in found() if brokers.address(9) in each or "9096" in each]
