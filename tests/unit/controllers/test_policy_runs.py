"""A policy starts runs within its limits: one run a table, small tables together, large tables apart."""

import asyncio

import pytest

from firn.model import names
from firn.model.maintenance import RunReport, TableReport, pack
from firn_controllers.ports import Manifest, NoRunMeter
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import (
    ALL,
    COMPACTION,
    HOURLY,
    LEFT,
    MANY,
    RETENTION,
    UID,
    active,
    annotate,
    jobs,
    labelled,
    maintenance,
    policy_status,
    world_with,
)


async def test_small_files_start_a_run_and_both_statuses_report_it() -> None:
    world = await world_with(gen.policy(**ALL))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    assert not jobs(world)
    world.maintainer.report_fields[UID] = {
        "commits": 1,
        "files_before": 200,
        "files_after": 1,
        "bytes_rewritten": 10 * 2**20,
    }
    world.owes(**MANY)
    await world.settle()
    (job,) = jobs(world)
    (run,) = world.maintainer.done
    (table,) = run.tables
    assert (table.uid, table.table_uuid) == (UID, world.tables.tables["lake.demo.flights"].uuid)
    assert table.compaction is not None
    assert table.retention is None
    assert set(run.catalogs) == {"lake"}
    bound = maintenance(world)["compaction"]
    assert (bound["policy"], bound["because"]) == ("policy", "Selected")
    assert bound["lastRun"] == {
        "name": job["metadata"]["name"],
        "startTime": bound["lastRun"]["startTime"],
        "finishTime": bound["lastRun"]["finishTime"],
        "result": "Succeeded",
        "commits": 1,
        "filesBefore": 200,
        "filesAfter": 1,
        "bytesRewritten": 10 * 2**20,
        "deleteFilesRemoved": 0,
        "manifestsBefore": 0,
        "manifestsAfter": 0,
    }
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")
    status = policy_status(world)
    assert (status["topics"], status["lastRun"]["tables"], status["lastRun"]["filesAfter"]) == (1, 1, 1)
    assert "activeRuns" not in status
    assert world.conditions("policy", kind=COMPACTION)["Ready"] == ("True", "AllReady")
    reasons = [(name, reason) for name, reason, _ in world.cluster.events]
    assert ("policy", "RunStarted") in reasons
    assert ("policy", "Compacted") in reasons
    assert ("flights", "Compacted") in reasons
    assert world.conditions()["Ready"] == ("True", "AllReady")


async def test_metrics_name_a_policy_before_its_first_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[tuple[str, ...]] = []
    monkeypatch.setattr(NoRunMeter, "register", lambda _, *policy: counted.append(policy))
    await world_with(gen.policy(**ALL))
    assert set(counted) == {(COMPACTION, "demo", "policy")}


async def test_a_run_that_ends_in_the_second_in_which_the_operator_started_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    counted: list[str] = []
    monkeypatch.setattr(NoRunMeter, "ended", lambda _, kind, namespace, policy, run: counted.append(run["result"]))
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    (job,) = jobs(world)
    world.clock.advance(1.0 - world.clock.now().microsecond / 1e6 + 0.7)
    world.start()
    done = TableReport(uid=UID, outcome="Done", commits=1, bytes_rewritten=1, files_before=2, files_after=1)
    world.cluster.end_job(job["metadata"]["name"], pack(RunReport(name=job["metadata"]["name"], tables=(done,))))
    await world.operator_only()
    assert counted == ["Succeeded"]


@pytest.mark.slow
async def test_small_tables_share_runs_up_to_the_limit_of_a_policy() -> None:
    topics = tuple(gen.topic(f"t{number:02}") for number in range(50))
    world = await world_with(gen.policy(run={"maxConcurrent": 2}, **ALL), topics=topics)
    world.maintainer.hold = True
    for number in range(50):
        world.owes(f"t{number:02}", **MANY)
    await world.settle()
    assert len(jobs(world)) == 2
    assert policy_status(world)["topics"] == 50
    assert [governed["topic"] for governed in policy_status(world)["governs"]] == [
        f"t{number:02}" for number in range(20)
    ]
    assert [run["tables"] for run in policy_status(world)["activeRuns"]] == [24, 24]
    world.maintainer.hold = False
    await world.settle(seconds=60)
    done = [table.name for run in world.maintainer.done for table in run.tables]
    assert sorted(done) == sorted(f"t{number:02}" for number in range(50)), "each once"
    assert len(jobs(world)) == 3


