"""Avro records of a real Kafka become rows, and other bytes become dead letters."""

import io
import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro

from firn.model.jobs import RecordSchema
from firn.schemas import avro
from tests.integration.ingestion.world import World

LINE = {
    "type": "record",
    "name": "Line",
    "fields": [{"name": "sku", "type": "string"}, {"name": "count", "type": "int"}],
}
FIELDS: list[Any] = [
    {"name": "id", "type": "long"},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "amount", "type": {"type": "bytes", "logicalType": "decimal", "precision": 20, "scale": 2}},
    {"name": "ref", "type": ["null", {"type": "string", "logicalType": "uuid"}]},
    {"name": "method", "type": {"type": "enum", "name": "Method", "symbols": ["CARD", "CASH"]}},
    {"name": "lines", "type": {"type": "array", "items": LINE}},
    {"name": "tags", "type": {"type": "map", "values": ["null", "string"]}},
    {"name": "weight", "type": "double"},
]
SOON = datetime(2026, 11, 27, 8, 30, 0, 123_000, tzinfo=UTC)


def schema_of(*fields: Any, framing: str = "None") -> tuple[Any, RecordSchema]:
    declared = {"type": "record", "name": "Payment", "namespace": "shop", "fields": list(fields)}
    text = json.dumps(declared)
    columns = avro.columns(avro.parse(text))
    return fastavro.parse_schema(declared), RecordSchema(format="Avro", text=text, framing=framing, fields=columns)


def encoded(parsed: Any, **values: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, parsed, values)
    return buffer.getvalue()


def payment(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": number,
        "at": SOON,
        "amount": Decimal(number) - Decimal("0.01"),
        "ref": UUID(int=number) if number % 2 else None,
        "method": "CASH" if number % 3 else "CARD",
        "lines": [{"sku": f"größe {n}", "count": n} for n in range(number % 3)],
        "tags": {"a": "x", "b": None} if number % 4 else {},
        "weight": math.nan if number % 10 == 0 else number / 2,
        **more,
    }


def test_avro_records_become_rows_with_the_same_values(world: World) -> None:
    topic = world.topic(partitions=2)
    parsed, schema = schema_of(*FIELDS)
    job = world.job(topic, record_schema=schema)
    good = [encoded(parsed, **payment(number)) for number in range(200)]
    world.produce(topic, [*good, good[0][:-1], b"\xff" * 12, good[1] + b"\0"])
    world.apply(job)
    world.start()
    rows = sorted(world.await_rows(job, 200), key=lambda row: row["id"])
    for number, row in enumerate(rows):
        want = payment(number)
        assert row["at"].replace(tzinfo=UTC) == SOON
        assert (row["id"], row["amount"], row["method"]) == (number, want["amount"], want["method"])
        assert row["ref"] == (want["ref"] and str(want["ref"]))
        assert row["lines"] == want["lines"]
        assert dict(row["tags"]) == want["tags"]
        assert row["weight"] == want["weight"] or (math.isnan(row["weight"]) and math.isnan(want["weight"]))
    assert {row["error_code"] for row in world.dead(job)} == {"InvalidAvro"}
    assert len(world.dead(job)) == 3


def test_a_new_schema_adds_columns_and_leaves_others_null(world: World) -> None:
    topic = world.topic()
    before, first = schema_of(FIELDS[0], {"name": "old", "type": "string"})
    job = world.job(topic, record_schema=first)
    world.produce(topic, [encoded(before, id=1, old="x")])
    world.apply(job)
    world.start()
    world.await_rows(job, 1)
    after, second = schema_of(FIELDS[0], {"name": "new", "type": ["null", "long"]}, framing="Registry")
    world.apply(job.model_copy(update={"record_schema": second, "generation": 2}))
    world.await_state(job, "CaughtUp", generation=2)
    world.produce(topic, [b"\0\0\0\0\x09" + encoded(after, id=2, new=7)])
    rows = world.await_rows(job, 2)
    assert [(row["id"], row["old"], row["new"]) for row in rows] == [(1, "x", None), (2, None, 7)]
