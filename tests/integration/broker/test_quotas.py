"""Quotas of users: librdkafka stays near its rate, and other users do not notice it."""

import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent

from firn.records.message_writer import encode_request
from tests.integration.broker.test_authentication import put_password
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.process import free_port

LIMITED, OTHER, PASSWORD = "shop.limited", "shop.other", "secret"
RATE = 100_000
BURST = 10 * RATE
BATCH = 20_000
TOTAL = BURST + 3 * RATE
ALTER_CLIENT_QUOTAS = 49


@dataclass(frozen=True)
class Limiting:
    """A broker with quotas, and the listener of its users."""

    broker: FirnBroker
    bootstrap: str

    def config(self, user: str, throttled: list[float]) -> dict[str, Any]:
        """Return the configuration of a client that notes the throttle times in seconds."""

        def note(event: ThrottleEvent) -> None:
            throttled.append(event.throttle_time)

        return {
            "bootstrap.servers": self.bootstrap, "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user, "sasl.password": PASSWORD, "throttle_cb": note,
        }  # fmt: skip

    def produce(self, user: str, topic: str, total: int) -> tuple[float, list[float]]:
        """Produce so many bytes; return the seconds that this took, and the throttle times."""
        throttled: list[float] = []
        producer = Producer(
            self.config(user, throttled)
            | {"linger.ms": 5, "batch.size": BATCH, "max.in.flight.requests.per.connection": 1}
        )
        producer.list_topics(topic, timeout=30)
        began = time.monotonic()
        for _ in range(total // BATCH):
            producer.produce(topic, bytes(BATCH - 200))
        assert producer.flush(60) == 0
        return time.monotonic() - began, throttled


@pytest.fixture(scope="module")
def limiting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limiting]:
    port = free_port()
    listeners = {"users": {"bind": f"127.0.0.1:{port}", "authentication": ["ScramSha512"]}}
    directory = tmp_path_factory.mktemp("quotas")
    with embedded(directory / "data", FIRN_BROKER_LISTENERS=json.dumps(listeners)) as broker:
        for user in (LIMITED, OTHER):
            put_password(broker, user, PASSWORD)
        put_quotas(broker, LIMITED, producer_byte_rate=RATE, consumer_byte_rate=RATE)
        yield Limiting(broker, f"127.0.0.1:{port}")


def put_quotas(broker: FirnBroker, user: str, **quotas: float) -> None:
    """Set quotas of a user. librdkafka has no request for it."""
    entry = {
        "entity": [{"entity_type": "user", "entity_name": user}],
        "ops": [{"key": key, "value": value, "remove": False} for key, value in quotas.items()],
    }
    head = ALTER_CLIENT_QUOTAS.to_bytes(2, "big") + (1).to_bytes(2, "big") + bytes(4) + b"\xff\xff\0"
    frame = head + encode_request(ALTER_CLIENT_QUOTAS, 1, {"entries": [entry], "validate_only": False})
    host, _, port = broker.bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), 30) as connection, connection.makefile("rb") as answer:
        connection.sendall(len(frame).to_bytes(4, "big") + frame)
        body = answer.read(int.from_bytes(answer.read(4), "big"))
    # Correlation id, tags, throttle time, the number of entries and the error of the first one.
    assert body[9:12] == b"\2\0\0", body


def test_a_producer_is_held_near_its_rate_and_another_user_is_not(limiting: Limiting, name: str) -> None:
    limited, throttled = limiting.produce(LIMITED, name, TOTAL)
    other, free = limiting.produce(OTHER, name, TOTAL)
    assert throttled
    assert not free
    # The bytes beyond the burst take three seconds. The throttle time of the last request is not part of it.
    assert limited > 2 > other / 2


def test_a_throttled_consumer_reads_everything(limiting: Limiting, name: str) -> None:
    limiting.produce(OTHER, name, TOTAL)
    throttled: list[float] = []
    consumer = Consumer(limiting.config(LIMITED, throttled) | {"group.id": name, "auto.offset.reset": "earliest"})
    consumer.subscribe([name])
    read = 0
    try:
        while read < TOTAL // BATCH or not throttled:
            message = consumer.poll(30)
            if message is not None:
                assert message.error() is None, message.error()
                read += 1
    finally:
        consumer.close()
    assert read == TOTAL // BATCH
    assert max(throttled) < 60
