"""A DeadLetterReplay runs once, and its status says what it waits for and how it ended."""

import json
from typing import Any

import pytest

from firn.model import names
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import ALL, COMPACTION, MANY, UID, active, jobs, pass_time

REPLAY = "DeadLetterReplay"
RESULT: dict[str, Any] = {
    "matched": 3, "landed": 2, "failed": 1, "remaining": 4, "codes": {"WrongKind": 3}, "failures": {"Inexact": 1},
}  # fmt: skip


def replay(name: str = "mend", *modifiers: gen.Modifier, topic: str = "flights", **spec: Any) -> Manifest:
    manifest = gen.policy(name, *modifiers, kind=REPLAY)
    manifest["spec"] = {"topicRef": {"name": topic}, **spec}
    return manifest


async def world_with(*replays: Manifest, topics: tuple[Manifest, ...] | None = None) -> World:
    world = World()
    for topic in (gen.topic(),) if topics is None else topics:
        world.cluster.create(topic)
    await world.settle()
    world.maintainer.report_fields[UID] = {"replay": RESULT}
    for each in replays:
        world.cluster.create(each)
    await pass_time(world, 60)
    return world


def finished(world: World, name: str = "mend") -> tuple[str, str]:
    return world.conditions(name, kind=REPLAY)["Finished"]


def status(world: World, name: str = "mend") -> Manifest:
    found: Manifest = world.cluster.resource(REPLAY, name)["status"]
    return found


async def test_a_replay_runs_once_with_the_current_schema_and_reports_its_numbers() -> None:
    where = {"codes": ["WrongKind"], "since": "2026-03-01T00:00:00Z", "generations": [1]}
    world = await world_with(replay(mode="Enforce", where=where, limit={"records": 7}))
    (run,) = world.maintainer.done
    work = run.tables[0].replay
    assert work is not None
    assert work.job == world.job()
    assert (work.uid, work.enforce, work.codes, work.since_ms, work.generations, work.records) == (
        "uid-DeadLetterReplay-mend", True, ("WrongKind",), 1_772_323_200_000, (1,), 7,
    )  # fmt: skip
    assert finished(world) == ("True", "Succeeded")
    assert world.conditions("mend", kind=REPLAY)["Ready"] == ("True", "Succeeded")
    text = "2 of 3 dead letters became rows; 1 do not fit the current schema (Inexact 1)"
    assert world.message("Finished", "mend", of=REPLAY) == text
    shown = status(world)
    assert {key: shown[key] for key in RESULT} == RESULT
    assert shown["run"] == run.name
    assert ("mend", "Replayed", text) in world.cluster.events
    await pass_time(world, 7200)
    assert len(world.maintainer.done) == 1


async def test_a_number_that_is_not_known_is_missing_in_the_status() -> None:
    world = await world_with()
    world.maintainer.report_fields[UID] = {"replay": {**RESULT, "remaining": None}}
    world.cluster.create(replay())
    await pass_time(world, 60)
    assert finished(world) == ("True", "Succeeded")
    assert status(world)["matched"] == 3
    assert "remaining" not in status(world)


async def test_ingestion_keeps_snapshots_until_the_deadline_of_a_replay() -> None:
    """Before its run starts, so that the run finds the snapshot with which it began."""
    world = await world_with()
    hour = world.job().keep_snapshots_ms
    assert hour == 3_600_000
    world.maintainer.hold = True
    world.cluster.create(replay(run={"deadline": "6h"}))
    await pass_time(world, 30)
    assert len(active(world)) == 1
    assert world.job().keep_snapshots_ms == 6 * hour
    world.maintainer.hold = False
    await pass_time(world, 60)
    work = world.maintainer.done[0].tables[0].replay
    assert work is not None
    assert work.job.keep_snapshots_ms == 6 * hour
    assert finished(world) == ("True", "Succeeded")
    assert world.job().keep_snapshots_ms == hour


async def test_a_replay_without_a_selected_letter_names_the_causes_that_exist() -> None:
    world = await world_with()
    nothing = {"matched": 0, "remaining": 4, "causes": {"WrongKind": 3, "Inexact": 1}}
    world.maintainer.report_fields[UID] = {"replay": nothing}
    world.cluster.create(replay(where={"codes": ["Inexact"]}))
    await pass_time(world, 60)
    assert world.message("Finished", "mend", of=REPLAY) == (
        "no dead letter meets the conditions of spec.where; the topic has 4 dead letters (Inexact 1, WrongKind 3): create another"
        " DeadLetterReplay with other conditions to replay them"
    )


