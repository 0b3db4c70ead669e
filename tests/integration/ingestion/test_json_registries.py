"""JSON records whose values name their JSON schemas in a schema registry: Apicurio Registry."""

import json
from datetime import UTC, datetime
from typing import Any

from tests.integration.ingestion.contracts import schema_of
from tests.integration.ingestion.world import World
from tests.servers.apicurio import Apicurio
from tests.servers.process import await_true

MONEY = {"type": "object", "properties": {"cents": {"type": "integer"}}}
FIRST: dict[str, Any] = {"id": {"type": "integer"}, "price": {"$ref": "money.json"}}
LATER: dict[str, Any] = {
    "note": {"oneOf": [{"type": "null"}, {"type": "string"}]},
    "at": {"type": "string", "format": "date-time"},
    "tags": {"type": "object", "additionalProperties": {"type": "number"}},
    **FIRST,
}


def order(properties: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties}


def value(number: int, **members: Any) -> bytes:
    return b"\0" + number.to_bytes(4) + json.dumps(members).encode()


def register(registry: Apicurio, subject: str, properties: dict[str, Any]) -> int:
    registry.register(f"{subject}-money", MONEY, "JSON")
    return registry.register(subject, order(properties), "JSON", [("money.json", f"{subject}-money")])


def test_a_table_follows_json_schemas(served: World, registry: Apicurio) -> None:
    topic = served.topic(partitions=2)
    subject = f"{topic}-value"
    first = register(registry, subject, FIRST)
    job = served.job(topic, record_schema=schema_of(registry, subject, "Json"))
    served.apply(job)
    served.produce(topic, [value(first, id=n, price={"cents": n}) for n in range(10)])
    served.start()
    served.await_rows(job, 10)
    second = register(registry, subject, LATER)
    protobuf = registry.register(f"{topic}-other", 'syntax = "proto3"; message M { int64 id = 1; }', "PROTOBUF")
    served.produce(
        topic,
        [
            value(second, id=2**40, note="new", at="2026-11-27T08:30:00.123456Z", tags={"a": 1.5}),
            value(first, id=11, price=None, unnamed=[1]),
            None,
            value(999_999, id=12),
            value(protobuf, id=13),
            b'{"id": 14}',
            value(first, id="15"),
        ],
    )
    rows = served.await_rows(job, 13)
    assert [row["id"] for row in rows] == [*range(10), 2**40, 11, None]
    assert [row["note"] for row in rows[9:]] == [None, "new", None, None]
    assert rows[10]["at"].astimezone(UTC) == datetime(2026, 11, 27, 8, 30, 0, 123_456, tzinfo=UTC)
    assert rows[10]["tags"] == {"a": 1.5}
    assert [row["price"] and row["price"]["cents"] for row in rows[9:]] == [9, None, None, None]
    assert [row["_kafka"]["schema_id"] for row in rows[9:]] == [first, second, first, None]
    await_true("four dead letters", lambda: len(served.dead(job)) == 4)
    assert [row["error_code"] for row in served.dead(job)] == [*["UnknownSchema"] * 3, "WrongKind"]
