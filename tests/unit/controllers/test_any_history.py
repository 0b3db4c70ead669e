"""Users, dependencies and kills act in any order. At the end the world converges and is quiet, and no data was
deleted without a request."""

import asyncio
import copy

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from firn.model import names
from firn.model.errors import FirnError, UnavailableError
from tests import gen
from tests.fakes.faults import Killed
from tests.fakes.world import World

NAMES = ("a", "b", "c")
TOPICS = ("shared", "own")
spec = st.fixed_dictionaries(
    {"topicName": st.sampled_from(TOPICS)},
    optional={
        "partitions": st.integers(1, 6),
        "config": st.sampled_from([{}, {"retention.ms": "1000"}, {"retention.ms": "2000", "segment.ms": "5"}, {"no.such": "1"}]),
        "suspend": st.booleans(),
        "profile": st.sampled_from(["classic", "outside", "nope"]),
        "ingestion": st.sampled_from([{"group": "default"}, {"group": "big"}, {"group": "nope"}]),
        "schema": st.sampled_from([None, {"format": "Json", "fields": gen.FIELDS}, {"format": "Json", "fields": gen.FIELDS[:3]}]),
        "table": st.sampled_from([{}, {"formatVersion": 3}, {"partitionBy": ["month(at)"]}]),
        "deletionPolicy": st.sampled_from([{"topic": "Delete"}, {"topic": "Delete", "table": "Delete"}]),
    },
)  # fmt: skip
step = st.one_of(
    st.tuples(st.just("apply"), st.sampled_from(NAMES), spec),
    st.tuples(st.just("delete"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("annotate"), st.sampled_from(NAMES), st.sampled_from([names.PAUSE, names.RESUME, names.RESTART])),
    st.tuples(st.just("broker"), st.sampled_from(["classic", "outside"]), st.booleans()),
    st.tuples(st.just("catalog"), st.just("lake"), st.booleans()),
    st.tuples(st.just("kill"), st.just(""), st.tuples(st.integers(1, 12), st.booleans())),
    st.tuples(st.just("run"), st.just(""), st.integers(1, 4)),
)


class History:
    """A world and the actions on it."""

    def __init__(self) -> None:
        self.world = World()
        self.number = 0
        self.may_delete: set[str] = set()
        """Kafka topics that a resource was ever allowed to delete."""

    async def do(self, action: str, name: str, argument: object) -> None:
        cluster = self.world.cluster
        place = (names.API_VERSION, "IcebergTopic", "demo", name)
        match action, argument:
            case "apply", dict() as wanted if place not in cluster.objects:
                self.number += 1
                manifest = gen.topic(name, **copy.deepcopy(wanted))
                manifest["metadata"]["uid"] = f"uid-{self.number}"
                manifest["metadata"]["creationTimestamp"] = f"2026-03-01T10:00:{self.number:02d}Z"
                cluster.create(manifest)
            case "apply", dict() as wanted:
                kept = {key: cluster.topic(name)["spec"].get(key) for key in ("topicName", "profile")}
                fresh = {key: value for key, value in {**wanted, **kept}.items() if value is not None}
                cluster.edit(name, lambda edited: edited.update(spec=copy.deepcopy(fresh)))
            case "delete", _ if place in cluster.objects:
                cluster.remove(name)
            case "annotate", str(key) if place in cluster.objects:
                cluster.edit(
                    name, lambda edited: _toggle(edited["metadata"].setdefault("annotations", {}), key), spec=False
                )
            case "broker", bool(down):
                self._problem(self.world.topics.problem, name, down)
            case "catalog", bool(down):
                self._problem(self.world.tables.problem, name, down)
            case "kill", (int(calls), bool(after)):
                self.world.faults.kill_at = self.world.faults.calls + calls
                self.world.faults.after_effect = after
            case "run", int(rounds):
                for _ in range(rounds):
                    await self._round()
        for manifest in cluster.topics():
            if "Delete" in manifest["spec"].get("deletionPolicy", {}).values():
                self.may_delete.add(manifest["spec"]["topicName"])

    async def _round(self) -> None:
        try:
            await self.world.step()
        except Killed:
            self.world.faults.kill_at = None
            self.world.start()
        self.world.clock.advance(5.0)

    @staticmethod
    def _problem(problems: dict[str, FirnError], name: str, down: bool) -> None:
        problems.pop(name, None)
        if down:
            problems[name] = UnavailableError(f"{name} does not answer")


def _toggle(annotations: dict[str, str], key: str) -> None:
    if annotations.pop(key, None) is None:
        annotations[key] = "true" if key == names.PAUSE else "skip"


async def run(steps: list[tuple[str, str, object]]) -> None:
    history = History()
    seen: set[tuple[str, str]] = set()
    for action in steps:
        await history.do(*action)
        seen |= set(history.world.topics.topics)
    world = history.world
    world.topics.problem.clear()
    world.tables.problem.clear()
    world.faults.kill_at = None
    await world.settle()

    # No data is lost without a request to delete it.
    missing = {topic for _, topic in seen - set(world.topics.topics)}
    assert missing <= history.may_delete

    # Each contract belongs to a live resource, and each table has at most one.
    live = {resource["metadata"]["uid"]: resource for resource in world.cluster.topics()}
    contracts = world.cluster.contracts()
    assert contracts.keys() <= live.keys()
    tables = [world.job(uid).table.identifier for uid in contracts]
    assert len(tables) == len(set(tables))

    # Every resource was reconciled, and each Ready one has its contract.
    for uid, manifest in live.items():
        status = manifest["status"]
        conditions = {condition["type"]: condition for condition in status["conditions"]}
        # A paused resource was not reconciled since.
        assert "Paused" in conditions or status["observedGeneration"] == manifest["metadata"]["generation"]
        if conditions["Ready"]["status"] == "True" and "Paused" not in conditions:
            assert uid in contracts
            assert world.job(uid).generation == manifest["metadata"]["generation"]

    # Quiet: another reconcile, and another process, write nothing.
    before = world.faults.writes()
    for _ in range(35):
        await world.step()
        world.clock.advance(10.0)
    world.start()
    await world.settle()
    assert world.faults.log[before:] == []


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.lists(step, min_size=1, max_size=14))
def test_any_history_converges_to_the_desired_state(steps: list[tuple[str, str, object]]) -> None:
    asyncio.run(run(steps))
