"""IcebergTopics that share a table: which of them may, and what the end of one leaves to the others."""

from typing import Any

import pytest

from firn.model import names
from firn.model.maintenance import MaintenanceRun
from firn.tables.ownership import Ownership
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import ALL, RETENTION, pass_time, world_with

TABLE = {"name": "all", "shared": True}
IDENTIFIER = "lake.demo.all"
DELETE = {"topic": "Delete", "table": "Delete"}


def sharing(name: str, minute: int, **spec: Any) -> Manifest:
    """Return a resource that shares a table, created at this minute."""
    table = {**TABLE, **spec.pop("table", {})}
    manifest = gen.topic(name, namespace=spec.pop("namespace", "demo"), table=table, **spec)
    manifest["metadata"]["creationTimestamp"] = f"2026-03-01T10:{minute:02}:00Z"
    return manifest


async def shared(*manifests: Manifest) -> World:
    world = World()
    for manifest in manifests:
        world.cluster.create(manifest)
        await world.settle()
    return world


async def test_topics_of_a_namespace_share_a_table() -> None:
    world = await shared(sharing("eu", 0), sharing("us", 1, deletionPolicy=DELETE))
    assert [world.conditions(name)["Ready"] for name in ("eu", "us")] == [("True", "AllReady")] * 2
    jobs = [world.job(f"uid-demo-{name}") for name in ("eu", "us")]
    assert [(job.version, job.topic, job.table.identifier) for job in jobs] == [
        (2, "eu", IDENTIFIER),
        (2, "us", IDENTIFIER),
    ]
    assert [job.table.dead_letters for job in jobs] == ["all__eu__dlq", "all__us__dlq"]
    assert world.tables.tables[IDENTIFIER].owner == names.SHARED


@pytest.mark.parametrize(
    ("first", "second"),
    [({"shared": False}, {}), ({}, {"shared": False})],
    ids=["the older one does not share", "the younger one does not share"],
)
async def test_a_table_is_shared_only_if_all_resources_share_it(first: dict[str, Any], second: dict[str, Any]) -> None:
    world = await shared(sharing("eu", 0, table=first), sharing("us", 1, table=second))
    assert world.conditions("us")["SpecValid"] == ("False", "ResourceConflict")
    assert "IcebergTopics share a table if all of them have spec.table.shared: true" in world.message("SpecValid", "us")
    assert list(world.cluster.contracts()) == ["uid-demo-eu"]


async def test_another_namespace_cannot_share_a_table() -> None:
    world = await shared(sharing("eu", 0), sharing("us", 1, namespace="other", table={"namespace": "demo"}))
    assert list(world.cluster.contracts()) == ["uid-demo-eu"]


async def test_the_oldest_resource_decides_about_partitioning() -> None:
    layout = {"partitionBy": ["day(at)"]}
    world = await shared(sharing("eu", 0, table=layout), sharing("us", 1, table=layout))
    assert world.conditions("us")["Ready"] == ("True", "AllReady")
    world.cluster.edit("eu", lambda manifest: manifest["spec"]["table"].update(partitionBy=["month(at)"]))
    await world.settle()
    assert world.conditions("us")["SpecValid"] == ("False", "InvalidSpec")
    assert "spec.table.partitionBy is not the same there" in world.message("SpecValid", "us")
    assert set(world.cluster.contracts()) == {"uid-demo-eu", "uid-demo-us"}, "ingestion continues"
    world.cluster.edit("us", lambda manifest: manifest["spec"]["table"].update(partitionBy=["month(at)"]))
    await world.settle()
    assert world.conditions("us")["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        (
            {"quality": {"publish": {"every": "5m", "checks": [{"name": "some", "check": "count(*) > 0"}]}}},
            "spec.quality.publish: the rows",
        ),
        (
            {"ingestion": {"adopt": {"connect": {"group": "connect-all"}}}},
            "spec.ingestion.adopt.connect: a connector wrote",
        ),
        (
            {"schema": {"format": "Json", "fields": gen.FIELDS, "evolution": {"drop": "DropColumn"}}},
            "spec.schema.evolution.drop: DropColumn",
        ),
    ],
    ids=["publish", "Kafka Connect", "drop columns"],
)
async def test_a_shared_table_has_no_feature_that_concerns_one_topic_alone(spec: dict[str, Any], text: str) -> None:
    world = await shared(sharing("eu", 0, **spec))
    assert world.conditions("eu")["SpecValid"] == ("False", "InvalidSpec")
    assert world.message("SpecValid", "eu").startswith(text)
    assert not world.cluster.contracts()


async def test_a_filter_may_read_the_columns_that_only_shared_tables_have() -> None:
    schema = {"format": "Json", "fields": gen.FIELDS, "filter": "_kafka.topic = 'eu'"}
    world = await shared(sharing("eu", 0, schema=schema))
    assert world.conditions("eu")["SpecValid"] == ("True", "Valid")


