"""TopicSets in a world in memory: which IcebergTopics they make, change and delete, and what their status says."""

from typing import Any

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from firn_controllers.ports import Manifest, TopicNames, TopicState
from tests import gen
from tests.fakes.world import World

TOPICS = ("dev.shop.orders", "dev.shop.carts", "dev.web.clicks")


def made(world: World) -> dict[str, str]:
    """Return name and Kafka topic of each IcebergTopic."""
    return {live["metadata"]["name"]: live["spec"].get("topicName", "") for live in world.cluster.topics()}


def status(world: World, name: str = "events") -> Manifest:
    found: Manifest = world.cluster.resource("TopicSet", name)["status"]
    return found


def counts(world: World, name: str = "events") -> tuple[int, ...]:
    """Return the numbers of matched, made, kept and refused topics."""
    shown = status(world, name)
    return tuple(shown[key] for key in ("matched", "made", "kept", "topicsRefused"))


def refused(world: World, name: str = "events") -> dict[str, str]:
    return {each["topic"]: each["why"] for each in status(world, name).get("refused", ())}


def ready(world: World, name: str = "events") -> tuple[str, str]:
    return world.conditions(name, kind="TopicSet")["Ready"]


@pytest.fixture
def world() -> World:
    world = World(gen.adopting())
    for topic in TOPICS:
        add(world, topic)
    return world


def add(world: World, topic: str) -> None:
    """Create a Kafka topic, as a client does."""
    world.topics.topics["classic", topic] = TopicState(topic, f"id-{topic}", 1, {})


def remove(world: World, removal: str) -> None:
    """Change the field removal of the set."""
    world.cluster.edit("events", lambda live: live["spec"].update(removal=removal), kind="TopicSet")


async def created(world: World, *modifiers: gen.Modifier, name: str = "events", **spec: Any) -> None:
    """Create a set, and let the operator finish its work."""
    world.cluster.create(gen.topic_set(name, *modifiers, **spec))
    await world.settle()


async def test_each_matched_topic_gets_an_iceberg_topic(world: World) -> None:
    add(world, "prod.shop.orders")
    await created(world)
    assert made(world) == {
        "shop-orders": "dev.shop.orders",
        "shop-carts": "dev.shop.carts",
        "web-clicks": "dev.web.clicks",
    }
    topic = world.cluster.topic("shop-orders")
    assert topic["spec"] == {
        "profile": "classic",
        "topicName": "dev.shop.orders",
        "table": {"namespace": "shop", "name": "orders"},
    }
    assert topic["metadata"]["labels"] == {names.LABEL_TOPIC_SET: "events"}
    assert "ownerReferences" not in topic["metadata"]
    assert world.conditions("shop-orders")["TopicReady"] == ("True", "Adopted")
    assert counts(world) == (3, 3, 0, 0)
    assert world.conditions("events", kind="TopicSet") == {
        "Ready": ("True", "AllReady"),
        "SpecValid": ("True", "Valid"),
        "TopicsListed": ("True", "Listed"),
    }
    assert [event for event in world.cluster.events if event[1] == "TopicsChanged"] == [
        ("events", "TopicsChanged", "IcebergTopics of the set: 3 created")
    ]


async def test_a_new_topic_is_found_within_an_interval(world: World) -> None:
    await created(world)
    add(world, "dev.web.visits")
    world.clock.advance(31)
    await world.settle()
    assert "web-visits" in made(world)
    assert counts(world) == (4, 4, 0, 0)


async def test_a_quiet_pass_writes_nothing(world: World) -> None:
    await created(world)
    before = len(world.faults.log)
    world.clock.advance(1000)
    await world.settle()
    assert [line for line in world.faults.log[before:] if "IcebergTopic" in line or line == "status events"] == []


