"""How the result of a run reaches statuses, Events and the next decision."""

from typing import Any

import pytest

from firn.model.errors import CommitConflictError
from firn.model.maintenance import RunReport, TableReport, pack
from firn_controllers.ports import Manifest
from tests import gen
from tests.unit.controllers.policy_stage import (
    ALL,
    COMPACTION,
    LEFT,
    LEGAL,
    RETENTION,
    UID,
    WOULD,
    annotate,
    jobs,
    maintenance,
    pass_time,
    policy_status,
    world_with,
)


@pytest.mark.slow
async def test_both_statuses_report_a_failure_until_a_run_succeeds() -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.report_fields[UID] = {
        "outcome": "Failed",
        "reason": "CatalogUnreachable",
        "message": "nobody answers",
    }
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
    del world.maintainer.report_fields[UID]
    await pass_time(world, 1200)
    assert world.conditions()["MaintenanceHealthy"] == ("True", "Succeeded")
    assert "failures" not in maintenance(world)["compaction"]
    assert world.conditions("policy", kind=COMPACTION)["MaintenanceHealthy"] == ("True", "Succeeded")


@pytest.mark.parametrize(
    ("failure", "words", "message"),
    [
        ("DeadlineExceeded", None, "longer than spec.run.deadline"),
        ("BackoffLimitExceeded", "Traceback\n  ...\nMemoryError: out of it", "MemoryError: out of it"),
        ("PodFailurePolicy", "", "rejected its configuration"),
    ],
)
async def test_a_run_without_a_report_has_failed_for_all_its_tables(
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


async def test_a_busy_table_has_not_failed_and_is_retried() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.report_fields[UID] = {"outcome": "Busy", "message": "firn-run-x works on it"}
    annotate(world, "1")
    await world.settle(seconds=20)
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Busy"
    assert world.conditions()["MaintenanceHealthy"] == ("True", "NotDue")
    del world.maintainer.report_fields[UID]
    await world.settle(seconds=120)
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Succeeded"
    assert maintenance(world)["compaction"]["lastRequest"] == {"topic": "1"}


async def test_unstarted_work_at_the_deadline_is_due_and_not_failed() -> None:
    world = await world_with(
        gen.policy(schedule={"cron": "0 * * * *"}, **ALL), topics=(gen.topic(), gen.topic("trains"))
    )
    world.maintainer.report_fields[UID] = {**LEFT, "begun": False}
    world.clock.advance(3600)
    world.maintainer.ended = lambda run: world.maintainer.report_fields.clear()
    await world.settle(seconds=60)
    names_of = [[table.name for table in run.tables] for run in world.maintainer.done]
    assert names_of == [["flights", "trains"], ["flights"]]
    assert maintenance(world)["compaction"]["lastRun"]["result"] == "Succeeded"
    assert "RunFailed" not in [reason for _, reason, _ in world.cluster.events]


async def test_progress_until_the_deadline_is_reported_and_continued() -> None:
    world = await world_with(gen.policy("legal", kind=RETENTION, schedule={"cron": "0 * * * *"}, **LEGAL, **ALL))
    world.maintainer.report_fields[UID] = {**LEFT, "commits": 3, "rows": {"files": 2, "bytes": 5, "items": 7}}
    world.clock.advance(3600)
    seen: list[Manifest] = []

    def record_last_run(_: object) -> None:
        seen.append(maintenance(world)["retention"].get("lastRun", {}))
        if len(seen) == 2:
            world.maintainer.report_fields.clear()

    world.maintainer.ended = record_last_run
    await world.settle(seconds=120)
    assert len(world.maintainer.done) == 3
    assert (seen[1]["result"], seen[1]["rows"]["items"]) == ("Unfinished", 7)
    assert seen[1]["message"] == "the run made 3 commits before it ended (stopped: deadline); the table is due again"
    assert "failures" not in maintenance(world)["retention"]
    assert ("flights", "Deleted") in [(name, reason) for name, reason, _ in world.cluster.events]
    assert maintenance(world)["retention"]["lastScheduleTime"] == "2026-03-01T13:00:00Z"


@pytest.mark.parametrize(
    ("mode", "event_reason", "text"),
    [
        ("Enforce", "Deleted", "deleted 30 rows (300 bytes in 3 files)"),
        ("DryRun", "WouldDelete", "would delete 30 rows (300 bytes in 3 files)"),
    ],
)
@pytest.mark.parametrize("outcome", ["Failed", "Unfinished"])
async def test_the_work_of_a_failed_run_is_reported(mode: str, event_reason: str, text: str, outcome: str) -> None:
    spec: dict[str, Any] = {"rows": {"column": "at", "maxAge": "30d"}, "snapshots": {"maxAge": "7d"}}
    world = await world_with(gen.policy("legal", kind=RETENTION, mode=mode, **spec, **ALL))
    world.maintainer.report_fields[UID] = {"outcome": outcome, "message": "expiry failed", "rows": WOULD["rows"]}
    annotate(world, "1")
    await world.settle(seconds=10)
    events = {(name, reason): message for name, reason, message in world.cluster.events}
    for name in ("flights", "legal"):
        assert text in events[name, event_reason]
        assert "expiry failed" in events[name, "RunFailed"], "without a commit the run has failed in either case"


@pytest.mark.parametrize(
    ("report", "text"),
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
        ({"manifests_before": 2, "manifests_after": 2}, "commits: 1"),
    ],
    ids=["files", "manifests", "delete-files", "not-counted", "as-many"],
)
async def test_the_event_reports_the_work_of_a_compaction(report: dict[str, Any], text: str) -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.report_fields[UID] = {"commits": 1, **report}
    annotate(world, "1")
    await world.settle(seconds=10)
    name = jobs(world)[0]["metadata"]["name"]
    assert [message for _, reason, message in world.cluster.events if reason == "Compacted"] == [
        f"run {name}: {text}"
    ] * 2


