"""The operator continues from the statuses that 0.1.0 wrote.

``iceberg-topic.json``, ``compaction-policy.json`` and ``retention-policy.json`` in ``tests/unit/model/released/0.1.0`` are
the resources at the end of a story that the operator of 0.1.0 (the parent of commit 7877d5c) reconciled in its own fake
world: a topic with dead letters, a compaction for small files, an hourly dry run of retention, and a requested run.
"""

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from firn.api.v1alpha1.compaction_policy import CompactionPolicy
from firn.api.v1alpha1.iceberg_topic import IcebergTopic
from firn.api.v1alpha1.retention_policy import RetentionPolicy
from firn_controllers.ports import Manifest
from tests.fakes.world import World
from tests.unit.controllers.policy_stage import (
    COMPACTION,
    MANY,
    RETENTION,
    UID,
    jobs,
    maintenance,
    pass_time,
    policy_status,
    world_with,
)

RELEASED = Path(__file__).parents[1] / "model" / "released" / "0.1.0"
KINDS: dict[str, type[BaseModel]] = {
    "iceberg-topic": IcebergTopic,
    "compaction-policy": CompactionPolicy,
    "retention-policy": RetentionPolicy,
}
END = datetime.fromisoformat("2026-03-01T13:19:30Z")
"""The end of the story."""


def released(name: str) -> Any:
    return json.loads((RELEASED / f"{name}.json").read_text())


def conditions(status: Manifest) -> dict[str, tuple[str, str]]:
    return {item["type"]: (item["status"], item["lastTransitionTime"]) for item in status["conditions"]}


def within(part: Any, whole: Any) -> bool:
    if isinstance(part, dict):
        return all(key in whole and within(value, whole[key]) for key, value in part.items())
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(within, part, whole))
    return bool(part == whole)


async def upgraded() -> World:
    """Return the world after the story, with an operator of this version that has just started."""
    world = await world_with()
    world.driver.report_fields[UID] = {"last_commit": 1_772_366_390.0, "dead_letters": 3}
    world.clock.advance((END - world.clock.now()).total_seconds())
    await world.settle()
    for name in KINDS:
        manifest = released(name)
        world.cluster.create(manifest)
        assert world.cluster.resource(manifest["kind"], manifest["metadata"]["name"])["status"] == manifest["status"]
    world.owes(**MANY | {"small_files": 1, "due_files": 0, "due_bytes": 0})
    world.start()
    return world


@pytest.mark.parametrize("name", KINDS)
def test_the_api_knows_every_field_of_a_released_status(name: str) -> None:
    manifest = released(name)
    read = KINDS[name].model_validate(manifest)
    status = json.loads(read.model_dump_json(by_alias=True, exclude_none=True))["status"]
    assert within(manifest["status"], status)


async def test_the_operator_keeps_the_state_that_0_1_0_recorded() -> None:
    before = released("iceberg-topic")["status"]
    world = await upgraded()
    await world.settle(300)
    after = world.cluster.topic("flights")["status"]
    for key in ("topicId", "topicName", "partitions", "profile", "table"):
        assert within(before[key], after[key]), key
    assert after["ingestion"]["deadLetters"] == 3
    for kind, (status, since) in conditions(before).items():
        assert conditions(after)[kind] == (status, since), kind
    for section in ("compaction", "retention"):
        assert within(before["maintenance"][section], maintenance(world)[section]), section
    assert not jobs(world), "0.1.0 has answered the request and served the slot"


async def test_policies_keep_their_last_run_and_the_next_slot_runs_once() -> None:
    world = await upgraded()
    await world.settle(300)
    for name, kind in (("policy", COMPACTION), ("retention", RETENTION)):
        before = released(f"{kind.removesuffix('Policy').lower()}-policy")["status"]
        after = policy_status(world, name, kind)
        assert within({key: before[key] for key in ("topics", "governs", "lastRun")}, after), kind
        assert conditions(after)["Ready"] == conditions(before)["Ready"]
    await pass_time(world, 3600)
    works = [work for run in world.maintainer.done for work in run.tables]
    assert [(work.compaction is None, work.retention is None) for work in works] == [(True, False)]
