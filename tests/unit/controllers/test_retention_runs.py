"""Runs of RetentionPolicies delete only what the policy wants deleted."""

from collections.abc import Callable
from typing import Any

import pytest

from firn.model import names
from firn_controllers.policies.runs import MARK
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import (
    ALL,
    COMPACTION,
    LEGAL,
    RETENTION,
    UID,
    WOULD,
    annotate,
    jobs,
    labelled,
    maintenance,
    policy_status,
    world_with,
)


async def test_a_dry_run_reports_and_enforce_deletes() -> None:
    spec: dict[str, Any] = {
        "rows": {"column": "at", "maxAge": "30d"},
        "snapshots": {"maxAge": "7d", "minKeep": 5},
        "orphanFiles": {"minAge": "3d"},
        "metadataFiles": {"keep": 10},
        "schedule": {"cron": "15 3 * * *"},
    }
    world = await world_with(gen.policy("legal", kind=RETENTION, **ALL, **spec))
    assert not jobs(world), "the slot was before the policy"
    assert maintenance(world)["retention"]["nextRunTime"] == "2026-03-02T03:15:00Z"
    assert policy_status(world, "legal", RETENTION)["nextRunTime"] == "2026-03-02T03:15:00Z"
    world.maintainer.report_fields[UID] = WOULD
    world.clock.advance(16 * 3600)
    await world.settle()
    (run,) = world.maintainer.done
    work = run.tables[0].retention
    assert work is not None
    assert not work.enforce
    assert work.rows is not None
    assert work.snapshots is not None
    assert (work.rows.column, work.rows.max_age_ms) == ("at", 30 * 86_400_000)
    assert (work.snapshots.max_age_ms, work.snapshots.min_keep) == (7 * 86_400_000, 5)
    assert (work.orphan_min_age_ms, work.metadata_keep) == (3 * 86_400_000, 10)
    last = maintenance(world)["retention"]["lastRun"]
    assert last["mode"] == "DryRun"
    assert last["rows"] == WOULD["rows"]
    assert last["orphanFiles"] == {"files": 0, "bytes": 0, "items": 0}
    assert policy_status(world, "legal", RETENTION)["lastRun"]["snapshots"]["items"] == 2
    messages = [
        message for name, reason, message in world.cluster.events if (name, reason) == ("flights", "WouldDelete")
    ]
    assert len(messages) == 1
    assert "30 rows (300 bytes in 3 files) such as s3://firn" in messages[0]
    assert "Deleted" not in [reason for _, reason, _ in world.cluster.events]

    world.cluster.edit("legal", lambda manifest: manifest["spec"].update(mode="Enforce"), kind=RETENTION)
    await world.settle()
    assert len(world.maintainer.done) == 1, "a new mode starts no run before its time"
    world.clock.advance(24 * 3600)
    await world.settle()
    work = world.maintainer.done[1].tables[0].retention
    assert work is not None
    assert work.enforce
    assert maintenance(world)["retention"]["lastRun"]["mode"] == "Enforce"
    assert ("flights", "Deleted") in [(name, reason) for name, reason, _ in world.cluster.events]


@pytest.mark.parametrize(
    "withdraw",
    [
        lambda world: world.cluster.remove("legal", kind=RETENTION),
        lambda world: world.cluster.edit(
            "legal", lambda manifest: manifest["spec"].update(suspend=True), kind=RETENTION
        ),
        lambda world: world.cluster.edit(
            "legal", lambda manifest: manifest["spec"].update(mode="DryRun"), kind=RETENTION
        ),
    ],
    ids=["deleted", "suspended", "dry"],
)
async def test_a_deleting_run_stops_when_its_policy_no_longer_allows_it(withdraw: Callable[[World], None]) -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, mode="Enforce", snapshots={"maxAge": "7d"}, **ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    assert len(jobs(world)) == 1
    assert policy_status(world, "legal", RETENTION)["activeRuns"][0]["name"] == jobs(world)[0]["metadata"]["name"]
    withdraw(world)
    await world.settle()
    assert not [job for job in jobs(world) if '"Enforce"' in job["metadata"]["annotations"][MARK]]


