"""Stories of one topic: all reconcilers on a world in memory."""

import asyncio
import copy
from itertools import pairwise
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import AccessDeniedError, CommitConflictError, UnavailableError
from firn.model.jobs import RecordSchema, TableTarget
from firn_controllers.ports import FoundTable, Manifest
from firn_controllers.queue import Key, Outcome
from firn_controllers.reconcilers.topic import restored as found_data
from tests import gen
from tests.fakes.world import World

UID = "uid-demo-flights"


async def settled(*modifiers: gen.Modifier, beside: str | None = None, **spec: Any) -> World:
    """Return a world with one ready topic, or with a topic that is younger than topic ``beside``."""
    world = World()
    if beside is not None:
        world.cluster.create(gen.topic(beside))
        await world.settle()
    world.cluster.create(gen.topic("flights", *modifiers, **spec))
    await world.settle()
    return world


async def recreate_topic(world: World) -> None:
    """Delete the Kafka topic, and wait until the contract has the id of its successor."""
    before = world.job().topic_id
    await world.topics.delete("classic", "flights")
    for _ in range(80):
        await world.step()
        world.clock.advance(5.0)
    assert world.job().topic_id not in (None, before)


def annotate(world: World, key: str, value: str | None) -> None:
    def change(manifest: Manifest) -> None:
        annotations = manifest["metadata"].setdefault("annotations", {})
        if value is None:
            annotations.pop(key, None)
        else:
            annotations[key] = value

    world.cluster.edit("flights", change, spec=False)


def reasons(world: World) -> list[str]:
    return [reason for name, reason, _ in world.cluster.events if name == "flights"]


async def test_a_manifest_becomes_topic_table_contract_and_ready() -> None:
    world = await settled(beside="other", partitions=6, config={"retention.ms": "1000"})
    live = world.topics.topics["classic", "flights"]
    assert (live.partitions, dict(live.configs)) == (6, {"retention.ms": "1000"})
    assert world.tables.tables["lake.demo.flights"].owner == UID
    job = world.job()
    assert (job.topic, job.topic_id, job.table.identifier, job.freshness_ms) == (
        "flights", live.topic_id, "lake.demo.flights", 60_000,
    )  # fmt: skip
    labels = world.cluster.contracts()[UID]["metadata"]["labels"]
    assert labels[names.LABEL_GROUP] == "default"
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert reasons(world) == ["Created", "Ready"]


async def test_a_topic_and_a_table_take_few_writes() -> None:
    world = await settled(beside="other")
    mine = [entry for entry in world.faults.log if "flights" in entry or UID in entry]
    assert len(mine) == 4, mine


async def test_partitions_and_configs_follow_the_spec() -> None:
    world = await settled(partitions=3, config={"retention.ms": "1000", "segment.ms": "5000"})
    world.cluster.edit(
        "flights", lambda manifest: manifest["spec"].update(partitions=9, config={"retention.ms": "2000"})
    )
    await world.settle()
    live = world.topics.topics["classic", "flights"]
    assert (live.partitions, dict(live.configs)) == (9, {"retention.ms": "2000"})
    assert world.cluster.topic("flights")["status"]["partitions"] == 9
    assert "Changed" in reasons(world)


async def test_an_external_change_of_a_managed_config_is_repaired() -> None:
    world = await settled(config={"retention.ms": "1000"})
    await world.topics.alter_configs("classic", "flights", {"retention.ms": "7", "segment.ms": "8"}, [])
    for _ in range(80):
        await world.step()
        world.clock.advance(5.0)
    assert dict(world.topics.topics["classic", "flights"].configs) == {"retention.ms": "1000", "segment.ms": "8"}
    assert reasons(world).count("DriftRepaired") == 1


async def test_a_deleted_topic_is_recreated_and_the_contract_has_its_id() -> None:
    world = await settled()
    await recreate_topic(world)
    assert world.cluster.topic("flights")["status"]["topicId"] == world.job().topic_id


async def test_resume_does_not_apply_to_a_recreated_topic() -> None:
    world = await settled(gen.annotated(names.RESUME, "skip:1:900"))
    assert world.job().resume == "skip:1:900"
    await recreate_topic(world)
    assert world.job().resume is None
    world.cluster.edit("flights", gen.annotated(names.RESUME, "skip:1:7"))
    await world.settle()
    assert world.job().resume == "skip:1:7"


async def test_fewer_partitions_than_the_topic_has_are_rejected() -> None:
    world = World(gen.adopting())
    await world.topics.create("classic", "flights", 12, {})
    world.cluster.create(gen.topic(partitions=3))
    await world.settle()
    assert world.conditions()["TopicReady"] == ("False", "PartitionDecreaseRefused")
    assert world.topics.topics["classic", "flights"].partitions == 12
    assert world.job().topic_id, "ingestion continues"


async def test_a_config_that_kafka_rejects_is_an_error_of_the_spec() -> None:
    world = await settled(config={"no.such.config": "1"})
    assert world.conditions()["SpecValid"] == ("False", "BadTopicConfig")
    assert "no.such.config" in world.message("SpecValid")
    assert not world.cluster.contracts()


