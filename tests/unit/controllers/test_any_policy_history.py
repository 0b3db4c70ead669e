"""Policies, topics, runs and the operator change in any order. No table is ever in two runs, every request is
served, and at the end the world converges and is quiet."""

import asyncio
import copy
from collections import Counter
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firn.model import names
from firn_controllers.policies.due import LONGEST_RETRY
from firn_controllers.policies.runs import MARK, RunMark
from firn_controllers.ports import Manifest
from firn_operator.adapters.kube.workloads import job_state
from tests import gen
from tests.fakes.faults import Killed
from tests.fakes.world import World

TOPICS = ("a", "b", "c")
POLICIES = ("p", "q")
KINDS = ("CompactionPolicy", "RetentionPolicy")
LABELS: tuple[dict[str, str], ...] = ({}, {"team": "x"}, {"team": "y"})
MANY: dict[str, Any] = {"small_files": 200, "due_files": 200, "due_bytes": 10}

ONE = st.sampled_from([{"maxConcurrent": 1}, {"maxConcurrent": 1}, {"maxConcurrent": 1, "size": "huge"}])
common: dict[str, Any] = {
    "selector": st.sampled_from([{}, {"matchLabels": {"team": "x"}}, {"matchLabels": {"team": "y"}}]),
    "priority": st.integers(0, 1),
    "suspend": st.sampled_from([False, False, True]),
}
compaction = st.fixed_dictionaries(
    {"run": ONE},
    optional={
        **common,
        "schedule": st.sampled_from([{"cron": "*/10 * * * *"}, {"cron": "0 25 * * *"}]),
        "columns": st.just(["nowhere"]),
        "windows": st.just([{"cron": "*/20 * * * *", "duration": "5m"}]),
    },
)
retention = st.fixed_dictionaries(
    {"run": ONE, "snapshots": st.just({"maxAge": "7d"})},
    optional={**common, "mode": st.just("Enforce"), "schedule": st.just({"cron": "*/15 * * * *", "jitter": "2m"})},
)
step = st.one_of(
    st.tuples(st.just("CompactionPolicy"), st.sampled_from(POLICIES), compaction),
    st.tuples(st.just("RetentionPolicy"), st.sampled_from(POLICIES), retention),
    st.tuples(st.just("delete"), st.sampled_from(POLICIES), st.sampled_from(KINDS)),
    st.tuples(st.just("label"), st.sampled_from(TOPICS), st.sampled_from(LABELS)),
    st.tuples(st.just("name"), st.sampled_from(TOPICS), st.sampled_from([None, *POLICIES])),
    st.tuples(st.just("ask"), st.sampled_from([*TOPICS, *POLICIES]), st.sampled_from(KINDS)),
    st.tuples(st.just("owe"), st.sampled_from(TOPICS), st.booleans()),
    st.tuples(st.just("fail"), st.sampled_from(TOPICS), st.sampled_from(["Failed", "Busy", "Unfinished", None])),
    st.tuples(st.just("hold"), st.just(""), st.booleans()),
    st.tuples(st.just("kill"), st.just(""), st.tuples(st.integers(1, 8), st.booleans())),
    st.tuples(st.just("run"), st.just(""), st.integers(1, 90)),
)


class History:
    """A world and the actions on it."""

    def __init__(self) -> None:
        self.world = World()
        self.number = 0

    async def do(self, action: str, name: str, argument: object) -> None:
        cluster = self.world.cluster
        match action, argument:
            case "CompactionPolicy" | "RetentionPolicy" as kind, dict() as wanted:
                if (names.API_VERSION, kind, "demo", name) in cluster.objects:
                    cluster.edit(name, lambda edited: edited.update(spec=copy.deepcopy(wanted)), kind=kind)
                else:
                    self.number += 1
                    manifest = gen.policy(name, kind=kind, **copy.deepcopy(wanted))
                    manifest["metadata"]["uid"] = f"uid-{self.number}"
                    cluster.create(manifest)
            case "delete", str(kind) if (names.API_VERSION, kind, "demo", name) in cluster.objects:
                cluster.remove(name, kind=kind)
            case "label", dict() as labels:
                cluster.edit(name, lambda edited: edited["metadata"].update(labels=labels), spec=False)
            case "name", reference:
                self._name(name, reference)
            case "ask", str(kind):
                resource_kind = kind if name in POLICIES else "IcebergTopic"
                if (names.API_VERSION, resource_kind, "demo", name) in cluster.objects:
                    self.number += 1
                    value = {names.RUN_NOW: str(self.number)}
                    cluster.edit(
                        name,
                        lambda edited: edited["metadata"].update(annotations=value),
                        spec=False,
                        kind=resource_kind,
                    )
            case "owe", bool(much):
                self.world.owes(name, **(MANY if much else {}))
            case "fail", outcome:
                fields = {"outcome": outcome, "begun": outcome != "Unfinished"} if outcome else {}
                self.world.maintainer.report_fields[f"uid-demo-{name}"] = fields
            case "hold", bool(held):
                self.world.maintainer.hold = held
            case "kill", (int(calls), bool(after)):
                self.world.faults.kill_at = self.world.faults.calls + calls
                self.world.faults.after_effect = after
            case "run", int(rounds):
                for _ in range(rounds):
                    await self.round()

    def _name(self, topic: str, reference: object) -> None:
        def change(live: Manifest) -> None:
            live["spec"].pop("compactionPolicyRef", None)
            if reference is not None:
                live["spec"]["compactionPolicyRef"] = {"name": reference}

        self.world.cluster.edit(topic, change)

    async def round(self) -> None:
        """Let every process act once, and check that no table is in two runs."""
        world = self.world
        for move in (world.operator_only, world.step):
            try:
                await move()
            except Killed:
                world.faults.kill_at = None
                world.start()
            self.check_runs()
        world.clock.advance(5.0)

    def check_runs(self) -> None:
        tables = [uid for job in active(self.world) for uid in uids(job)]
        assert len(tables) == len(set(tables)), "a table is in two runs"
        assert len(active(self.world)) <= self.world.config.maintenance.max_runs
        policies = [job["metadata"]["labels"][names.LABEL_POLICY_UID] for job in active(self.world)]
        assert all(count == 1 for count in Counter(policies).values())


