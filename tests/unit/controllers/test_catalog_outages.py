"""A catalog that does not answer: what topics show of a short outage, and of a long one."""

import pytest

from firn.model.errors import FirnError, NotReadyError, UnavailableError
from firn_controllers.reconcilers.catalog import INTERVAL, SHORT_OUTAGE_SECONDS
from tests import gen
from tests.fakes.world import World

GONE = UnavailableError("no answer")


async def world_with_ready_topics() -> World:
    world = World()
    for number in range(3):
        world.cluster.create(gen.topic(f"t{number}"))
    await world.settle()
    return world


async def pass_time(world: World, seconds: float) -> None:
    for _ in range(int(seconds)):
        await world.step()
        world.clock.advance(1.0)


@pytest.mark.parametrize("error", [GONE, NotReadyError("a secret is being replaced")], ids=["away", "no secret"])
async def test_a_short_outage_changes_no_topic_that_was_ready(error: FirnError) -> None:
    world = await world_with_ready_topics()
    writes = len(world.faults.log)
    world.tables.problem["lake"] = error
    await pass_time(world, SHORT_OUTAGE_SECONDS - 1)
    world.tables.problem.clear()
    await pass_time(world, 60)
    assert world.faults.log[writes:] == []


async def test_a_long_outage_is_shown_by_all_topics_and_its_end_too() -> None:
    world = await world_with_ready_topics()
    world.tables.problem["lake"] = GONE
    await pass_time(world, INTERVAL + SHORT_OUTAGE_SECONDS + 10)
    assert [world.conditions(f"t{number}")["TableReady"][1] for number in range(3)] == ["CatalogUnreachable"] * 3
    world.tables.problem.clear()
    await pass_time(world, 10)
    assert [world.conditions(f"t{number}")["Ready"][0] for number in range(3)] == ["True"] * 3


async def test_a_new_topic_shows_an_outage_at_once() -> None:
    world = await world_with_ready_topics()
    world.tables.problem["lake"] = GONE
    await pass_time(world, INTERVAL + 1)
    world.cluster.create(gen.topic("new"))
    world.cluster.edit("t0", lambda manifest: manifest["spec"].update(partitions=9))
    await pass_time(world, 2)
    assert world.conditions("new")["TableReady"] == ("False", "CatalogUnreachable")
    assert world.conditions("t0")["TableReady"] == ("False", "CatalogUnreachable"), (
        "the table of the new spec is unknown"
    )
    assert world.conditions("t1")["TableReady"][0] == "True"


async def test_outages_that_follow_each_other_are_counted_anew() -> None:
    world = await world_with_ready_topics()
    writes = len(world.faults.log)
    for _ in range(4):
        world.tables.problem["lake"] = GONE
        await pass_time(world, 15)
        world.tables.problem.clear()
        await pass_time(world, 15)
    assert world.faults.log[writes:] == []
