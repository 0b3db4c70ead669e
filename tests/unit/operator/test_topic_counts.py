"""The counts of topics by their Ready condition, from watches and lists that overlap."""

import copy
from typing import Any

from prometheus_client import REGISTRY

from firn_operator.process.watches import Watches
from tests import gen
from tests.fakes.world import World

Manifest = dict[str, Any]


def count(ready: str) -> float | None:
    return REGISTRY.get_sample_value("firn_topics", {"ready": ready})


def watching(world: World) -> Watches:
    unused: Any = None
    return Watches(world.config, unused, unused, world.operator, unused, unused)


async def new_and_ready(world: World) -> tuple[Manifest, Manifest]:
    """Return a topic before and after it is ready."""
    world.cluster.create(gen.topic("orders"))
    new = copy.deepcopy(world.cluster.topic("orders"))
    await world.settle()
    return new, copy.deepcopy(world.cluster.topic("orders"))


async def test_a_list_that_is_older_than_the_watch_does_not_count() -> None:
    world = World()
    watches = watching(world)
    new, ready = await new_and_ready(world)
    await watches._topic_event({"type": "MODIFIED", "object": ready})
    assert (count("True"), count("Unknown")) == (1, 0)
    await watches._topic_event({"type": "MODIFIED", "object": new})
    assert (count("True"), count("Unknown")) == (1, 0)
    await watches._topic_event({"type": "DELETED", "object": ready})
    assert (count("True"), count("Unknown")) == (0, 0)


async def test_the_late_deletion_of_an_earlier_resource_of_the_name_does_not_count() -> None:
    world = World()
    watches = watching(world)
    _, first = await new_and_ready(world)
    await watches._topic_event({"type": "MODIFIED", "object": first})
    second = copy.deepcopy(first)
    second["metadata"].update(uid="uid-2", resourceVersion=str(int(first["metadata"]["resourceVersion"]) + 100))
    await watches._topic_event({"type": "ADDED", "object": second})
    await watches._topic_event({"type": "DELETED", "object": first})
    assert count("True") == 1
    await watches._topic_event({"type": "DELETED", "object": second})
    assert count("True") == 0


class TwoPages:
    """An API server whose list has two pages, and that deletes the topic of the second page before it is read."""

    def __init__(self, listed: list[Manifest]) -> None:
        self.listed = listed
        self.watches: Watches | None = None

    async def call(self, method: str, path: str, query: Any = None, *_: object, **__: object) -> Manifest:
        first, second = self.listed
        if "token" not in str(query):
            return {"metadata": {"resourceVersion": "9", "continue": "token"}, "items": [first]}
        assert self.watches is not None
        await self.watches._topic_event({"type": "DELETED", "object": second})
        return {"metadata": {"resourceVersion": "9"}, "items": [second]}


async def test_a_topic_that_is_deleted_during_a_list_stays_deleted() -> None:
    world = World()
    world.cluster.create(gen.topic("orders"))
    world.cluster.create(gen.topic("payments"))
    await world.settle()
    listed = [copy.deepcopy(world.cluster.topic(name)) for name in ("orders", "payments")]
    unused: Any = None
    api: Any = TwoPages(listed)
    watches = api.watches = Watches(world.config, api, unused, world.operator, unused, unused)
    await watches._list_topics()
    assert world.operator.topics.get(("demo", "orders")) is not None
    assert world.operator.topics.get(("demo", "payments")) is None
    assert count("True") == 1
    await watches._topic_event({"type": "DELETED", "object": listed[0]})