async def test_a_cause_that_does_not_exist_is_refused() -> None:
    world = await world_with(replay(where={"codes": ["WrongKind", "WrongKnd"]}))
    assert world.conditions("mend", kind=REPLAY)["SpecValid"] == ("False", "InvalidSpec")
    assert finished(world) == ("True", "InvalidSpec")
    assert world.conditions("mend", kind=REPLAY)["Ready"] == ("False", "InvalidSpec")
    assert "finishTime" in status(world)
    assert world.message("SpecValid", "mend", of=REPLAY).startswith(
        "spec.where.codes: WrongKnd is no cause of dead letters; create"
    )
    assert not jobs(world)


async def test_a_dry_run_is_the_default() -> None:
    world = await world_with(replay())
    work = world.maintainer.done[0].tables[0].replay
    assert work is not None
    assert not work.enforce
    assert world.message("Finished", "mend", of=REPLAY).startswith("2 of 3 dead letters would become rows")


async def test_a_replay_waits_for_its_topic() -> None:
    world = await world_with(replay(), topics=())
    assert finished(world) == ("False", "TopicNotFound")
    assert world.conditions("mend", kind=REPLAY)["Stalled"] == ("True", "TopicNotFound")
    world.cluster.create(gen.topic())
    await pass_time(world, 120)
    assert finished(world) == ("True", "Succeeded")
    assert "Stalled" not in world.conditions("mend", kind=REPLAY)


@pytest.mark.parametrize("on", ["topic", "replay"])
async def test_a_pause_holds_the_replay_back(on: str) -> None:
    paused = gen.annotated(names.PAUSE, "true")
    topic, made = (gen.topic("flights"), replay("mend", paused)) if on == "replay" else (gen.topic(), replay())
    world = World()
    world.cluster.create(topic)
    await world.settle()
    kind, name = (REPLAY, "mend") if on == "replay" else ("IcebergTopic", "flights")
    if on == "topic":
        world.cluster.edit(name, paused, spec=False)
    world.cluster.create(made)
    await pass_time(world, 60)
    assert not jobs(world)
    world.maintainer.report_fields[UID] = {"replay": RESULT}
    world.cluster.edit(name, lambda live: live["metadata"].pop("annotations"), spec=False, kind=kind)
    await pass_time(world, 60)
    assert finished(world) == ("True", "Succeeded")


async def test_the_replay_of_a_suspended_topic_runs() -> None:
    world = await world_with(replay(), topics=(gen.topic(suspend=True),))
    assert finished(world) == ("True", "Succeeded")


async def test_replays_leave_a_run_for_policies() -> None:
    topics = tuple(gen.topic(f"t{number}") for number in range(5))
    world = await world_with(topics=topics)
    world.maintainer.hold = True
    for number in range(5):
        world.maintainer.report_fields[UID.replace("flights", f"t{number}")] = {"replay": RESULT}
        world.cluster.create(replay(f"mend{number}", topic=f"t{number}"))
    await pass_time(world, 60)
    assert len(active(world)) == world.config.maintenance.max_runs - 1
    waiting = [world.message("Finished", f"mend{number}", of=REPLAY) for number in range(5)]
    assert sum("policies need one of the runs" in message for message in waiting) == 2
    world.maintainer.hold = False
    await pass_time(world, 300)
    assert {finished(world, f"mend{number}") for number in range(5)} == {("True", "Succeeded")}


async def test_a_replay_and_a_policy_take_turns_on_a_table() -> None:
    world = await world_with()
    world.maintainer.hold = True
    world.cluster.create(gen.policy(selector=ALL["selector"], triggers={"smallFiles": 100}))
    await world.settle()
    world.owes(**MANY)
    await pass_time(world, 30)
    (compaction,) = active(world)
    assert compaction["metadata"]["labels"][names.LABEL_POLICY_KIND] == COMPACTION
    world.cluster.create(replay())
    await pass_time(world, 30)
    assert len(active(world)) == 1
    assert finished(world) == ("False", "Pending")
    assert "another run works on its table" in world.message("Finished", "mend", of=REPLAY)
    world.maintainer.hold = False
    await pass_time(world, 60)
    assert finished(world) == ("True", "Succeeded")


async def test_a_replay_that_found_the_table_lease_held_runs_again() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    world.maintainer.report_fields[UID] = {"outcome": "Busy", "message": "another run holds the table lease"}
    world.cluster.create(replay())
    await pass_time(world, 30)
    assert finished(world) == ("False", "Pending")
    world.maintainer.report_fields[UID] = {"replay": RESULT}
    await pass_time(world, 120)
    assert finished(world) == ("True", "Succeeded")
    assert len({run.name for run in world.maintainer.done}) >= 2


