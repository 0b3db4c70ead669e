"""Run brokers of Apache Kafka on loopback as the operator renders them: their ConfigMap, their start script, their Secret."""

import json
import os
import random
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jwt
from confluent_kafka.admin import AdminClient, NewTopic
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from firn.model import names
from firn_controllers.fleet.kafka import config_map, layout, listeners, stateful_set
from firn_controllers.fleet.kafka.layout import KafkaFleet
from tests.authority import Authority
from tests.servers.kafka import program
from tests.servers.process import await_true, running

ISSUER = "https://kubernetes.default.svc.cluster.local"
NAMESPACE = "firn-system"
CERTIFICATES = {"authentication": ["ScramSha512", "OAuth", "Certificate"], "clientCa": {"secret": "kafka-clients"}}
"""The part of ``access`` that accepts clients with a certificate."""
STARTS = 240.0
"""Most seconds until a broker listens. Three JVMs start at the same time, and may share two cores with other tests."""


@dataclass(slots=True)
class Issuer:
    """Issues tokens of ServiceAccounts, as an API server does. Another ``kid`` has another key."""

    keys: dict[str, rsa.RSAPrivateKey] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rotate("one")

    def rotate(self, kid: str) -> None:
        """Add a key."""
        self.keys[kid] = rsa.generate_private_key(65537, 2048)

    def token(self, namespace: str, account: str, *, kid: str = "one", **claims: object) -> str:
        """Return a token of a ServiceAccount for the brokers, valid for a day."""
        now = int(time.time())
        stated = {"iss": ISSUER, "aud": [names.TOKEN_AUDIENCE], "iat": now - 60, "exp": now + 86400}
        stated["sub"] = names.service_account(namespace, account)
        return jwt.encode(stated | claims, self.keys[kid], "RS256", headers={"kid": kid})

    def key_set(self, *kids: str) -> str:
        """Return the public keys as the API server shows them."""
        found = [
            RSAAlgorithm.to_jwk(self.keys[kid].public_key(), as_dict=True) | {"kid": kid, "use": "sig", "alg": "RS256"}
            for kid in kids or self.keys
        ]
        return json.dumps({"keys": found})


class Brokers:
    """The brokers of a fleet. Each has an address of its own, and the ports of the fleet."""

    def __init__(self, directory: Path, authority: Authority) -> None:
        self.issuer, self.authority, self._directory = Issuer(), authority, directory
        self.clients = Authority(directory, "clients")
        """The CA of the clients with a certificate."""
        self._network = _free_network()
        self.files = directory / "mounted"
        """The mounted files of the certificate, the tokens and the keys."""
        for name in ("tls", "tokens", "trust/secret-kafka-clients"):
            (self.files / name).mkdir(parents=True)
        self.certify("brokers")
        self.trust_clients(self.clients)
        (self.files / "tokens" / listeners.TOKEN_FILE).write_text(self.issuer.token(NAMESPACE, "firn-broker"))
        self.publish_keys()

    def certify(self, name: str, *hosts: str, days: float = 1) -> None:
        """Replace the certificate of the brokers, as the kubelet does after a change of the Secret. ``hosts``: further names."""
        addresses = [self.address(ordinal) for ordinal in range(3)]
        pair = self.authority.issue(name, *addresses, "localhost", *hosts, days=days)
        for file, source in (("tls.crt", pair.certificate), ("tls.key", pair.key), ("ca.crt", self.authority.file)):
            self._replace("tls", file, source.read_text())

    def trust_clients(self, *authorities: Authority) -> None:
        """Replace the CAs of clients, as the kubelet does after a change of the Secret."""
        text = "".join(authority.file.read_text() for authority in authorities)
        self._replace("trust/secret-kafka-clients", "ca.crt", text)

    def publish_keys(self, *kids: str) -> None:
        """Replace the keys that verify tokens, as the operator does."""
        self._replace("tokens", listeners.KEYS_FILE, self.issuer.key_set(*kids))

    def _replace(self, folder: str, name: str, text: str) -> None:
        new = self.files / folder / f"{name}.new"
        new.write_text(text)
        new.replace(self.files / folder / name)

    def address(self, ordinal: int) -> str:
        """Return the address of a broker."""
        return f"{self._network}.{ordinal + 1}"

    def bootstrap(self, port: int, count: int = 1) -> str:
        """Return the addresses of the first brokers at a port."""
        return ",".join(f"{self.address(ordinal)}:{port}" for ordinal in range(count))

    def log(self, ordinal: int) -> str:
        """Return what a broker has logged."""
        return (self._directory / f"broker-{ordinal}.log").read_text()

    @contextmanager
    def broker(self, fleet: KafkaFleet, ordinal: int) -> Iterator[None]:
        """Run a broker from its rendered objects until the end of the with block."""
        home = self._directory / f"broker-{ordinal}"
        places = {
            layout.DATA_PATH: home / "data",
            layout.CONFIG_PATH: home / "config",
            listeners.KEYSTORE_PATH: home / "keystore",
            listeners.TLS_PATH: self._secret(fleet),
            names.TRUST_PATH: self.files / "trust",
            listeners.TOKENS_PATH: self.files / "tokens",
            "/tmp/server.properties": home / "server.properties",
        }
        for name in ("data", "config", "keystore"):
            (home / name).mkdir(parents=True, exist_ok=True)
        for name, text in config_map.build(fleet)["data"].items():
            (home / "config" / name).write_text(self._placed(text, places))
        (container,) = stateful_set.build(fleet, 0)["spec"]["template"]["spec"]["containers"]
        given = {variable["name"]: variable.get("value", "") for variable in container["env"]}
        environment = {**given, "HOSTNAME": f"{fleet.service}-{ordinal}", "FIRN_ADDRESS": self.address(ordinal)}
        port = (listeners.of_brokers(fleet))[-1].port
        script = ["/bin/sh", str(home / "config" / "start.sh")]
        log = self._directory / f"broker-{ordinal}.log"
        ready = lambda: _listens(self.address(ordinal), port)  # noqa: E731
        with running(script, ready, log, environment=environment, seconds=STARTS):
            yield

    def _secret(self, fleet: KafkaFleet) -> Path:
        """Return the directory with the certificate. A test with several Secrets has one for each."""
        own = self.files / fleet.certificate_secret if fleet.sources is not None else self.files / "tls"
        return own if own.exists() else self.files / "tls"

    def _placed(self, text: str, places: dict[str, Path]) -> str:
        """Return a script or a configuration with paths and addresses of this machine."""
        text = text.replace("${HOSTNAME%-*}-$voter.$FIRN_SERVICE", f"{self._network}.$((voter + 1))")
        text = text.replace("$HOSTNAME.$FIRN_SERVICE", "$FIRN_ADDRESS").replace("://:", "://$FIRN_ADDRESS:")
        for tool, main in (
            ("kafka-storage.sh", ["kafka.tools.StorageTool"]),
            ("kafka-server-start.sh", ["kafka.Kafka"]),
        ):
            java, *rest = program(*main)
            text = text.replace(
                f"/opt/kafka/bin/{tool}", f"{java} ${{KAFKA_OPTS:-}} ${{KAFKA_LOG4J_OPTS:-}} {shlex.join(rest)}"
            )
        for place, here in places.items():
            text = text.replace(place, str(here))
        if "inter.broker.listener.name" in text:
            text += "offsets.topic.num.partitions=1\ntransaction.state.log.num.partitions=1\ngroup.initial.rebalance.delay.ms=0\n"
        return text


