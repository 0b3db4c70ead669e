"""Move three running brokers of Apache Kafka to their secure listeners, stage by stage, under a producer of each listener."""

import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, Producer

from firn_controllers.children import Owner
from firn_controllers.fleet import kinds
from firn_controllers.fleet.kafka.layout import KafkaFleet, Stage
from tests import gen
from tests.authority import Authority
from tests.integration.kafka.fleets import CERTIFICATES, ISSUER, NAMESPACE, Brokers, Running

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

TOPIC = "flights"


def fleet(stage: Stage, plaintext: str) -> KafkaFleet:
    access = {"certificate": {"secret": "tls"}, "issuer": ISSUER, "plaintext": plaintext, **CERTIFICATES}
    given = {} if stage is Stage.PLAIN else {"access": access}
    configured = gen.config(profiles={"classic": {"replicas": 3, "heap": "512m", **given}})
    managed = kinds.managed_fleet(configured, "classic", Owner(NAMESPACE, "u"), None)
    assert isinstance(managed, KafkaFleet)
    return managed.at(stage, configured)


class Sender:
    """Produces numbers without a pause until it ends, and keeps the errors."""

    def __init__(self, settings: dict[str, Any], name: str) -> None:
        self.errors: list[str] = []
        self.name, self.sent = name, 0
        self._producer = Producer(settings | {"acks": "all", "message.timeout.ms": 240000})
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ends.wait(0.02):
            self._producer.produce(TOPIC, f"{self.name} {self.sent}", on_delivery=self._delivered)
            self.sent += 1
            self._producer.poll(0)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            self.errors.append(str(error))

    def end(self) -> None:
        """Send the rest. Fails if a record was not acknowledged."""
        self._ends.set()
        self._thread.join()
        assert self._producer.flush(240) == 0
        assert not self.errors


def test_a_running_fleet_closes_without_an_interruption(tmp_path: Path) -> None:
    brokers = Brokers(tmp_path, Authority(tmp_path))
    plain: dict[str, Any] = {"bootstrap.servers": brokers.bootstrap(9092, 3)}
    token = brokers.issuer.token(NAMESPACE, "firn-operator")
    secure = {
        "bootstrap.servers": brokers.bootstrap(9096, 3), "security.protocol": "SASL_SSL", "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": str(brokers.authority.file), "oauth_cb": lambda _: (token, time.time() + 3600),
    }  # fmt: skip
    senders: list[Sender] = []
    with closing(Running(brokers)) as running:
        running.start(fleet(Stage.PLAIN, "Keep"), plain, TOPIC)
        senders.append(Sender(plain, "plain"))
        running.roll(fleet(Stage.BESIDE, "Keep"), plain)
        senders.append(Sender(secure, "secure"))
        running.roll(fleet(Stage.MOVED, "Keep"), plain)
        running.roll(fleet(Stage.CLOSED, "Keep"), plain)
        senders[0].end()
        # During this roll, only the secure listener leads to all brokers.
        running.roll(fleet(Stage.CLOSED, "Close"), secure)
        senders[1].end()
        assert read(secure) == {sender.name: sender.sent for sender in senders}


def read(settings: dict[str, Any]) -> dict[str, int]:
    """Return the number of different records of each sender."""
    consumer = Consumer(
        settings | {"group.id": "readers", "auto.offset.reset": "earliest", "enable.partition.eof": True}
    )
    consumer.subscribe([TOPIC])
    found: set[str] = set()
    ended: set[int] = set()
    while len(ended) < 3:
        message = consumer.poll(60)
        assert message is not None
        error, value = message.error(), message.value()
        if error is None and value is not None:
            found.add(value.decode())
        elif error is not None and error.code() == KafkaError._PARTITION_EOF:
            ended.add(message.partition() or 0)
    consumer.close()
    return {name: sum(each.startswith(f"{name} ") for each in found) for name in ("plain", "secure")}
