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
SECTIONS = {"CompactionPolicy": "compaction", "RetentionPolicy": "retention"}
"""The section of a topic's ``status.maintenance`` for each kind of policy."""
KINDS = tuple(SECTIONS)
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
        match action, argument:
            case "CompactionPolicy" | "RetentionPolicy" as kind, dict() as wanted:
                self._policy(kind, name, wanted)
            case "delete", str(kind) if self._exists(kind, name):
                self.world.cluster.remove(name, kind=kind)
            case "label", dict() as labels:
                self.world.cluster.edit(name, lambda edited: edited["metadata"].update(labels=labels), spec=False)
            case "name", reference:
                self._name(name, reference)
            case "ask", str(kind):
                self._ask(name, kind if name in POLICIES else "IcebergTopic")
            case "run", int(rounds):
                for _ in range(rounds):
                    await self.round()
            case _:
                self._disturb(action, name, argument)

    def _disturb(self, action: str, table: str, argument: object) -> None:
        """Change the debt of a table or the results of runs, or choose the call at which the operator is killed."""
        match action, argument:
            case "owe", bool(much):
                self.world.owes(table, **(MANY if much else {}))
            case "fail", outcome:
                fields = {"outcome": outcome, "begun": outcome != "Unfinished"} if outcome else {}
                self.world.maintainer.report_fields[f"uid-demo-{table}"] = fields
            case "hold", bool(held):
                self.world.maintainer.hold = held
            case "kill", (int(calls), bool(after)):
                self.world.faults.kill_at = self.world.faults.calls + calls
                self.world.faults.after_effect = after

    def _exists(self, kind: str, name: str) -> bool:
        return (names.API_VERSION, kind, "demo", name) in self.world.cluster.objects

    def _policy(self, kind: str, name: str, wanted: Manifest) -> None:
        """Create a policy, or replace the spec of the existing policy of this name."""
        if self._exists(kind, name):
            self.world.cluster.edit(name, lambda edited: edited.update(spec=copy.deepcopy(wanted)), kind=kind)
        else:
            self.number += 1
            manifest = gen.policy(name, kind=kind, **copy.deepcopy(wanted))
            manifest["metadata"]["uid"] = f"uid-{self.number}"
            self.world.cluster.create(manifest)

    def _ask(self, name: str, kind: str) -> None:
        """Request a run for a topic or policy, if it exists."""
        if self._exists(kind, name):
            self.number += 1
            value = {names.RUN_NOW: str(self.number)}
            self.world.cluster.edit(
                name, lambda edited: edited["metadata"].update(annotations=value), spec=False, kind=kind
            )

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


Policies = dict[tuple[str, str], Manifest]
"""Policies by kind and name."""


async def run(steps: list[tuple[str, str, object]]) -> None:
    history = History()
    world = history.world
    for name in TOPICS:
        world.cluster.create(gen.topic(name))
    await world.settle()
    for action in steps:
        await history.do(*action)
    await end_disturbances(history)
    policies = {
        (kind, resource["metadata"]["name"]): resource for kind in KINDS for resource in world.cluster.all(kind)
    }
    for (kind, name), policy in policies.items():
        check_policy(world, kind, name, policy)
    for topic in world.cluster.topics():
        check_topic(topic, policies)
    # No run of a deleted or re-created policy is active.
    live = {policy["metadata"]["uid"] for policy in policies.values()}
    assert all(job["metadata"]["labels"][names.LABEL_POLICY_UID] in live for job in active(world))
    await check_quiet(history, policies)


async def end_disturbances(history: History) -> None:
    """End faults and debts, and let the world converge."""
    world = history.world
    world.faults.kill_at = None
    world.maintainer.hold = False
    world.maintainer.report_fields.clear()
    for name in TOPICS:
        world.owes(name)
    world.clock.advance(LONGEST_RETRY.total_seconds())  # the backoff of failures passes
    for _ in range(150):  # closed windows pass, and schedules continue
        await history.round()


def check_policy(world: World, kind: str, name: str, policy: Manifest) -> None:
    """Check that the status of a policy follows from its spec and from the topics that it governs."""
    status = policy["status"]
    assert status["observedGeneration"] == policy["metadata"]["generation"]
    policy_conditions = {
        condition["type"]: (condition["status"], condition["reason"]) for condition in status["conditions"]
    }
    valid = "huge" not in str(policy["spec"]) and "0 25" not in str(policy["spec"])
    assert (policy_conditions["SpecValid"][0] == "True") is valid
    refused = status.get("topicsRefused", 0)
    if valid:
        suspended = policy["spec"].get("suspend", False)
        fit = ("False", "RefusedForSome") if refused else ("True", "AllReady")
        assert policy_conditions["Ready"] == (("False", "Suspended") if suspended else fit)
        assert policy_conditions["MaintenanceHealthy"][0] == "True"
    bound = [topic for topic in world.cluster.topics() if governor(topic, SECTIONS[kind]) == name]
    assert status["topics"] == len(bound) + refused


def check_topic(topic: Manifest, policies: Policies) -> None:
    """Check that a topic reports its policies, and that every request for a run is served."""
    conditions = {condition["type"]: condition for condition in topic["status"]["conditions"]}
    reference = topic["spec"].get("compactionPolicyRef", {}).get("name")
    missing = reference is not None and ("CompactionPolicy", reference) not in policies
    assert (conditions["PoliciesResolved"]["reason"] == "PolicyNotFound") is missing
    followed = conditions["PoliciesResolved"]["status"] == "True"
    for kind, section in SECTIONS.items():
        policy_name = governor(topic, section)
        if policy_name is None:
            continue
        assert (kind, policy_name) in policies
        policy = policies[kind, policy_name]
        if followed and not policy["spec"].get("suspend"):
            answered = topic["status"]["maintenance"][section].get("lastRequest", {})
            assert requests(topic, policy).items() <= answered.items(), "every request is served"


def requests(topic: Manifest, policy: Manifest) -> dict[str, str]:
    """Return the last requests for a run of the topic and of its policy, by their source."""
    return {
        source: value
        for source, resource in (("topic", topic), ("policy", policy))
        if (value := resource["metadata"].get("annotations", {}).get(names.RUN_NOW))
    }


async def check_quiet(history: History, policies: Policies) -> None:
    """Check that another process of the operator writes nothing while all policies are suspended."""
    world = history.world
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
