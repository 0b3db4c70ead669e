"""A topic with routes under a running operator: the IcebergTopics of its tables in the API server, on real brokers and a real catalog."""

import functools
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from firn.model import names
from tests.servers.process import await_true

if TYPE_CHECKING:
    from tests.integration.operator.conftest import Manifest, Running, World

FIELDS = [{"name": "id", "type": "long"}, {"name": "type", "type": "string"}]
SPEC = {
    "schema": {"format": "Json", "fields": FIELDS},
    "routes": {
        "by": "$.type",
        "tables": [{"match": "order", "name": "routed_orders"}, {"match": "refund.*", "name": "routed_refunds"}],
    },
}


@pytest.fixture(scope="module")
def operator(world: "World") -> Iterator["Running"]:
    with world.operator() as running:
        yield running


def exists(world: "World", name: str) -> bool:
    return world.topic(name) is not None


def contract(world: "World", topic: "Manifest") -> "Manifest | None":
    uid = topic["metadata"]["uid"]
    found = world.find(f"/api/v1/namespaces/firn-system/configmaps/{names.job(uid)}")
    return json.loads(found["data"]["job.json"]) if found is not None else None


def test_each_table_gets_an_iceberg_topic_a_table_and_a_contract(
    world: "World", operator: "Running", name: str
) -> None:
    world.apply(name, SPEC)
    for table, match in (("routed-orders", "order"), ("routed-refunds", "refund.*")):
        made = f"{name}-{table}"
        await_true(f"IcebergTopic {made}", functools.partial(exists, world, made), 60)
        world.await_made(made)
        world.await_condition(made, "TopicReady", "True", "Created")
        world.await_condition(made, "TableReady", "True", "Created")
        topic = world.topic(made)
        assert topic is not None
        assert [owner["name"] for owner in topic["metadata"]["ownerReferences"]] == [name]
        found = contract(world, topic)
        assert found is not None
        assert (found["topic"], found["route"]["match"]) == (name, match)

    def listed() -> bool:
        topic = world.topic(name)
        tables = (topic or {}).get("status", {}).get("tables", [])
        return [table.get("identifier", "").rpartition(".")[2] for table in tables] == [
            "routed_orders",
            "routed_refunds",
        ]

    await_true("the tables in the status", listed, 60)
    changed = {**SPEC, "suspend": True}
    world.apply(name, changed)

    def suspended() -> bool:
        topic = world.topic(f"{name}-routed-orders")
        return topic is not None and topic["spec"].get("suspend") is True

    await_true("the change of the tables", suspended, 60)