class Running:
    """Three running brokers, which a test replaces one by one."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._stacks: dict[int, ExitStack] = {}

    def start(self, fleet: KafkaFleet, client: dict[str, Any], topic: str) -> None:
        """Start all brokers at the same time, and create a topic with three replicas. ``client``: settings of a client."""
        starts = [threading.Thread(target=self._replace, args=(ordinal, fleet)) for ordinal in range(3)]
        for thread in starts:
            thread.start()
        for thread in starts:
            thread.join()
        await_true("all brokers have joined", lambda: _in_sync(client))
        # Python must not delete the client before its answer comes.
        admin = AdminClient(client)
        for future in admin.create_topics([NewTopic(topic, 3, 3)], operation_timeout=60).values():
            future.result(60)
        await_true("all replicas are in sync", lambda: _in_sync(client))

    def roll(self, fleet: KafkaFleet, client: dict[str, Any]) -> None:
        """Replace the brokers by those of another fleet. Each one waits until all replicas are in sync."""
        for ordinal in (2, 1, 0):
            self._replace(ordinal, fleet)
            await_true("all replicas are in sync", lambda: _in_sync(client))

    def close(self) -> None:
        """Stop all brokers."""
        for stack in self._stacks.values():
            stack.close()

    def _replace(self, ordinal: int, fleet: KafkaFleet) -> None:
        self._stacks.pop(ordinal, ExitStack()).close()
        self._stacks[ordinal] = ExitStack()
        self._stacks[ordinal].enter_context(self._brokers.broker(fleet, ordinal))


def _in_sync(client: dict[str, Any]) -> bool:
    metadata = AdminClient(client).list_topics(timeout=30)
    partitions = [part for topic in metadata.topics.values() for part in topic.partitions.values()]
    return len(metadata.brokers) == 3 and all(len(part.isrs) == 3 for part in partitions)


@contextmanager
def brokers(directory: Path, fleet: KafkaFleet) -> Iterator[Brokers]:
    """Run all brokers of a fleet."""
    found = Brokers(directory, Authority(directory))
    with ExitStack() as stack:
        for ordinal in range(fleet.replicas):
            stack.enter_context(found.broker(fleet, ordinal))
        yield found


def _listens(address: str, port: int) -> bool:
    with socket.socket() as client:
        client.settimeout(1)
        return client.connect_ex((address, port)) == 0


def _free_network() -> str:
    """Return the first three bytes of addresses on loopback that no other test uses."""
    chosen = random.Random(os.getpid())
    while True:
        network = f"127.{chosen.randint(1, 250)}.{chosen.randint(1, 250)}"
        with socket.socket() as probe:
            probe.bind((f"{network}.1", 0))
            if not any(_listens(f"{network}.1", port) for port in (9092, 9096, 9098)):
                return network
