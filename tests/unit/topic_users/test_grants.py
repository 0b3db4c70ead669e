"""Grants of a TopicUser: which ACLs they give, what is refused, and which events bring a change."""

from typing import Any

import pytest

from firn.model.config import Config
from firn_controllers.ports import AclRule
from tests import gen
from tests.fakes.world import World
from tests.unit.topic_users.test_users import A, acls, conditions, edit, message, status

PLATFORM = "platform"


@pytest.fixture
async def world() -> World:
    world = World(gen.with_users())
    world.cluster.create(gen.topic("flights", profile="outside"))
    for name, team in (("orders", "shop"), ("carts", "shop"), ("clicks", "web")):
        manifest = gen.topic(name, profile="outside", table={"name": name})
        manifest["metadata"]["labels"] = {"team": team}
        world.cluster.create(manifest)
    world.cluster.create(gen.topic("events", namespace=PLATFORM, profile="outside"))
    await world.settle()
    return world


async def created(world: World, *grants: dict[str, Any], **spec: Any) -> None:
    world.cluster.create(gen.user("checkout", grants=list(grants), **spec))
    await world.settle()


def rules(world: World, kind: str = "Topic") -> set[tuple[str, str]]:
    """Return name and operation of the user's ACLs on resources of a kind."""
    return {(rule.name, rule.operation) for rule in acls(world, A) if rule.resource == kind}


def topics(world: World) -> set[str]:
    return {name for name, _ in rules(world)}


def refused(world: World) -> dict[tuple[str, str], str]:
    return {(each["topic"], each["role"]): each["why"] for each in status(world).get("refused", ())}


def offer(world: World, **spec: Any) -> None:
    whole = {
        "topics": [{"name": "events"}],
        "to": [{"namespace": "demo", "users": ["*"]}],
        "roles": ["Consume"],
        **spec,
    }
    world.cluster.create(gen.grant("events-for-demo", PLATFORM, **whole))


FOREIGN = {"topics": [{"name": "events", "namespace": PLATFORM}], "roles": ["Consume"]}


async def test_each_role_gives_its_operations(world: World) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce", "Consume", "Alter"]})
    operations = {"Write", "Read", "Describe", "Alter", "AlterConfigs", "DescribeConfigs"}
    assert rules(world) == {("flights", operation) for operation in operations}
    assert AclRule("Group", "demo.checkout.", "Prefixed", "Read") in acls(world, A)


async def test_only_consumers_get_groups(world: World) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce"], "groups": ["demo.x"]})
    assert rules(world, "Group") == set()


@pytest.mark.parametrize(
    ("groups", "given"),
    [
        (["demo.reports"], {("demo.reports", "Literal")}),
        (["demo.reports-*", "demo.*"], {("demo.reports-", "Prefixed"), ("demo.", "Prefixed")}),
    ],
)
async def test_groups_of_the_namespace_are_given(world: World, groups: list[str], given: set[tuple[str, str]]) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Consume"], "groups": groups})
    assert {(rule.name, rule.pattern) for rule in acls(world, A) if rule.resource == "Group"} == given


@pytest.mark.parametrize("group", ["*", "demo*", "shop.reports", "shop.*", "de*"])
async def test_groups_of_other_namespaces_are_refused(world: World, group: str) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Consume"], "groups": [group]})
    assert rules(world, "Group") == set()
    assert refused(world) == {(f"group {group}", "Consume"): "GroupNotAllowed"}
    assert conditions(world)["Stalled"] == ("True", "RefusedForSome")


async def test_the_configuration_can_allow_other_groups(world: World) -> None:
    world.start(gen.with_users(groups=["*"]))
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Consume"], "groups": ["*", "connect-*"]})
    assert rules(world, "Group") == {("*", "Read"), ("connect-", "Read")}