async def test_a_changed_template_updates_the_iceberg_topics_and_keeps_the_fields_of_users(world: World) -> None:
    await created(world)
    world.cluster.edit("shop-orders", lambda live: live["spec"].update(ingestion={"freshness": "10s"}))
    changed = {"metadata": {"name": "$team-$name", "labels": {"team": "$team"}}, "spec": {"suspend": True}}
    world.cluster.edit("events", lambda live: live["spec"].update(template=changed), kind="TopicSet")
    await world.settle()
    topic = world.cluster.topic("shop-orders")
    assert topic["metadata"]["labels"]["team"] == "shop"
    assert topic["spec"]["suspend"] is True
    assert topic["spec"]["ingestion"] == {"freshness": "10s"}


async def test_an_edit_of_a_field_of_the_template_is_reverted(world: World) -> None:
    await created(world, template={"metadata": {"name": "$name"}, "spec": {"ingestion": {"freshness": "30s"}}})
    world.cluster.edit("orders", lambda live: live["spec"]["ingestion"].update(freshness="5m"))
    world.clock.advance(3)
    await world.settle()
    assert world.cluster.topic("orders")["spec"]["ingestion"]["freshness"] == "30s"


async def test_a_new_name_in_the_template_renames_no_iceberg_topic(world: World) -> None:
    await created(world)
    world.cluster.edit(
        "events", lambda live: live["spec"]["template"]["metadata"].update(name="$name-of-$team"), kind="TopicSet"
    )
    add(world, "dev.web.visits")
    world.clock.advance(31)
    await world.settle()
    assert set(made(world)) == {"shop-orders", "shop-carts", "web-clicks", "visits-of-web"}


async def test_a_deleted_iceberg_topic_of_a_matched_topic_is_created_again(world: World) -> None:
    await created(world)
    world.cluster.remove("shop-orders")
    await world.settle()
    assert "shop-orders" in made(world)


@pytest.mark.parametrize(("removal", "left"), [("Keep", 3), ("Delete", 1)])
async def test_removal_decides_about_topics_that_no_longer_match(world: World, removal: str, left: int) -> None:
    await created(world, removal=removal)
    world.cluster.edit("events", lambda live: live["spec"].update(exclude="shop"), kind="TopicSet")
    await world.settle()
    assert len(made(world)) == left
    assert counts(world) == (1, 1, left - 1, 0)
    assert len(world.topics.topics) == 3, "deletionPolicy keeps the Kafka topics"


@pytest.mark.parametrize(("removal", "left"), [("Keep", 3), ("Delete", 2)])
async def test_removal_decides_about_topics_that_are_gone(world: World, removal: str, left: int) -> None:
    await created(world, removal=removal)
    del world.topics.topics["classic", "dev.shop.orders"]
    world.clock.advance(31)
    await world.settle()
    assert len(made(world)) == left
    assert ("classic", "dev.shop.orders") not in world.topics.topics, "the operator does not create the topic again"


async def test_brokers_without_any_topic_of_the_set_delete_nothing(world: World) -> None:
    await created(world, removal="Delete")
    world.topics.topics.clear()
    add(world, "other.cluster")
    world.clock.advance(31)
    await world.settle()
    assert len(made(world)) == 3
    assert ready(world) == ("False", "TopicGone")
    for topic in TOPICS[1:]:
        add(world, topic)
    world.clock.advance(31)
    await world.settle()
    assert set(made(world).values()) == set(TOPICS[1:])
    assert ready(world) == ("True", "AllReady")