async def test_two_resources_with_one_name_of_dead_letters_cannot_share_a_table() -> None:
    world = await shared(sharing("oldest", 0), sharing("a-b", 1), sharing("a.b", 2, topicName="other"))
    assert world.conditions("a.b")["SpecValid"] == ("False", "ResourceConflict")
    assert "all__a_b__dlq" in world.message("SpecValid", "a.b")


@pytest.mark.parametrize("first", ["eu", "all-eu"])
async def test_dead_letters_of_a_shared_table_are_not_those_of_another_table(first: str) -> None:
    other = gen.topic("all-eu", table={"name": "all__eu"})
    second = "all-eu" if first == "eu" else "eu"
    made = {"eu": sharing("eu", 0), "all-eu": other}
    made[second]["metadata"]["creationTimestamp"] = "2026-03-01T10:30:00Z"
    made[first]["metadata"]["creationTimestamp"] = "2026-03-01T10:00:00Z"
    world = await shared(made[first], made[second], sharing("us", 40))
    assert world.conditions(second)["SpecValid"] == ("False", "ResourceConflict")
    assert "table lake.demo.all__eu__dlq of dead letters belongs to the older" in world.message("SpecValid", second)
    assert world.conditions(first)["SpecValid"][0] == world.conditions("us")["SpecValid"][0] == "True"


@pytest.mark.parametrize("order", [("eu", "us"), ("us", "eu")], ids=["the older one first", "the younger one first"])
async def test_only_the_last_resource_drops_the_table(order: tuple[str, str]) -> None:
    world = await shared(sharing("eu", 0, deletionPolicy=DELETE), sharing("us", 1, deletionPolicy=DELETE))
    first, last = order
    world.cluster.remove(first)
    await world.settle()
    assert IDENTIFIER in world.tables.tables
    told = [message for _, reason, message in world.cluster.events if reason == "DataLeftBehind"]
    assert told == [
        f"table {IDENTIFIER} and the dead letters of this topic in all__{first}__dlq stay, because IcebergTopic {last} shares the table; no later"
        f" deletion drops all__{first}__dlq: drop it with an engine if you do not need it"
    ]
    assert world.conditions(last)["Ready"] == ("True", "AllReady")
    world.cluster.remove(last)
    await world.settle()
    assert not world.tables.tables
    assert not world.cluster.topics()


async def test_resources_that_are_deleted_together_drop_the_table_after_the_last_driver_released_it() -> None:
    world = await shared(sharing("eu", 0, deletionPolicy=DELETE), sharing("us", 1, deletionPolicy=DELETE))
    for name in ("eu", "us"):
        world.cluster.remove(name)
    await world.settle()
    assert not world.cluster.topics()
    assert not world.tables.tables


async def test_a_table_stays_if_one_of_its_resources_keeps_it() -> None:
    world = await shared(sharing("eu", 0), sharing("us", 1, deletionPolicy=DELETE))
    world.cluster.remove("us")
    await world.settle()
    world.cluster.remove("eu")
    await world.settle()
    assert IDENTIFIER in world.tables.tables


@pytest.mark.parametrize(
    "owner",
    [
        Ownership(names.SHARED, "other", "kubernetes-1"),
        Ownership(names.SHARED, "demo", "kubernetes-2"),
        Ownership(names.SHARED, "demo", "kubernetes-1"),
    ],
    ids=["another namespace", "another Kubernetes cluster", "resources of the namespace that it never joined"],
)
async def test_the_deletion_of_a_refused_resource_drops_no_table_of_others(owner: Ownership) -> None:
    world = await shared(sharing("eu", 0))
    stored = world.tables.tables[IDENTIFIER]
    world.cluster.remove("eu")
    await world.settle()
    stored.ownership = owner
    fields = [{"name": "id", "type": "no type"}]
    world.cluster.create(sharing("us", 1, deletionPolicy=DELETE, schema={"format": "Json", "fields": fields}))
    await world.settle()
    assert world.conditions("us")["SpecValid"][0] == "False"
    world.cluster.remove("us")
    await world.settle()
    assert [live["metadata"]["name"] for live in world.cluster.topics()] == []
    assert IDENTIFIER in world.tables.tables


async def test_a_run_for_a_shared_table_works_on_the_dead_letters_of_all_topics() -> None:
    world = await world_with(
        gen.policy("legal", kind=RETENTION, snapshots={"maxAge": "7d"}, schedule={"cron": "15 * * * *"}, **ALL),
        topics=(sharing("eu", 0), sharing("us", 1)),
    )
    await pass_time(world, 3700)
    runs = [
        MaintenanceRun.model_validate_json(each["data"]["run.json"])
        for each in world.cluster.all("ConfigMap")
        if "run.json" in each.get("data", {})
    ]
    tables = [(table.name, table.sharers) for run in runs for table in run.tables if table.retention is not None]
    assert tables
    assert set(tables) == {("eu", ("us",))}, "the table has one holder"
