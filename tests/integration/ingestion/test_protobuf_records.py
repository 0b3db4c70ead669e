"""Protobuf records of a real Kafka become rows, and other bytes become dead letters."""

import base64
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from firn import protoc
from firn.model.jobs import RecordSchema
from firn.schemas.columns import columns_of
from tests.integration.ingestion.world import World

BODY = """
  enum Method { CARD = 0; CASH = 1; }
  message Line { string sku = 1; int32 count = 2; }
  int64 id = 1;
  google.protobuf.Timestamp at = 2;
  uint64 amount = 3;
  google.protobuf.StringValue ref = 4;
  Method method = 5;
  repeated Line lines = 6;
  map<string, Line> tags = 7;
  double weight = 8;
  optional sint32 change = 9;
  oneof target { string shop = 10; fixed64 machine = 11; }
  repeated sfixed32 codes = 12;
"""
SOON = datetime(2026, 11, 27, 8, 30, 0, 123_456, tzinfo=UTC)


def schema_of(body: str, **changes: Any) -> tuple[Any, RecordSchema]:
    """Return the class of google.protobuf for a message with these fields, and its schema."""
    imports = " ".join(f'import "google/protobuf/{name}.proto";' for name in ("timestamp", "wrappers"))
    text = f'syntax = "proto3"; package shop; {imports} message Payment {{ {body} }}'
    content = protoc.descriptors(text, ())
    pool = descriptor_pool.DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(content).file:
        pool.AddSerializedFile(file.SerializeToString())
    bare = RecordSchema(format="Protobuf", text=text, descriptors=base64.b64encode(content).decode(), **changes)
    kind = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Payment"))
    return kind, bare.model_copy(update={"fields": columns_of(bare, "text")})


def payment(kind: Any, number: int) -> bytes:
    message = kind(id=number, at=SOON, amount=2**64 - 1 - number, method=number % 3)
    if number % 2:
        message.ref.value = f"ref-{number}"
        message.change = -number
        message.shop = "größe"
    elif number % 4:
        message.machine = number
    for line in range(number % 3):
        message.lines.add(sku=f"sku-{line}", count=line)
        message.tags[f"tag-{line}"].count = line
        message.codes.append(-line)
    message.weight = math.nan if number % 10 == 0 else number / 2
    content: bytes = message.SerializeToString()
    return content


def expected(number: int) -> dict[str, Any]:
    odd, some = bool(number % 2), number % 3
    return {
        "id": number,
        "amount": Decimal(2**64 - 1 - number),
        "ref": f"ref-{number}" if odd else None,
        "method": ("CARD", "CASH", "2")[some],
        "lines": [{"sku": f"sku-{line}", "count": line} for line in range(some)],
        "change": -number if odd else None,
        "shop": "größe" if odd else None,
        "machine": Decimal(number) if number % 4 == 2 else None,
        "codes": [-line for line in range(some)],
    }


def test_protobuf_records_become_rows_with_the_same_values(world: World) -> None:
    topic = world.topic(partitions=2)
    kind, schema = schema_of(BODY)
    job = world.job(topic, record_schema=schema)
    good = [payment(kind, number) for number in range(200)]
    world.produce(topic, [*good, good[1][:-1], b"\xff" * 12, b"\x0d" + bytes(4)])
    world.apply(job)
    world.start()
    rows = sorted(world.await_rows(job, 200), key=lambda row: row["id"])
    for number, row in enumerate(rows):
        want = expected(number)
        assert {name: row[name] for name in want} == want
        assert row["at"].replace(tzinfo=UTC) == SOON
        assert dict(row["tags"]) == {f"tag-{line}": {"sku": "", "count": line} for line in range(number % 3)}
        assert row["weight"] == number / 2 or (math.isnan(row["weight"]) and number % 10 == 0)
    assert {row["error_code"] for row in world.dead(job)} == {"InvalidProtobuf"}
    assert len(world.dead(job)) == 3


def test_a_new_text_adds_columns_and_leaves_others_null(world: World) -> None:
    topic = world.topic()
    before, first = schema_of("int64 id = 1; string old = 2;")
    job = world.job(topic, record_schema=first)
    world.produce(topic, [before(id=1, old="x").SerializeToString()])
    world.apply(job)
    world.start()
    world.await_rows(job, 1)
    after, second = schema_of("int64 id = 1; optional int64 new = 3;", framing="Registry")
    world.apply(job.model_copy(update={"record_schema": second, "generation": 2}))
    world.await_state(job, "CaughtUp", generation=2)
    frame = b"\0\0\0\0\x09\0"
    world.produce(
        topic, [frame + after(id=2, new=7).SerializeToString(), frame + before(id=3, old="y").SerializeToString()]
    )
    rows = sorted(world.await_rows(job, 3), key=lambda row: row["id"])
    assert [(row["id"], row["old"], row["new"]) for row in rows] == [(1, "x", None), (2, None, 7), (3, None, None)]
