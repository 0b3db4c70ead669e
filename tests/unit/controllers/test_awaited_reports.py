"""How often the operator reads a driver's report: often while it expects news, and seldom otherwise."""

import pytest

from firn.model.progress import GroupProgress
from tests import gen
from tests.fakes.world import World

STEP = 0.25


async def with_topic() -> World:
    """Return a world in which one topic has been Ready for a while."""
    world = World()
    world.cluster.create(gen.topic("first"))
    await world.settle()
    return world


async def reads(world: World, seconds: float) -> int:
    """Return how many times the operator reads the report while nothing but time moves."""
    before = world.progress.reads
    for _ in range(int(seconds / STEP)):
        world.clock.advance(STEP)
        await world.operator_only()
    return world.progress.reads - before


async def test_a_report_without_expected_news_is_read_at_the_interval() -> None:
    world = await with_topic()
    assert await reads(world, 20) == 4


async def test_the_report_is_read_each_second_until_it_has_a_new_topic() -> None:
    world = await with_topic()
    world.cluster.create(gen.topic("second"))
    await world.operator_only()
    assert await reads(world, 10) == 10
    await world.step()
    await reads(world, 1)
    assert world.conditions("second")["Ready"] == ("True", "AllReady")
    assert await reads(world, 20) == 4


async def test_the_report_is_read_each_second_until_it_has_the_new_generation() -> None:
    world = await with_topic()
    world.cluster.edit("first", lambda live: live["spec"].update(ingestion={"freshness": "2m"}))
    await world.operator_only()
    assert await reads(world, 10) == 10
    await world.step()
    await reads(world, 1)
    assert await reads(world, 20) == 4


async def test_a_topic_that_starts_is_news_until_it_runs() -> None:
    world = await with_topic()
    world.driver.report_fields["uid-demo-second"] = {"state": "Starting"}
    world.cluster.create(gen.topic("second"))
    await world.operator_only()
    await world.step()
    assert await reads(world, 10) == 10


async def test_a_report_that_does_not_come_is_read_often_for_a_minute() -> None:
    world = await with_topic()
    world.cluster.create(gen.topic("second"))
    await world.operator_only()
    await reads(world, 58)
    assert await reads(world, 2) == 2
    await reads(world, 5)
    assert await reads(world, 20) == 4


@pytest.mark.parametrize(("reported", "seconds"), [(4000, 1), (12000, 3), (40000, 5)])
async def test_the_report_of_many_topics_is_read_less_often(reported: int, seconds: int) -> None:
    world = await with_topic()
    report = gen.progress("other")
    world.cluster.create(gen.topic("second"))
    await world.operator_only()
    many = [report.model_copy(update={"uid": f"other-{number}"}) for number in range(reported)]
    world.progress.documents["default"] = (
        GroupProgress(group="default", started=1.0, topics=many),
        world.clock.monotonic(),
    )
    await reads(world, 5)
    assert await reads(world, 15) == 15 / seconds


async def test_the_report_of_a_driver_that_starts_is_read_each_second() -> None:
    world = await with_topic()
    world.pods_run = False
    world.cluster.pod_states.clear()
    await reads(world, 6)
    assert await reads(world, 10) == 10