@pytest.mark.parametrize("begun", [True, False], ids=["in-vain", "none-begun"])
async def test_a_run_without_any_progress_has_failed(begun: bool) -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.report_fields[UID] = {**LEFT, "begun": begun}
    world.clock.advance(3600)
    await world.settle(seconds=30)
    assert world.conditions()["MaintenanceHealthy"] == ("False", "RunFailed")
    assert maintenance(world)["compaction"]["failures"] == 1


async def test_a_failed_request_is_retried_until_it_succeeds() -> None:
    never = gen.policy("legal", kind=RETENTION, **LEGAL, **ALL)
    world = await world_with(never)
    world.maintainer.report_fields[UID] = {"outcome": "Failed", "message": "nobody answers"}
    annotate(world, "1")
    await world.settle(seconds=30)
    assert len(world.maintainer.done) == 1
    section = maintenance(world)["retention"]
    assert (section["failures"], section["failedRequest"], "lastRequest" in section) == (1, {"topic": "1"}, False)
    annotate(world, "2")
    await world.settle(seconds=30)
    assert len(world.maintainer.done) == 2, "another value does not wait"
    world.maintainer.report_fields.clear()
    await pass_time(world, 300)
    assert len(world.maintainer.done) == 3
    section = maintenance(world)["retention"]
    assert section["lastRun"]["result"] == "Succeeded"
    assert (section["lastRequest"], "failedRequest" in section) == ({"topic": "2"}, False)


async def test_a_policy_corrected_after_failures_is_retried_at_once() -> None:
    world = await world_with(gen.policy(schedule={"cron": "0 * * * *"}, **ALL))
    world.maintainer.report_fields[UID] = {"outcome": "Failed", "message": "out of memory"}
    world.clock.advance(3600)
    await pass_time(world, 500)
    failures = maintenance(world)["compaction"]["failures"]
    assert failures >= 3
    world.maintainer.report_fields.clear()
    done = len(world.maintainer.done)
    world.cluster.edit("policy", lambda manifest: manifest["spec"].update(run={"deadline": "2h"}), kind=COMPACTION)
    await world.settle(seconds=20)
    assert len(world.maintainer.done) == done + 1
    assert "failures" not in maintenance(world)["compaction"]


async def test_an_attempt_without_work_keeps_the_result_of_the_earlier_one() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    for attempt, fields in enumerate(({"commits": 7}, {"begun": False})):
        report = TableReport(uid=UID, outcome="Unfinished", message="stopped: received SIGTERM", **fields)  # type: ignore[arg-type]
        world.cluster.end_job(name, pack(RunReport(name=name, tables=(report,))), failure="x", attempt=attempt)
        world.clock.advance(1)
    await world.operator_only()
    last = maintenance(world)["compaction"]["lastRun"]
    assert (last["result"], last["commits"]) == ("Unfinished", 7)