async def test_transactional_ids_of_the_namespace_are_given_with_produce(world: World) -> None:
    ids = ["demo.payments", "demo.checkout-*"]
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce"], "transactionalIds": ids})
    given = {rule for rule in acls(world, A) if rule.resource == "TransactionalId"}
    assert given == {
        AclRule("TransactionalId", "demo.payments", "Literal", "Write"),
        AclRule("TransactionalId", "demo.payments", "Literal", "Describe"),
        AclRule("TransactionalId", "demo.checkout-", "Prefixed", "Write"),
        AclRule("TransactionalId", "demo.checkout-", "Prefixed", "Describe"),
    }
    assert conditions(world)["Ready"] == ("True", "AllReady")
    edit(world, grants=[{"topics": [{"name": "flights"}], "roles": ["Produce"]}])
    await world.settle()
    assert rules(world, "TransactionalId") == set()


async def test_a_user_without_a_topic_to_write_has_no_transactional_id(world: World) -> None:
    grant = {"topics": [{"name": "absent"}], "roles": ["Produce"], "transactionalIds": ["demo.payments"]}
    await created(world, grant)
    assert acls(world, A) == frozenset()


@pytest.mark.parametrize("id", ["*", "demo*", "shop.payments", "shop.*"])
async def test_transactional_ids_of_other_namespaces_are_refused(world: World, id: str) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce"], "transactionalIds": [id]})
    assert rules(world, "TransactionalId") == set()
    assert refused(world) == {(f"transactional id {id}", "Produce"): "TransactionalIdNotAllowed"}
    assert "profiles.outside.users.transactionalIds" in message(world, "GrantsApplied")
    world.start(gen.with_users(transactionalIds=["*"]))
    await world.settle()
    assert rules(world, "TransactionalId") != set()


async def test_diskless_brokers_have_no_transactions(world: World) -> None:
    document = gen.with_users().model_dump(by_alias=True)
    document["profiles"]["waves"] = gen.diskless(access={"certificate": {"secret": "brokers-tls"}}, users={})
    world.start(Config.model_validate(document))
    world.cluster.create(gen.topic("swell", profile="waves", table={"name": "swell"}))
    grant = {"topics": [{"name": "swell"}], "roles": ["Produce"], "transactionalIds": ["demo.payments"]}
    await created(world, grant, profile="waves")
    found = {each["topic"]: each["why"] for each in status(world)["refused"]}
    assert found["transactional id demo.payments"] == "NotSupported"
    assert "have no transactions; remove transactionalIds" in message(world, "GrantsApplied")


async def test_a_selector_follows_topics_and_labels(world: World) -> None:
    await created(world, {"topics": [{"selector": {"matchLabels": {"team": "shop"}}}], "roles": ["Produce"]})
    assert topics(world) == {"orders", "carts"}
    world.cluster.edit("clicks", lambda live: live["metadata"]["labels"].update(team="shop"), spec=False)
    world.cluster.edit("carts", lambda live: live["metadata"]["labels"].update(team="web"), spec=False)
    await world.settle(60)
    assert topics(world) == {"orders", "clicks"}
    new = gen.topic("returns", profile="outside", table={"name": "returns"})
    new["metadata"]["labels"] = {"team": "shop"}
    world.cluster.create(new)
    world.cluster.remove("orders")
    await world.settle(60)
    assert topics(world) == {"returns", "clicks"}
    assert status(world)["topics"] == 2


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ({}, {"flights", "orders", "carts", "clicks"}),
        ({"matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["shop"]}]}, {"flights", "clicks"}),
        (
            {"matchLabels": {"team": "shop"}, "matchExpressions": [{"key": "x", "operator": "Exists"}]},
            set(),
        ),
    ],
)
async def test_selectors_match_as_those_of_policies(world: World, selector: dict[str, Any], found: set[str]) -> None:
    await created(world, {"topics": [{"selector": selector}], "roles": ["Produce"]})
    assert topics(world) == found


async def test_a_missing_topic_is_refused_until_it_exists(world: World) -> None:
    await created(world, {"topics": [{"name": "flights"}, {"name": "late"}], "roles": ["Produce"]})
    assert topics(world) == {"flights"}
    assert refused(world) == {("demo/late", "Produce"): "TopicNotFound"}
    assert conditions(world)["GrantsApplied"] == conditions(world)["Ready"] == ("False", "RefusedForSome")
    assert conditions(world)["Reconciling"] == ("True", "RefusedForSome")
    world.cluster.create(gen.topic("late", profile="outside", table={"name": "late"}))
    await world.settle(60)
    assert topics(world) == {"flights", "late"}
    assert conditions(world)["Ready"] == ("True", "AllReady")
    assert "refused" not in status(world)


