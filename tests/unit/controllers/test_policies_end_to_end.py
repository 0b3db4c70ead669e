"""From a policy to a run to the status of both sides, with fakes behind the ports."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from firn.model import names
from firn.model.maintenance import RunReport, TableReport, pack
from firn_controllers.policies.runs import MARK
from firn_controllers.ports import Manifest, NoRunMeter
from firn_operator.adapters.kube.workloads import job_state
from tests import gen
from tests.fakes.world import World

COMPACTION, RETENTION = "CompactionPolicy", "RetentionPolicy"
ALL: dict[str, Any] = {"selector": {}}
UID = "uid-demo-flights"
HOURLY = {"cron": "0 * * * *"}
MANY = {"small_files": 200, "due_files": 200, "due_bytes": 10 * 2**20, "data_files": 210}


async def world_with(*policies: Manifest, topics: tuple[Manifest, ...] = ()) -> World:
    """Topics that are ready, and policies that were looked at."""
    world = World()
    for topic in topics or (gen.topic(),):
        world.cluster.create(topic)
    await world.settle()
    for policy in policies:
        world.cluster.create(policy)
    await world.settle()
    return world


async def pass_time(world: World, seconds: int) -> None:
    """Time goes by, and everybody does what they do."""
    for _ in range(seconds // 10):
        await world.step()
        world.clock.advance(10.0)


def jobs(world: World) -> list[Manifest]:
    return world.cluster.all("Job")


def active(world: World) -> list[Manifest]:
    return [job for job in jobs(world) if job_state(job).finished is None]


def maintenance(world: World, name: str = "flights") -> Manifest:
    found: Manifest = world.cluster.topic(name)["status"]["maintenance"]
    return found


def policy_status(world: World, name: str = "policy", kind: str = COMPACTION) -> Manifest:
    found: Manifest = world.cluster.resource(kind, name)["status"]
    return found


def annotate(world: World, value: str, name: str = "flights", kind: str = "IcebergTopic") -> None:
    def change(live: Manifest) -> None:
        live["metadata"].setdefault("annotations", {})[names.RUN_NOW] = value

    world.cluster.edit(name, change, spec=False, kind=kind)


async def test_small_files_lead_to_a_run_and_both_sides_say_what_came_of_it() -> None:
    world = await world_with(gen.policy(**ALL))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    assert not jobs(world)
    world.maintainer.says[UID] = {"commits": 1, "files_before": 200, "files_after": 1, "bytes_rewritten": 10 * 2**20}
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


async def test_a_policy_is_known_to_the_metrics_before_its_first_run_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[tuple[str, ...]] = []
    monkeypatch.setattr(NoRunMeter, "known", lambda _, *policy: known.append(policy))
    await world_with(gen.policy(**ALL))
    assert set(known) == {(COMPACTION, "demo", "policy")}


# Who governs


def labelled(**labels: str) -> gen.Modifier:
    return lambda manifest: manifest["metadata"].update(labels=labels)


def created(text: str) -> gen.Modifier:
    return lambda manifest: manifest["metadata"].update(creationTimestamp=text)


def governing(world: World, section: str = "compaction") -> tuple[str, str] | None:
    found = (world.cluster.topic("flights")["status"].get("maintenance") or {}).get(section)
    return (found["policy"], found["because"]) if found else None


async def test_precedence_and_what_follows_when_policies_and_labels_change() -> None:
    travel = {"selector": {"matchLabels": {"team": "travel"}}}
    world = await world_with(
        gen.policy("b-old", created("2026-01-01T00:00:00Z"), **travel),
        gen.policy("c-old", created("2026-01-01T00:00:00Z"), **travel),
        gen.policy("a-young", created("2026-02-01T00:00:00Z"), **travel),
        gen.policy("high", created("2026-03-01T00:00:00Z"), priority=1, **travel),
        gen.policy("named", created("2026-03-01T00:00:00Z"), priority=-5),
        gen.policy("finance", priority=99, selector={"matchLabels": {"team": "finance"}}),
        gen.policy(
            "elsewhere",
            priority=99,
            selector={},
        )
        | {
            "metadata": {
                "name": "elsewhere",
                "namespace": "other",
                "uid": "uid-elsewhere",
                "generation": 1,
                "resourceVersion": "1",
                "creationTimestamp": "2026-01-01T00:00:00Z",
            }
        },
        topics=(gen.topic("flights", labelled(team="travel")),),
    )
    assert governing(world) == ("high", "Selected")
    assert policy_status(world, "high")["topics"] == 1
    assert policy_status(world, "high")["governs"] == [{"topic": "flights", "because": "Selected"}]
    assert policy_status(world, "b-old")["topics"] == 0
    assert "governs" not in policy_status(world, "b-old")

    world.cluster.edit("flights", lambda it: it["spec"].update(compactionPolicyRef={"name": "named"}))
    await world.settle()
    assert governing(world) == ("named", "NamedByTopic")
    assert policy_status(world, "high")["topics"] == 0
    assert policy_status(world, "named")["topics"] == 1
    assert policy_status(world, "named")["governs"] == [{"topic": "flights", "because": "NamedByTopic"}]

    world.cluster.edit("flights", lambda it: it["spec"].pop("compactionPolicyRef"))
    world.cluster.remove("high", kind=COMPACTION)
    await world.settle()
    assert governing(world) == ("b-old", "Selected"), "the older, and of two as old the first by name"
    world.cluster.remove("b-old", kind=COMPACTION)
    world.cluster.remove("c-old", kind=COMPACTION)
    await world.settle()
    assert governing(world) == ("a-young", "Selected")

    world.cluster.edit("flights", labelled(team="finance"), spec=False)
    await world.settle()
    assert governing(world) == ("finance", "Selected")
    world.cluster.edit("flights", labelled(team="nobody"), spec=False)
    await world.settle()
    assert governing(world) is None
    assert world.conditions()["PoliciesResolved"] == ("True", "NoPolicy")
    assert "MaintenanceHealthy" not in world.conditions()
    assert [policy_status(world, name)["topics"] for name in ("a-young", "named", "finance")] == [0, 0, 0]


async def test_a_policy_that_does_not_exist_yet_is_said_and_found_when_it_comes() -> None:
    world = await world_with(gen.policy("other", **ALL), topics=(gen.topic(compactionPolicyRef={"name": "later"}),))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyNotFound")
    assert "CompactionPolicy later" in world.message("PoliciesResolved")
    assert governing(world) is None, "who names one wants that one and no other"
    assert world.conditions()["Ready"] == ("True", "AllReady")
    world.cluster.create(gen.policy("later"))
    await world.settle()
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    assert governing(world) == ("later", "NamedByTopic")


@pytest.mark.parametrize(
    ("kind", "spec", "reason", "field"),
    [
        (COMPACTION, {"schedule": {"cron": "0 25 * * *"}}, "InvalidSpec", "spec.schedule.cron"),
        (COMPACTION, {"windows": [{"cron": "0 2 * * *", "duration": "1h", "timeZone": "A/B"}]}, "InvalidSpec", "windows[0].timeZone"),
        (COMPACTION, {"run": {"size": "huge"}}, "NotAllowed", "spec.run.size"),
        (COMPACTION, {"strategy": "Sort", "columns": ["id sideways"]}, "BadTransform", "spec.columns"),
        (COMPACTION, {"triggers": {"smallFiles": "many"}}, "InvalidSpec", "spec.triggers.smallFiles"),
        (RETENTION, {"orphanFiles": {"minAge": "1h"}}, "NotAllowed", "spec.orphanFiles.minAge"),
        (RETENTION, {"snapshots": {"maxAge": "1s"}}, "NotAllowed", "spec.snapshots.maxAge"),
    ],
)  # fmt: skip
async def test_a_bad_policy_says_which_field_and_nothing_is_run_by_it(
    kind: str, spec: dict[str, Any], reason: str, field: str
) -> None:
    world = await world_with(gen.policy("bad", kind=kind, **{**ALL, **spec}))
    world.owes(**MANY)
    annotate(world, "now", "bad", kind)
    await world.settle()
    found = world.conditions("bad", kind=kind)
    assert found["SpecValid"] == ("False", reason)
    assert found["Ready"] == ("False", "InvalidSpec")
    assert found["Stalled"] == ("True", "InvalidSpec")
    assert field in world.message("SpecValid", "bad", kind)
    assert not jobs(world)
    assert ("bad", "SpecRefused") in [(name, reason) for name, reason, _ in world.cluster.events]
    if "triggers" not in spec:  # whose selector can be read
        assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
        assert field in world.message("PoliciesResolved")
    assert world.conditions()["Ready"] == ("True", "AllReady")
    world.cluster.edit("bad", lambda it: it.update(spec={**ALL, "snapshots": {"maxAge": "1d"}}), kind=kind)
    await world.settle()
    assert world.conditions("bad", kind=kind)["Ready"] == ("True", "AllReady")
    assert "Stalled" not in world.conditions("bad", kind=kind)
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")


@pytest.mark.parametrize(
    ("kind", "spec", "words"),
    [
        (COMPACTION, {"strategy": "ZOrder", "columns": ["carrier", "nowhere"]}, "spec.columns: 'nowhere' is no column"),
        (COMPACTION, {"strategy": "ZOrder", "columns": ["place"]}, "place is no single value"),
        (COMPACTION, {"strategy": "Sort", "columns": ["hour(carrier)"]}, "spec.columns: hour(carrier)"),
        (RETENTION, {"rows": {"column": "delay", "maxAge": "1d"}}, "spec.rows.column: delay is double"),
        (RETENTION, {"rows": {"column": "_kafka.timestamps", "maxAge": "1d"}}, "spec.rows.column: '_kafka.timestamps'"),
    ],
)
async def test_a_policy_that_does_not_fit_one_topic_is_refused_for_that_one_alone(
    kind: str, spec: dict[str, Any], words: str
) -> None:
    other = gen.topic("other")
    other["spec"]["schema"]["fields"] = [
        {"name": "carrier", "type": "timestamptz"}, {"name": "nowhere", "type": "int"}, {"name": "place", "type": "string"},
        {"name": "delay", "type": "date"}, {"name": "_x", "type": "int"},
    ]  # fmt: skip
    world = await world_with(gen.policy("picky", kind=kind, **{**ALL, **spec}), topics=(gen.topic(), other))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    assert words in world.message("PoliciesResolved")
    assert world.conditions("picky", kind=kind)["SpecValid"] == ("True", "Valid")
    fits = "_kafka" not in words
    assert policy_status(world, "picky", kind)["topicsRefused"] == (1 if fits else 2)
    assert [it["topic"] for it in policy_status(world, "picky", kind)["governs"]] == ["flights", "other"]
    annotate(world, "now", "picky", kind)
    await world.settle()
    assert {table.name for run in world.maintainer.done for table in run.tables} == ({"other"} if fits else set())


async def test_sorting_by_the_tables_own_order_needs_one() -> None:
    sort = gen.policy("s", strategy="Sort", **ALL)
    world = await world_with(sort, topics=(gen.topic(),))
    assert world.conditions()["PoliciesResolved"] == ("False", "PolicyInvalid")
    assert "spec.columns: strategy Sort needs them" in world.message("PoliciesResolved")
    world = await world_with(sort, topics=(gen.topic(table={"sortBy": ["id"]}),))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")


async def test_columns_of_kafka_s_own_may_be_named() -> None:
    retention = gen.policy("r", kind=RETENTION, rows={"column": "_kafka.timestamp", "maxAge": "30d"}, **ALL)
    flat = gen.policy("s", strategy="Sort", columns=["_kafka_offset desc"], **ALL)
    topic = gen.topic(table={"metadataColumns": "Flat"})
    world = await world_with(flat, topics=(topic,))
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")
    world = await world_with(retention)
    assert world.conditions()["PoliciesResolved"] == ("True", "Resolved")


# Retention


WOULD = {
    "rows": {"files": 3, "bytes": 300, "items": 30, "sample": ["s3://firn/warehouse/demo/flights/data/a.parquet"]},
    "snapshots": {"files": 2, "bytes": 20, "items": 2, "sample": ["1", "2"]},
    "orphans": {"files": 0, "bytes": 0},
}


async def test_a_dry_run_says_what_would_go_and_enforce_is_what_deletes() -> None:
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
    world.maintainer.says[UID] = WOULD
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
    told = [message for name, reason, message in world.cluster.events if (name, reason) == ("flights", "WouldDelete")]
    assert len(told) == 1
    assert "30 rows (300 bytes in 3 files) such as s3://firn" in told[0]
    assert "Deleted" not in [reason for _, reason, _ in world.cluster.events]

    world.cluster.edit("legal", lambda it: it["spec"].update(mode="Enforce"), kind=RETENTION)
    await world.settle()
    assert len(world.maintainer.done) == 1, "a new mode is no reason to run before the time"
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
        lambda world: world.cluster.edit("legal", lambda it: it["spec"].update(suspend=True), kind=RETENTION),
        lambda world: world.cluster.edit("legal", lambda it: it["spec"].update(mode="DryRun"), kind=RETENTION),
    ],
    ids=["deleted", "suspended", "dry"],
)
async def test_a_run_that_deletes_is_stopped_when_its_word_is_taken_back(withdraw: Callable[[World], None]) -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, mode="Enforce", snapshots={"maxAge": "7d"}, **ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    assert len(jobs(world)) == 1
    assert policy_status(world, "legal", RETENTION)["activeRuns"][0]["name"] == jobs(world)[0]["metadata"]["name"]
    withdraw(world)
    await world.settle()
    assert not [it for it in jobs(world) if '"Enforce"' in it["metadata"]["annotations"][MARK]]


LEGAL: dict[str, Any] = {"rows": {"column": "at", "maxAge": "1d"}, "snapshots": {"maxAge": "7d"}, "mode": "Enforce"}


def edited(change: Callable[[Manifest], Any], name: str = "legal", kind: str = RETENTION) -> Callable[[World], None]:
    return lambda world: world.cluster.edit(name, change, kind=kind)


def of_topic(change: Callable[[Manifest], Any]) -> Callable[[World], None]:
    return edited(change, "flights", "IcebergTopic")


def pausing(live: Manifest) -> None:
    live["metadata"].setdefault("annotations", {})[names.PAUSE] = "true"


@pytest.mark.parametrize(
    ("withdraw", "again"),
    [
        (edited(lambda it: it["spec"]["rows"].update(maxAge="365d")), ["flights", "trains"]),
        (edited(lambda it: it["spec"].pop("rows")), ["flights", "trains"]),
        (edited(lambda it: it["spec"].update(schedule={"cron": "0 25 * * *"})), []),
        (of_topic(lambda it: it["metadata"].update(labels={})), ["trains"]),
        (of_topic(lambda it: it["spec"].update(retentionPolicyRef={"name": "none"})), ["trains"]),
        (of_topic(pausing), ["trains"]),
        (lambda world: world.cluster.remove("flights"), ["trains"]),
        (lambda world: [edited(pausing)(world), edited(lambda it: it["spec"]["rows"].update(maxAge="365d"))(world)], []),
    ],
    ids=["corrected", "less", "refused", "label", "named", "topic-paused", "topic-deleted", "corrected-while-paused"],
)  # fmt: skip
async def test_a_run_that_deletes_is_stopped_when_its_policy_says_something_else_of_any_of_its_tables(
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
    assert job["metadata"]["name"] not in [it["metadata"]["name"] for it in jobs(world)]
    world.maintainer.hold = False
    await world.settle(seconds=60)
    assert [table.name for run in world.maintainer.done for table in run.tables] == again
    assert "failures" not in maintenance(world, "trains").get("retention", {})


@pytest.mark.parametrize(
    "change",
    [
        edited(pausing),
        edited(lambda it: it["spec"].update(schedule={"cron": "0 5 * * *"}, run={"maxConcurrent": 7}, priority=3)),
        edited(lambda it: it["spec"].update(log={"maxAge": "1d"})),
        of_topic(lambda it: it["spec"].update(suspend=True)),
    ],
    ids=["paused", "when-and-how", "log", "topic-suspended"],
)
async def test_a_run_that_deletes_goes_on_while_what_it_may_do_is_the_same(change: Callable[[World], None]) -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, **LEGAL, **ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    (job,) = jobs(world)
    change(world)
    await world.settle(seconds=60)
    assert [it["metadata"]["name"] for it in jobs(world)] == [job["metadata"]["name"]]


async def test_a_compaction_goes_on_under_changed_terms_as_it_deletes_nothing() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    world.cluster.edit("policy", lambda it: it["spec"].update(targetFileSize="64Mi"), kind=COMPACTION)
    await world.settle(seconds=60)
    world.maintainer.hold = False
    await world.settle()
    assert len(world.maintainer.done) == 1


# When


async def test_who_comes_under_a_policy_later_is_not_owed_what_was_asked_of_it_before() -> None:
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
    assert len(world.maintainer.done) == 1, "neither for the morning's slot nor for the request"
    assert maintenance(world)["compaction"]["lastScheduleTime"] == "2026-03-01T09:00:00Z"
    world.cluster.edit("b", lambda it: it["spec"].update(schedule={"cron": "0 11 * * *"}), kind=COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 1, "a slot of the new schedule that was past when it came is nobody's"
    annotate(world, "twice", "b", COMPACTION)
    await world.settle()
    assert [table.name for table in world.maintainer.done[1].tables] == ["flights", "ships", "trains"]


async def test_what_a_policy_is_asked_for_when_it_is_made_is_for_all_that_it_governs_then() -> None:
    asking = gen.policy("p", gen.annotated(names.RUN_NOW, "first"), **ALL)
    world = await world_with(asking, topics=(gen.topic("flights"), gen.topic("trains")))
    assert [table.name for run in world.maintainer.done for table in run.tables] == ["flights", "trains"]
    world.cluster.create(gen.topic("ships"))
    await world.settle()
    assert len(world.maintainer.done) == 1


async def test_what_nobody_was_there_for_is_for_who_comes_first() -> None:
    world = World()
    world.cluster.create(gen.policy("p", gen.annotated(names.RUN_NOW, "first"), **ALL))
    await world.settle()
    assert "lastRequest" not in policy_status(world, "p")
    for name in ("flights", "trains"):
        world.cluster.create(gen.topic(name))
        await world.settle()
    assert [table.name for run in world.maintainer.done for table in run.tables] == ["flights"]


async def test_who_comes_under_a_schedule_by_day_waits_for_the_night() -> None:
    spec: dict[str, Any] = {"strategy": "ZOrder", "columns": ["carrier"], "schedule": {"cron": "0 3 * * *"}}
    world = await world_with(gen.policy(**spec))
    world.cluster.edit("flights", lambda it: it["spec"].update(compactionPolicyRef={"name": "policy"}))
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
    assert len(world.maintainer.done) == 2, "nights that nobody was there for are made up for, once"


async def test_a_run_whose_pod_does_not_start_says_why() -> None:
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


async def test_run_now_on_a_topic_runs_that_topic_and_on_a_policy_all_that_it_governs() -> None:
    topics = tuple(gen.topic(name) for name in ("flights", "trains", "ships"))
    world = await world_with(gen.policy(strategy="Sort", columns=["id"], **ALL), topics=topics)
    annotate(world, "1", "trains")
    await world.settle()
    (run,) = world.maintainer.done
    assert [table.name for table in run.tables] == ["trains"]
    work = run.tables[0].compaction
    assert work is not None
    assert work.everything, "who asks for a run of Sort wants all files sorted"
    annotate(world, "1", "policy", COMPACTION)
    await world.settle()
    assert [table.name for table in world.maintainer.done[1].tables] == ["flights", "ships", "trains"]
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 2
    world.clock.advance(7200)  # the Jobs' time to live is over
    await world.settle()
    assert not jobs(world)
    world.start()
    await world.settle()
    assert len(world.maintainer.done) == 2
    annotate(world, "2", "policy", COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 3


async def test_a_suspended_policy_starts_nothing_and_says_so() -> None:
    world = await world_with(gen.policy(suspend=True, **ALL))
    world.owes(**MANY)
    annotate(world, "1")
    await world.settle()
    assert not jobs(world)
    assert world.conditions("policy", kind=COMPACTION)["Ready"] == ("False", "Suspended")
    assert governing(world) == ("policy", "Selected")
    world.cluster.edit("policy", lambda it: it["spec"].update(suspend=False), kind=COMPACTION)
    await world.settle()
    assert len(world.maintainer.done) == 1


async def test_a_paused_policy_is_left_alone_until_it_goes_on() -> None:
    def pause(value: str) -> Callable[[Manifest], Any]:
        return lambda it: it["metadata"].setdefault("annotations", {}).update({names.PAUSE: value})

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


async def test_debt_alone_keeps_a_table_due_only_as_often_as_min_interval_allows() -> None:
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


async def test_debt_from_before_a_run_is_no_reason_for_another() -> None:
    world = await world_with(gen.policy(triggers={"smallFiles": 10, "minInterval": "1ms"}, **ALL))
    world.owes(**MANY)
    world.maintainer.ended = lambda run: world.debts.clear()  # what is measured from now on is not told
    await pass_time(world, 600)
    assert len(world.maintainer.done) == 1


async def test_a_window_holds_runs_back_until_it_opens() -> None:
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


# How


async def test_many_small_tables_share_runs_and_no_more_runs_than_allowed_are_at_work() -> None:
    topics = tuple(gen.topic(f"t{number:02}") for number in range(50))
    world = await world_with(gen.policy(run={"maxConcurrent": 2}, **ALL), topics=topics)
    world.maintainer.hold = True
    for number in range(50):
        world.owes(f"t{number:02}", **MANY)
    await world.settle()
    assert len(jobs(world)) == 2
    assert policy_status(world)["topics"] == 50
    assert [it["topic"] for it in policy_status(world)["governs"]] == [f"t{number:02}" for number in range(20)]
    assert [run["tables"] for run in policy_status(world)["activeRuns"]] == [24, 24]
    world.maintainer.hold = False
    await world.settle(seconds=60)
    done = [table.name for run in world.maintainer.done for table in run.tables]
    assert sorted(done) == sorted(f"t{number:02}" for number in range(50)), "each once"
    assert len(jobs(world)) == 3


async def test_all_policies_together_have_a_limit_too() -> None:
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


async def test_policies_that_are_reconciled_at_the_same_time_keep_the_limit_of_all(
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
    tables = sorted(([it.name for it in run.tables], run.executors is not None) for run in world.maintainer.done)
    assert tables == [(["a", "b", "z"], False), (["large"], True)]
    (large,) = (it for it in jobs(world) if world.maintainer.contract(it["metadata"]["name"]).executors)
    container = large["spec"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {"memory": "8Gi"}


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
    assert len({it["metadata"]["labels"][names.LABEL_POLICY_KIND] for it in jobs(world)}) == 2


async def test_two_policies_that_are_reconciled_at_the_same_time_do_not_take_one_table_both(
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


async def test_work_that_is_never_finished_leaves_the_table_to_the_other_kind_in_between() -> None:
    retention = gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, schedule=HOURLY, **ALL)
    world = await world_with(gen.policy(schedule=HOURLY, **ALL), retention)
    world.maintainer.hold = True
    world.maintainer.says[UID] = {**LEFT, "commits": 1}
    world.clock.advance(3600)
    kinds = []
    for _ in range(6):
        await world.settle(seconds=40)
        (job,) = active(world)
        kinds.append(job["metadata"]["labels"][names.LABEL_POLICY_KIND])
        world.maintainer.end(job["metadata"]["name"])
    assert kinds in ([COMPACTION, RETENTION] * 3, [RETENTION, COMPACTION] * 3)


async def test_a_table_that_others_hold_for_too_long_is_overdue() -> None:
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
    assert "other runs hold the table" in world.message("MaintenanceHealthy")
    world.maintainer.hold = False
    await world.settle(seconds=120)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")


# What came of it


async def test_a_failure_is_said_on_both_sides_tried_again_and_forgotten_when_it_passes() -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.says[UID] = {"outcome": "Failed", "reason": "CatalogUnreachable", "message": "nobody answers"}
    world.clock.advance(3600)
    await world.settle(seconds=30)
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunFailed")
    assert "CatalogUnreachable: nobody answers" in world.message("MaintenanceHealthy")
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("False", "RunFailed")
    assert maintenance(world)["compaction"]["failures"] == 1
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Failed"
    assert policy_status(world)["lastRun"]["tablesFailed"] == 1
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert {name for name, reason, _ in world.cluster.events if reason == "RunFailed"} == {"flights", "policy"}
    await pass_time(world, 300)
    assert 2 <= maintenance(world)["compaction"]["failures"] <= 4
    del world.maintainer.says[UID]
    await pass_time(world, 1200)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")
    assert "failures" not in maintenance(world)["compaction"]
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("True", "Succeeded")


@pytest.mark.parametrize(
    ("failure", "words", "message"),
    [
        ("DeadlineExceeded", None, "longer than spec.run.deadline"),
        ("BackoffLimitExceeded", "Traceback\n  ...\nMemoryError: out of it", "MemoryError: out of it"),
        ("PodFailurePolicy", "", "refuses its configuration"),
    ],
)
async def test_a_run_that_ends_without_a_report_has_failed_for_all_its_tables(
    failure: str, words: str | None, message: str
) -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.failure, world.maintainer.last_words = failure, words  # type: ignore[assignment]
    annotate(world, "1")
    await world.settle(seconds=60)
    last = maintenance(world)["compaction"]["lastRun"]
    assert last["result"] == "Failed"
    assert message in last["message"]
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunFailed")


async def test_a_table_that_another_run_holds_has_not_failed_and_is_tried_again() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.says[UID] = {"outcome": "Busy", "message": "firn-run-x works on it"}
    annotate(world, "1")
    await world.settle(seconds=20)
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Busy"
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    del world.maintainer.says[UID]
    await world.settle(seconds=120)
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Succeeded"
    assert maintenance(world)["compaction"]["lastRequest"] == {"topic": "1"}


LEFT = {"outcome": "Unfinished", "message": "stopped: deadline"}


async def test_what_a_run_did_not_come_to_by_its_deadline_is_due_again_and_has_not_failed() -> None:
    world = await world_with(
        gen.policy(schedule={"cron": "0 * * * *"}, **ALL), topics=(gen.topic(), gen.topic("trains"))
    )
    world.maintainer.says[UID] = {**LEFT, "begun": False}
    world.clock.advance(3600)
    world.maintainer.ended = lambda run: world.maintainer.says.clear()
    await world.settle(seconds=60)
    names_of = [[table.name for table in run.tables] for run in world.maintainer.done]
    assert names_of == [["flights", "trains"], ["flights"]]
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Succeeded"
    assert "RunFailed" not in [reason for _, reason, _ in world.cluster.events]


async def test_progress_until_the_deadline_is_shown_and_goes_on_at_once() -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, schedule={"cron": "0 * * * *"}, **LEGAL, **ALL))
    world.maintainer.says[UID] = {**LEFT, "commits": 3, "rows": {"files": 2, "bytes": 5, "items": 7}}
    world.clock.advance(3600)
    seen: list[Manifest] = []

    def look(_: object) -> None:
        seen.append(maintenance(world)["retention"].get("lastRun", {}))
        if len(seen) == 2:
            world.maintainer.says.clear()

    world.maintainer.ended = look
    await world.settle(seconds=120)
    assert len(world.maintainer.done) == 3
    assert (seen[1]["result"], seen[1]["rows"]["items"]) == ("Unfinished", 7)
    assert seen[1]["message"] == "3 commits were made before the run ended (stopped: deadline); it is due again"
    assert "failures" not in maintenance(world)["retention"]
    assert ("flights", "Deleted") in [(name, reason) for name, reason, _ in world.cluster.events]
    assert maintenance(world)["retention"]["lastScheduleTime"] == "2026-03-01T13:00:00Z"


@pytest.mark.parametrize(
    ("mode", "said", "told"),
    [
        ("Enforce", "Deleted", "deleted 30 rows (300 bytes in 3 files)"),
        ("DryRun", "WouldDelete", "would delete 30 rows (300 bytes in 3 files)"),
    ],
)
@pytest.mark.parametrize("outcome", ["Failed", "Unfinished"])
async def test_what_a_run_did_before_it_failed_is_told_too(mode: str, said: str, told: str, outcome: str) -> None:
    spec: dict[str, Any] = {"rows": {"column": "at", "maxAge": "30d"}, "snapshots": {"maxAge": "7d"}}
    world = await world_with(gen.policy("legal", kind=RETENTION, mode=mode, **spec, **ALL))
    world.maintainer.says[UID] = {"outcome": outcome, "message": "expiry failed", "rows": WOULD["rows"]}
    annotate(world, "1")
    await world.settle(seconds=10)
    events = {(name, reason): message for name, reason, message in world.cluster.events}
    for name in ("flights", "legal"):
        assert told in events[name, said]
        assert "expiry failed" in events[name, "RunFailed"], "it has not committed, so it has failed in either case"


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (
            {"files_before": 13, "files_after": 2, "bytes_rewritten": 7, "manifests_before": 3, "manifests_after": 4},
            "13 data files became 2, 7 bytes rewritten",
        ),
        (
            {"files_before": 13, "files_after": 13, "manifests_before": 13, "manifests_after": 1},
            "13 manifests became 1",
        ),
        (
            {"files_before": 13, "files_after": 13, "manifests_after": 4, "delete_files_removed": 5},
            "5 delete files removed",
        ),
        ({"outcome": "Failed", "files_before": 13, "bytes_rewritten": 7}, "7 bytes rewritten"),
        ({"manifests_before": 2, "manifests_after": 2}, "1 commits"),
    ],
    ids=["files", "manifests", "delete-files", "not-counted", "as-many"],
)
async def test_what_a_compaction_did_is_told_as_it_was(report: dict[str, Any], told: str) -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.says[UID] = {"commits": 1, **report}
    annotate(world, "1")
    await world.settle(seconds=10)
    name = jobs(world)[0]["metadata"]["name"]
    assert [message for _, reason, message in world.cluster.events if reason == "Compacted"] == [
        f"run {name}: {told}"
    ] * 2


@pytest.mark.parametrize("begun", [True, False], ids=["in-vain", "none-begun"])
async def test_a_table_begun_in_vain_has_failed_and_so_has_a_run_that_began_nothing(begun: bool) -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.says[UID] = {**LEFT, "begun": begun}
    world.clock.advance(3600)
    await world.settle(seconds=30)
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunFailed")
    assert maintenance(world)["compaction"]["failures"] == 1


async def test_what_was_asked_for_and_failed_is_tried_again_until_it_is_answered() -> None:
    never = gen.policy("legal", kind=RETENTION, **LEGAL, **ALL)
    world = await world_with(never)
    world.maintainer.says[UID] = {"outcome": "Failed", "message": "nobody answers"}
    annotate(world, "1")
    await world.settle(seconds=30)
    assert len(world.maintainer.done) == 1
    found = maintenance(world)["retention"]
    assert (found["failures"], found["failedRequest"], "lastRequest" in found) == (1, {"topic": "1"}, False)
    annotate(world, "2")
    await world.settle(seconds=30)
    assert len(world.maintainer.done) == 2, "another value is not made to wait"
    world.maintainer.says.clear()
    await pass_time(world, 300)
    assert len(world.maintainer.done) == 3
    found = maintenance(world)["retention"]
    assert found["lastRun"]["result"] == "Succeeded"
    assert (found["lastRequest"], "failedRequest" in found) == ({"topic": "2"}, False)


async def test_a_policy_that_is_corrected_after_failures_is_tried_at_once() -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.says[UID] = {"outcome": "Failed", "message": "out of memory"}
    world.clock.advance(3600)
    await pass_time(world, 500)
    failures = maintenance(world)["compaction"]["failures"]
    assert failures >= 3
    world.maintainer.says.clear()
    done = len(world.maintainer.done)
    world.cluster.edit("policy", lambda it: it["spec"].update(run={"deadline": "2h"}), kind=COMPACTION)
    await world.settle(seconds=20)
    assert len(world.maintainer.done) == done + 1
    assert "failures" not in maintenance(world)["compaction"]


async def test_what_an_attempt_did_not_come_to_is_as_the_one_before_left_it() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    for attempt, said in enumerate(({"commits": 7}, {"begun": False})):
        report = TableReport(uid=UID, outcome="Unfinished", message="stopped: received SIGTERM", **said)  # type: ignore[arg-type]
        world.cluster.end_job(name, pack(RunReport(name=name, tables=(report,))), failure="x", attempt=attempt)
        world.clock.advance(1)
    await world.operator_only()
    last = maintenance(world)["compaction"]["lastRun"]
    assert (last["result"], last["commits"]) == ("Unfinished", 7)


async def test_a_report_that_comes_after_the_job_is_waited_for() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    world.cluster.end_job(name, None)
    await world.operator_only()
    assert "lastRun" not in maintenance(world)["compaction"], "its last word may be on its way"
    contract = world.maintainer.contract(name)
    world.cluster.end_job(name, pack(RunReport(name=name, tables=(TableReport(uid=UID, outcome="Done", commits=7),))))
    assert contract.name == name
    await world.settle()
    assert maintenance(world)["compaction"]["lastRun"]["commits"] == 7


async def test_what_an_earlier_attempt_did_counts() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]

    def report(**said: Any) -> str:
        return pack(RunReport(name=name, tables=(TableReport(uid=UID, **said),)))

    world.cluster.end_job(name, report(outcome="Done", commits=7), failure="x", attempt=0)
    world.clock.advance(1)
    world.cluster.end_job(name, report(outcome="Nothing"), attempt=1)
    await world.settle()
    last = maintenance(world)["compaction"]["lastRun"]
    assert (last["result"], last["commits"]) == ("Succeeded", 7)


async def test_a_run_that_finds_no_room_for_too_long_is_overdue() -> None:
    world = await world_with(
        gen.policy(run={"maxConcurrent": 1, "deadline": "10m"}, **ALL), topics=(gen.topic(), gen.topic("other"))
    )
    world.maintainer.hold = True
    annotate(world, "1", "other")
    await world.settle(seconds=60)
    annotate(world, "1")
    await world.settle(seconds=60)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    world.clock.advance(601)
    await world.settle(seconds=60)
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunOverdue")
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("False", "RunOverdue")
    world.maintainer.hold = False
    await world.settle()
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")


async def test_a_topic_deleted_with_its_table_waits_for_the_run_at_work() -> None:
    world = await world_with(
        gen.policy(**ALL), topics=(gen.topic(deletionPolicy={"topic": "Delete", "table": "Delete"}),)
    )
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    world.cluster.remove("flights")
    await world.settle(seconds=120)
    assert world.conditions()["DeletionBlocked"] == ("True", "RunsActive")
    assert world.tables.tables
    world.maintainer.hold = False
    await world.settle()
    assert not world.tables.tables
    assert not world.cluster.topics()


async def test_contracts_of_runs_go_with_their_jobs() -> None:
    world = await world_with(gen.policy(**ALL))
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    assert name in [it["metadata"]["name"] for it in world.cluster.all("ConfigMap")]
    world.clock.advance(3700)
    await world.settle()
    world.clock.advance(400)
    await world.settle()
    assert not jobs(world)
    assert name not in [it["metadata"]["name"] for it in world.cluster.all("ConfigMap")]
    assert maintenance(world)["compaction"]["lastRun"]["name"] == name


async def test_a_contract_whose_job_is_just_being_made_is_nobody_s_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await world_with(gen.policy(**ALL))
    apply = world.cluster.apply

    async def tidied(manifest: Manifest) -> bool:
        if manifest["kind"] == "Job":
            await world.operator.reconcile(("orphans",))
        return await apply(manifest)

    monkeypatch.setattr(world.cluster, "apply", tidied)
    annotate(world, "1")
    await world.settle()
    assert len(world.maintainer.done) == 1, "a Job without its contract would hang"


# Whatever happens


def asked_for(world: World) -> None:
    world.cluster.create(gen.policy(**ALL))
    world.cluster.create(gen.policy("keep", kind=RETENTION, snapshots={"maxAge": "7d"}, mode="Enforce", **ALL))
    annotate(world, "1", "flights")
    annotate(world, "2", "policy", COMPACTION)


def failing(world: World) -> None:
    world.maintainer.says["uid-demo-trains"] = {"outcome": "Failed", "message": "no"}
    asked_for(world)


async def prepared() -> World:
    world = World()
    for name in ("flights", "trains"):
        world.cluster.create(gen.topic(name))
    await world.settle()
    return world


@pytest.mark.parametrize("after_effect", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("story", [asked_for, failing], ids=lambda story: story.__name__)
async def test_killed_at_any_call_every_table_is_worked_on_once(
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
            return {key: plain(it) for key, it in value.items() if key not in dropped}
        return [plain(it) for it in value] if isinstance(value, list) else value

    topics = {it["metadata"]["name"]: plain(it["status"]) for it in world.cluster.topics()}
    kinds = (COMPACTION, RETENTION)
    policies = {it["metadata"]["name"]: it["status"] for kind in kinds for it in world.cluster.all(kind)}
    said = {name: plain({**status, "lastRun": None, "conditions": None}) for name, status in policies.items()}
    return topics, said


async def test_a_second_look_and_a_new_process_write_nothing() -> None:
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


async def test_a_policy_of_the_same_name_starts_afresh() -> None:
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
    assert all(it["metadata"]["labels"][names.LABEL_POLICY_UID] == "uid-2" for it in jobs(world))
    assert old["metadata"]["name"] not in [it["metadata"]["name"] for it in jobs(world)]
    assert [run.tables[0].uid for run in world.maintainer.done] == [UID]
