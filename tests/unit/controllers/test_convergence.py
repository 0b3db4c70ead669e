"""The world converges to the same state whatever happens to the operator, and a converged world is not changed."""

import copy
from collections.abc import Callable

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

Story = Callable[[World], None]


def created(world: World) -> None:
    world.cluster.create(gen.topic(config={"retention.ms": "1000"}, partitions=3))


def created_in_version_3(world: World) -> None:
    world.cluster.create(gen.topic(table={"formatVersion": 3}))


def two_for_one_topic(world: World) -> None:
    world.cluster.create(gen.topic("older", topicName="shared"))
    younger = gen.topic("younger", topicName="shared")
    younger["metadata"]["creationTimestamp"] = "2026-03-01T11:00:00Z"
    world.cluster.create(younger)


def created_on_diskless_brokers(world: World) -> None:
    world.start(gen.config(profiles={"classic": {}, "waves": gen.diskless(external={"host": "h"})}))
    world.cluster.create(gen.topic(profile="waves", config={"retention.ms": "1000"}))


def deleted_with_its_data(world: World) -> None:
    manifest = gen.topic(deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.cluster.create(manifest)


STORIES: list[Story] = [created, created_in_version_3, created_on_diskless_brokers, two_for_one_topic]


@pytest.mark.slow
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_a_second_reconcile_writes_nothing(story: Story) -> None:
    world = World()
    story(world)
    await world.settle()
    before = world.faults.writes()
    assert before > 0
    for _ in range(200):
        await world.step()
        world.clock.advance(10.0)
    assert world.faults.log[before:] == []


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_a_new_process_writes_nothing(story: Story) -> None:
    world = World()
    story(world)
    await world.settle()
    before = world.faults.writes()
    world.start()
    await world.settle()
    assert world.faults.log[before:] == []


async def calls_of(story: Story) -> tuple[int, World]:
    world = World()
    story(world)
    await world.settle()
    return world.faults.calls, world


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
async def test_an_operator_killed_at_any_call_converges_to_the_same_state(story: Story, after_effect: bool) -> None:
    calls, undisturbed = await calls_of(story)
    for number in range(1, calls + 1):
        world = World()
        world.faults.kill_at, world.faults.after_effect = number, after_effect
        story(world)
        await world.settle()
        assert world.state() == undisturbed.state(), f"killed at call {number}"


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
async def test_an_operator_killed_during_a_deletion_leaves_nothing(after_effect: bool) -> None:
    number = 0
    while True:
        number += 1
        world = World()
        deleted_with_its_data(world)
        await world.settle()
        first = world.faults.calls
        world.faults.kill_at, world.faults.after_effect = first + number, after_effect
        world.cluster.remove("flights")
        await world.settle()
        assert not world.topics.topics
        assert not world.tables.tables
        assert not world.cluster.contracts()
        assert not world.cluster.topics()
        if world.faults.calls < first + number:
            break
    assert number > 5


async def test_a_resource_deleted_while_no_operator_ran_leaves_no_contract() -> None:
    world = World()
    created(world)
    await world.settle()
    assert world.cluster.contracts()
    world.cluster.watch = []
    world.cluster.remove("flights")
    world.start()
    await world.settle()
    assert not world.cluster.contracts()
    assert world.topics.topics
    assert world.tables.tables


@pytest.mark.parametrize(
    ("key", "kind", "name", "edit"),
    [
        (("group", "default"), "StatefulSet", "firn-ingest-default", lambda live: live["spec"].update(replicas=2)),
        (("group", "default"), "ConfigMap", "firn-ingest-default", lambda live: live["data"].clear()),
        (("fleet", "classic"), "StatefulSet", "firn-broker-classic", lambda live: live["spec"].update(replicas=0)),
        (
            ("fleet", "classic"),
            "Service",
            "firn-broker-classic-bootstrap",
            lambda live: live["spec"].update(selector={"app": "other"}),
        ),
    ],
    ids=["driver scaled", "settings cleared", "brokers scaled", "selector changed"],
)
async def test_an_edited_child_is_restored(
    key: tuple[str, str], kind: str, name: str, edit: Callable[[Manifest], None]
) -> None:
    world = World()
    created(world)
    await world.settle()
    (live,) = (live for place, live in world.cluster.objects.items() if place[1] == kind and place[3] == name)
    before = copy.deepcopy(live)
    edit(live)
    await world.operator.reconcile(key)
    (after,) = (live for place, live in world.cluster.objects.items() if place[1] == kind and place[3] == name)
    content = {"metadata", "status"}
    assert {k: v for k, v in after.items() if k not in content} == {k: v for k, v in before.items() if k not in content}


async def test_an_edited_contract_is_restored() -> None:
    world = World()
    created(world)
    await world.settle()
    job = world.job()
    contract = world.cluster.contracts()["uid-demo-flights"]
    contract["data"]["job.json"] = contract["data"]["job.json"].replace("flights", "other")
    world.clock.advance(3600)
    await world.settle()
    assert world.job() == job


async def test_a_contract_of_an_unindexed_resource_is_no_orphan() -> None:
    world = World()
    created(world)
    await world.settle()
    before = copy.deepcopy(world.cluster.contracts())
    world.operator.topics.remove(("demo", "flights"), "uid-demo-flights")
    world.operator.topics.clear_deleted(("demo", "flights"), "uid-demo-flights")
    await world.operator.reconcile(("orphans",))
    assert world.cluster.contracts() == before


async def test_a_recreated_resource_adopts_the_kept_topic_and_table() -> None:
    world = World()
    created(world)
    await world.settle()
    kept = world.topics.topics["classic", "flights"]
    world.cluster.remove("flights")
    again = gen.topic()
    again["metadata"]["uid"] = "uid-2"
    world.cluster.create(again)
    await world.settle()
    assert list(world.cluster.contracts()) == ["uid-2"]
    assert world.topics.topics["classic", "flights"].topic_id == kept.topic_id
    assert world.conditions()["TopicReady"] == ("True", "Adopted")
    assert world.conditions()["TableReady"] == ("True", "Adopted")
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.tables.tables["lake.demo.flights"].owner == "uid-2"


async def test_conditions_report_failed_dependencies_and_recover() -> None:
    world = World()
    created(world)
    await world.settle()
    right = world.state()
    world.topics.problem["classic"] = UnavailableError("nobody answers")
    world.tables.problem["lake"] = UnavailableError("nobody answers")
    for _ in range(10):
        await world.step()
        world.clock.advance(5.0)
    assert world.conditions()["TopicReady"] == ("False", "BrokerUnreachable")
    assert world.conditions()["TableReady"] == ("False", "CatalogUnreachable")
    assert world.conditions()["Ready"] == ("False", "BrokerUnreachable")
    assert world.conditions()["Reconciling"] == ("True", "WaitingForDependency")
    assert world.cluster.contracts(), "ingestion continues"
    world.topics.problem.clear()
    world.tables.problem.clear()
    await world.settle()
    assert world.state() == right


async def test_a_catalog_outage_delays_only_the_table() -> None:
    world = World()
    world.tables.problem["lake"] = UnavailableError("nobody answers")
    created(world)
    await world.settle()
    assert world.conditions()["TopicReady"] == ("True", "Created")
    assert world.conditions()["IngestionReady"] == ("False", "Starting")
    world.tables.problem.clear()
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.conditions()["TopicReady"] == ("True", "Created")


async def test_a_new_hash_without_a_new_template_restarts_no_pod() -> None:
    world = World()
    created(world)
    await world.settle()
    before = dict(world.cluster.pod_states)
    world.start()
    await world.settle()
    assert world.cluster.pod_states == before
    assert all(
        names.TEMPLATE_HASH in contract["metadata"]["annotations"] for contract in world.cluster.contracts().values()
    )