async def test_a_field_is_added_and_the_contract_follows() -> None:
    world = await settled()
    world.cluster.edit(
        "flights", lambda manifest: manifest["spec"]["schema"]["fields"].append({"name": "extra", "type": "int"})
    )
    await world.settle()
    assert "extra" in {field.name for field in world.job().record_schema.fields}
    assert "extra" in {column.name for column in world.tables.tables["lake.demo.flights"].schema.fields}
    assert world.job().generation == 2


async def test_ingestion_continues_under_the_old_schema_after_a_rejected_one() -> None:
    world = await settled()
    before = world.job()
    world.cluster.edit("flights", lambda manifest: manifest["spec"]["schema"].update(fields=gen.FIELDS[1:]))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "IncompatibleSchema")
    assert world.conditions()["IngestionReady"] == ("True", "CaughtUp")
    assert world.cluster.topic("flights")["status"]["observedGeneration"] == 2
    assert world.job() == before
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(suspend=True))
    await world.settle()
    assert world.job() == before.model_copy(update={"suspended": True}), "suspend has an effect all the same"


async def test_an_incompatible_existing_table_is_reported() -> None:
    world = World(gen.adopting())
    other = gen.observed()
    assert not isinstance(other.target, Exception)
    fields = RecordSchema.model_validate({"format": "Json", "fields": [{"name": "id", "type": "uuid"}]})
    world.tables.put(other.target, fields)
    world.cluster.create(gen.topic())
    await world.settle()
    assert world.conditions()["TableReady"] == ("False", "SchemaIncompatible")
    assert world.conditions()["Stalled"] == ("True", "InvalidSpec")
    assert not world.cluster.contracts()


async def test_suspend_stops_only_ingestion() -> None:
    world = await settled()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(suspend=True))
    await world.settle()
    assert world.job().suspended
    assert world.conditions()["Ready"] == ("False", "Suspended")
    assert world.conditions()["TopicReady"] == ("True", "Created")
    assert {"Reconciling", "Stalled"}.isdisjoint(world.conditions())


async def test_pause_stops_everything_except_the_condition() -> None:
    world = await settled()
    annotate(world, names.PAUSE, "true")
    await world.settle()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(partitions=50, suspend=True))
    await world.settle()
    assert world.conditions()["Paused"] == ("True", "PausedByAnnotation")
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.cluster.topic("flights")["status"]["observedGeneration"] == 1
    assert world.topics.topics["classic", "flights"].partitions == 3
    assert not world.job().suspended
    annotate(world, names.PAUSE, None)
    await world.settle()
    assert "Paused" not in world.conditions()
    assert world.topics.topics["classic", "flights"].partitions == 50
    assert [reason for reason in reasons(world) if reason in ("Paused", "Unpaused")] == ["Paused", "Unpaused"]


async def test_another_group_takes_over_the_topic() -> None:
    world = await settled()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "big"}))
    await world.settle()
    assert world.job().group == "big"
    assert world.cluster.contracts()[UID]["metadata"]["labels"][names.LABEL_GROUP] == "big"
    assert world.cluster.topic("flights")["status"]["ingestion"]["group"] == "big"
    assert set(world.progress.documents) == {"big"}, "the unused group has no pod"
    assert world.conditions()["Ready"] == ("True", "AllReady")


# Ingestion halts at a record


def halt(world: World, offset: int | None) -> None:
    halted: dict[str, Any] = (
        {"state": "Halted", "halted_at": {"partition": 1, "offset": offset}} if offset is not None else {}
    )
    world.driver.report_fields[UID] = halted


async def test_resume_acts_once_for_its_record() -> None:
    world = await settled(ingestion={"onBadRecord": "Halt"})
    halt(world, 900)
    await world.settle()
    assert world.conditions()["IngestionReady"] == ("False", "BadRecordHalt")
    assert world.cluster.topic("flights")["status"]["ingestion"]["haltedAt"] == {"partition": 1, "offset": 900}
    assert "HaltedAtRecord" in reasons(world)
    annotate(world, names.RESUME, "skip")
    await world.settle()
    assert world.job().resume == "skip:1:900"
    halt(world, None)
    await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert "haltedAt" not in world.cluster.topic("flights")["status"]["ingestion"]
    halt(world, 950)
    await world.settle()
    assert world.job().resume == "skip:1:900", "the next bad record still halts"
    world.start()
    await world.settle()
    assert world.job().resume == "skip:1:900", "also with a new process"
    annotate(world, names.RESUME, "skip:1:950")
    await world.settle()
    assert world.job().resume == "skip:1:950"


async def test_a_resume_that_names_another_record_than_that_of_the_halt_is_answered() -> None:
    world = await settled(gen.annotated(names.RESUME, "skip:0:9"), ingestion={"onBadRecord": "Halt"})
    remark = f"annotation {names.RESUME} names another record than the one at which ingestion stopped"
    halt(world, 900)
    await world.settle()
    assert remark not in world.message("IngestionReady"), "the annotation may be of an earlier halt"
    for wrong in ("skip:0:900", "skip:1:90"):
        annotate(world, names.RESUME, wrong)
        for _ in range(2):
            await world.settle()
            assert remark in world.message("IngestionReady")
            world.start()
    annotate(world, names.RESUME, "skip:1:900")
    await world.settle()
    assert remark not in world.message("IngestionReady")
    halt(world, 950)
    await world.settle()
    assert remark not in world.message("IngestionReady")