def active(world: World) -> list[Manifest]:
    return [job for job in world.cluster.all("Job") if job_state(job).finished is None]


def uids(job: Manifest) -> list[str]:
    return [table.uid for table in RunMark.model_validate_json(job["metadata"]["annotations"][MARK]).tables]


BUSY: list[tuple[str, str, object]] = [
    ("CompactionPolicy", "p", {"selector": {}, "run": {"maxConcurrent": 1}}),
    (
        "RetentionPolicy",
        "q",
        {"selector": {}, "snapshots": {"maxAge": "7d"}, "mode": "Enforce", "run": {"maxConcurrent": 1}},
    ),
    ("hold", "", True),
    ("run", "", 1),
    ("ask", "a", "CompactionPolicy"),
]
"""A start in which both kinds of policies want the same tables, and runs take long."""


async def run(steps: list[tuple[str, str, object]]) -> None:
    history = History()
    world = history.world
    for name in TOPICS:
        world.cluster.create(gen.topic(name))
    await world.settle()
    for action in steps:
        await history.do(*action)
    world.faults.kill_at = None
    world.maintainer.hold = False
    world.maintainer.report_fields.clear()
    for name in TOPICS:
        world.owes(name)
    world.clock.advance(LONGEST_RETRY.total_seconds())  # the backoff of failures passes
    for _ in range(150):  # closed windows pass, and schedules continue
        await history.round()

    policies = {
        (kind, resource["metadata"]["name"]): resource for kind in KINDS for resource in world.cluster.all(kind)
    }
    for (kind, name), policy in policies.items():
        status = policy["status"]
        assert status["observedGeneration"] == policy["metadata"]["generation"]
        policy_conditions = {
            condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]
        }
        valid = "huge" not in str(policy["spec"]) and "0 25" not in str(policy["spec"])
        assert (policy_conditions["SpecValid"][0] == "True") is valid
        if valid:
            suspended = policy["spec"].get("suspend", False)
            assert policy_conditions["Ready"] == (("False", "Suspended") if suspended else ("True", "AllReady"))
            assert policy_conditions["MaintenanceHealthy"][0] == "True"
        section = "compaction" if kind == "CompactionPolicy" else "retention"
        bound = [t for t in world.cluster.topics() if governor(t, section) == name]
        assert status["topics"] == len(bound)

    for topic in world.cluster.topics():
        conditions = {condition["type"]: condition for condition in topic["status"]["conditions"]}
        reference = topic["spec"].get("compactionPolicyRef", {}).get("name")
        missing = reference is not None and ("CompactionPolicy", reference) not in policies
        assert (conditions["PoliciesResolved"]["reason"] == "PolicyNotFound") is missing
        followed = conditions["PoliciesResolved"]["status"] == "True"
        for kind, section in (("CompactionPolicy", "compaction"), ("RetentionPolicy", "retention")):
            policy_name = governor(topic, section)
            if policy_name is None:
                continue
            assert (kind, policy_name) in policies
            asked = {
                source: value
                for source, resource in (("topic", topic), ("policy", policies[kind, policy_name]))
                if (value := resource["metadata"].get("annotations", {}).get(names.RUN_NOW))
            }
            if followed and not policies[kind, policy_name]["spec"].get("suspend"):
                answered = topic["status"]["maintenance"][section].get("lastRequest", {})
                assert asked.items() <= answered.items(), "every request is served"

    # No run of a deleted or re-created policy is active.
    live = {policy["metadata"]["uid"] for policy in policies.values()}
    assert all(job["metadata"]["labels"][names.LABEL_POLICY_UID] in live for job in active(world))

    # Quiet: without schedules another process writes nothing.
    for kind, name in policies:
        world.cluster.edit(name, lambda manifest: manifest["spec"].update(suspend=True), kind=kind)
    await world.settle()
    for _ in range(15):
        await history.round()
    before = world.faults.writes()
    world.start()
    for _ in range(15):
        await history.round()
    assert world.faults.log[before:] == []


def governor(topic: Manifest, section: str) -> str | None:
    maintenance: Manifest = (topic["status"].get("maintenance") or {}).get(section) or {}
    return maintenance.get("policy")


@pytest.mark.slow
@settings(
    max_examples=settings().max_examples // 3, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate)
)
@given(st.sampled_from([[], BUSY]), st.lists(step, min_size=1, max_size=14))
def test_any_history_converges_to_the_desired_state(
    beginning: list[tuple[str, str, object]], steps: list[tuple[str, str, object]]
) -> None:
    asyncio.run(run([*beginning, *steps]))