async def test_a_failed_run_ends_the_replay_with_its_cause() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    world.maintainer.report_fields[UID] = {"outcome": "Failed", "reason": "AccessDenied", "message": "wrong password"}
    world.cluster.create(replay(mode="Enforce"))
    await pass_time(world, 60)
    assert finished(world) == ("True", "RunFailed")
    conditions = world.conditions("mend", kind=REPLAY)
    assert (conditions["Ready"], conditions["Stalled"]) == (("False", "RunFailed"), ("True", "RunFailed"))
    assert "AccessDenied: wrong password" in world.message("Finished", "mend", of=REPLAY)


async def test_a_topic_without_dead_letters_has_nothing_to_replay() -> None:
    world = World()
    world.cluster.create(gen.topic())
    await world.settle()
    text = (
        "table lake.demo.flights has no dead-letter table, because no record of the topic became a dead letter since the table was created: there"
        " is nothing to replay, and ingestion creates the dead-letter table with the first dead letter"
    )
    world.maintainer.report_fields[UID] = {"outcome": "Nothing", "message": text, "replay": {}}
    world.cluster.create(replay())
    await pass_time(world, 60)
    assert finished(world) == ("True", "Succeeded")
    assert world.message("Finished", "mend", of=REPLAY) == text


async def test_a_replay_gets_the_registry_that_decides_about_routes() -> None:
    world = World(gen.config(registries={"main": {"url": "http://registry"}}))
    record = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
    world.schemas.register("flights-value", json.dumps(record))
    table = {"match": "Order", "name": "orders", "schema": {"format": "Avro", "registry": {"name": "main"}}}
    world.cluster.create(gen.topic(schema=None, routes={"by": "message", "tables": [table]}))
    await world.settle()
    world.maintainer.report_fields[UID] = {"replay": RESULT}
    world.cluster.create(replay())
    await pass_time(world, 60)
    (run,) = world.maintainer.done
    assert list(run.registries) == ["main"]


async def test_a_spec_that_the_configuration_does_not_allow_is_a_condition() -> None:
    world = await world_with(replay(run={"size": "huge"}))
    assert world.conditions("mend", kind=REPLAY)["SpecValid"] == ("False", "NotAllowed")
    assert finished(world) == ("False", "InvalidSpec")
    assert "finishTime" not in status(world)
    assert not jobs(world)


@pytest.mark.parametrize("invalid", [{"where": {"codes": ["WrongKnd"]}}, {"limit": {"records": 0}}])
async def test_a_replay_with_an_invalid_spec_is_deleted_after_its_time_to_live(invalid: dict[str, Any]) -> None:
    world = await world_with(replay(**invalid, ttlAfterFinished="10m"))
    assert finished(world) == ("True", "InvalidSpec")
    await pass_time(world, 900)
    assert not list(world.cluster.all(REPLAY))


@pytest.mark.parametrize("ttl", ["soon", 600, "10000000000000000000d", None])
async def test_an_invalid_replay_without_a_valid_time_to_live_stays(ttl: object) -> None:
    world = await world_with(replay(limit={"records": 0}, ttlAfterFinished=ttl))
    await pass_time(world, 900)
    assert finished(world) == ("True", "InvalidSpec")


async def test_the_operator_deletes_a_finished_replay_after_its_time_to_live() -> None:
    world = await world_with(
        replay(ttlAfterFinished="10m"), replay("kept"), replay("long", ttlAfterFinished="9999999d")
    )
    await pass_time(world, 900)
    assert {live["metadata"]["name"] for live in world.cluster.all(REPLAY)} == {"kept", "long"}


async def test_deleting_a_replay_stops_its_run() -> None:
    world = await world_with()
    world.maintainer.hold = True
    world.cluster.create(replay())
    await pass_time(world, 30)
    assert len(active(world)) == 1
    world.cluster.remove("mend", kind=REPLAY)
    await pass_time(world, 30)
    assert not active(world)


async def test_an_operator_that_restarts_does_not_run_a_replay_twice() -> None:
    world = await world_with()
    world.maintainer.hold = True
    world.cluster.create(replay())
    await pass_time(world, 30)
    world.start()
    await pass_time(world, 30)
    world.maintainer.hold = False
    await pass_time(world, 60)
    assert len(world.maintainer.done) == 1
    world.start()
    await pass_time(world, 60)
    assert len(world.maintainer.done) == 1
    assert finished(world) == ("True", "Succeeded")
