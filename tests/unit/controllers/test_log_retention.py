"""Effects of a RetentionPolicy's ``log`` on the Kafka topic.

The topic's spec takes precedence, a dry run only reports, and a doubtful state reverts nothing."""

from dataclasses import replace
from typing import Any

import pytest

from firn_controllers.cache.policies import PolicyEntry, Resolution
from firn_controllers.cache.policies import policy_entry as policy_entry
from firn_controllers.policies.log_retention import AGE, BYTES, LogRetention, log_retention
from firn_controllers.policies.outcome import PolicyBinding, TopicMaintenance
from firn_controllers.ports import Manifest
from tests import gen
from tests.fakes.world import World

RETENTION = "RetentionPolicy"
WEEK = str(7 * 86_400_000)
MONTH = str(30 * 86_400_000)


def policy(mode: str = "Enforce", log: dict[str, str] | None = None, **spec: Any) -> Manifest:
    return gen.policy(kind=RETENTION, selector={}, mode=mode, log=log or {"maxAge": "7d"}, **spec)


def bound(manifest: Manifest, **changes: Any) -> TopicMaintenance:
    entry: PolicyEntry = policy_entry(manifest, gen.config())
    return TopicMaintenance({"RetentionPolicy": PolicyBinding(Resolution(entry, "Selected", **changes))})


# Decisions


def test_enforced_log_retention_sets_topic_configs_below_the_spec() -> None:
    log = log_retention(bound(policy(log={"maxAge": "7d", "maxBytes": "10Gi"})))
    assert log.configs == {AGE: WEEK, BYTES: str(10 * 2**30)}
    assert log.over({AGE: "1", "cleanup.policy": "delete"}) == {
        AGE: "1",
        BYTES: str(10 * 2**30),
        "cleanup.policy": "delete",
    }
    assert log.owned({AGE: "1"}, frozenset()) == {BYTES}


@pytest.mark.parametrize(
    "manifest",
    [policy("DryRun"), policy(suspend=True), gen.policy(kind=RETENTION, selector={}, mode="Enforce", snapshots={"maxAge": "soon", "minKeep": 1})],
    ids=["dry run", "suspended", "unreadable"],
)  # fmt: skip
def test_configs_stay_while_the_policy_does_not_act(manifest: Manifest) -> None:
    entry = policy_entry(manifest, gen.config())
    reason = {"reason": "PolicyInvalid"} if entry.problem else {}
    log = log_retention(bound(manifest, **reason))
    assert log.configs == {}
    assert log.held
    assert log.owned({}, frozenset({AGE})) == {AGE}


def test_without_a_policy_or_a_log_nothing_is_owned() -> None:
    none = TopicMaintenance({"RetentionPolicy": PolicyBinding(Resolution())})
    other = bound(gen.policy(kind=RETENTION, selector={}, mode="Enforce", metadataFiles={"keep": 5}))
    for maintained in (none, other):
        assert log_retention(maintained) == LogRetention()
        assert log_retention(maintained).owned({}, frozenset({AGE})) == frozenset()
    assert log_retention(TopicMaintenance()).held, "while no policy is known"


def test_a_dry_run_reports_the_differences() -> None:
    log = log_retention(bound(policy("DryRun", {"maxAge": "7d", "maxBytes": "1Gi"})))
    assert log.proposal({}, {}) == f"{BYTES} {2**30} (not set now) and {AGE} {WEEK} (not set now)"
    assert log.proposal({}, {AGE: MONTH, BYTES: str(2**30)}) == f"{AGE} {WEEK} (now {MONTH})"
    assert log.proposal({AGE: "1", BYTES: "2"}, {AGE: "1"}) == ""
    assert log_retention(bound(policy())).proposal({}, {}) == ""


# Through the operator


async def world_with(*policies: Manifest, **spec: Any) -> World:
    world = World()
    for manifest in policies:
        world.cluster.create(manifest)
    world.cluster.create(gen.topic(**spec))
    await world.settle()
    return world


def configs(world: World) -> dict[str, str]:
    return dict(next(iter(world.topics.topics.values())).configs)


