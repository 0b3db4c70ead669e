"""A policy of many topics: its reconcile shares the event loop, and a bulk of changed topics asks for few of them."""

import asyncio
from typing import Any

import pytest
from cronsim import CronSim

from firn_controllers.ports import TableDebt
from firn_controllers.queue import Key, Outcome
from firn_controllers.reconcilers.policy.reconciler import TOPICS_PER_SECOND
from firn_controllers.reconcilers.policy.subjects import AT_A_TIME
from firn_controllers.specs import calendar
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import ALL, COMPACTION, HOURLY, MANY, RETENTION, active

TOPICS = 2 * AT_A_TIME + 1
POLICY: Key = ("policy", COMPACTION, "demo", "policy")
NIGHTLY = [{"cron": "0 1 * * *", "duration": "3h", "timeZone": "Europe/Berlin"}]


async def world_with_topics(*policies: Any, topics: int = TOPICS) -> World:
    """Return a world in which the operator has seen policies and topics with tables, and has reconciled nothing."""
    world = World()
    for policy in policies:
        world.cluster.create(policy)
    for number in range(topics):
        manifest = gen.topic(f"t{number}")
        manifest["status"]["table"] = {"uuid": f"table-{number}"}
        world.cluster.create(manifest)
    return world


def due(world: World, *keys: Key) -> set[Key]:
    """Return which of the keys wait for a worker now. All waiting keys are taken off the queue."""
    schedule = world.operator.queue.schedule
    schedule.release()
    begun = set()
    while (key := schedule.start_next()) is not None:
        begun.add(key)
    return begun & set(keys)


async def test_other_tasks_run_during_the_reconcile_of_a_policy_of_many_topics() -> None:
    world = await world_with_topics(gen.policy("policy", **ALL))
    reconciling = asyncio.create_task(world.operator.reconcile(POLICY))
    turns = 0
    while not reconciling.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 3 * (TOPICS // AT_A_TIME), "topics are observed, decided and published in turns"


async def test_the_calendar_is_read_once_for_all_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_with_topics(gen.policy("policy", schedule=HOURLY, windows=NIGHTLY, **ALL))
    reads = 0

    def count(*args: Any, **kwargs: Any) -> CronSim:
        nonlocal reads
        reads += 1
        return CronSim(*args, **kwargs)

    monkeypatch.setattr(calendar, "CronSim", count)
    await world.operator.reconcile(POLICY)
    assert reads < 20


async def test_two_policies_that_are_reconciled_at_once_do_not_work_on_one_table() -> None:
    keep = gen.policy("keep", gen.annotated("firn.dev/run-now", "1"), kind=RETENTION, snapshots={"maxAge": "7d"}, **ALL)
    world = await world_with_topics(gen.policy("policy", triggers={"smallFiles": 100}, **ALL), keep)
    last = TOPICS - 1
    world.operator.board.debts[f"uid-demo-t{last}"] = TableDebt(table_uuid=f"table-{last}", **MANY)
    await asyncio.gather(*map(world.operator.reconcile, (POLICY, ("policy", RETENTION, "demo", "keep"))))
    assert len(active(world)) == 1


async def test_a_bulk_of_changed_topics_asks_for_one_reconcile_of_the_policy_at_a_time() -> None:
    world = await world_with_topics(gen.policy("policy", **ALL))
    due(world)
    await world.operator.reconcile(POLICY)
    for key in (POLICY, *(("topic", "demo", f"t{number}") for number in range(TOPICS))):
        world.operator.queue.schedule.done(key, Outcome())
    for number in range(3):
        world.cluster.edit(f"t{number}", lambda manifest: manifest["metadata"].update(labels={"a": "b"}), spec=False)
    assert due(world, POLICY) == set()
    world.clock.advance(TOPICS / TOPICS_PER_SECOND)
    assert due(world, POLICY) == {POLICY}