async def test_resume_can_be_removed_and_set_again() -> None:
    world = await settled()
    halt(world, 900)
    await world.settle()
    annotate(world, names.RESUME, "skip")
    await world.settle()
    halt(world, 950)
    annotate(world, names.RESUME, None)
    await world.settle()
    assert world.job().resume is None
    annotate(world, names.RESUME, "skip")
    await world.settle()
    assert world.job().resume == "skip:1:950"


async def test_resume_without_a_halt_has_no_later_effect() -> None:
    world = await settled(gen.annotated(names.RESUME, "skip"))
    halt(world, 5)
    await world.settle()
    assert world.job().resume is None


async def test_the_driver_restarts_once_for_each_value() -> None:
    world = await settled()
    annotate(world, names.RESTART, "1")
    await world.settle()
    assert world.job().restart == "1"
    annotate(world, names.RESTART, None)
    await world.settle()
    assert world.job().restart == "1", "removing the annotation restarts nothing"


# Times and counts


async def test_times_and_counts_are_written_at_most_once_a_minute() -> None:
    world = await settled()
    writes = []
    for second in range(0, 600, 5):
        now = world.clock.now().timestamp()
        world.driver.report_fields[UID] = {
            "state": "Running" if second % 10 else "CaughtUp",
            "last_commit": now,
            "rows": second,
        }
        before = world.faults.writes()
        await world.step()
        if world.faults.writes() > before:
            writes.append(world.clock.monotonic())
        world.clock.advance(5.0)
    gaps = [after - before for before, after in pairwise(writes)]
    assert 5 <= len(writes) <= 11
    assert min(gaps[1:]) >= 55.0
    assert "lastCommitTime" in world.cluster.topic("flights")["status"]["ingestion"]


async def test_a_halt_is_written_at_once() -> None:
    world = await settled()
    world.clock.advance(5.0)
    halt(world, 7)
    await world.step()
    world.clock.advance(5.0)
    await world.step()
    assert world.conditions()["IngestionReady"] == ("False", "BadRecordHalt")


@pytest.mark.parametrize(
    "change",
    [
        {"groups": {"default": {"namespaces": ["other"]}, "big": {}}},
        {"profiles": {"classic": {"replicas": 3, "namespaces": ["other"]}}},
        {
            "catalogs": {
                "lake": {
                    **gen.config().catalogs["lake"].model_dump(by_alias=True, mode="json"),
                    "namespaces": ["other"],
                }
            }
        },
    ],
    ids=["group", "profile", "catalog"],
)
async def test_ingestion_stops_while_the_namespace_has_lost_its_right(change: dict[str, Any]) -> None:
    world = await settled(gen.annotated(names.RESUME, "skip:1:900"))
    allowed = world.config
    before = world.job()
    world.start(gen.config(**change))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "NotAllowed")
    assert world.job().suspended
    world.start(allowed)
    await world.settle()
    assert world.job() == before


async def test_a_topic_moves_to_an_allowed_group_in_the_same_change() -> None:
    world = await settled()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "big"}))
    world.start(gen.config(groups={"default": {"namespaces": ["other"]}, "big": {}}))
    await world.settle()
    assert (world.job().group, world.job().suspended) == ("big", False)


async def test_an_edited_label_or_owner_of_a_contract_is_restored() -> None:
    world = await settled()
    contract = world.cluster.contracts()["uid-demo-flights"]
    before = copy.deepcopy(contract["metadata"])
    del contract["metadata"]["labels"][names.LABEL_GROUP]
    contract["metadata"]["ownerReferences"] = []
    world.start()
    await world.settle()
    after = world.cluster.contracts()["uid-demo-flights"]["metadata"]
    assert (after["labels"], after["ownerReferences"]) == (before["labels"], before["ownerReferences"])


async def test_the_driver_runs_while_it_has_the_contract_of_an_invalid_spec() -> None:
    world = await settled()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "nowhere"}))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "GroupNotFound")
    (driver,) = (
        live
        for place, live in world.cluster.objects.items()
        if place[3] == "firn-ingest-default" and place[1] == "StatefulSet"
    )
    assert driver["spec"]["replicas"] == 1
    assert "default" in world.progress.documents
    world.cluster.remove("flights")
    await world.settle()
    (driver,) = (
        live
        for place, live in world.cluster.objects.items()
        if place[3] == "firn-ingest-default" and place[1] == "StatefulSet"
    )
    assert driver["spec"]["replicas"] == 0


async def test_ingestion_continues_when_the_spec_names_a_forbidden_group() -> None:
    world = World(gen.config(groups={"default": {}, "big": {"namespaces": ["other"]}}))
    world.cluster.create(gen.topic())
    await world.settle()
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "big"}))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "NotAllowed")
    assert world.job().group == "default"


