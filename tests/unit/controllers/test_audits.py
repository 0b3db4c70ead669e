"""Audits run on the schedule of the configuration, and the status of each topic shows their result."""

from datetime import datetime, timedelta
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import InvalidSpecError
from firn.model.jobs import TableTarget
from firn.model.maintenance import ANY_PARTITION, AuditReport, OffsetRange
from firn.model.progress import Losses
from firn_controllers.cache.topics import topic_entry
from firn_controllers.children import Owner
from firn_controllers.policies import plan
from firn_controllers.policies.audits import audit_policy, findings, spread_over_topics
from firn_controllers.policies.decision import audit_start
from firn_controllers.policies.due import Due
from firn_controllers.policies.plan import DueTable, PlannedRun
from firn_controllers.ports import Manifest, NoRunMeter, TableDebt
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import ALL, COMPACTION, MANY, UID, active, jobs

EVERY_FIVE: dict[str, Any] = {"audit": {"schedule": "*/5 * * * *", "spread": "30s"}}
EXACT: dict[str, Any] = {"offsets": 100}
SECONDS_PER_RUN = 30.0
"""Seconds of a run without tables: pod, JVM and Spark. `hack/bench/run audit` measures 22 s without a pod."""
SECONDS_PER_TABLE = 1.5
WRONG: dict[str, Any] = {"offsets": 100, "missing": 2, "doubled": 1, "partition": 3, "offset": 40}


async def world_with(*objects: Manifest, **maintenance: Any) -> World:
    """Return a world whose topics have landed records, some minutes before the next audit."""
    world = World(gen.config(maintenance={**EVERY_FIVE, **maintenance}))
    for created in objects or (gen.topic(),):
        world.driver.report_fields[f"uid-demo-{created['metadata']['name']}"] = {
            "last_commit": 1.7e9,
            "losses": Losses(),
        }
        world.cluster.create(created)
    await world.settle()
    return world


async def pass_minutes(world: World, minutes: int) -> None:
    for _ in range(minutes * 4):
        await world.step()
        world.clock.advance(15.0)


def finds(world: World, figures: dict[str, Any]) -> None:
    topic_id = world.cluster.topic("flights")["status"]["topicId"]
    world.maintainer.report_fields[UID] = {"audit": {"topic_id": topic_id, **figures}}


def audit_of(world: World) -> Manifest:
    section: Manifest = world.cluster.topic("flights")["status"].get("audit") or {}
    return section


def annotate(world: World, key: str, value: str) -> None:
    def change(live: Manifest) -> None:
        live["metadata"].setdefault("annotations", {})[key] = value

    world.cluster.edit("flights", change, spec=False)


async def test_a_topic_without_a_policy_is_audited_on_schedule() -> None:
    world = await world_with()
    finds(world, EXACT)
    await pass_minutes(world, 7)
    (run,) = world.maintainer.done
    (work,) = run.tables
    assert work.audit is not None
    assert (work.compaction, work.retention) == (None, None)
    assert (work.audit.profile, work.audit.topic, list(run.kafka)) == ("classic", "flights", ["classic"])
    audit = audit_of(world)
    assert (audit["result"], audit["offsets"], audit["missing"], audit["lastRun"]["result"]) == (
        "Exact",
        100,
        0,
        "Succeeded",
    )
    assert datetime.fromisoformat(audit["nextRunTime"]) > datetime.fromisoformat(audit["time"])
    assert world.conditions()["Complete"] == ("True", "EveryOffset")
    await pass_minutes(world, 5)
    assert len(world.maintainer.done) == 2


