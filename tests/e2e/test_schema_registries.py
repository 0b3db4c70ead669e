"""A topic whose producers register their schemas in a schema registry."""

import io
from collections.abc import Iterable
from typing import Any

import fastavro
from confluent_kafka import Producer

from hack.quickstart import apply, kubectl
from tests.e2e import registry
from tests.e2e.topics import await_ready, await_rows, rows, topic_manifest
from tests.servers.apicurio import Apicurio

FIRST: tuple[dict[str, Any], ...] = ({"name": "id", "type": "int"}, {"name": "carrier", "type": "string"})
SECOND: tuple[dict[str, Any], ...] = (*FIRST, {"name": "delay", "type": ["null", "double"], "default": None})


def record(fields: Iterable[Any]) -> dict[str, Any]:
    return {"type": "record", "name": "Flight", "namespace": "demo", "fields": list(fields)}


def produce(topic: Any, number: int, fields: Iterable[Any], values: Iterable[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": "127.0.0.1:30010"})
    for each in values:
        buffer = io.BytesIO()
        fastavro.schemaless_writer(buffer, record(fields), each)
        producer.produce(topic["status"]["topicName"], b"\0" + number.to_bytes(4) + buffer.getvalue())
    assert producer.flush(30) == 0


def parcels_topic(namespace: str, schemas: Apicurio) -> str:
    """Create a topic in Protobuf, and land a record of each of two texts. Return the table."""
    name = f"parcels-{namespace}"

    def register(body: str) -> bytes:
        text = f'syntax = "proto3"; package demo; message Parcel {{ {body} }}'
        # The byte 0 behind the id names the first message.
        return b"\0" + schemas.register(f"{name}-value", text, "PROTOBUF").to_bytes(4) + b"\0"

    first = register("int32 id = 1;")
    schema = {"format": "Protobuf", "registry": {"name": "main", "subject": f"{name}-value"}}
    apply(topic_manifest(name, namespace, schema=schema))
    topic = await_ready(name, namespace)
    second = register("int32 id = 1; optional string note = 2;")
    producer = Producer({"bootstrap.servers": "127.0.0.1:30010"})
    for value in (first + b"\x08\x01", second + b"\x08\x02\x12\x01x"):
        producer.produce(topic["status"]["topicName"], value)
    assert producer.flush(30) == 0
    table: str = topic["status"]["table"]["identifier"]
    await_rows(table, 2)
    return table


def test_a_table_follows_the_schemas_of_a_registry(namespace: str, schemas: Apicurio) -> None:
    name = f"flights-{namespace}"
    schema = {"format": "Avro", "registry": {"name": "main", "subject": f"{name}-value"}}
    apply(topic_manifest(name, namespace, schema=schema))
    kubectl(
        "-n", namespace, "wait", f"icebergtopic/{name}", "--timeout=60s",
        "--for=jsonpath={.status.conditions[?(@.type=='TableReady')].reason}=SchemaMissing",
    )  # fmt: skip
    first = schemas.register(f"{name}-value", record(FIRST))
    topic = await_ready(name, namespace)
    table = topic["status"]["table"]["identifier"]
    produce(topic, first, FIRST, ({"id": n, "carrier": "UA"} for n in range(50)))
    await_rows(table, 50)
    second = schemas.register(f"{name}-value", record(SECOND))
    produce(topic, second, SECOND, ({"id": n, "carrier": "AA", "delay": n / 2} for n in range(50, 100)))
    await_rows(table, 100)
    # The driver compiles a text that the operator does not know yet.
    parcels = parcels_topic(namespace, schemas)
    # Without the registry, records with known schemas land.
    registry.stop()
    produce(topic, first, FIRST, ({"id": n, "carrier": "UA"} for n in range(100, 150)))
    await_rows(table, 150)
    assert rows(
        f"select count(*) as n, count(delay) as late, max(delay) as most, count(distinct id) as ids from {table}"
    ) == [{"n": 150, "late": 50, "most": 49.5, "ids": 150}]
    assert rows(f"select id, note from {parcels} order by id") == [{"id": 1, "note": None}, {"id": 2, "note": "x"}]
