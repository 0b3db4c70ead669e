"""Topics and tables need not be pairs: routes, shared tables, and rows that main gets after checks."""

import json
from typing import Any

from hack.quickstart import apply
from tests.e2e.commands import firn
from tests.e2e.topics import Produce, await_condition, await_ready, await_rows, numbered, rows, topic_manifest

EVENT = {
    "format": "Json",
    "fields": [{"name": "id", "type": "long", "required": True}, {"name": "type", "type": "string"}],
}


def events(kinds: list[str], start: int, count: int) -> list[dict[str, Any]]:
    """Return records of these kinds in turn."""
    return [
        {"value": json.dumps({"id": number, "type": kinds[number % len(kinds)]})}
        for number in range(start, start + count)
    ]


def test_routes_land_each_kind_in_its_table(namespace: str, produce: Produce) -> None:
    tables = [{"match": "order", "name": "orders"}, {"match": "refund.*", "name": "refunds"}]
    routes = {"by": "$.type", "tables": tables}
    apply(topic_manifest("events", namespace, schema=EVENT, routes=routes))
    topic = await_ready("events", namespace)
    produce(topic, events(["order", "refund", "refund-late", "visit"], 0, 400))
    base = topic["status"]["table"]["identifier"].rpartition(".")[0]
    for table, count in (("orders", 100), ("refunds", 200)):
        await_rows(f"{base}.{table}", count)
    await_condition("events", namespace, "RecordsAccepted", "False")
    await_rows(f"{topic['status']['table']['identifier']}__dlq", 100)
    assert rows(f"select distinct type from {base}.orders") == [{"type": "order"}]
    firn("audit", f"{namespace}/events")


def test_two_topics_share_a_table(namespace: str, produce: Produce) -> None:
    table = {"name": "orders", "shared": True, "partitionBy": ["_kafka.topic"]}
    names = ("orders-eu", "orders-us")
    for name in names:
        apply(topic_manifest(name, namespace, table=table))
    topics = [await_ready(name, namespace) for name in names]
    for number, topic in enumerate(topics):
        produce(topic, numbered(1000 * number, 100 + number))
    identifier = topics[0]["status"]["table"]["identifier"]
    await_rows(identifier, 201)
    counts = rows(f"select _kafka.topic as topic, count(*) as n from {identifier} group by 1 order by 1")
    assert [row["n"] for row in counts] == [100, 101]
    for name in names:
        firn("audit", f"{namespace}/{name}")


def test_main_gets_rows_after_their_checks(namespace: str, produce: Produce) -> None:
    checks = [{"name": "volume", "check": "count(*) >= 50"}]
    apply(topic_manifest("checked", namespace, quality={"publish": {"every": "10s", "checks": checks}}))
    topic = await_ready("checked", namespace)
    table = topic["status"]["table"]["identifier"]
    produce(topic, numbered(0, 20))
    await_condition("checked", namespace, "Published", "False", "ChecksFailed")
    assert rows(f"select count(*) as n from {table}") == [{"n": 0}]
    produce(topic, numbered(20, 40))
    await_condition("checked", namespace, "Published", "True")
    await_rows(table, 60)
    firn("audit", f"{namespace}/checked")