async def test_the_run_of_a_secured_kafka_mounts_its_secrets() -> None:
    sasl = {"mechanism": "SCRAM-SHA-512", "username": "u", "password": {"secret": "kafka-login", "key": "password"}}
    secured = {"bootstrapServers": "kafka.example:9092", "security": {"sasl": sasl}}
    config = gen.config(profiles={"classic": secured}, maintenance=EVERY_FIVE)
    policy = audit_policy(config)
    assert policy is not None
    topic = topic_entry(gen.topic(), config)
    target = TableTarget(catalog="lake", namespace="demo", name="flights")
    table = DueTable(topic, target, "uuid", None, Due(gen.NOW, "the schedule is due", gen.NOW), "")
    batch = PlannedRun((table,), "small")
    contract = plan.contract(policy, batch, config, gen.NOW)
    pod = plan.job(policy, batch, contract, config, Owner("firn-system", "uid"))["spec"]["template"]["spec"]
    assert [volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume] == [
        "firn-postgres",
        "kafka-login",
    ]
    assert contract.kafka["classic"].sasl_password_path == "/etc/firn/secrets/kafka-login/password"
    own = {"sasl": sasl | {"username": "runs", "password": {"secret": "runs-login", "key": "password"}}}
    drivers = {"groups": dict.fromkeys(config.groups, own), "maintenance": own}
    config = gen.config(profiles={"classic": secured | {"drivers": drivers}}, maintenance=EVERY_FIVE)
    contract = plan.contract(policy, batch, config, gen.NOW)
    pod = plan.job(policy, batch, contract, config, Owner("firn-system", "uid"))["spec"]["template"]["spec"]
    mounted = {volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert mounted == {"firn-postgres", "runs-login"}, "of the credentials in Kafka, only its own"
    assert (contract.kafka["classic"].sasl_username, contract.kafka["classic"].sasl_password_path) == (
        "runs",
        "/etc/firn/secrets/runs-login/password",
    )


def test_a_table_whose_offsets_alone_are_large_has_its_own_run() -> None:
    config = gen.config(maintenance={**EVERY_FIVE, "largeTable": "1Gi"})
    policy = audit_policy(config)
    assert policy is not None
    due = Due(gen.NOW, "the schedule is due", gen.NOW)
    tables = [
        DueTable(
            topic_entry(gen.topic(name), config),
            TableTarget(catalog="lake", namespace="demo", name=name),
            name,
            debt,
            due,
            "",
        )
        for name, debt in (
            ("a", None),
            ("b", TableDebt("b", data_bytes=2 * 2**30)),
            ("c", TableDebt("c", data_bytes=20 * 2**30)),
        )
    ]
    runs = plan.planned_runs(policy, tables, config, free=5)
    assert sorted(sorted(table.table_uuid for table in run.tables) for run in runs) == [["a", "b"], ["c"]]


async def test_a_restarted_operator_does_not_audit_again() -> None:
    world = await world_with()
    finds(world, EXACT)
    await pass_minutes(world, 7)
    world.start()
    await pass_minutes(world, 1)
    assert len(world.maintainer.done) == 1


async def test_a_topic_that_is_new_or_paused_is_not_audited() -> None:
    paused = gen.topic("paused", lambda manifest: manifest["metadata"].update(annotations={names.PAUSE: "true"}))
    world = await world_with(paused)
    world.cluster.create(gen.topic())
    await pass_minutes(world, 7)
    assert jobs(world) == []


async def test_without_a_schedule_no_audit_starts_and_its_runs_end() -> None:
    world = await world_with()
    world.maintainer.hold = True
    await pass_minutes(world, 7)
    assert len(active(world)) == 1
    world.start(gen.config())
    await pass_minutes(world, 2)
    assert active(world) == []


async def test_a_failed_audit_is_reported_until_it_is_acknowledged() -> None:
    world = await world_with()
    finds(world, WRONG)
    await pass_minutes(world, 7)
    assert world.conditions()["Complete"] == ("False", "AuditFailed")
    assert world.conditions()["Ready"] == ("True", "AllReady")
    message = world.message("Complete")
    assert "2 records without a row, 1 surplus rows and 0 rows beyond" in message
    assert "partition 3, offset 40" in message
    assert "AuditFailed" in {reason for _, reason, _ in world.cluster.events}
    first = audit_of(world)["failed"]["run"]
    assert message.endswith(f"{names.ACKNOWLEDGE_AUDIT}={first}")
    await pass_minutes(world, 5)
    assert audit_of(world)["lastRun"]["name"] != first
    assert audit_of(world)["failed"]["run"] == first, "the same finding needs one acknowledgement"
    finds(world, EXACT)
    await pass_minutes(world, 5)
    assert audit_of(world)["result"] == "Exact"
    assert world.conditions()["Complete"] == ("False", "AuditFailed"), "the log may have lost the records since"
    annotate(world, names.ACKNOWLEDGE_AUDIT, f"{first}x")
    await pass_minutes(world, 1)
    assert world.message("Complete").endswith(f"; annotation {names.ACKNOWLEDGE_AUDIT} names another finding")
    annotate(world, names.ACKNOWLEDGE_AUDIT, first)
    await pass_minutes(world, 1)
    assert world.conditions()["Complete"] == ("True", "EveryOffset")
    finds(world, {**WRONG, "missing": 3})
    await pass_minutes(world, 5)
    assert world.conditions()["Complete"] == ("False", "AuditFailed")


async def test_audits_share_the_limit_of_runs_with_policies() -> None:
    world = await world_with(gen.topic(), maxRuns=1)
    world.cluster.create(gen.policy(kind=COMPACTION, **ALL, triggers={"smallFiles": 100}))
    world.maintainer.hold = True
    world.owes(**MANY)
    await pass_minutes(world, 7)
    (run,) = active(world)
    assert run["metadata"]["labels"][names.LABEL_POLICY_KIND] == COMPACTION


async def test_topics_share_a_run_up_to_the_limit() -> None:
    topics = [gen.topic(f"t{number}") for number in range(5)]
    world = await world_with(*topics, audit={"schedule": "*/5 * * * *", "spread": "1ms"}, tablesPerRun=3)
    await pass_minutes(world, 9)
    assert sorted(len(run.tables) for run in world.maintainer.done) == [2, 3]


async def test_topics_that_are_due_one_after_the_other_share_a_run() -> None:
    topics = [gen.topic(f"t{number}") for number in range(12)]
    world = await world_with(*topics, audit={"schedule": "0 * * * *", "spread": "40m"})
    await pass_minutes(world, 60)
    sizes = [len(run.tables) for run in world.maintainer.done]
    assert sum(sizes) == 12
    assert 4 <= len(sizes) <= 10, "some topics are due within 2.5 minutes of each other"


async def test_as_many_audit_runs_are_active_as_the_configuration_allows() -> None:
    topics = [gen.topic(f"t{number}") for number in range(5)]
    audit = {"schedule": "*/5 * * * *", "spread": "1ms", "maxConcurrent": 2}
    world = await world_with(*topics, audit=audit, tablesPerRun=1)
    world.maintainer.hold = True
    await pass_minutes(world, 7)
    assert len(active(world)) == 2
    world.maintainer.hold = False
    await pass_minutes(world, 4)
    assert len(world.maintainer.done) >= 5


@pytest.mark.parametrize("topics", [10_000, 100])
def test_a_night_is_enough_for_ten_thousand_small_topics(topics: int) -> None:
    """Check the default configuration with the figures of `hack/bench/run audit`, on docs/performance.md."""
    config = gen.config(maintenance={"audit": {"schedule": "0 1 * * *"}})
    policy = audit_policy(config)
    assert policy is not None
    assert policy.terms is not None
    assert policy.terms.slots is not None
    slot = policy.terms.slots.cron.next(gen.NOW)
    entry, target = topic_entry(gen.topic(), config), TableTarget(catalog="lake", namespace="demo", name="t")
    coming = []
    for number in range(topics):
        slots = spread_over_topics(policy, f"uid-{number}").terms
        assert slots is not None
        assert slots.slots is not None
        coming.append(DueTable(entry, target, "u", None, Due(slots.slots.due(slot), "schedule", slot), ""))
    coming.sort(key=lambda table: table.due.since)
    now, free = slot, [slot] * policy.terms.max_concurrent
    waiting: list[DueTable] = []
    ends, runs = [], 0
    while coming or waiting:
        due = [table for table in coming[:500] if table.due.since <= now]
        waiting, coming = waiting + due, coming[len(due) :]
        ready = [
            run for run in plan.planned_runs(policy, waiting, config, len(waiting)) if audit_start(policy, run) <= now
        ]
        for run in ready:
            free.sort()
            if free[0] > now:
                break
            free[0] = now + timedelta(seconds=SECONDS_PER_RUN + SECONDS_PER_TABLE * len(run.tables))
            started = {id(table) for table in run.tables}
            waiting = [table for table in waiting if id(table) not in started]
            ends.append(free[0])
            runs += 1
        now += timedelta(seconds=15)
    assert max(ends) <= slot + policy.terms.slots.jitter + timedelta(minutes=30)
    assert runs <= topics / config.maintenance.tables_per_run + 2 * 16 * policy.terms.max_concurrent


async def test_an_audit_that_cannot_run_is_retried_and_keeps_the_last_result() -> None:
    world = await world_with()
    finds(world, EXACT)
    await pass_minutes(world, 7)
    time = audit_of(world)["time"]
    world.maintainer.report_fields[UID] = {"outcome": "Failed", "message": "no answer"}
    await pass_minutes(world, 7)
    audit = audit_of(world)
    assert (audit["time"], audit["result"]) == (time, "Exact")
    assert (audit["lastRun"]["result"], audit["lastRun"]["message"]) == ("Failed", "no answer")
    assert audit["failures"] >= 2


def test_the_policy_of_audits_has_the_schedule_and_the_spread_of_the_configuration() -> None:
    policy = audit_policy(gen.config(maintenance={"audit": {"schedule": "0 1 * * *"}}))
    assert policy is not None
    assert policy.terms is not None
    assert policy.terms.slots is not None
    assert policy.terms.slots.jitter == timedelta(hours=4)
    assert audit_policy(gen.config()) is None


@pytest.mark.parametrize("audit", [{"schedule": "0 25 * * *"}, {"schedule": "0 1 * * *", "timeZone": "Mars/Phobos"}])
def test_a_schedule_that_is_not_valid_is_named(audit: dict[str, str]) -> None:
    with pytest.raises(InvalidSpecError, match=r"maintenance\.audit\."):
        audit_policy(gen.config(maintenance={"audit": audit}))


async def test_a_table_with_times_is_not_audited_and_its_status_says_why() -> None:
    fields = [{"name": "id", "type": "long"}, {"name": "at", "type": "list<time>"}]
    world = await world_with(gen.topic(schema={"format": "Json", "fields": fields}))
    await pass_minutes(world, 7)
    assert world.maintainer.done == []
    assert audit_of(world) == {
        "excluded": "column at has type time, which Spark cannot read, so no run audits the topic; run firn audit demo/flights"
    }


async def test_a_run_that_fails_is_an_event_and_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Any] = []
    registered: set[Any] = set()
    monkeypatch.setattr(NoRunMeter, "register", lambda _, *policy: registered.add(policy))
    monkeypatch.setattr(
        NoRunMeter, "ended", lambda _, kind, namespace, policy, run: counted.append((kind, policy, run["result"]))
    )
    world = await world_with()
    world.maintainer.report_fields[UID] = {"outcome": "Failed", "reason": "CatalogUnreachable", "message": "no answer"}
    await pass_minutes(world, 7)
    assert ("Audit", "firn-system", "audit") in registered
    assert counted[0] == ("Audit", "audit", "Failed")
    assert len(counted) == len(world.maintainer.done)
    events = [(name, message) for name, reason, message in world.cluster.events if reason == "RunFailed"]
    assert len(events) == len(world.maintainer.done)
    assert {name for name, _ in events} == {"flights"}
    assert all("CatalogUnreachable: no answer" in message for _, message in events)
    world.start()
    await pass_minutes(world, 1)
    assert len(events) == len([reason for _, reason, _ in world.cluster.events if reason == "RunFailed"])