# Deletion


async def test_a_deletion_that_keeps_data_removes_only_the_contract() -> None:
    world = await settled()
    assert not world.cluster.topic("flights")["metadata"].get("finalizers")
    world.cluster.remove("flights")
    await world.settle()
    assert not world.cluster.contracts()
    assert world.topics.topics
    assert world.tables.tables


async def test_the_finalizer_exists_while_a_deletion_would_delete_data() -> None:
    world = await settled(deletionPolicy={"topic": "Delete"})
    assert world.cluster.topic("flights")["metadata"]["finalizers"] == [names.FINALIZER]
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(deletionPolicy={"topic": "Retain"}))
    await world.settle()
    assert world.cluster.topic("flights")["metadata"]["finalizers"] == []


async def test_the_finalizer_is_set_before_anything_is_created() -> None:
    world = await settled(deletionPolicy={"topic": "Delete"})
    mine = [entry for entry in world.faults.log if "flights" in entry]
    assert mine[0].startswith("finalizers")


@pytest.mark.parametrize(
    ("policy", "topic_left", "table_left"),
    [
        pytest.param({"topic": "Delete"}, False, True, id="the topic"),
        pytest.param({"topic": "Delete", "table": "Delete"}, False, False, id="both"),
    ],
)
async def test_a_deletion_follows_the_deletion_policy(
    policy: dict[str, str], topic_left: bool, table_left: bool
) -> None:
    world = await settled(deletionPolicy=policy)
    world.cluster.remove("flights")
    await world.settle()
    assert not world.cluster.topics()
    assert (bool(world.topics.topics), bool(world.tables.tables)) == (topic_left, table_left)
    assert "DataDeleted" in reasons(world)


@pytest.mark.parametrize("restarts", [False, True], ids=["same process", "restarted operator"])
async def test_data_is_dropped_only_after_the_driver_of_an_earlier_group_released_the_topic(restarts: bool) -> None:
    world = await settled(beside="resident", deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(ingestion={"group": "nowhere"}))
    await world.settle()
    assert world.conditions()["SpecValid"] == ("False", "GroupNotFound")
    assert world.job().group == "default", "ingestion continues under the earlier spec"
    document, _ = world.progress.documents["default"]
    world.cluster.remove("flights")
    for number in range(20):  # the driver of the earlier group still reports the topic
        await world.operator_only()
        if restarts and number == 0:
            world.start()
        world.progress.documents["default"] = (document, world.clock.monotonic())
        world.clock.advance(5.0)
    assert "lake.demo.flights" in world.tables.tables
    await world.settle()
    assert "lake.demo.flights" not in world.tables.tables


async def test_data_is_dropped_only_after_the_driver_released_the_topic() -> None:
    world = await settled(deletionPolicy={"topic": "Delete", "table": "Delete"})
    document, _ = world.progress.documents["default"]
    world.cluster.remove("flights")
    for _ in range(20):  # the driver still reports the topic
        await world.operator_only()
        world.progress.documents["default"] = (document, world.clock.monotonic())
        world.clock.advance(5.0)
    assert not world.cluster.contracts()
    assert world.topics.topics
    assert world.tables.tables
    assert world.conditions()["Ready"] == ("False", "Deleting")
    assert world.conditions()["DeletionBlocked"] == ("True", "RunsActive")
    await world.settle()
    assert not world.topics.topics
    assert not world.tables.tables


@pytest.mark.parametrize("error", [UnavailableError("gone"), AccessDeniedError("no")], ids=["unavailable", "denied"])
@pytest.mark.parametrize("dependency", ["broker", "catalog"])
async def test_a_blocked_deletion_is_reported_and_can_be_forced(dependency: str, error: Exception) -> None:
    world = await settled(deletionPolicy={"topic": "Delete", "table": "Delete"})
    problem, reason = (
        (world.topics.problem, "BrokerUnreachable")
        if dependency == "broker"
        else (world.tables.problem, "CatalogUnreachable")
    )
    problem["classic" if dependency == "broker" else "lake"] = error  # type: ignore[assignment]
    world.cluster.remove("flights")
    await world.settle()
    assert world.conditions()["DeletionBlocked"] == ("True", reason)
    assert f"--overwrite itopic flights {names.FORCE_DELETION}=true" in world.message("DeletionBlocked")
    annotate(world, names.FORCE_DELETION, "True")
    await world.settle()
    assert f"{names.FORCE_DELETION} has an invalid value" in world.message("DeletionBlocked")
    annotate(world, names.FORCE_DELETION, "true")
    await world.settle()
    assert not world.cluster.topics()
    assert "DataLeftBehind" in reasons(world)


