"""When a policy starts a run: by debt, by schedule, on request, within windows."""

from collections.abc import Callable
from typing import Any

import pytest

from firn.model import names
from firn_controllers.conditions.announcements import transitions
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import (
    ALL,
    COMPACTION,
    MANY,
    annotate,
    governing,
    jobs,
    labelled,
    maintenance,
    pass_time,
    policy_status,
    world_with,
)


async def test_a_new_topic_of_a_policy_ignores_its_earlier_request() -> None:
    policies = [
        gen.policy(name, schedule={"cron": cron}, selector={"matchLabels": {"team": name}})
        for name, cron in (("a", "0 3 * * *"), ("b", "0 9 * * *"))
    ]
    topics = (gen.topic("flights", labelled(team="a")), gen.topic("trains", labelled(team="b")))
    world = await world_with(*policies, topics=topics)
    annotate(world, "once", "b", COMPACTION)
    await world.settle()
    assert [table.name for run in world.maintainer.done for table in run.tables] == ["trains"]
    assert policy_status(world, "b")["lastRequest"] == "once"
    world.cluster.edit("flights", labelled(team="b"), spec=False)
    world.cluster.create(gen.topic("ships", labelled(team="b")))
    await world.settle()
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 1, "neither for the slot of the morning nor for the request"
    assert maintenance(world)["compaction"]["lastScheduleTime"] == "2026-03-01T09:00:00Z"
    world.cluster.edit("b", lambda manifest: manifest["spec"].update(schedule={"cron": "0 11 * * *"}), kind=COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 1, "a past slot of the new schedule is ignored"
    annotate(world, "twice", "b", COMPACTION)
    await world.settle()
    assert [table.name for table in world.maintainer.done[1].tables] == ["flights", "ships", "trains"]


async def test_a_request_of_a_new_policy_is_for_all_its_topics() -> None:
    asking = gen.policy("p", gen.annotated(names.RUN_NOW, "first"), **ALL)
    world = await world_with(asking, topics=(gen.topic("flights"), gen.topic("trains")))
    assert [table.name for run in world.maintainer.done for table in run.tables] == ["flights", "trains"]
    world.cluster.create(gen.topic("ships"))
    await world.settle()
    assert len(world.maintainer.done) == 1


async def test_a_request_without_topics_waits_for_the_first_one() -> None:
    world = World()
    world.cluster.create(gen.policy("p", gen.annotated(names.RUN_NOW, "first"), **ALL))
    await world.settle()
    assert "lastRequest" not in policy_status(world, "p")
    for name in ("flights", "trains"):
        world.cluster.create(gen.topic(name))
        await world.settle()
    assert [table.name for run in world.maintainer.done for table in run.tables] == ["flights"]


async def test_a_new_topic_of_a_schedule_waits_for_the_next_slot() -> None:
    spec: dict[str, Any] = {"strategy": "ZOrder", "columns": ["carrier"], "schedule": {"cron": "0 3 * * *"}}
    world = await world_with(gen.policy(**spec))
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(compactionPolicyRef={"name": "policy"}))
    await pass_time(world, 120)
    assert not jobs(world)
    assert maintenance(world)["compaction"]["lastScheduleTime"] == "2026-03-01T03:00:00Z"
    world.start()
    world.clock.advance(15 * 3600)
    await world.settle()
    assert len(world.maintainer.done) == 1
    assert maintenance(world)["compaction"]["lastScheduleTime"] == "2026-03-02T03:00:00Z"
    world.clock.advance(72 * 3600)
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 2, "one run covers all missed nights"


async def test_a_condition_reports_why_the_pod_of_a_run_does_not_start() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    (job,) = jobs(world)
    labels = job["spec"]["template"]["metadata"]["labels"]
    name = f"{job['metadata']['name']}-x"
    stuck = gen.broken_pod(
        name, labels=labels, phase="Pending", unschedulable="0/1 nodes are available: 1 Insufficient memory."
    )
    world.cluster.pod_states[name] = stuck
    world.operator.child_seen(labels)
    await world.settle(seconds=60)
    assert "Insufficient memory" in policy_status(world)["activeRuns"][0]["message"]
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("True", "NotDue")
    await pass_time(world, 180)
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("False", "RunOverdue")
    assert "Insufficient memory" in world.message("MaintenanceHealthy", "policy", COMPACTION)
    del world.cluster.pod_states[name]
    world.maintainer.hold = False
    await pass_time(world, 180)
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("True", "Succeeded")