def test_a_finding_is_about_one_topic() -> None:
    wrong = AuditReport(topic_id="a", offsets=5, missing=1, partition=0, offset=2)
    found = findings({}, wrong, "run-1", "2026-01-01T00:00:00Z")
    assert (found["result"], found["failed"]["run"]) == ("Failed", "run-1")
    unproved = findings(found, AuditReport(topic_id="a", offsets=5, unproved=2), "run-2", "2026-01-02T00:00:00Z")
    assert (unproved["result"], unproved["failed"]) == ("Unproved", found["failed"])
    again = findings(found, AuditReport(topic_id="b"), "run-3", "2026-01-03T00:00:00Z")
    assert "failed" not in again


def missing(count: int, *ranges: tuple[int, int, int], **more: Any) -> AuditReport:
    found = tuple(OffsetRange(*own) for own in ranges)
    return AuditReport(topic_id="a", offsets=1000, missing=count, missing_ranges=found, **more)


def doubled(count: int, *ranges: tuple[int, int, int], stray: int = 0) -> AuditReport:
    found = tuple(OffsetRange(*own) for own in ranges)
    return AuditReport(topic_id="a", offsets=1000, doubled=count, stray=stray, surplus_ranges=found)


DELETED = missing(1_000_000, (0, 0, 10**6), unproved=10**6, unsearched_ranges=(OffsetRange(0, 0, 2 * 10**6),))
"""An audit that reached the limit of records to read from the log."""


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (missing(7, (0, 3, 10)), missing(7, (0, 3, 10))),
        (missing(7, (0, 3, 10)), missing(2, (0, 8, 10))),
        (missing(8, (0, 3, 10), (2, 4, 5)), missing(1, (2, 4, 5))),
        (missing(30, (ANY_PARTITION, 3, 10)), missing(7, (0, 3, 10))),
        (DELETED, missing(999_000, (0, 400_000, 1_400_000))),
        (doubled(9, (0, 0, 128)), doubled(4, (0, 64, 128))),
        (doubled(0, (0, 64, 128), stray=5), doubled(5, (0, 64, 128))),
    ],
)
def test_a_finding_keeps_its_name_when_only_its_counts_change(before: AuditReport, after: AuditReport) -> None:
    first = findings({}, before, "run-1", "2026-01-01T00:00:00Z")
    later = findings(first, after, "run-2", "2026-01-02T00:00:00Z")
    assert later["failed"] == first["failed"]
    assert (later["missing"], later["doubled"]) == (after.missing, after.doubled)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (missing(7, (0, 3, 10)), missing(7, (0, 4, 11))),
        (missing(7, (0, 3, 10)), missing(7, (1, 3, 10))),
        (missing(7, (0, 3, 10)), missing(8, (0, 3, 10))),
        (missing(7, (0, 3, 10)), missing(7, (ANY_PARTITION, 3, 10))),
        (doubled(9, (0, 0, 64)), doubled(9, (0, 64, 128))),
        (doubled(9, (0, 0, 64)), doubled(10, (0, 0, 64))),
        (doubled(9, (0, 0, 64)), missing(1, (0, 3, 4))),
        (AuditReport(topic_id="a"), missing(1, (0, 3, 4))),
        (AuditReport(topic_id="b", missing=7, missing_ranges=(OffsetRange(0, 3, 10),)), missing(7, (0, 3, 10))),
    ],
)
def test_a_finding_that_grew_worse_needs_another_acknowledgement(before: AuditReport, after: AuditReport) -> None:
    first = findings({}, before, "run-1", "2026-01-01T00:00:00Z")
    later = findings(first, after, "run-2", "2026-01-02T00:00:00Z")
    assert later["failed"]["run"] == "run-2"


