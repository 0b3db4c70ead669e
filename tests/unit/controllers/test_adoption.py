"""Existing Kafka topics and tables that a new IcebergTopic may have, and tables of other control planes."""

from dataclasses import replace
from typing import Any

import pytest

from firn.model.config import Config
from firn.model.errors import UnavailableError
from firn.model.jobs import TableTarget
from firn.tables.ownership import Ownership
from tests import gen
from tests.fakes.tables import Stored
from tests.fakes.world import World

NAME = ("classic", "flights")
TABLE = "lake.demo.flights"
UID = "uid-demo-flights"


def world(topics: str = "Owned", tables: str = "Owned", **changes: Any) -> World:
    return World(gen.adopting(topics, tables, **changes))


def existing(world: World, ownership: Ownership, **spec: Any) -> Stored:
    """Add the table of a topic with this spec, which exists before the topic."""
    observed = gen.observed(gen.topic(**spec))
    assert isinstance(observed.target, TableTarget)
    assert not isinstance(observed.schema, Exception)
    stored = world.tables.put(observed.target, observed.schema)
    stored.ownership = ownership
    return stored


async def created(world: World, name: str = "flights", uid: str = "", **spec: Any) -> tuple[str, str]:
    """Create a resource; return status and reason of SpecValid."""
    manifest = gen.topic(name, **spec)
    manifest["metadata"]["uid"] = uid or manifest["metadata"]["uid"]
    world.cluster.create(manifest)
    await world.settle()
    return world.conditions(name, manifest["metadata"]["namespace"])["SpecValid"]


async def settled(config: Config, **spec: Any) -> World:
    world = World(config)
    assert await created(world, **spec) == ("True", "Valid")
    return world


# Kafka topics


@pytest.mark.parametrize("rule", ["Never", "Owned"])
async def test_a_topic_of_another_client_is_not_adopted(rule: str) -> None:
    lake = world(topics=rule)
    await lake.topics.create(*NAME, 1, {"retention.ms": "1"})
    assert await created(lake, config={"retention.ms": "2"}) == ("False", "NotAllowed")
    for option in ("another topicName", "delete the Kafka topic", "profiles.classic.tenancy.adopt"):
        assert option in lake.message("SpecValid")
    assert lake.topics.topics[NAME].configs == {"retention.ms": "1"}
    assert not lake.cluster.contracts()


async def test_a_topic_that_may_not_be_adopted_outlives_its_resource() -> None:
    lake = world()
    await lake.topics.create(*NAME, 1, {})
    await created(lake, deletionPolicy={"topic": "Delete", "table": "Delete"})
    lake.cluster.remove("flights")
    await lake.settle()
    assert NAME in lake.topics.topics


async def test_a_profile_may_let_every_topic_be_adopted() -> None:
    lake = world(topics="Any")
    await lake.topics.create(*NAME, 1, {})
    assert await created(lake) == ("True", "Valid")
    assert lake.conditions()["TopicReady"] == ("True", "Adopted")