async def test_a_change_that_another_client_reverts_at_once_is_refused_and_not_repeated(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply = world.cluster.apply_topic

    async def reverted(manifest: Manifest, *, create: bool) -> Manifest:
        live = await apply(manifest, create=create)
        world.cluster.edit(live["metadata"]["name"], lambda each: each["spec"].update(suspend=False))
        return world.cluster.topic(live["metadata"]["name"])

    monkeypatch.setattr(world.cluster, "apply_topic", reverted)
    await created(world, template={"metadata": {"name": "$name"}, "spec": {"suspend": True}})
    assert refused(world) == dict.fromkeys(TOPICS, "InvalidSpec")
    assert ready(world) == ("False", "RefusedForSome")
    assert len([line for line in world.faults.log if line.startswith("apply IcebergTopic")]) == len(TOPICS)


async def test_a_paused_set_deletes_nothing_when_it_is_deleted(world: World) -> None:
    await created(world, removal="Delete")
    paused = gen.annotated(names.PAUSE, "true")
    world.cluster.edit("events", paused, kind="TopicSet", spec=False)
    world.cluster.remove("events", kind="TopicSet")
    await world.settle()
    assert len(made(world)) == 3


async def test_a_kept_iceberg_topic_says_that_its_topic_is_gone(world: World) -> None:
    await created(world)
    del world.topics.topics["classic", "dev.shop.orders"]
    world.start()
    await world.settle()
    assert world.conditions("shop-orders")["TopicReady"] == ("False", "TopicGone")
    add(world, "dev.shop.orders")
    await world.settle()
    assert world.conditions("shop-orders")["TopicReady"] == ("True", "Adopted")


async def test_a_topic_that_is_missing_only_from_the_list_keeps_its_iceberg_topic(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(world, removal="Delete")

    async def some(profile: str) -> TopicNames:
        return TopicNames(frozenset(TOPICS[1:]), "kafka-1")

    monkeypatch.setattr(world.topics, "list_names", some)
    world.clock.advance(31)
    await world.settle(300)
    assert "shop-orders" in made(world)


async def test_another_cluster_behind_the_address_deletes_nothing(world: World) -> None:
    """It has topics of the set, and lacks others."""
    await created(world, removal="Delete")
    assert status(world)["clusterId"] == "kafka-1"
    world.topics.cluster_id = "kafka-2"
    del world.topics.topics["classic", "dev.shop.orders"]
    add(world, "dev.web.other")
    world.start()
    world.clock.advance(31)
    await world.settle(300)
    assert set(made(world)) == {"shop-orders", "shop-carts", "web-clicks"}
    assert ready(world) == ("False", "OtherCluster")
    assert world.conditions("events", kind="TopicSet")["Stalled"] == ("True", "OtherCluster")
    assert "of Kafka cluster kafka-2, and the set has the topics of cluster kafka-1" in world.message(
        "Ready", "events", of="TopicSet"
    )
    assert status(world)["clusterId"] == "kafka-1"


async def test_a_set_goes_on_when_its_cluster_is_back_or_when_it_may_follow_the_other_one(world: World) -> None:
    await created(world, removal="Delete")
    world.topics.cluster_id = "kafka-2"
    world.clock.advance(31)
    await world.settle()
    assert ready(world) == ("False", "OtherCluster")
    world.topics.cluster_id = "kafka-1"
    world.clock.advance(31)
    await world.settle()
    assert ready(world) == ("True", "AllReady")
    world.topics.cluster_id = "kafka-2"
    for removal in ("Keep", "Delete"):
        remove(world, removal)
        world.clock.advance(31)
        await world.settle()
        assert ready(world) == ("True", "AllReady")
        assert status(world)["clusterId"] == "kafka-2"


@pytest.mark.parametrize(("removal", "left"), [("Keep", 3), ("Delete", 0)])
async def test_removal_decides_at_the_deletion_of_the_set(world: World, removal: str, left: int) -> None:
    await created(world, removal="Delete")
    remove(world, removal)
    world.cluster.remove("events", kind="TopicSet")
    await world.settle()
    assert world.cluster.all("TopicSet") == []
    assert len(made(world)) == left


async def test_a_set_that_is_created_again_continues_with_its_iceberg_topics(world: World) -> None:
    await created(world)
    uids = {live["metadata"]["uid"] for live in world.cluster.topics()}
    world.cluster.remove("events", kind="TopicSet")
    await world.settle()
    await created(world)
    assert {live["metadata"]["uid"] for live in world.cluster.topics()} == uids
    assert counts(world) == (3, 3, 0, 0)


async def test_more_matches_than_the_limit_make_nothing_of_the_excess(world: World) -> None:
    await created(world, limit=2)
    assert set(made(world)) == {"shop-carts", "shop-orders"}
    assert ready(world) == ("False", "LimitReached")
    assert world.conditions("events", kind="TopicSet")["LimitReached"] == ("True", "LimitReached")
    add(world, "dev.a.first")
    world.clock.advance(31)
    await world.settle()
    assert set(made(world)) == {"shop-carts", "shop-orders"}, "topics that have an IcebergTopic come first"
    world.cluster.edit("events", lambda live: live["spec"].update(limit=4), kind="TopicSet")
    await world.settle()
    assert len(made(world)) == 4
    assert "LimitReached" not in world.conditions("events", kind="TopicSet")


async def test_a_stranger_of_the_same_name_is_not_touched(world: World) -> None:
    world.cluster.create(gen.topic("shop-orders", topicName="another"))
    before = dict(world.cluster.topic("shop-orders")["spec"])
    await created(world)
    assert world.cluster.topic("shop-orders")["spec"] == before
    assert refused(world) == {"dev.shop.orders": "NameConflict"}
    assert ready(world) == ("False", "RefusedForSome")
    world.cluster.remove("shop-orders")
    await world.settle()
    assert ready(world) == ("True", "AllReady")


async def test_a_topic_that_another_iceberg_topic_serves_is_refused(world: World) -> None:
    world.cluster.create(gen.topic("mine", topicName="dev.shop.orders", namespace="vault"))
    await created(world)
    assert refused(world) == {"dev.shop.orders": "TopicTaken"}
    message = status(world)["refused"][0]["message"]
    assert "vault" not in message
    assert "mine" not in message


async def test_the_older_of_two_sets_gets_the_topics_of_both(world: World) -> None:
    def younger(live: Manifest) -> None:
        live["metadata"]["creationTimestamp"] = "2026-03-01T10:00:01Z"

    world.cluster.create(gen.topic_set("younger", younger, match=r"^dev\.(?P<team>shop)\.(?P<name>.+)$"))
    await created(world)
    assert counts(world) == (3, 3, 0, 0)
    assert refused(world, "younger").keys() == {"dev.shop.carts", "dev.shop.orders"}
    assert set(refused(world, "younger").values()) <= {"MatchedByOlderSet", "TopicTaken"}
    world.cluster.remove("events", kind="TopicSet")
    await world.settle()
    assert set(refused(world, "younger").values()) == {"TopicTaken"}


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        ("dev.shop.Orders", "NameConflict"),
        ("dev.shop.orders_", "InvalidName"),
        ("dev.shop." + "x" * 60, "InvalidName"),
    ],
)
async def test_a_topic_without_a_name_of_its_own_is_refused(world: World, topic: str, why: str) -> None:
    await created(world)
    add(world, topic)
    world.clock.advance(31)
    await world.settle()
    assert refused(world) == {topic: why}
    assert counts(world) == (4, 3, 0, 1)


