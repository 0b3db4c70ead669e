"""Protobuf records whose values name their schemas in a schema registry: Apicurio Registry."""

import base64
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from firn import protoc
from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.world import World
from tests.servers.apicurio import Apicurio, apicurio
from tests.servers.process import await_true

MONEY = 'syntax = "proto3"; package shop; message Money { int64 cents = 1; }'
FIRST = "int32 id = 1; Money price = 2;"
LATER = "string note = 3; int64 id = 1; Money price = 2; repeated string tags = 4;"


def order(body: str) -> str:
    imports = 'import "shop/money.proto"; import "google/protobuf/timestamp.proto";'
    other = "message Refund { int32 id = 1; }"
    return f'syntax = "proto3"; package shop; {imports} message Order {{ {body} }} {other}'


def value(number: int, text: str, indexes: bytes = b"\0", name: str = "shop.Order", **fields: Any) -> bytes:
    """Return a message as serializers of a schema registry write it."""
    pool = descriptor_pool.DescriptorPool()
    content = protoc.descriptors(text, (("shop/money.proto", MONEY),))
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    encoded: bytes = kind(**fields).SerializeToString()
    return b"\0" + number.to_bytes(4) + indexes + encoded


def register(registry: Apicurio, subject: str, text: str) -> int:
    registry.register(f"{subject}-money", MONEY, "PROTOBUF")
    return registry.register(subject, text, "PROTOBUF", [("shop/money.proto", f"{subject}-money")])


def test_each_message_is_read_with_the_text_of_its_writer(served: World, registry: Apicurio) -> None:
    topic = served.topic(partitions=2)
    subject = f"{topic}-value"
    first = register(registry, subject, order(FIRST))
    job = served.job(topic, record_schema=schema_of(registry, subject, "Protobuf", "shop.Order"))
    served.apply(job)
    served.produce(topic, [value(first, order(FIRST), id=n, price={"cents": n}) for n in range(10)])
    served.start()
    served.await_rows(job, 10)
    second = register(registry, subject, order(LATER))
    served.produce(
        topic,
        [
            value(second, order(LATER), id=2**40, note="new", tags=["a", "b"]),
            value(first, order(FIRST), id=11, price={"cents": 7}),
            None,
        ],
    )
    rows = served.await_rows(job, 13)
    assert [row["id"] for row in rows] == [*range(10), 2**40, 11, None]
    assert [row["note"] for row in rows[9:]] == [None, "new", None, None]
    assert [row["tags"] for row in rows[9:]] == [None, ["a", "b"], None, None]
    assert [row["price"] and row["price"]["cents"] for row in rows[9:]] == [9, None, 7, None]
    assert [row["_kafka"]["schema_id"] for row in rows] == [first] * 10 + [second, first, None]
    assert served.dead(job) == []


def in_base64(text: str) -> str:
    """Return the text that Confluent's serializer for Python registers for a .proto text."""
    content = protoc.descriptors(text, (("shop/money.proto", MONEY),))
    own = descriptor_pb2.FileDescriptorSet.FromString(content).file[-1]
    return base64.standard_b64encode(own.SerializeToString()).decode()


def test_texts_in_base64_are_read_as_serializers_for_python_register_them(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    registry.register(f"{subject}-money", in_base64(MONEY), "PROTOBUF")
    first, second = (
        registry.register(subject, in_base64(order(body)), "PROTOBUF", [("shop/money.proto", f"{subject}-money")])
        for body in (FIRST, LATER + " google.protobuf.Timestamp at = 5;")
    )
    job = served.job(topic, record_schema=schema_of(registry, subject, "Protobuf", "shop.Order"))
    served.apply(job)
    served.produce(
        topic,
        [
            value(first, order(FIRST), id=1, price={"cents": 7}),
            value(second, order(LATER), id=2, note="new", tags=["a"]),
        ],
    )
    served.start()
    rows = served.await_rows(job, 2)
    assert [(row["id"], row["note"], row["tags"]) for row in rows] == [(1, None, None), (2, "new", ["a"])]
    assert [row["price"] and row["price"]["cents"] for row in rows] == [7, None]
    assert served.dead(job) == []


def test_values_that_are_not_the_message_of_the_table_are_dead_letters(served: World, registry: Apicurio) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    number = register(registry, subject, order(FIRST))
    job = served.job(topic, record_schema=schema_of(registry, subject, "Protobuf"))
    avro = registry.register(f"{topic}-avro", {"type": "record", "name": "Order", "fields": []})
    good = value(number, order(FIRST), id=1)
    refund = value(number, order(FIRST), b"\x02\x02", "shop.Refund", id=2)
    unknown = value(999_999, order(FIRST), id=3)
    other = value(avro, order(FIRST), id=4)
    foreign = register(registry, f"{topic}-foreign", order("int64 id = 1; string foreign = 7;"))
    misled = value(foreign, order("int64 id = 1; string foreign = 7;"), id=5, foreign="f")
    served.produce(topic, [good, refund, unknown, other, misled, b"{}", good[:-1]])
    served.apply(job)
    served.start()
    rows = served.await_rows(job, 1)
    assert "foreign" not in rows[0]
    await_true("six dead letters", lambda: len(served.dead(job)) == 6)
    assert [row["error_code"] for row in served.dead(job)] == [
        "InvalidProtobuf", *["UnknownSchema"] * 4, "InvalidProtobuf",
    ]  # fmt: skip


@pytest.mark.long
@pytest.mark.timeout(240)
def test_a_driver_restarts_without_the_registry_and_waits_for_new_texts(served: World, tmp_path: Path) -> None:
    topic = served.topic()
    subject = f"{topic}-value"
    with apicurio(tmp_path / "first") as registry:
        served.settings = served.settings.model_copy(update={"registries": {"main": registry.connection}})
        first = register(registry, subject, order(FIRST))
        job = served.job(topic, record_schema=schema_of(registry, subject, "Protobuf"))
        second = register(registry, subject, order(LATER))
        served.apply(job)
        served.start()
        served.produce(topic, [value(second, order(LATER), id=1, note="a")])
        served.await_rows(job, 1)
        served.stop()
    served.start()
    served.produce(topic, [value(first, order(FIRST), id=2), value(second, order(LATER), id=3, note="b")])
    served.await_rows(job, 3)
    more = order(FIRST + " bool more = 9;")
    served.produce(topic, [value(second + 1, more, id=4, more=True)])
    state = served.await_state(job, "BackingOff", reason="RegistryUnreachable")
    assert "schema registry main: no answer" in state.message
    with apicurio(tmp_path / "second", registry.port) as back:
        for text in (order(FIRST), order(LATER), more):
            last = register(back, subject, text)
        assert last == second + 1
        assert [row["more"] for row in served.await_rows(job, 4)] == [None, None, None, True]
    assert served.dead(job) == []