async def test_the_operator_waits_for_a_report_after_the_job_ends() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    world.cluster.end_job(name, None)
    await world.operator_only()
    assert "lastRun" not in maintenance(world)["compaction"], "the report may still arrive"
    contract = world.maintainer.contract(name)
    world.cluster.end_job(name, pack(RunReport(name=name, tables=(TableReport(uid=UID, outcome="Done", commits=7),))))
    assert contract.name == name
    await world.settle()
    assert maintenance(world)["compaction"]["lastRun"]["commits"] == 7


@pytest.mark.parametrize(
    ("kind", "words"),
    [(COMPACTION, "small files wait until a partition has four"), (RETENTION, "no row, snapshot or file is older")],
)
async def test_a_run_that_had_nothing_to_do_says_why(kind: str, words: str) -> None:
    spec: dict[str, Any] = {} if kind == COMPACTION else {"snapshots": {"maxAge": "7d"}}
    world = await world_with(gen.policy(kind=kind, **spec, **ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    world.cluster.end_job(name, pack(RunReport(name=name, tables=(TableReport(uid=UID, outcome="Nothing"),))))
    await world.settle()
    section = "compaction" if kind == COMPACTION else "retention"
    for last in (maintenance(world)[section]["lastRun"], policy_status(world, kind=kind)["lastRun"]):
        assert last["result"] == "Succeeded"
        assert last["message"].startswith("there was nothing to do: ")
        assert words in last["message"]


async def test_runs_that_end_in_the_same_second_are_all_announced() -> None:
    topics = (gen.topic(), gen.topic("other"))
    world = await world_with(gen.policy(run={"maxConcurrent": 2}, **ALL), topics=topics)
    world.maintainer.hold = True
    for topic in ("flights", "other"):
        annotate(world, "1", topic)
        await world.settle()
    names = sorted((job["metadata"]["name"] for job in jobs(world)), reverse=True)
    assert len(names) == 2
    for name in names:
        (table,) = world.maintainer.contract(name).tables
        done = TableReport(uid=table.uid, outcome="Done", commits=1, bytes_rewritten=1, files_before=2, files_after=1)
        world.cluster.end_job(name, pack(RunReport(name=name, tables=(done,))))
        await world.operator_only()
    told = [message for on, reason, message in world.cluster.events if (on, reason) == ("policy", "Compacted")]
    assert sorted(message.split()[1].rstrip(":") for message in told) == sorted(names)


async def test_the_start_of_a_run_is_announced_although_its_status_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")

    async def conflict(*args: Any, **kwargs: Any) -> None:
        raise CommitConflictError("the object changed")

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, "patch_status", conflict)
        with pytest.raises(CommitConflictError):
            await world.operator.reconcile(("policy", COMPACTION, "demo", "policy"))
    await world.settle()
    assert [reason for name, reason, _ in world.cluster.events if name == "policy"].count("RunStarted") == 1


async def test_the_work_of_earlier_attempts_counts() -> None:
    world = await world_with(gen.policy(**ALL))
    world.maintainer.hold = True
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]

    def report(**fields: Any) -> str:
        return pack(RunReport(name=name, tables=(TableReport(uid=UID, **fields),)))

    world.cluster.end_job(name, report(outcome="Done", commits=7), failure="x", attempt=0)
    world.clock.advance(1)
    world.cluster.end_job(name, report(outcome="Nothing"), attempt=1)
    await world.settle()
    last = maintenance(world)["compaction"]["lastRun"]
    assert (last["result"], last["commits"]) == ("Succeeded", 7)


async def test_a_run_that_is_not_scheduled_for_too_long_is_overdue() -> None:
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


async def test_a_deletion_of_a_table_waits_for_the_active_run() -> None:
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


async def test_contracts_of_runs_are_deleted_with_their_jobs() -> None:
    world = await world_with(gen.policy(**ALL))
    annotate(world, "1")
    await world.settle()
    name = jobs(world)[0]["metadata"]["name"]
    assert name in [config_map["metadata"]["name"] for config_map in world.cluster.all("ConfigMap")]
    world.clock.advance(3700)
    await world.settle()
    world.clock.advance(400)
    await world.settle()
    assert not jobs(world)
    assert name not in [config_map["metadata"]["name"] for config_map in world.cluster.all("ConfigMap")]
    assert maintenance(world)["compaction"]["lastRun"]["name"] == name


async def test_a_contract_whose_job_is_being_created_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
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