def edit(world: World, name: str = "policy", **spec: Any) -> None:
    world.cluster.edit(name, lambda live: live["spec"].update(spec), kind=RETENTION)


def events(world: World, reason: str) -> list[str]:
    return [message for _, event_reason, message in world.cluster.events if event_reason == reason]


async def test_a_topic_is_created_with_the_policys_retention() -> None:
    world = await world_with(policy(), config={"segment.ms": "600000"})
    assert configs(world) == {"segment.ms": "600000", AGE: WEEK}


async def test_configs_follow_a_policy_that_appears_changes_and_disappears() -> None:
    world = await world_with()
    assert configs(world) == {}
    world.cluster.create(policy())
    await world.settle()
    assert configs(world) == {AGE: WEEK}
    edit(world, log={"maxAge": "30d", "maxBytes": "1Gi"})
    await world.settle()
    assert configs(world) == {AGE: MONTH, BYTES: str(2**30)}
    edit(world, log={"maxBytes": "1Gi"})
    await world.settle()
    assert configs(world) == {BYTES: str(2**30)}
    world.cluster.remove("policy", kind=RETENTION)
    await world.settle()
    assert configs(world) == {}


async def test_the_spec_overrides_the_policy_while_it_sets_a_config() -> None:
    world = await world_with(policy(), config={AGE: "1000"})
    assert configs(world) == {AGE: "1000"}
    world.cluster.edit("flights", lambda live: live["spec"].pop("config"))
    await world.settle()
    assert configs(world) == {AGE: WEEK}
    world.cluster.edit("flights", lambda live: live["spec"].update(config={AGE: "2000"}))
    await world.settle()
    assert configs(world) == {AGE: "2000"}
    world.cluster.remove("policy", kind=RETENTION)
    await world.settle()
    assert configs(world) == {AGE: "2000"}


async def test_a_dry_run_sets_nothing_and_reports_its_changes() -> None:
    world = await world_with(policy("DryRun"))
    assert configs(world) == {}
    assert f"with mode Enforce, the RetentionPolicy would set {AGE} {WEEK}" in world.message("PoliciesResolved")
    for _ in range(100):
        await world.step()
        world.clock.advance(10.0)
    world.start()
    await world.settle()
    (message,) = events(world, "WouldDelete")
    assert f"would set {AGE} {WEEK}" in message
    edit(world, log={"maxAge": "30d"})
    await world.settle()
    assert [MONTH in message for message in events(world, "WouldDelete")] == [False, True]
    edit(world, log={"maxAge": "7d"}, mode="Enforce")
    await world.settle()
    assert configs(world) == {AGE: WEEK}
    assert "would" not in world.message("PoliciesResolved")


async def test_only_a_deleted_policy_removes_its_configs() -> None:
    world = await world_with(policy(log={"maxAge": "30d"}))
    edit(world, mode="DryRun", log={"maxAge": "7d"})
    await world.settle()
    assert configs(world) == {AGE: MONTH}
    assert f"would set {AGE} {WEEK} (now {MONTH})" in world.message("PoliciesResolved")
    world.start()  # the contract remembers the configs of the policy
    await world.settle()
    assert configs(world) == {AGE: MONTH}
    world.cluster.remove("policy", kind=RETENTION)
    await world.settle()
    assert configs(world) == {}


async def test_a_dry_run_does_not_keep_a_removed_config_of_the_spec() -> None:
    world = await world_with(policy("DryRun"), config={AGE: "1000"})
    world.cluster.edit("flights", lambda live: live["spec"].pop("config"))
    await world.settle()
    assert configs(world) == {}


async def test_only_an_external_change_is_reported_as_repaired() -> None:
    world = await world_with(policy())
    edit(world, log={"maxAge": "30d"})
    await world.settle()
    assert configs(world) == {AGE: MONTH}
    assert not events(world, "DriftRepaired")
    ((key, live),) = world.topics.topics.items()
    world.topics.topics[key] = replace(live, configs={**live.configs, AGE: "5"})
    world.clock.advance(600)
    await world.settle()
    assert configs(world) == {AGE: MONTH}
    assert events(world, "DriftRepaired")