async def test_a_deletion_tells_that_files_of_the_table_may_stay() -> None:
    world = await settled(deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.tables.drop_problems = ("s3://firn/metadata/00000-a.metadata.json is metadata of another table",)
    world.cluster.remove("flights")
    await world.settle()
    assert not world.cluster.topics()
    told = [message for _, reason, message in world.cluster.events if reason == "DataLeftBehind"]
    assert ["of another table" in message for message in told] == [True]


async def test_a_wall_clock_that_is_set_changes_no_topic() -> None:
    world = await settled()
    before = len(world.faults.log)
    world.clock.skew = 3600.0
    world.clock.advance(6.0)
    await world.operator_only()
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.faults.log[before:] == []


async def test_a_blocked_deletion_continues_when_the_dependency_recovers() -> None:
    world = await settled(deletionPolicy={"topic": "Delete"})
    world.topics.problem["classic"] = UnavailableError("gone")
    world.cluster.remove("flights")
    await world.settle()
    assert world.cluster.topics()
    world.topics.problem.clear()
    await world.settle()
    assert not world.cluster.topics()
    assert not world.topics.topics


async def test_a_topic_recreated_by_another_client_is_not_deleted() -> None:
    world = await settled(deletionPolicy={"topic": "Delete"})
    await world.topics.delete("classic", "flights")
    await world.topics.create("classic", "flights", 1, {})
    world.cluster.remove("flights")
    await world.settle()
    assert not world.cluster.topics()
    assert world.topics.topics


async def test_pause_holds_back_a_deletion() -> None:
    world = await settled(gen.annotated(names.PAUSE, "true"), deletionPolicy={"topic": "Delete"})
    assert not world.topics.topics
    annotate(world, names.PAUSE, None)
    await world.settle()
    annotate(world, names.PAUSE, "true")
    world.cluster.remove("flights")
    await world.settle()
    assert world.topics.topics
    assert "the deletion waits" in world.message("Paused")


# Dependencies that fail single topics


async def failing(*topics: str) -> World:
    """Return a world in which topics wait for their tables: the catalog answers, but its object store has failed for
    half an hour."""
    world = World()
    world.tables.store_problem = UnavailableError("object store: connection refused")
    for name in topics:
        world.cluster.create(gen.topic(name))
    for _ in range(360):
        await world.step()
        world.clock.advance(5.0)
    return world


@pytest.mark.slow
async def test_a_table_is_ready_soon_after_its_object_store_recovers() -> None:
    world = await failing("flights")
    assert world.conditions()["TableReady"] == ("False", "CatalogUnreachable")
    world.tables.store_problem = None
    for _ in range(3):
        world.clock.advance(5.0)
        await world.step()
    assert world.conditions()["TableReady"] == ("True", "Created")


@pytest.mark.slow
async def test_a_topic_is_ready_soon_after_access_is_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    describe = world.topics.describe

    async def denied(profile: str, topic: str) -> None:
        raise AccessDeniedError(f"topic {topic}: not authorized")

    monkeypatch.setattr(world.topics, "describe", denied)
    world.cluster.create(gen.topic())
    for _ in range(360):
        await world.step()
        world.clock.advance(5.0)
    assert world.conditions()["TopicReady"] == ("False", "AccessDenied")
    monkeypatch.setattr(world.topics, "describe", describe)
    for _ in range(3):
        world.clock.advance(5.0)
        await world.step()
    assert world.conditions()["TopicReady"] == ("True", "Created")


async def test_a_created_topic_that_brokers_do_not_list_can_be_suspended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = await settled()
    describe = world.topics.describe

    async def nothing(profile: str, topic: str) -> None:
        return None

    monkeypatch.setattr(world.topics, "describe", nothing)
    world.cluster.edit("flights", lambda manifest: manifest["spec"].update(suspend=True))
    for _ in range(18):
        await world.operator_only()
        world.clock.advance(0.5)
    assert world.conditions()["TopicReady"] == ("True", "Created"), "brokers may learn of the topic a moment later"
    for _ in range(6):
        await world.operator_only()
        world.clock.advance(0.5)
    assert world.conditions()["TopicReady"] == ("False", "BrokerStarting")
    assert "flights was created" in world.message("TopicReady")
    assert world.job().suspended
    monkeypatch.setattr(world.topics, "describe", describe)
    await world.settle()
    assert world.conditions()["TopicReady"] == ("True", "Created")


@pytest.mark.slow
async def test_the_first_table_that_recovers_wakes_the_others() -> None:
    world = await failing("flights", "second", "third")
    world.tables.store_problem = None
    schedule = world.operator.queue.schedule
    while schedule.start_next() is not None:
        pass
    schedule.done(("topic", "demo", "flights"), await world.operator.reconcile(("topic", "demo", "flights")))
    assert {schedule.start_next(), schedule.start_next()} == {("topic", "demo", "second"), ("topic", "demo", "third")}


class Swallowing:
    """An object store that accepts requests and does not answer until it is ``released``. Then it fails as before."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.tries = 0
        self.released = asyncio.Event()
        self._ensure = world.tables.ensure
        monkeypatch.setattr(world.tables, "ensure", self._try)

    async def _try(self, *arguments: Any) -> Any:
        self.tries += 1
        await self.released.wait()
        return await self._ensure(*arguments)


@pytest.mark.slow
async def test_only_one_reconcile_at_a_time_tries_a_failed_object_store(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await failing("flights", "second")
    store = Swallowing(world, monkeypatch)
    first = asyncio.create_task(world.operator.reconcile(("topic", "demo", "flights")))
    await asyncio.sleep(0.01)
    before = world.faults.writes()
    outcome = await world.operator.reconcile(("topic", "demo", "second"))
    assert (outcome.failed, store.tries, world.faults.writes()) == (True, 1, before)
    store.released.set()
    assert (await first).failed
    assert (await world.operator.reconcile(("topic", "demo", "second"))).failed
    assert store.tries == 2


@pytest.mark.slow
async def test_recovered_brokers_do_not_bypass_a_failed_object_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = ("flights", "second", "third")
    world = await failing(*topics)
    describe = world.topics.describe

    async def denied(profile: str, topic: str) -> None:
        raise AccessDeniedError(f"topic {topic}: not authorized")

    monkeypatch.setattr(world.topics, "describe", denied)
    for name in topics:
        await world.operator.reconcile(("topic", "demo", name))
    monkeypatch.setattr(world.topics, "describe", describe)
    await world.operator.reconcile(("topic", "demo", "flights"))
    store = Swallowing(world, monkeypatch)
    first = asyncio.create_task(world.operator.reconcile(("topic", "demo", "second")))
    await asyncio.sleep(0.01)
    async with asyncio.timeout(5):
        await world.operator.reconcile(("topic", "demo", "third"))
    assert store.tries == 1
    store.released.set()
    await first


# Restores from Git


async def restored(world: World, **changes: Any) -> None:
    """Delete a topic whose records have landed, change the defaults, and apply its manifest again."""
    table = world.tables.tables["lake.demo.flights"]
    table.topic_id = world.job().topic_id or ""
    world.cluster.remove("flights")
    await world.settle()
    table.owner = "uid-before"  # a created resource never has the uid of a deleted one
    world.start(gen.config(**changes))
    world.cluster.create(gen.topic("flights", deletionPolicy={"topic": "Delete", "table": "Delete"}))
    await world.settle()


async def test_a_restored_topic_does_not_move_to_a_new_default_profile() -> None:
    world = await settled()
    await restored(world, defaultProfile="outside")
    assert world.conditions()["SpecValid"] == ("False", "DefaultChanged")
    assert "spec.profile: classic" in world.message("SpecValid")
    assert list(world.topics.topics) == [("classic", "flights")]
    # Its deletion does not touch a topic that it never had.
    await world.topics.create("outside", "flights", 1, {})
    world.cluster.remove("flights")
    await world.settle()
    assert len(world.topics.topics) == 2
    assert list(world.tables.tables) == ["lake.demo.flights"]


async def test_a_restored_topic_does_not_move_to_a_new_default_catalog() -> None:
    world = await settled()
    lake = gen.config().catalogs["lake"].model_dump(by_alias=True)
    await restored(world, defaultCatalog="next", catalogs={"lake": lake, "next": lake})
    assert world.conditions()["SpecValid"] == ("False", "DefaultChanged")
    assert "spec.table.catalog: lake" in world.message("SpecValid")
    assert list(world.tables.tables) == ["lake.demo.flights"]


async def test_another_catalog_that_does_not_answer_delays_a_new_topic_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(found_data, "OTHER_CATALOG_SECONDS", 0.01)
    lake = gen.config().catalogs["lake"].model_dump(by_alias=True)
    world = World(gen.config(catalogs={"lake": lake, "archive": lake}))
    found, asked = world.tables.found, list[str]()

    async def silent(target: TableTarget) -> FoundTable | None:
        if target.catalog == "archive":
            asked.append(target.identifier)
            await asyncio.Event().wait()
        return await found(target)

    monkeypatch.setattr(world.tables, "found", silent)
    world.cluster.create(gen.topic("flights"))
    async with asyncio.timeout(10):
        await world.settle()
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert asked


async def test_a_restored_topic_continues_under_unchanged_defaults() -> None:
    world = await settled()
    await restored(world)
    assert world.conditions()["Ready"] == ("True", "AllReady")
    assert world.conditions()["TableReady"] == ("True", "Adopted")


# Conflicts


def younger(name: str, **spec: Any) -> Manifest:
    manifest = gen.topic(name, **spec)
    manifest["metadata"]["creationTimestamp"] = "2026-03-01T11:59:00Z"
    return manifest


async def test_the_younger_resource_takes_over_after_the_older_is_deleted() -> None:
    world = World()
    world.cluster.create(younger("second", topicName="flights", deletionPolicy={"topic": "Delete", "table": "Delete"}))
    world.cluster.create(gen.topic("flights"))
    await world.settle()
    assert world.conditions("flights")["Ready"] == ("True", "AllReady")
    assert world.conditions("second")["Ready"] == ("False", "ResourceConflict")
    assert list(world.cluster.contracts()) == [UID]
    world.cluster.remove("flights")
    await world.settle()
    assert world.conditions("second")["Ready"] == ("True", "AllReady")
    assert list(world.cluster.contracts()) == ["uid-demo-second"]


async def test_deleting_the_younger_resource_deletes_nothing_of_the_older() -> None:
    world = World()
    world.cluster.create(gen.topic("flights"))
    world.cluster.create(younger("second", topicName="flights", deletionPolicy={"topic": "Delete", "table": "Delete"}))
    await world.settle()
    world.cluster.remove("second")
    await world.settle()
    assert len(world.cluster.topics()) == 1
    assert world.topics.topics
    assert world.tables.tables


async def test_two_topics_with_one_table_are_a_conflict() -> None:
    world = World()
    world.cluster.create(gen.topic("flights"))
    world.cluster.create(younger("second", table={"name": "flights"}))
    await world.settle()
    assert world.conditions("second")["SpecValid"] == ("False", "ResourceConflict")
    assert "demo/flights" in world.message("SpecValid", "second")
    assert ("classic", "second") not in world.topics.topics


async def test_only_the_operators_log_names_the_owner_in_another_namespace(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.cluster.create(gen.topic("flights", namespace="victim", topicName="t", table={"namespace": "v", "name": "t"}))
    world.cluster.create(younger("by-topic", topicName="t"))
    world.cluster.create(younger("by-table", table={"namespace": "v", "name": "t"}))
    await world.settle()
    for name, what in (("by-topic", "Kafka topic t"), ("by-table", "table lake.v.t")):
        assert world.conditions(name)["SpecValid"] == ("False", "ResourceConflict")
        seen = [each["status"] for each in world.cluster.topics() if each["metadata"]["name"] == name]
        told = [event for event in world.cluster.events if event[0] == name]
        assert told
        assert "victim" not in str((seen, told))
        lines = [text for text in caplog.messages if f"demo/{name} is refused" in text]
        owner = f"{what} belongs to the older IcebergTopic victim/flights; delete one of the two IcebergTopics"
        assert lines == [f"IcebergTopic demo/{name} is refused: {owner}"]


async def test_two_addresses_of_one_kafka_are_no_two_topics() -> None:
    world = World(
        gen.config(
            profiles={"outside": {"bootstrapServers": "a:9092"}, "alias": {"bootstrapServers": "b:9092"}},
            defaultProfile="outside",
        )
    )
    world.cluster.create(gen.topic("flights"))
    await world.settle()
    world.topics.topics["alias", "flights"] = world.topics.topics["outside", "flights"]
    world.cluster.create(younger("second", topicName="flights", profile="alias", config={"retention.ms": "1"}))
    await world.settle()
    assert world.conditions("second")["Ready"] == ("False", "ResourceConflict")
    assert world.topics.topics["alias", "flights"].configs == {}
    assert list(world.cluster.contracts()) == [UID]


async def test_two_names_of_one_catalog_are_no_two_tables() -> None:
    lake = gen.config().catalogs["lake"].model_dump(by_alias=True)
    world = World(gen.config(catalogs={"lake": lake, "alias": lake}))
    world.cluster.create(gen.topic("flights"))
    await world.settle()
    world.tables.tables["alias.demo.flights"] = world.tables.tables["lake.demo.flights"]
    world.cluster.create(younger("second", table={"catalog": "alias", "name": "flights"}))
    await world.settle()
    assert world.conditions("second")["Ready"] == ("False", "ResourceConflict")
    assert world.tables.tables["lake.demo.flights"].owner == UID
    assert list(world.cluster.contracts()) == [UID]


async def test_resources_of_another_release_are_left_alone() -> None:
    world = await settled()
    before = world.conditions()
    world.cluster.rivals["demo"] = "firn-other"
    world.start()
    world.cluster.create(gen.topic("second"))
    world.cluster.create(gen.policy("nightly"))
    await world.settle()
    assert not world.cluster.contracts()
    assert (world.conditions(), world.conditions("second")["Ready"][1]) == (before, "Pending")
    assert list(world.topics.topics) == [("classic", "flights")]
    told = [reason for name, reason, _ in world.cluster.events if name == names.CONFIG_OBJECT]
    assert told.count("NamespaceTaken") == 1
    del world.cluster.rivals["demo"]
    world.start()
    await world.settle()
    assert world.conditions("second")["Ready"] == ("True", "AllReady")


@pytest.mark.parametrize(
    ("brokers", "topic_id", "expected"),
    [
        ({}, "id-of-b", ("True", "AllReady")),
        ({}, None, ("False", "ResourceConflict")),
        ({"bootstrapServers": "a:9092"}, "id-of-b", ("False", "ResourceConflict")),
    ],
    ids=["brokers of each release", "one topic id", "one address"],
)
async def test_a_topic_of_another_release_is_a_rival_only_on_the_same_brokers(
    brokers: dict[str, Any], topic_id: str | None, expected: tuple[str, str]
) -> None:
    profiles = {"mine": brokers} if brokers else None
    changes = {"profiles": profiles, "defaultProfile": "mine"} if profiles else {}
    world = World(gen.config(**changes))
    world.cluster.rivals["team"] = "firn-other"
    theirs = gen.topic("flights", namespace="team")
    theirs["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    theirs["status"] = {"topicId": topic_id or "id-shared", "observedGeneration": 1}
    ours = gen.topic("flights")
    ours["status"] = {} if topic_id else {"topicId": "id-shared"}
    world.cluster.create(theirs)
    world.cluster.create(ours)
    world.start()
    await world.settle()
    assert world.conditions()["Ready"] == expected


async def test_a_deleted_resource_of_another_release_leaves_nothing_behind() -> None:
    world = await settled()
    world.cluster.rivals["demo"] = "firn-other"
    world.cluster.remove("flights")
    assert world.cluster.contracts()
    assert await world.operator.reconcile(("topic", "demo", "flights")) == Outcome(), "there is no next reconcile"
    assert not world.cluster.contracts()


async def test_equal_names_in_different_profiles_are_no_conflict() -> None:
    world = World()
    world.cluster.create(gen.topic("flights"))
    world.cluster.create(younger("second", topicName="flights", profile="outside", table={"name": "second"}))
    await world.settle()
    assert world.conditions("second")["Ready"] == ("True", "AllReady")


async def test_a_broken_topic_stops_no_other() -> None:
    world = World()
    world.cluster.create(gen.topic("bad", config={"no.such.config": "1"}))
    unreadable = gen.topic("unreadable")
    unreadable["spec"]["partitions"] = "many"
    world.cluster.create(unreadable)
    world.cluster.create(gen.topic("good"))
    await world.settle()
    assert world.conditions("good")["Ready"] == ("True", "AllReady")
    assert world.conditions("bad")["Ready"] == ("False", "BadTopicConfig")
    assert world.conditions("unreadable")["Ready"] == ("False", "BadSchema")


async def unreadable(world: World, **spec: Any) -> None:
    """Make the spec of a topic that was ready unreadable, as a newer version of the CRD may store it."""
    world.cluster.create(gen.topic("flights", **spec))
    await world.settle()
    world.cluster.edit("flights", lambda live: live["spec"].update(partitions="many"))
    await world.settle()


async def test_an_unreadable_topic_keeps_its_names() -> None:
    world = World()
    await unreadable(world)
    world.cluster.create(younger("second", topicName="flights"))
    world.cluster.create(younger("third", table={"name": "flights"}))
    await world.settle()
    assert world.conditions("second")["Ready"] == ("False", "ResourceConflict")
    assert world.conditions("third")["Ready"] == ("False", "ResourceConflict")
    assert list(world.cluster.contracts()) == [UID]


async def test_a_forced_deletion_removes_an_unreadable_topic() -> None:
    world = World()
    await unreadable(world, deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.cluster.remove("flights")
    await world.settle()
    assert world.conditions("flights")["DeletionBlocked"] == ("True", "InvalidSpec")
    assert not world.cluster.contracts()
    annotate(world, names.FORCE_DELETION, "true")
    await world.settle()
    assert not world.cluster.topics()
    assert reasons(world)[-1] == "DataLeftBehind"
    assert world.tables.tables


async def test_no_topic_is_reconciled_before_the_first_full_list() -> None:
    world = World()
    world.cluster.create(younger("second", topicName="flights"))
    assert world.operator.queue.depth > 0
    assert not world.faults.log


# Events


async def conflicting(world: World, write: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Step the world. A user edits the topic just before each of the first three calls of ``write``."""
    real, reconcile = getattr(world.cluster, write), world.operator.reconcile
    conflicts = 3

    async def edited_meanwhile(*arguments: Any) -> Any:
        nonlocal conflicts
        if conflicts:
            conflicts -= 1
            world.cluster.edit(
                "flights", lambda live: live["metadata"].update(labels={"n": str(conflicts)}), spec=False
            )
        return await real(*arguments)

    async def retried(key: Key) -> Outcome:
        try:
            return await reconcile(key)
        except CommitConflictError:
            return Outcome(failed=True)

    with monkeypatch.context() as patch:
        patch.setattr(world.cluster, write, edited_meanwhile)
        patch.setattr(world.operator, "reconcile", retried)
        for _ in range(40):
            await world.step()
            world.clock.advance(5.0)
    assert not conflicts


async def test_the_event_of_a_creation_survives_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.cluster.create(gen.topic())
    await conflicting(world, "patch_status", monkeypatch)
    created = [message for _, reason, message in world.cluster.events if reason == "Created"]
    assert sorted(message.split()[1] for message in created) == ["Kafka", "table"]


async def test_the_event_of_a_deletion_survives_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    world = await settled(deletionPolicy={"topic": "Delete", "table": "Delete"})
    world.cluster.remove("flights")
    await conflicting(world, "set_finalizers", monkeypatch)
    assert not world.cluster.topics()
    deleted = [message for _, reason, message in world.cluster.events if reason == "DataDeleted"]
    assert len(deleted) == 1


async def test_events_report_each_transition_once() -> None:
    world = await settled()
    world.topics.problem["classic"] = UnavailableError("gone")
    await world.settle()
    for _ in range(50):
        await world.step()
        world.clock.advance(5.0)
    assert reasons(world).count("NotReady") == 1
    fleet = [reason for name, reason, _ in world.cluster.events if name == names.CONFIG_OBJECT]
    assert fleet.count("Unavailable") == 1