def test_a_finding_that_was_mended_and_comes_back_is_another() -> None:
    found = findings({}, missing(7, (0, 3, 10)), "run-1", "2026-01-01T00:00:00Z")
    found = findings(found, missing(2, (0, 8, 10)), "run-2", "2026-01-02T00:00:00Z")
    assert found["failed"]["run"] == "run-1"
    assert found["missingRanges"] == ["0:8-9"]
    found = findings(found, missing(7, (0, 3, 10)), "run-3", "2026-01-03T00:00:00Z")
    assert found["failed"]["run"] == "run-3"


async def test_an_acknowledged_finding_stays_acknowledged_while_the_log_deletes_its_records() -> None:
    world = await world_with()
    finds(world, {**WRONG, "missing_ranges": [(3, 40, 42)], "surplus_ranges": [(0, 0, 64)]})
    await pass_minutes(world, 7)
    annotate(world, names.ACKNOWLEDGE_AUDIT, audit_of(world)["failed"]["run"])
    finds(world, {"offsets": 90, "missing": 1, "partition": 3, "offset": 41, "missing_ranges": [(3, 41, 42)]})
    await pass_minutes(world, 5)
    assert (audit_of(world)["result"], audit_of(world)["missingRanges"]) == ("Failed", ["3:41-41"])
    assert world.conditions()["Complete"] == ("True", "EveryOffset")
    finds(world, {"offsets": 90, "missing": 1, "partition": 3, "offset": 60, "missing_ranges": [(3, 60, 61)]})
    await pass_minutes(world, 5)
    assert world.conditions()["Complete"] == ("False", "AuditFailed")
