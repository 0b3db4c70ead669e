"""Rights that end while the operator does not follow a TopicUser: paused, refused, or in conflict over a ServiceAccount."""

from collections.abc import Callable

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from firn_controllers.ports import AclRule, PrincipalState
from tests import gen
from tests.fakes.world import World
from tests.unit.topic_users.test_users import (
    DESCRIBE,
    READ,
    WRITE,
    A,
    B,
    acls,
    annotate,
    conditions,
    edit,
    message,
    secret,
    status,
    works,
)

PLATFORM = "platform"
OAUTH = {"type": "OAuth", "serviceAccount": "web"}
ACCOUNT = "system:serviceaccount:demo:web"
EVENTS = frozenset(AclRule("Topic", "events", "Literal", operation) for operation in ("Write", "Describe"))
OWN = {"topics": [{"name": "flights"}], "roles": ["Produce"]}
FOREIGN = {"topics": [{"name": "events", "namespace": PLATFORM}], "roles": ["Produce"]}


def pause(world: World) -> None:
    annotate(world, names.PAUSE, "true")


def invalidate(world: World) -> None:
    edit(world, authentication={"rotation": {"every": "1d", "overlap": "2d"}})


def resume(world: World) -> None:
    annotate(world, names.PAUSE, "false")
    edit(world, authentication={})


STOPS = pytest.mark.parametrize("stop", [pause, invalidate])


@pytest.fixture
async def world() -> World:
    """Return a world in which user checkout may write to its own topic, and to one of another namespace."""
    world = World(gen.with_users())
    world.cluster.create(gen.topic("flights", profile="outside"))
    world.cluster.create(gen.topic("events", namespace=PLATFORM, profile="outside"))
    to = [{"namespace": "demo", "users": ["*"]}]
    world.cluster.create(gen.grant("events-for-demo", PLATFORM, topics=[{"name": "events"}], to=to, roles=["Produce"]))
    await world.settle()
    world.cluster.create(gen.user("checkout", grants=[OWN, FOREIGN]))
    await world.settle()
    assert acls(world, A) == {WRITE, DESCRIBE, *EVENTS}
    return world


@STOPS
async def test_the_owner_of_a_topic_ends_the_rights_of_a_user_that_is_not_followed(
    world: World, stop: Callable[[World], None]
) -> None:
    stop(world)
    await world.settle(60)
    assert acls(world, A) == {WRITE, DESCRIBE, *EVENTS}
    world.cluster.remove("events-for-demo", PLATFORM, kind="TopicGrant")
    await world.settle(60)
    assert acls(world, A) == {WRITE, DESCRIBE}
    assert works(world)


@STOPS
async def test_a_user_that_is_not_followed_gets_no_rights_and_no_credential(
    world: World, stop: Callable[[World], None]
) -> None:
    stop(world)
    more = {"topics": [{"name": "flights"}], "roles": ["Consume"]}
    edit(world, grants=[OWN, FOREIGN, more], quotas={"requestPercent": 50})
    annotate(world, names.ROTATE, "1")
    world.faults.log.clear()
    await world.settle()
    assert [line for line in world.faults.log if A in line or B in line] == []
    resume(world)
    await world.settle()
    assert {WRITE, DESCRIBE, READ, *EVENTS} < acls(world, B)
    assert secret(world).data["username"] == B


async def test_both_principals_lose_rights_during_an_overlap(world: World) -> None:
    annotate(world, names.ROTATE, "1")
    await world.settle()
    pause(world)
    edit(world, grants=[FOREIGN])
    await world.settle()
    assert acls(world, A) == acls(world, B) == EVENTS


async def test_a_user_that_the_configuration_no_longer_allows_has_no_rights(world: World) -> None:
    world.start(gen.with_users(namespaces=[PLATFORM]))
    await world.settle()
    assert conditions(world)["SpecValid"] == ("False", "NotAllowed")
    assert acls(world, A) == frozenset()
    assert world.access.accepts("outside", A, secret(world).data["password"])
    assert (status(world)["topics"], status(world)["principals"]) == (0, [f"User:{A}"])
    world.start(gen.with_users())
    await world.settle()
    assert acls(world, A) == {WRITE, DESCRIBE, *EVENTS}
    assert works(world)


