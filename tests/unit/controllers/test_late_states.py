"""States of an IcebergTopic that the operator reads after a later state of it: it ignores them."""

import copy

from firn_controllers.cache.topics import TopicEntry
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

NAME = ("demo", "orders")


async def ready_world() -> World:
    world = World()
    world.cluster.create(gen.topic("orders"))
    await world.settle()
    return world


def known(world: World) -> TopicEntry:
    entry = world.operator.topics.get(NAME)
    assert entry is not None
    return entry


def later(manifest: Manifest, uid: str) -> Manifest:
    successor = copy.deepcopy(manifest)
    successor["metadata"].update(uid=uid, resourceVersion=str(int(manifest["metadata"]["resourceVersion"]) + 100))
    return successor


async def test_the_answer_to_an_earlier_write_does_not_hide_an_edit() -> None:
    world = await ready_world()
    before = known(world)
    world.cluster.edit("orders", lambda manifest: manifest["spec"].update(partitions=9))
    world.operator.topic_written(before)
    assert known(world).generation == before.generation + 1


async def test_the_answer_to_a_write_does_not_restore_a_deleted_topic() -> None:
    world = await ready_world()
    entry, manifest = known(world), copy.deepcopy(world.cluster.topic("orders"))
    world.operator.topic_gone(manifest)
    world.operator.topic_written(entry)
    assert world.operator.topics.get(NAME) is None


async def test_a_late_state_of_an_earlier_resource_does_not_replace_its_successor() -> None:
    world = await ready_world()
    first = copy.deepcopy(world.cluster.topic("orders"))
    assert world.operator.topic_seen(later(first, "uid-2"))
    assert not world.operator.topic_seen(first)
    assert known(world).uid == "uid-2"
    assert world.operator.topics.deleted_uids(NAME) == {first["metadata"]["uid"]}