@pytest.mark.parametrize("table", ["flights", "renamed"])
async def test_a_namespace_adopts_the_topic_that_it_made(table: str) -> None:
    lake = await settled(gen.adopting("Owned"))
    lake.cluster.remove("flights")
    await lake.settle()
    assert await created(lake, "again", topicName="flights", table={"name": table}) == ("True", "Valid")
    assert lake.conditions("again")["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize("again", [True, False], ids=["created again", "corrected"])
async def test_a_refused_creation_gives_no_right_to_the_topic(*, again: bool) -> None:
    lake = world()
    assert await created(lake, config={"no.such.config": "1"}) == ("False", "BadTopicConfig")
    await lake.topics.create(*NAME, 1, {})
    if again:
        lake.cluster.remove("flights")
        await lake.settle()
        assert await created(lake, uid="uid-2") == ("False", "NotAllowed")
    else:
        lake.cluster.edit("flights", lambda manifest: manifest["spec"].update(config={}))
        await lake.settle()
        assert lake.conditions()["SpecValid"] == ("False", "NotAllowed")


async def test_another_namespace_does_not_adopt_the_topic() -> None:
    lake = await settled(gen.adopting("Owned"))
    lake.cluster.remove("flights")
    await lake.settle()
    assert await created(lake, "again", topicName="flights") == ("True", "Valid")
    lake.cluster.remove("again")
    await lake.settle()
    lake.cluster.create(gen.topic("taker", namespace="other", topicName="flights"))
    await lake.settle()
    assert lake.conditions("taker", "other")["SpecValid"] == ("False", "NotAllowed")


async def test_a_topic_that_another_client_creates_again_is_not_the_namespaces() -> None:
    lake = await settled(gen.adopting("Owned"))
    lake.cluster.remove("flights")
    await lake.settle()
    await lake.topics.delete(*NAME)
    await lake.topics.create(*NAME, 1, {})
    assert await created(lake, uid="uid-2") == ("False", "NotAllowed")


async def test_a_rule_of_never_refuses_what_the_namespace_made() -> None:
    lake = await settled(gen.adopting("Never", "Never"))
    lake.cluster.remove("flights")
    await lake.settle()
    assert await created(lake, "again", topicName="flights", table={"name": "new"}) == ("False", "NotAllowed")
    assert "Kafka topic flights exists already" in lake.message("SpecValid", "again")
    assert await created(lake, "third", table={"name": "flights"}) == ("False", "NotAllowed")
    assert f"table {TABLE} exists already" in lake.message("SpecValid", "third")


async def test_a_topic_is_the_namespaces_although_its_first_table_was_refused() -> None:
    lake = world()
    existing(lake, Ownership("uid-x", "other", "kubernetes-1"), table={"name": "taken"})
    lake.tables.store_problem = UnavailableError("object store: connection refused")
    lake.cluster.create(gen.topic("first", topicName="flights"))
    await lake.settle()
    assert NAME in lake.topics.topics
    assert not lake.cluster.contracts()
    lake.cluster.remove("first")
    lake.tables.store_problem = None
    await lake.settle()
    assert await created(lake, "second", topicName="flights") == ("True", "Valid")


async def test_the_records_of_its_table_show_that_a_topic_is_the_namespaces() -> None:
    """The operator remembers nothing, because the release was installed again."""
    lake = world()
    await lake.topics.create(*NAME, 1, {})
    topic_id = lake.topics.topics[NAME].topic_id
    existing(lake, Ownership("uid-before", "demo", "kubernetes-1")).topic_id = topic_id
    assert await created(lake) == ("True", "Valid")
    assert lake.conditions()["Ready"] == ("True", "AllReady")


async def test_an_operator_remembers_no_topic_that_a_resource_has() -> None:
    lake = await settled(gen.adopting("Owned"))
    kept = [place for place in lake.cluster.objects if place[3].startswith("firn-topic-")]
    assert kept == []
    lake.cluster.remove("flights")
    await lake.settle()
    kept = [place for place in lake.cluster.objects if place[3].startswith("firn-topic-")]
    assert len(kept) == 1
    await created(lake, uid="uid-2", deletionPolicy={"topic": "Delete"})
    lake.cluster.remove("flights")
    await lake.settle()
    assert not [place for place in lake.cluster.objects if place[3].startswith("firn-topic-")]
    assert not lake.topics.topics


# Tables


@pytest.mark.parametrize(
    ("ownership", "spec", "allowed"),
    [
        pytest.param(Ownership(), {}, False, id="of another tool"),
        pytest.param(Ownership("uid-x", "other", "kubernetes-1"), {}, False, id="of another namespace"),
        pytest.param(Ownership("uid-x", "demo", "kubernetes-1"), {}, True, id="of this namespace"),
        pytest.param(Ownership("uid-x"), {}, True, id="of an earlier release, in the namespace's table namespace"),
        pytest.param(Ownership("uid-x"), {"table": {"namespace": "all"}}, False, id="of an earlier release, elsewhere"),
        pytest.param(Ownership(consent="demo/flights"), {}, True, id="of another tool, with consent"),
        pytest.param(Ownership(consent="demo/other"), {}, False, id="with consent for another resource"),
        pytest.param(Ownership("uid-x", "other", consent="demo/flights"), {}, True, id="of a namespace that consents"),
    ],
)
async def test_a_namespace_adopts_only_its_own_tables(
    ownership: Ownership, spec: dict[str, Any], *, allowed: bool
) -> None:
    lake = world()
    stored = existing(lake, ownership, **spec)
    condition = await created(lake, **spec)
    assert condition == (("True", "Valid") if allowed else ("False", "NotAllowed"))
    if allowed:
        assert stored.ownership == Ownership(UID, "demo", "kubernetes-1")
    else:
        assert stored.ownership == ownership
        assert "firn.adopt to demo/flights" in lake.message("SpecValid")
        assert not lake.topics.topics, "nothing was created for a refused resource"


async def test_consent_counts_under_every_rule_and_only_once() -> None:
    lake = world(tables="Never")
    stored = existing(lake, Ownership(consent="demo/flights"))
    assert await created(lake) == ("True", "Valid")
    assert stored.ownership.consent == ""
    lake.cluster.remove("flights")
    await lake.settle()
    assert await created(lake, uid="uid-2", topicName="fresh", table={"name": "flights"}) == ("False", "NotAllowed")


async def test_a_topic_creates_no_table_in_place_of_that_of_a_connector() -> None:
    lake = world()
    spec: dict[str, Any] = {"ingestion": {"adopt": {"connect": {"group": "connect-flights"}}}}
    assert await created(lake, **spec) == ("False", "InvalidSpec")
    message = lake.message("SpecValid")
    assert (
        "spec.ingestion.adopt.connect: table lake.demo.flights does not exist, so no connector has written" in message
    )
    assert not lake.topics.topics
    stored = existing(lake, Ownership(consent="demo/flights"), **spec)
    assert await created(lake, uid="uid-2", **spec) == ("True", "Valid")
    assert stored.ownership.consent == ""


async def test_the_owner_leaves_a_consent_for_its_name_in_another_cluster() -> None:
    lake = await settled(gen.adopting())
    stored = lake.tables.tables[TABLE]
    stored.ownership = replace(stored.ownership, consent="demo/flights")
    lake.start()
    await lake.settle()
    assert stored.ownership.consent == "demo/flights"


async def test_an_upgrade_keeps_what_is_adopted() -> None:
    lake = world("Any", "Any")
    await lake.topics.create(*NAME, 1, {})
    stored = existing(lake, Ownership())
    assert await created(lake) == ("True", "Valid")
    stored.ownership = Ownership(UID)  # as an earlier release marked it
    lake.start(gen.adopting("Never", "Never"))
    await lake.settle()
    assert lake.conditions()["Ready"] == ("True", "AllReady")
    assert stored.ownership == Ownership(UID, "demo", "kubernetes-1")


# Other control planes


async def test_a_table_of_another_cluster_is_refused_under_every_rule() -> None:
    lake = world("Any", "Any")
    existing(lake, Ownership("uid-x", "demo", "kubernetes-2"))
    assert await created(lake) == ("False", "ResourceConflict")
    message = lake.message("SpecValid")
    assert "kubernetes-2" in message
    assert "firn.adopt to demo/flights" in message
    assert "formerClusters" in message
    assert not lake.topics.topics


async def test_a_topic_leaves_its_table_to_the_cluster_that_took_it() -> None:
    lake = await settled(gen.adopting("Any", "Any"))
    stored = lake.tables.tables[TABLE]
    stored.ownership = Ownership("uid-x", "demo", "kubernetes-2")
    lake.start()
    await lake.settle()
    assert lake.conditions()["SpecValid"] == ("False", "ResourceConflict")
    assert stored.ownership == Ownership("uid-x", "demo", "kubernetes-2")
    assert not lake.cluster.contracts()
    stored.ownership = replace(stored.ownership, consent="demo/flights")
    lake.start()
    await lake.settle()
    assert lake.conditions()["Ready"] == ("True", "AllReady")
    assert stored.ownership == Ownership(UID, "demo", "kubernetes-1")


async def test_a_rebuilt_cluster_continues_the_tables_of_its_former_cluster() -> None:
    lake = world(formerClusters=["kubernetes-0"])
    await lake.topics.create(*NAME, 1, {})
    stored = existing(lake, Ownership("uid-before", "demo", "kubernetes-0"))
    stored.topic_id = lake.topics.topics[NAME].topic_id
    assert await created(lake) == ("True", "Valid")
    assert stored.ownership == Ownership(UID, "demo", "kubernetes-1")


async def test_a_topic_leaves_its_table_to_the_namespace_of_another_release_that_adopted_it() -> None:
    lake = await settled(gen.adopting("Any", "Any"))
    stored = lake.tables.tables[TABLE]
    stored.ownership = Ownership("uid-y", "other", "kubernetes-1")
    lake.start()
    await lake.settle()
    assert lake.conditions()["SpecValid"] == ("False", "ResourceConflict")
    assert stored.owner == "uid-y"


async def test_a_table_of_format_3_is_the_resources_once_the_driver_has_marked_it() -> None:
    lake = world("Any", "Any")
    spec: dict[str, Any] = {"table": {"formatVersion": 3}}
    stored = existing(lake, Ownership("uid-x", "other", "kubernetes-1"), **spec)
    lake.pods_run = False
    assert await created(lake, **spec) == ("True", "Valid")
    lake.start()
    await lake.settle()
    assert lake.conditions()["SpecValid"] == ("True", "Valid")
    lake.pods_run = True
    await lake.settle()
    assert lake.conditions()["Ready"] == ("True", "AllReady")
    assert (stored.owner, stored.ownership.tenant) == (UID, "demo")
    stored.ownership = Ownership("uid-y", "other", "kubernetes-1")
    lake.pods_run = False
    lake.start()
    await lake.settle()
    assert lake.conditions()["SpecValid"] == ("False", "ResourceConflict")


async def test_no_run_maintains_a_table_that_another_cluster_took() -> None:
    lake = await settled(gen.adopting())
    lake.tables.tables[TABLE].ownership = Ownership("uid-x", "demo", "kubernetes-2")
    lake.start()
    await lake.settle()
    lake.owes(due_files=1000, due_bytes=10**9)
    lake.cluster.create(gen.policy(selector={}, triggers={"dueFiles": 1}))
    await lake.settle()
    assert not lake.cluster.all("Job")


@pytest.mark.slow
@pytest.mark.parametrize("after", [True, False], ids=["after", "before"])
async def test_an_operator_killed_at_any_call_still_knows_the_maker_of_a_topic(*, after: bool) -> None:
    for call in range(1, 20):
        lake = await settled(gen.adopting("Owned"))
        lake.faults.kill_at, lake.faults.after_effect = lake.faults.calls + call, after
        lake.cluster.remove("flights")
        lake.cluster.create(gen.topic("again", topicName="flights", table={"name": "new"}))
        await lake.settle()
        assert lake.conditions("again")["Ready"] == ("True", "AllReady"), call
        assert lake.conditions("again")["TopicReady"] == ("True", "Adopted")