async def test_the_end_of_a_topic_ends_its_rights(world: World) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce"]})
    world.cluster.remove("flights")
    await world.settle(60)
    assert rules(world) == set()


async def test_a_topic_that_another_resource_has_gives_no_rights(world: World) -> None:
    thief = gen.topic("thief", profile="outside", topicName="flights", table={"name": "thief"})
    thief["metadata"]["creationTimestamp"] = "2026-03-02T10:00:00Z"
    world.cluster.create(thief)
    await world.settle()
    await created(world, {"topics": [{"name": "thief"}], "roles": ["Consume"]})
    assert rules(world) == set()
    assert refused(world) == {("demo/thief", "Consume"): "TopicConflict"}


async def test_a_topic_of_another_profile_is_refused(world: World) -> None:
    world.cluster.create(gen.topic("here", profile="classic", table={"name": "here"}))
    await world.settle()
    await created(world, {"topics": [{"name": "here"}], "roles": ["Produce"]})
    assert refused(world) == {("demo/here", "Produce"): "OtherProfile"}
    assert conditions(world)["Stalled"] == ("True", "RefusedForSome")


@pytest.mark.parametrize("role", ["ReadTable", "ReadDeadLetters"])
async def test_roles_in_catalogs_are_refused(world: World, role: str) -> None:
    await created(world, {"topics": [{"name": "flights"}], "roles": ["Produce", role]})
    assert topics(world) == {"flights"}
    assert refused(world) == {("demo/flights", role): "NotSupported"}


async def test_another_namespace_has_to_consent(world: World) -> None:
    await created(world, FOREIGN)
    assert refused(world) == {("platform/events", "Consume"): "NoGrant"}
    offer(world)
    await world.settle(60)
    assert topics(world) == {"events"}
    assert conditions(world)["Ready"] == ("True", "AllReady")
    world.cluster.remove("events-for-demo", PLATFORM, kind="TopicGrant")
    await world.settle(60)
    assert rules(world) == set()
    assert refused(world) == {("platform/events", "Consume"): "NoGrant"}


@pytest.mark.parametrize(
    "spec",
    [
        {"topics": [{"name": "others"}]},
        {"topics": [{"selector": {"matchLabels": {"public": "true"}}}]},
        {"to": [{"namespace": "shop", "users": ["*"]}]},
        {"to": [{"namespace": "demo", "users": ["report-*"]}]},
        {"roles": ["Produce"]},
    ],
)
async def test_a_grant_for_something_else_is_no_consent(world: World, spec: dict[str, Any]) -> None:
    offer(world, **spec)
    await created(world, FOREIGN)
    assert refused(world) == {("platform/events", "Consume"): "NoGrant"}


async def test_a_user_does_not_learn_which_topics_another_namespace_has(world: World) -> None:
    await created(world, {"topics": [{"name": "none", "namespace": PLATFORM}], "roles": ["Consume"]})
    missing = message(world, "GrantsApplied").replace("none", "events")
    edit(world, grants=[FOREIGN])
    await world.settle()
    assert message(world, "GrantsApplied") == missing


async def test_a_grant_by_labels_ends_with_the_label(world: World) -> None:
    world.cluster.edit("events", lambda live: live["metadata"].update(labels={"public": "true"}), PLATFORM, spec=False)
    offer(world, topics=[{"selector": {"matchLabels": {"public": "true"}}}])
    await created(world, FOREIGN)
    assert topics(world) == {"events"}
    world.cluster.edit("events", lambda live: live["metadata"].update(labels={}), PLATFORM, spec=False)
    await world.settle(60)
    assert rules(world) == set()


async def test_a_status_lists_twenty_refusals_and_counts_all(world: World) -> None:
    await created(world, {"topics": [{"name": f"t{number}"} for number in range(30)], "roles": ["Produce"]})
    assert (len(status(world)["refused"]), status(world)["grantsRefused"]) == (20, 30)
    assert "and 27 more" in message(world, "GrantsApplied")
