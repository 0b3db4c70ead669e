"""Time for which ingestion keeps snapshots: that of the group, unless policies need more."""

from dataclasses import replace
from typing import Any

import pytest

from firn.model.conditions import Reason
from firn_controllers.cache.policies import Resolution, policy_entry
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_controllers.policies.snapshot_age import keep_snapshots_ms
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

HOUR = 3_600_000
WEEK = {"maxAge": "7d", "minKeep": 1}


def bound(**policies: dict[str, Any]) -> TopicMaintenance:
    """Return the bindings of a topic; a policy whose problem is named cannot be followed."""
    bindings: Any = {kind: PolicyBinding() for kind in ("CompactionPolicy", "RetentionPolicy")}
    for kind, spec in policies.items():
        problem = {"reason": spec.pop("problem")} if "problem" in spec else {}
        entry = policy_entry(gen.policy(kind=kind, selector={}, **spec), gen.config())
        bindings[kind] = PolicyBinding(Resolution(entry, "Selected", **problem))
    return TopicMaintenance(bindings)


def kept(**policies: dict[str, Any]) -> int | None:
    return keep_snapshots_ms(bound(**policies), "2h")


def test_without_a_policy_the_group_decides_how_long_snapshots_stay() -> None:
    assert kept() == 2 * HOUR
    assert kept(RetentionPolicy={"mode": "Enforce", "orphanFiles": {"minAge": "3d"}}) == 2 * HOUR


@pytest.mark.parametrize("kind", ["CompactionPolicy", "RetentionPolicy"])
def test_a_run_keeps_the_snapshot_from_which_it_planned(kind: str) -> None:
    spec: dict[str, Any] = {"run": {"deadline": "6h"}}
    if kind == "RetentionPolicy":
        spec["rows"] = {"column": "at", "maxAge": "30d"}
    assert kept(**{kind: spec}) == 6 * HOUR


def test_a_replay_keeps_the_snapshot_from_which_it_planned() -> None:
    assert keep_snapshots_ms(replace(bound(), replay_ms=6 * HOUR), "2h") == 6 * HOUR


def test_a_policy_that_expires_snapshots_replaces_the_removal_by_ingestion() -> None:
    assert kept(RetentionPolicy={"mode": "Enforce", "snapshots": WEEK}) is None


@pytest.mark.parametrize(
    "spec", [{"mode": "DryRun"}, {"mode": "Enforce", "suspend": True}], ids=["dry run", "suspended"]
)
def test_a_policy_that_deletes_nothing_keeps_snapshots_for_its_age(spec: dict[str, Any]) -> None:
    assert kept(RetentionPolicy={**spec, "snapshots": WEEK}) == 7 * 24 * HOUR


def test_ingestion_removes_nothing_while_a_policy_is_unknown() -> None:
    assert keep_snapshots_ms(TopicMaintenance(), "2h") is None
    assert kept(RetentionPolicy={"mode": "DryRun", "orphanFiles": {"minAge": "3d"}, "problem": "PolicyInvalid"}) is None
    missing = TopicMaintenance({"RetentionPolicy": PolicyBinding(Resolution(reason=Reason.POLICY_NOT_FOUND))})
    assert keep_snapshots_ms(missing, "2h") is None


# The contract of the driver


async def world_with(*manifests: Manifest, **spec: Any) -> World:
    world = World(gen.config())
    for manifest in (*manifests, gen.topic("flights", **spec)):
        world.cluster.create(manifest)
    await world.settle()
    return world


async def test_the_contract_follows_the_policies_of_the_topic() -> None:
    world = await world_with()
    assert world.job().keep_snapshots_ms == HOUR
    world.cluster.create(gen.policy(kind="RetentionPolicy", selector={}, mode="Enforce", snapshots=WEEK))
    await world.settle()
    assert world.job().keep_snapshots_ms is None
    world.cluster.remove("policy", kind="RetentionPolicy")
    await world.settle()
    assert world.job().keep_snapshots_ms == HOUR


@pytest.mark.parametrize(("denied", "expected"), [({}, None), ({"ownReferences": False}, HOUR)], ids=["rest", "denied"])
async def test_ingestion_removes_nothing_on_a_catalog_with_references(
    denied: dict[str, Any], expected: int | None
) -> None:
    lake = {"type": "rest", "uri": "http://rest", "warehouse": "w", **denied}
    world = World(gen.config(catalogs={"lake": lake}))
    world.cluster.create(gen.topic("flights"))
    await world.settle()
    assert world.job().keep_snapshots_ms == expected
