"""The end of an overlap: when no client uses the previous credential any more, and at the deadline at the latest."""

from datetime import datetime, timedelta

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from tests import gen
from tests.fakes.world import World
from tests.unit.topic_users.test_users import A, B, annotate, conditions, edit, message, status

MINUTE, HOUR, DAY = 60, 3600, 86400
OLD = ("outside", A)


@pytest.fixture
async def world() -> World:
    """Return a world in the overlap after a first rotation. Its brokers describe last uses."""
    world = World(gen.with_users())
    world.access.tracks = True
    world.cluster.create(gen.topic("flights", profile="outside"))
    await world.settle()
    world.cluster.create(gen.user(authentication={"rotation": {"overlap": "1d", "idle": "1h"}}))
    await world.settle()
    annotate(world, names.ROTATE, "1")
    await world.settle()
    assert set(world.access.passwords) == {OLD, ("outside", B)}
    return world


async def passed(world: World, seconds: float) -> None:
    """Let the time pass, and reconcile every ten minutes."""
    end = world.clock.now() + timedelta(seconds=seconds)
    while (rest := (end - world.clock.now()).total_seconds()) > 0:
        world.clock.advance(min(rest, 10 * MINUTE))
        await world.settle()  # which lets time pass, too


def previous_works(world: World) -> bool:
    shown = "previousUntil" in status(world)["credentials"]
    assert shown == (OLD in world.access.passwords), "the status agrees with the brokers"
    return shown


async def test_a_credential_without_use_ends_after_the_idle_time(world: World) -> None:
    await passed(world, HOUR - MINUTE)
    assert previous_works(world)
    await passed(world, 20 * MINUTE)
    assert not previous_works(world)
    assert ("outside", B) in world.access.passwords
    assert conditions(world)["Ready"] == ("True", "AllReady")


async def test_a_credential_in_use_works_until_the_deadline(world: World) -> None:
    deadline = datetime.fromisoformat(status(world)["credentials"]["previousUntil"])
    while world.clock.now() + timedelta(minutes=30) < deadline:
        world.access.used[OLD] = used = world.clock.now()
        await passed(world, 30 * MINUTE)
        assert previous_works(world)
        shown = datetime.fromisoformat(status(world)["credentials"]["previousLastUsed"])
        assert abs(shown - used) < timedelta(seconds=1)
    world.access.used[OLD] = world.clock.now()
    await passed(world, 30 * MINUTE)
    assert not previous_works(world)
    assert "previousLastUsed" not in status(world)["credentials"]


async def test_a_credential_ends_an_hour_after_its_last_use(world: World) -> None:
    await passed(world, 5 * HOUR / 6)
    world.access.used[OLD] = world.clock.now()
    await passed(world, 5 * HOUR / 6)
    assert previous_works(world)
    await passed(world, 20 * MINUTE)
    assert not previous_works(world)


async def test_without_uses_of_the_brokers_only_the_deadline_counts(world: World) -> None:
    world.access.tracks = False
    await passed(world, DAY - 30 * MINUTE)
    assert previous_works(world)
    assert "previousLastUsed" not in status(world)["credentials"]
    await passed(world, 30 * MINUTE)
    assert not previous_works(world)


async def test_uses_that_brokers_store_late_count(world: World) -> None:
    """After an outage of the coordinator, the first answer lacks the last uses."""
    world.access.problem = {"describe": UnavailableError("no broker answers")}
    await passed(world, 2 * HOUR)
    world.access.problem = {}
    world.clock.advance(MINUTE)
    await world.settle()
    assert previous_works(world), "one observation is not enough"
    world.access.used[OLD] = world.clock.now()
    await passed(world, 30 * MINUTE)
    assert previous_works(world)


async def test_another_process_observes_twice_again(world: World) -> None:
    world.clock.advance(2 * HOUR)
    world.start()
    await world.settle()
    assert previous_works(world)
    await passed(world, 10 * MINUTE)
    assert not previous_works(world)


async def test_a_next_rotation_begins_without_the_last_use_of_an_earlier_one(world: World) -> None:
    world.access.used[OLD] = world.clock.now()
    await passed(world, 2 * HOUR)
    annotate(world, names.ROTATE, "2")
    await world.settle()
    assert status(world)["credentials"]["current"] == "a"
    assert "previousLastUsed" not in status(world)["credentials"]
    await passed(world, 50 * MINUTE)
    assert ("outside", B) in world.access.passwords, "the time begins with the rotation"


async def test_an_idle_time_below_five_minutes_is_refused(world: World) -> None:
    edit(world, authentication={"rotation": {"idle": "4m"}})
    await world.settle()
    assert conditions(world)["SpecValid"] == ("False", "InvalidSpec")
    assert "raise idle to 5m or more" in message(world, "SpecValid")