async def test_run_now_runs_a_topic_or_all_topics_of_a_policy() -> None:
    topics = tuple(gen.topic(name) for name in ("flights", "trains", "ships"))
    world = await world_with(gen.policy(strategy="Sort", columns=["id"], **ALL), topics=topics)
    annotate(world, "1", "trains")
    await world.settle()
    (run,) = world.maintainer.done
    assert [table.name for table in run.tables] == ["trains"]
    work = run.tables[0].compaction
    assert work is not None
    assert work.everything, "a request for a Sort run sorts all files"
    annotate(world, "1", "policy", COMPACTION)
    await world.settle()
    assert [table.name for table in world.maintainer.done[1].tables] == ["flights", "ships", "trains"]
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 2
    world.clock.advance(7200)  # the time to live of the Jobs is over
    await world.settle()
    assert not jobs(world)
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 2
    annotate(world, "2", "policy", COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 3


async def test_a_suspended_policy_starts_no_run_and_reports_it() -> None:
    world = await world_with(gen.policy(suspend=True, **ALL))
    world.owes(**MANY)
    annotate(world, "1")
    await world.settle()
    assert not jobs(world)
    assert world.conditions("policy", kind=COMPACTION)["Ready"] == ("False", "Suspended")
    assert governing(world) == ("policy", "Selected")
    world.cluster.edit("policy", lambda manifest: manifest["spec"].update(suspend=False), kind=COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 1


async def test_the_suspension_of_a_policy_is_no_warning() -> None:
    world = await world_with(gen.policy(**ALL))
    before = policy_status(world)
    world.cluster.edit("policy", lambda manifest: manifest["spec"].update(suspend=True), kind=COMPACTION)
    await world.settle()
    after = policy_status(world)
    assert [(event.type, event.reason) for event in transitions(before, after)] == [("Normal", "NotReady")]


async def test_a_paused_policy_is_not_reconciled_until_it_resumes() -> None:
    def pause(value: str) -> Callable[[Manifest], Any]:
        return lambda manifest: manifest["metadata"].setdefault("annotations", {}).update({names.PAUSE: value})

    world = await world_with(gen.policy(**ALL))
    world.cluster.edit("policy", pause("true"), spec=False, kind=COMPACTION)
    world.owes(**MANY)
    annotate(world, "1")
    await world.settle()
    assert not jobs(world)
    assert world.conditions("policy", kind=COMPACTION)["Paused"] == ("True", "PausedByAnnotation")
    assert world.conditions("policy", kind=COMPACTION)["Ready"] == ("True", "AllReady")
    world.cluster.edit("policy", pause("false"), spec=False, kind=COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 1
    assert "Paused" not in world.conditions("policy", kind=COMPACTION)


@pytest.mark.slow
async def test_debt_makes_a_table_due_at_most_once_per_min_interval() -> None:
    world = await world_with(gen.policy(triggers={"smallFiles": 10, "minInterval": "10m"}, **ALL))
    world.owes(**MANY)
    await pass_time(world, 3600)
    ended = sorted(job["status"]["conditions"][0]["lastTransitionTime"] for job in jobs(world))
    assert 5 <= len(ended) <= 6
    world.owes()
    await world.settle()
    before = len(world.maintainer.done)
    world.clock.advance(3600)
    await world.settle()
    assert len(world.maintainer.done) == before


async def test_debt_measured_before_a_run_starts_no_other() -> None:
    world = await world_with(gen.policy(triggers={"smallFiles": 10, "minInterval": "1ms"}, **ALL))
    world.owes(**MANY)
    world.maintainer.ended = lambda run: world.debts.clear()  # later measurements are not reported
    await pass_time(world, 600)
    assert len(world.maintainer.done) == 1


async def test_a_window_delays_runs_until_it_opens() -> None:
    window = {"cron": "0 22 * * *", "duration": "1h", "timeZone": "Etc/UTC"}
    world = await world_with(gen.policy(windows=[window], **ALL))
    world.owes(**MANY)
    await world.settle()
    await pass_time(world, 120)
    assert not jobs(world)
    assert maintenance(world)["compaction"]["nextRunTime"] == "2026-03-01T22:00:00Z"
    world.clock.advance(10 * 3600 - 600 - (world.clock.now() - gen.NOW).total_seconds())
    await world.settle(seconds=300)
    assert not jobs(world)
    world.clock.advance(600)
    await world.settle(seconds=60)
    assert len(world.maintainer.done) == 1
