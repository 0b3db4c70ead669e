"""Topics with a gate, with real clients and Apicurio Registry: a wrong record is named, and good ones are stored."""

import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, Producer
from confluent_kafka.admin import NewTopic

from firn.decoders.checks import packed
from firn.model.jobs import Column, RecordSchema
from tests.integration.broker.admins import admin
from tests.integration.broker.test_librdkafka import produce, read
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.firn_broker import FirnBroker, embedded
from tests.servers.kafka import program
from tests.servers.process import await_true
from tests.servers.proxies.tcp import Proxy

SEND = Path(__file__).parents[2] / "clients" / "gate" / "Send.java"
_DIFFERENT_RECORD = -138
"""librdkafka's error of the good records of a rejected batch (``ERR__INVALID_DIFFERENT_RECORD``)."""


def schema(name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": "int"}]}


def framed(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + b"\x02"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    with apicurio(tmp_path_factory.mktemp("registry")) as running:
        yield running


@pytest.fixture(scope="module")
def way(registry: Apicurio) -> Iterator[Proxy]:
    """Return the way of the broker to the registry."""
    with Proxy(registry.port) as way:
        yield way


@pytest.fixture(scope="module")
def firn(tmp_path_factory: pytest.TempPathFactory, way: Proxy) -> Iterator[FirnBroker]:
    registries = f"{{main: {{url: '{Apicurio(way.port).connection.url}'}}}}"
    with embedded(tmp_path_factory.mktemp("firn") / "data", FIRN_BROKER_REGISTRIES=registries) as server:
        yield server


@pytest.fixture
def topic(firn: FirnBroker, name: str) -> str:
    config = {"firn.schema.gate": "Id", "firn.schema.registry": "main"}
    [made] = admin(firn).create_topics([NewTopic(name, 1, 1, config=config)]).values()
    made.result(20)
    return name


def send(firn: FirnBroker, topic: str, values: list[bytes], **config: Any) -> list[KafkaError | None]:
    """Send one batch with librdkafka. Return the error of each record."""
    results: dict[int, KafkaError | None] = {}
    # Only flush ends the batch. A short linger may end before the last record comes.
    producer = Producer(
        {"bootstrap.servers": firn.bootstrap, "linger.ms": 60_000, "compression.type": "zstd", **config}
    )
    for number, value in enumerate(values):
        producer.produce(topic, value, on_delivery=partial(_note, results, number))
    assert producer.flush(30) == 0
    return [results[number] for number in range(len(values))]


def _note(results: dict[int, KafkaError | None], number: int, error: KafkaError | None, _: object) -> None:
    results[number] = error


def codes(errors: list[KafkaError | None]) -> list[int]:
    return [0 if error is None else error.code() for error in errors]


@pytest.mark.parametrize("idempotent", [False, True])
def test_librdkafka_names_the_wrong_records_and_stores_the_next_batch(
    firn: FirnBroker, registry: Apicurio, topic: str, idempotent: bool
) -> None:
    ours, other = registry.register(f"{topic}-value", schema(f"A{idempotent}")), registry.register("else", schema("B"))
    both, one = [framed(other), framed(ours), framed(999_999)], [framed(ours), framed(other)]
    found = send(firn, topic, both, **{"enable.idempotence": idempotent})
    assert codes(found) == [KafkaError.INVALID_RECORD, _DIFFERENT_RECORD, KafkaError.INVALID_RECORD]
    # If the broker names one record, librdkafka reports its error for all records of the batch.
    found = send(firn, topic, one, **{"enable.idempotence": idempotent})
    assert codes(found) == [KafkaError.INVALID_RECORD] * 2
    assert produce(firn, topic, [{"value": framed(ours)}, {"value": None}], **{"enable.idempotence": idempotent}) == [
        0,
        1,
    ]


def test_java_names_the_wrong_record_and_stores_the_next_batch(
    firn: FirnBroker, registry: Apicurio, topic: str
) -> None:
    ours = registry.register(f"{topic}-value", schema("Java"))

    def results(*values: bytes) -> list[str]:
        command = program(str(SEND), firn.bootstrap, topic, *(value.hex() for value in values))
        ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout.splitlines()

    first, second, third = results(framed(ours), framed(999_999), framed(ours))
    assert second.startswith(
        f"InvalidRecordException schema registry main has no schema with id 999999 in subject {topic}-value"
    )
    assert first.startswith("KafkaException Failed to append record because it was part of a batch")
    assert third == first
    assert results(framed(ours), framed(ours)) == ["offset 0", "offset 1"]


def test_without_the_registry_known_ids_go_on_and_a_new_id_waits(
    firn: FirnBroker, registry: Apicurio, way: Proxy, topic: str
) -> None:
    subject = f"{topic}-value"
    known = registry.register(subject, schema("Known"))
    produce(firn, topic, [{"value": framed(known)}])
    way.cut()
    new = registry.register(subject, schema("New"))
    answered: list[str] = []
    producer = Producer({"bootstrap.servers": firn.bootstrap, "linger.ms": 0, "enable.idempotence": True})
    producer.produce(topic, framed(new), on_delivery=lambda error, _: answered.append(str(error)))

    def stored() -> bool:
        producer.poll(0.1)
        return answered == ["None"]

    assert not stored()
    assert produce(firn, topic, [{"value": framed(known)}] * 3) == [1, 2, 3]
    assert not stored()
    way.mend()
    await_true("the batch with the new id is stored", stored)
    assert [message.value() for message in read(firn, topic, 5)][4] == framed(new)


def test_a_gate_decodes_values_by_the_schema_of_the_topic_and_by_that_of_their_id(
    firn: FirnBroker, registry: Apicurio, name: str
) -> None:
    fields = (Column(name="id", type="long"),)
    inline = {
        "firn.schema.gate": "Decode",
        "firn.schema.contract": packed(RecordSchema(format="Json", fields=fields)),
    }
    by_id = {"firn.schema.gate": "Decode", "firn.schema.registry": "main"}
    topics = [NewTopic(f"{name}-inline", 1, 1, config=inline), NewTopic(f"{name}-ids", 1, 1, config=by_id)]
    for made in admin(firn).create_topics(topics).values():
        made.result(20)
    found = send(firn, f"{name}-inline", [b'{"id": "a"}', b'{"id": 1}', b"{"])
    assert codes(found) == [KafkaError.INVALID_RECORD, _DIFFERENT_RECORD, KafkaError.INVALID_RECORD]
    assert produce(firn, f"{name}-inline", [{"value": b'{"id": 1}'}]) == [0]
    ours = registry.register(f"{name}-ids-value", schema("Decoded"))
    found = send(firn, f"{name}-ids", [framed(ours) + b"x", framed(ours), framed(ours)[:5]])
    assert codes(found) == [KafkaError.INVALID_RECORD, _DIFFERENT_RECORD, KafkaError.INVALID_RECORD]
    assert produce(firn, f"{name}-ids", [{"value": framed(ours)}, {"value": None}]) == [0, 1]