async def test_tables_whose_names_differ_only_in_case_are_refused(world: World) -> None:
    for topic in ("dev.shop.Orders.1", "dev.shop.orders.2"):
        add(world, topic)
    template = {"metadata": {"name": "$name-$part"}, "spec": {"table": {"namespace": "$team", "name": "$name"}}}
    match = r"^dev\.(?P<team>[a-z]+)\.(?P<name>[A-Za-z]+)\.(?P<part>[0-9])$"
    await created(world, match=match, template=template)
    assert set(made(world)) == {"orders-1"}
    assert refused(world) == {"dev.shop.orders.2": "TableConflict"}


async def test_a_template_that_the_api_server_refuses_for_every_topic_is_an_invalid_spec(world: World) -> None:
    world.cluster.refused_topics = dict.fromkeys(("shop-orders", "shop-carts", "web-clicks"), "no such field")
    await created(world)
    conditions = world.conditions("events", kind="TopicSet")
    assert conditions["SpecValid"] == ("False", "InvalidSpec")
    assert conditions["Stalled"] == ("True", "InvalidSpec")
    assert "no such field" in world.message("SpecValid", "events", "TopicSet")
    world.cluster.refused_topics = {}
    world.clock.advance(1000)
    await world.settle()
    assert ready(world) == ("True", "AllReady")


