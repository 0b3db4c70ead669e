"""The first status of a topic: it waits a moment for the driver's report, and not if anything else is missing."""

from typing import Any

import pytest

from firn_controllers.reconcilers import context
from tests import gen
from tests.fakes.world import World


async def served() -> World:
    """Return a world whose driver serves a topic."""
    world = World()
    world.cluster.create(gen.topic("first"))
    await world.settle()
    return world


def writes(world: World, name: str) -> int:
    return world.faults.log.count(f"status {name}")


async def test_a_topic_that_the_driver_reports_at_once_gets_one_status() -> None:
    world = await served()
    world.cluster.create(gen.topic("orders"))
    await world.operator_only()
    assert "uid-demo-orders" in world.cluster.contracts()
    assert writes(world, "orders") == 0
    await world.settle()
    assert world.conditions("orders")["Ready"] == ("True", "AllReady")
    assert writes(world, "orders") == 1


async def test_the_status_of_a_topic_that_the_driver_does_not_report_names_the_driver() -> None:
    world = await served()
    world.cluster.create(gen.topic("orders"))
    await world.operator_only()
    world.clock.advance(context.ON_ITS_WAY[0] - 1)
    await world.operator_only()
    assert writes(world, "orders") == 0
    world.clock.advance(2)
    await world.operator_only()
    assert world.conditions("orders")["IngestionReady"] == ("False", "Starting")
    assert world.conditions("orders")["TableReady"] == ("True", "Created")


@pytest.mark.parametrize("spec", [{"suspend": True}, {"ingestion": {"group": "missing"}}, {"profile": "missing"}])
async def test_a_topic_that_no_report_makes_ready_gets_its_status_at_once(spec: dict[str, Any]) -> None:
    world = await served()
    world.cluster.create(gen.topic("orders", **spec))
    await world.operator_only()
    assert writes(world, "orders") == 1


async def test_a_restarted_operator_finishes_a_topic_without_status() -> None:
    world = await served()
    world.cluster.create(gen.topic("orders"))
    await world.operator_only()
    world.start()
    await world.settle()
    ready = world.conditions("orders")
    assert (ready["Ready"], ready["TopicReady"]) == (("True", "AllReady"), ("True", "Created"))
    assert [event for event in world.cluster.events if event[:2] == ("orders", "Adopted")] == []


async def test_many_topics_are_resynced_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await served()
    shared = world.operator._context
    configured = shared.resync_interval
    monkeypatch.setattr(context, "RESYNCS_PER_SECOND", 0.5 / configured)
    assert shared.resync_interval == 2 * configured


async def test_a_topic_without_status_is_not_adopted_under_another_address_of_its_brokers() -> None:
    world = World(gen.adopting())
    world.cluster.create(gen.topic("first"))
    await world.settle()
    world.cluster.create(gen.topic("orders"))
    await world.operator_only()
    assert writes(world, "orders") == 0
    world.topics.topics["outside", "orders"] = world.topics.topics["classic", "orders"]
    world.cluster.create(gen.topic("second", profile="outside", topicName="orders", table={"name": "copy"}))
    await world.operator_only()
    assert world.conditions("second")["SpecValid"] == ("False", "ResourceConflict")
    assert "uid-demo-second" not in world.cluster.contracts()