def edited(change: Callable[[Manifest], Any], name: str = "legal", kind: str = RETENTION) -> Callable[[World], None]:
    return lambda world: world.cluster.edit(name, change, kind=kind)


def of_topic(change: Callable[[Manifest], Any]) -> Callable[[World], None]:
    return edited(change, "flights", "IcebergTopic")


def pausing(live: Manifest) -> None:
    live["metadata"].setdefault("annotations", {})[names.PAUSE] = "true"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("withdraw", "again"),
    [
        (edited(lambda manifest: manifest["spec"]["rows"].update(maxAge="365d")), ["flights", "trains"]),
        (edited(lambda manifest: manifest["spec"].pop("rows")), ["flights", "trains"]),
        (edited(lambda manifest: manifest["spec"].update(schedule={"cron": "0 25 * * *"})), []),
        (of_topic(lambda manifest: manifest["metadata"].update(labels={})), ["trains"]),
        (of_topic(lambda manifest: manifest["spec"].update(retentionPolicyRef={"name": "none"})), ["trains"]),
        (of_topic(pausing), ["trains"]),
        (lambda world: world.cluster.remove("flights"), ["trains"]),
        (lambda world: [edited(pausing)(world), edited(lambda manifest: manifest["spec"]["rows"].update(maxAge="365d"))(world)], []),
    ],
    ids=["corrected", "less", "refused", "label", "named", "topic-paused", "topic-deleted", "corrected-while-paused"],
)  # fmt: skip
async def test_a_deleting_run_stops_when_terms_of_a_table_change(
    withdraw: Callable[[World], None], again: list[str]
) -> None:
    topics = tuple(gen.topic(name, labelled(team="travel")) for name in ("flights", "trains"))
    selector = {"matchLabels": {"team": "travel"}}
    world = await world_with(gen.policy("legal", kind=RETENTION, selector=selector, **LEGAL), topics=topics)
    world.maintainer.hold = True
    annotate(world, "1", "legal", RETENTION)
    await world.settle()
    (job,) = jobs(world)
    assert len(world.maintainer.contract(job["metadata"]["name"]).tables) == 2
    withdraw(world)
    await world.settle(seconds=60)
    assert job["metadata"]["name"] not in [live_job["metadata"]["name"] for live_job in jobs(world)]
    world.maintainer.hold = False
    await world.settle(seconds=60)
    assert [table.name for run in world.maintainer.done for table in run.tables] == again
    assert "failures" not in maintenance(world, "trains").get("retention", {})


@pytest.mark.parametrize(
    "change",
    [
        edited(pausing),
        edited(
            lambda manifest: manifest["spec"].update(
                schedule={"cron": "0 5 * * *"}, run={"maxConcurrent": 7}, priority=3
            )
        ),
        edited(lambda manifest: manifest["spec"].update(log={"maxAge": "1d"})),
        of_topic(lambda manifest: manifest["spec"].update(suspend=True)),
    ],
    ids=["paused", "when-and-how", "log", "topic-suspended"],
)
async def test_a_deleting_run_continues_under_unchanged_terms(change: Callable[[World], None]) -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, **LEGAL, **ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    (job,) = jobs(world)
    change(world)
    await world.settle(seconds=60)
    assert [live_job["metadata"]["name"] for live_job in jobs(world)] == [job["metadata"]["name"]]


async def test_a_compaction_continues_under_changed_terms() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    world.cluster.edit("policy", lambda manifest: manifest["spec"].update(targetFileSize="64Mi"), kind=COMPACTION)
    await world.settle(seconds=60)
    world.maintainer.hold = False
    await world.settle()
    assert len(world.maintainer.done) == 1