@STOPS
async def test_a_user_cannot_keep_rights_that_the_configuration_no_longer_allows(
    world: World, stop: Callable[[World], None]
) -> None:
    stop(world)
    await world.settle()
    world.start(gen.with_users(namespaces=[PLATFORM]))
    await world.settle()
    assert acls(world, A) == frozenset()


@STOPS
async def test_a_removal_that_fails_is_reported_and_tried_again(world: World, stop: Callable[[World], None]) -> None:
    world.access.problem["change_acls"] = UnavailableError("no broker answers")
    stop(world)
    edit(world, grants=[OWN])
    await world.settle(60)
    assert acls(world, A) == {WRITE, DESCRIBE, *EVENTS}
    kind = "Paused" if stop is pause else "GrantsApplied"
    assert "the operator cannot change the ACLs of the user: no broker answers" in message(world, kind)
    world.access.problem.clear()
    world.clock.advance(3600)
    await world.settle()
    assert acls(world, A) == {WRITE, DESCRIBE}
    assert "cannot change" not in str(status(world))


@pytest.mark.parametrize("stop", ["paused", "profile"])
async def test_acls_of_a_user_that_was_never_followed_belong_to_administrators(world: World, stop: str) -> None:
    profile = "classic" if stop == "profile" else "outside"
    for each in ("classic", "outside"):
        world.access.put(each, "demo.batch.a", PrincipalState(frozenset({READ})))
    modifiers = [gen.annotated(names.PAUSE, "true")] if stop == "paused" else []
    world.cluster.create(gen.user("batch", *modifiers, profile=profile))
    await world.settle()
    for each in ("classic", "outside"):
        assert world.access.states[each, "demo.batch.a"].acls == {READ}


# Users of one ServiceAccount


async def account_user(world: World, name: str, created: str, *modifiers: gen.Modifier) -> None:
    manifest = gen.user(name, *modifiers, authentication=OAUTH, grants=[OWN])
    manifest["metadata"]["creationTimestamp"] = created
    world.cluster.create(manifest)
    await world.settle()


def change(world: World, name: str, value: str) -> None:
    live = lambda each: each["metadata"].setdefault("annotations", {}).update({names.PAUSE: value})  # noqa: E731
    world.cluster.edit(name, live, spec=False, kind="TopicUser")


async def test_a_paused_user_of_the_service_account_does_not_keep_rights(world: World) -> None:
    await account_user(world, "first", "2026-03-01T10:00:00Z")
    await account_user(world, "second", "2026-03-02T10:00:00Z", gen.annotated(names.PAUSE, "true"))
    assert acls(world, ACCOUNT) == {WRITE, DESCRIBE}
    world.cluster.remove("first", kind="TopicUser")
    await world.settle()
    assert acls(world, ACCOUNT) == frozenset()
    change(world, "second", "false")
    await world.settle()
    assert acls(world, ACCOUNT) == {WRITE, DESCRIBE}


async def test_two_users_of_a_service_account_are_deleted_together(world: World) -> None:
    await account_user(world, "second", "2026-03-02T10:00:00Z")
    await account_user(world, "first", "2026-03-01T10:00:00Z")
    for name in ("first", "second"):
        world.cluster.remove(name, kind="TopicUser")
    await world.settle()
    assert acls(world, ACCOUNT) == frozenset()
    assert {user["metadata"]["name"] for user in world.cluster.all("TopicUser")} == {"checkout"}


async def test_the_user_that_has_the_service_account_keeps_its_rights(world: World) -> None:
    await account_user(world, "second", "2026-03-02T10:00:00Z")
    await account_user(world, "first", "2026-03-01T10:00:00Z")
    assert conditions(world, "second")["SpecValid"] == ("False", "ResourceConflict")
    change(world, "second", "true")
    await world.settle()
    change(world, "second", "false")
    world.faults.log.clear()
    world.cluster.remove("second", kind="TopicUser")
    await world.settle()
    assert f"change ACLs {ACCOUNT}" not in world.faults.log
    assert acls(world, ACCOUNT) == {WRITE, DESCRIBE}
