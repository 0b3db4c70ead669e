"""Changes of a spec that wait for topic and table: their reconciles come before those of other topics."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn_controllers.ports import Manifest
from firn_controllers.queue import Key, Lane, Outcome
from tests import gen
from tests.fakes.world import World

NAME = ("demo", "orders")


async def ready_world() -> World:
    world = World()
    world.cluster.create(gen.topic("orders", partitions=3))
    await world.settle()
    return world


def edited(world: World) -> bool:
    entry = world.operator.topics.get(NAME)
    assert entry is not None
    return entry.edited


async def test_an_edit_waits_until_topic_and_table_follow_it() -> None:
    world = await ready_world()
    assert not edited(world), "a new topic is no edit"
    world.tables.problem["lake"] = UnavailableError("catalog lake: no answer")
    world.cluster.edit("orders", lambda manifest: manifest["spec"].update(partitions=9))
    await world.step()
    assert edited(world)
    assert world.operator.queue.schedule._due[("topic", *NAME)][1] is Lane.EDIT
    world.operator._wake(NAME, Lane.DEPENDENCY)
    assert ("topic", *NAME) in world.operator.queue.schedule._lanes[Lane.EDIT]
    world.tables.problem.clear()
    await world.settle()
    assert world.conditions("orders")["Ready"][0] == "True"
    assert not edited(world)


async def test_an_edit_whose_reconcile_raises_an_exception_is_retried_before_other_topics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await ready_world()
    world.tables.problem["lake"] = UnavailableError("catalog lake: no answer")
    world.cluster.edit("orders", lambda manifest: manifest["spec"].update(partitions=9))
    await world.step()
    topics = [("topic", *NAME), ("topic", "demo", "unknown")]

    async def reconcile(key: Key) -> Outcome:
        if key not in topics:
            return Outcome()
        if key == topics[-1]:
            world.operator.stop()
        raise UnavailableError("the API server does not answer")

    monkeypatch.setattr(world.operator, "reconcile", reconcile)
    for key in topics:
        world.operator.queue.add(key)
    world.operator.synced()
    await asyncio.wait_for(world.operator.run(), 10)
    assert [world.operator.queue.schedule._due[key][1] for key in topics] == [Lane.EDIT, Lane.ROUTINE]


def suspended(manifest: Manifest) -> None:
    manifest["spec"].update(suspend=True)


def refused(manifest: Manifest) -> None:
    manifest["spec"].update(ingestion={"group": "nowhere"})


def unreadable(manifest: Manifest) -> None:
    manifest["spec"]["schema"] = {"format": "Nothing"}


def shrunk(manifest: Manifest) -> None:
    manifest["spec"].update(partitions=2)


@pytest.mark.parametrize("change", [suspended, refused, unreadable, shrunk])
async def test_an_edit_that_leaves_the_topic_not_ready_does_not_wait_for_ever(change: Callable[[Any], None]) -> None:
    world = await ready_world()
    world.cluster.edit("orders", change)
    await world.settle()
    assert world.conditions("orders")["Ready"][0] != "True"
    assert not edited(world)


async def test_a_deleted_and_a_new_resource_of_the_name_are_no_edits() -> None:
    world = await ready_world()
    world.tables.problem["lake"] = UnavailableError("catalog lake: no answer")
    world.cluster.edit("orders", lambda manifest: manifest["spec"].update(partitions=9))
    await world.step()
    world.cluster.remove("orders")
    world.cluster.create(gen.topic("orders", partitions=3))
    await world.step()
    assert not edited(world)


async def test_a_contract_says_whether_a_driver_of_an_earlier_version_may_follow_it() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    assert world.job().version == 1
    world.cluster.edit("flights", lambda live: live["spec"]["schema"].update(key={"columns": "Binary"}))
    await world.settle()
    assert world.job().record_schema.key is not None
    assert world.job().version == 2
