"""Policies start the same runs wherever the operator is killed."""

from collections.abc import Callable
from typing import Any

import pytest

from firn.model import names
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import ALL, COMPACTION, RETENTION, UID, annotate, jobs, world_with


def asked_for(world: World) -> None:
    world.cluster.create(gen.policy(**ALL))
    world.cluster.create(gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, mode="Enforce", **ALL))
    annotate(world, "1", "flights")
    annotate(world, "2", "policy", COMPACTION)


def failing(world: World) -> None:
    world.maintainer.report_fields["uid-demo-trains"] = {"outcome": "Failed", "message": "no"}
    asked_for(world)


async def prepared() -> World:
    world = World()
    for name in ("flights", "trains"):
        world.cluster.create(gen.topic(name))
    await world.settle()
    return world


@pytest.mark.slow
@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", [asked_for, failing], ids=lambda story: story.__name__)
async def test_an_operator_killed_at_any_call_runs_each_table_once(
    story: Callable[[World], None], after_effect: bool
) -> None:
    world = await prepared()
    first = world.faults.calls
    story(world)
    await world.settle(seconds=50)
    calls, right = world.faults.calls - first, outline(world)
    assert calls > 8
    for number in range(1, calls + 1):
        world = await prepared()
        world.faults.kill_at, world.faults.after_effect = world.faults.calls + number, after_effect
        story(world)
        await world.settle(seconds=50)
        assert outline(world) == right, f"killed at call {number}"
        work = sorted((table.name, table.compaction is None) for run in world.maintainer.done for table in run.tables)
        assert work == [("flights", False), ("flights", True), ("trains", False)], f"killed at call {number}"


def outline(world: World) -> Any:
    """Return both statuses without times and names of runs. The packing of tables into runs may differ."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            dropped = {"name", "tables", "tablesFailed", "startTime", "finishTime", "lastTransitionTime", "nextRunTime"}
            return {key: plain(item) for key, item in value.items() if key not in dropped}
        return [plain(item) for item in value] if isinstance(value, list) else value

    topics = {topic["metadata"]["name"]: plain(topic["status"]) for topic in world.cluster.topics()}
    kinds = (COMPACTION, RETENTION)
    policies = {policy["metadata"]["name"]: policy["status"] for kind in kinds for policy in world.cluster.all(kind)}
    policy_statuses = {
        name: plain({**status, "lastRun": None, "conditions": None}) for name, status in policies.items()
    }
    return topics, policy_statuses


@pytest.mark.slow
async def test_a_second_reconcile_and_a_new_process_write_nothing() -> None:
    world = await prepared()
    asked_for(world)
    await world.settle()
    before = world.faults.writes()
    for _ in range(100):
        await world.step()
        world.clock.advance(10.0)
    world.start()
    for _ in range(30):
        await world.step()
        world.clock.advance(10.0)
    assert world.faults.log[before:] == []


async def test_a_recreated_policy_starts_without_history() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    (old,) = jobs(world)
    world.cluster.remove("policy", kind=COMPACTION)
    again = gen.policy(**ALL)
    again["metadata"]["uid"] = "uid-2"
    world.cluster.create(again)
    world.maintainer.hold = False
    await world.settle()
    assert all(job["metadata"]["labels"][names.LABEL_POLICY_UID] == "uid-2" for job in jobs(world))
    assert old["metadata"]["name"] not in [job["metadata"]["name"] for job in jobs(world)]
    assert [run.tables[0].uid for run in world.maintainer.done] == [UID]