async def test_all_policies_share_a_limit_of_runs() -> None:
    topics = tuple(gen.topic(f"t{number}", labelled(n=str(number))) for number in range(4))
    policies = tuple(gen.policy(f"p{number}", selector={"matchLabels": {"n": str(number)}}) for number in range(4))
    world = World(gen.config(maintenance={"maxRuns": 3}))
    for manifest in topics:
        world.cluster.create(manifest)
    await world.settle()
    for manifest in policies:
        world.cluster.create(manifest)
    world.maintainer.hold = True
    for number in range(4):
        annotate(world, "1", f"t{number}")
    await world.settle()
    assert len(jobs(world)) == 3
    world.maintainer.hold = False
    await world.settle()
    assert len(world.maintainer.done) == 4


async def test_concurrent_reconciles_respect_the_common_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World(gen.config(maintenance={"maxRuns": 1}))
    for name in ("a", "b"):
        world.cluster.create(gen.topic(name, labelled(n=name)))
    await world.settle()
    for name in ("a", "b"):
        world.cluster.create(gen.policy(name, selector={"matchLabels": {"n": name}}))
    await world.settle()
    world.maintainer.hold = True
    for name in ("a", "b"):
        annotate(world, "1", name)
    apply = world.cluster.apply

    async def slow(manifest: Manifest) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return await apply(manifest)

    monkeypatch.setattr(world.cluster, "apply", slow)
    await asyncio.gather(*(world.operator.reconcile(("policy", COMPACTION, "demo", name)) for name in ("a", "b")))
    assert len(jobs(world)) == 1


async def test_a_large_table_has_a_run_of_its_own_and_executors() -> None:
    sizes = {"small": {"memory": "1Gi"}, "large": {"memory": "8Gi", "executors": {"instances": 3}}}
    world = World(gen.config(maintenance={"sizes": sizes, "largeTable": "1Gi"}))
    for name in ("a", "b", "large", "z"):
        world.cluster.create(gen.topic(name))
    await world.settle()
    world.cluster.create(gen.policy(**ALL))
    await world.settle()
    for name in ("a", "b", "z"):
        world.owes(name, **MANY)
    world.owes("large", **{**MANY, "due_bytes": 2**30})
    await world.settle(seconds=60)
    tables = sorted(([table.name for table in run.tables], run.executors is not None) for run in world.maintainer.done)
    assert tables == [(["a", "b", "z"], False), (["large"], True)]
    (large,) = (job for job in jobs(world) if world.maintainer.contract(job["metadata"]["name"]).executors)
    container = large["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "8Gi", "ephemeral-storage": "100Gi"}


async def test_two_policies_never_work_on_one_table_at_once() -> None:
    retention = gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, **ALL)
    world = await world_with(gen.policy(**ALL), retention)
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    assert len(jobs(world)) == 1
    world.maintainer.end(jobs(world)[0]["metadata"]["name"])
    await world.settle()
    assert len(jobs(world)) == 2
    assert len({job["metadata"]["labels"][names.LABEL_POLICY_KIND] for job in jobs(world)}) == 2


async def test_concurrent_reconciles_never_run_one_table_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    retention = gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, **ALL)
    world = await world_with(gen.policy(**ALL), retention)
    world.maintainer.hold = True
    annotate(world, "1")
    apply = world.cluster.apply

    async def slow(manifest: Manifest) -> bool:
        for _ in range(5):
            await asyncio.sleep(0)
        return await apply(manifest)

    monkeypatch.setattr(world.cluster, "apply", slow)
    keys = (("policy", COMPACTION, "demo", "policy"), ("policy", RETENTION, "demo", "keep"))
    await asyncio.gather(*(world.operator.reconcile(key) for key in keys))
    assert len(jobs(world)) == 1


async def test_endless_work_alternates_with_the_other_kind_of_policy() -> None:
    retention = gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, schedule=HOURLY, **ALL)
    world = await world_with(gen.policy(schedule=HOURLY, **ALL), retention)
    world.maintainer.hold = True
    world.maintainer.report_fields[UID] = {**LEFT, "commits": 1}
    world.clock.advance(3600)
    kinds = []
    for _ in range(6):
        await world.settle(seconds=40)
        (job,) = active(world)
        kinds.append(job["metadata"]["labels"][names.LABEL_POLICY_KIND])
        world.maintainer.end(job["metadata"]["name"])
    assert kinds in ([COMPACTION, RETENTION] * 3, [RETENTION, COMPACTION] * 3)


async def test_a_table_that_others_hold_too_long_is_overdue() -> None:
    retention = gen.policy(
        "keep", kind=RETENTION, snapshots={"maxAge": "7d"}, schedule=HOURLY, run={"deadline": "10m"}, **ALL
    )
    world = await world_with(gen.policy(**ALL), retention)
    world.maintainer.hold = True
    annotate(world, "1", "policy", COMPACTION)
    await world.settle(seconds=60)
    world.clock.advance(3600)
    await world.settle(seconds=60)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    world.clock.advance(601)
    await world.settle(seconds=60)
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunOverdue")
    assert "other runs work on the table" in world.message("MaintenanceHealthy")
    world.maintainer.hold = False
    await world.settle(seconds=120)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")