async def test_brokers_that_do_not_answer_are_named_and_change_nothing(world: World) -> None:
    world.topics.problem["classic"] = UnavailableError("cannot list topics at kafka:9092 (profile classic): timed out")
    await created(world)
    assert ready(world) == ("False", "BrokerUnreachable")
    assert made(world) == {}
    world.topics.problem.clear()
    await world.settle()
    assert counts(world) == (3, 3, 0, 0)
    world.topics.problem["classic"] = UnavailableError("cannot list topics at kafka:9092 (profile classic): timed out")
    world.clock.advance(31)
    await world.settle(300)
    assert counts(world) == (3, 3, 0, 0)
    assert world.conditions("events", kind="TopicSet")["TopicsListed"] == ("False", "BrokerUnreachable")


async def test_a_paused_set_changes_nothing(world: World) -> None:
    await created(world, gen.annotated(names.PAUSE, "true"))
    assert made(world) == {}
    assert world.conditions("events", kind="TopicSet")["Paused"] == ("True", "PausedByAnnotation")


async def test_many_topics_are_made_in_turns(world: World) -> None:
    for number in range(300):
        add(world, f"dev.many.t{number}")
    await created(world)
    assert counts(world) == (303, 303, 0, 0)
    assert ready(world) == ("True", "AllReady")


async def test_a_killed_operator_makes_each_iceberg_topic_once(world: World) -> None:
    for after_effect in (False, True):
        for kill_at in range(1, 12):
            other = World(gen.adopting())
            for topic in TOPICS:
                add(other, topic)
            other.faults.kill_at, other.faults.after_effect = kill_at, after_effect
            await created(other)
            assert counts(other) == (3, 3, 0, 0), (kill_at, after_effect)
            assert len([line for line in other.faults.log if line.startswith("apply IcebergTopic")]) == 3


BAD_TYPE = {
    "metadata": {"name": "$team-$name"},
    "spec": {"schema": {"format": "Json", "fields": [{"name": "id", "type": "integer"}]}},
}


async def test_a_template_without_a_valid_iceberg_topic_makes_none(world: World) -> None:
    await created(world, template=BAD_TYPE)
    assert made(world) == {}
    conditions = world.conditions("events", kind="TopicSet")
    assert (conditions["SpecValid"], conditions["Ready"]) == (("False", "InvalidSpec"), ("False", "InvalidSpec"))
    message = world.message("SpecValid", "events", "TopicSet")
    assert "spec.template gives no valid IcebergTopic: Kafka topic dev.shop.carts: template:" in message
    assert "integer" in message


async def test_a_changed_template_without_a_valid_iceberg_topic_changes_none(world: World) -> None:
    await created(world)
    before = made(world)
    world.cluster.edit("events", lambda live: live["spec"].update(template=BAD_TYPE), kind="TopicSet")
    await world.settle()
    assert world.conditions("events", kind="TopicSet")["SpecValid"] == ("False", "InvalidSpec")
    assert made(world) == before
    assert all("schema" not in live["spec"] for live in world.cluster.topics())


async def test_topics_whose_values_do_not_fit_are_refused_alone(world: World) -> None:
    fields = [{"name": "$name", "type": "long"}, {"name": "orders", "type": "long"}]
    template = {**BAD_TYPE, "spec": {"schema": {"format": "Json", "fields": fields}}}
    await created(world, template=template)
    assert refused(world) == {"dev.shop.orders": "InvalidSpec"}
    assert ready(world) == ("False", "RefusedForSome")
