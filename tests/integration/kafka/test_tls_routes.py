"""A client outside reaches each broker of Apache Kafka through a proxy that follows the chart's TLSRoutes, as a Gateway does."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiokafka import AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka.admin import AdminClient, NewTopic

from firn.model import names
from firn.model.config import Config
from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet
from firn_controllers.trust.hosts import hosts
from tests.authority import Authority
from tests.chart import find_object, manifests, render
from tests.integration.broker.secure_clients import OAUTH, Login
from tests.integration.kafka.fleets import ISSUER, NAMESPACE, Brokers
from tests.servers.process import await_true

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]

ROUTE = {
    "parentRefs": [{"name": "lake"}],
    "bootstrapHostname": "kafka.example.com",
    "brokerHostname": "kafka-{broker}.example.com",
    "port": 8443,
}
ACCESS = {"certificate": {"secret": "tls"}, "issuer": ISSUER}
PROFILE = {"replicas": 2, "heap": "384m", "access": ACCESS, "external": {"type": "TLSRoute", "tlsRoute": ROUTE}}
TOPIC = "outside"


class Proxy:
    """Passes connections through to the backend of the name in their TLS handshake, and counts them."""

    def __init__(self, backends: Mapping[str, tuple[str, int]]) -> None:
        self._backends = backends
        self.used: dict[str, int] = {}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        with contextlib.closing(writer):
            first, name = await server_name(reader)
            self.used[name] = self.used.get(name, 0) + 1
            if name not in self._backends:
                return
            behind, to_backend = await asyncio.open_connection(*self._backends[name])
            with contextlib.closing(to_backend):
                to_backend.write(first)
                await asyncio.gather(copied(reader, to_backend), copied(behind, writer), return_exceptions=True)


async def copied(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Copy bytes until the end of a connection."""
    while data := await source.read(65536):
        target.write(data)
        await target.drain()
    target.close()


async def server_name(reader: asyncio.StreamReader) -> tuple[bytes, str]:
    """Return the first bytes of a connection, and the name in its TLS handshake."""
    found: list[str] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = lambda _, name, __: found.append(name or "")
    read, data = ssl.MemoryBIO(), b""
    handshake = context.wrap_bio(read, ssl.MemoryBIO(), server_side=True)
    while not found:
        part = await reader.read(65536)
        assert part, "the client closed the connection before its name was known"
        data += part
        read.write(part)
        with contextlib.suppress(ssl.SSLError):
            handshake.do_handshake()
    return data, found[0]


class Token(AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, text: str) -> None:
        self._text = text

    async def token(self) -> str:
        return self._text


@asynccontextmanager
async def proxied(proxy: Proxy, address: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Run the proxy at an address to which all names of the routes resolve."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(address if str(host).endswith(".example.com") else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)
    server = await asyncio.start_server(proxy.serve, address, ROUTE["port"])  # type: ignore[arg-type]
    async with server:
        yield


def prepare(brokers: Brokers) -> None:
    """Create a topic with a partition on each broker."""
    token = brokers.issuer.token(NAMESPACE, names.OPERATOR_ACCOUNT)
    login = Login(brokers.bootstrap(9096, 2), brokers.authority.file, OAUTH, password=token)
    admin = AdminClient(login.librdkafka())
    await_true("both brokers have joined", lambda: len(admin.list_topics(timeout=30).brokers) == 2)
    for future in admin.create_topics([NewTopic(TOPIC, 2, 1)], operation_timeout=30).values():
        future.result(60)


async def test_a_client_outside_reaches_each_broker_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = manifests(
        render({"images": {"registry": "r.example.com"}, "crds": {"enabled": False}, "profiles": {"events": PROFILE}})
    )
    config = Config.model_validate(
        yaml.safe_load(find_object(objects, "ConfigMap", names.CONFIG_OBJECT)["data"]["config.yaml"])
    )
    fleet = kinds.managed_fleet(config, "events", Owner(NAMESPACE, "u"), None)
    assert isinstance(fleet, KafkaFleet)
    brokers = Brokers(tmp_path, Authority(tmp_path))
    brokers.certify("brokers", *hosts(NAMESPACE, "events", fleet.profile, fleet.profile.access.certificate))  # type: ignore[union-attr]
    backends = {}
    for route in [item for item in objects if item["kind"] == "TLSRoute"]:
        (rule,) = route["spec"]["rules"]
        service, port = rule["backendRefs"][0]["name"], rule["backendRefs"][0]["port"]
        ordinal = service.removeprefix("firn-broker-events-external").removeprefix("-") or "1"
        backends[route["spec"]["hostnames"][0]] = (brokers.address(int(ordinal)), port)
    proxy = Proxy(backends)
    with ExitStack() as running:
        starts = [asyncio.to_thread(running.enter_context, brokers.broker(fleet, ordinal)) for ordinal in range(2)]
        await asyncio.gather(*starts)
        await asyncio.to_thread(prepare, brokers)
        async with proxied(proxy, brokers.address(9), monkeypatch):
            token = brokers.issuer.token(NAMESPACE, names.OPERATOR_ACCOUNT)
            producer = AIOKafkaProducer(
                bootstrap_servers="kafka.example.com:8443", security_protocol="SASL_SSL", sasl_mechanism=OAUTH,
                sasl_oauth_token_provider=Token(token),
                ssl_context=ssl.create_default_context(cafile=str(brokers.authority.file)),
            )  # fmt: skip
            async with producer:
                for partition in (0, 1):
                    written = await producer.send_and_wait(TOPIC, b"x", partition=partition)
                    assert (written.partition, written.offset) == (partition, 0)
    assert proxy.used.keys() == {"kafka.example.com", "kafka-0.example.com", "kafka-1.example.com"}
