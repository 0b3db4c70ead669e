"""The maintenance debt of tables on the board and in metrics."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from firn.model.errors import UnavailableError
from firn.model.jobs import TableTarget
from firn.model.maintenance import CompactionWork
from firn_controllers.board import Board
from firn_controllers.cache import policies as policy_index
from firn_controllers.cache.policies import PolicyCache
from firn_controllers.cache.topics import Name, TopicCache, topic_entry
from firn_controllers.ports import Manifest, TableDebt
from firn_controllers.reconcilers import survey as survey_module
from firn_controllers.reconcilers.survey import Survey
from firn_operator.process.telemetry import DebtMetrics, exposition
from tests import gen
from tests.fakes.clock import FakeClock
from tests.fakes.lake.debts import FakeDebts

MIB = 1024 * 1024
UID = "uid-demo-flights"
GRACE = 300_000


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.debts = FakeDebts(self.clock)
        self.config = gen.config()
        self.index, self.policies, self.board = TopicCache(), PolicyCache(), Board()
        self.changed_topics: list[Name] = []
        self.survey = Survey(self.config, self.debts, self.index, self.policies, self.board, self.changed_topics.append)

    def topic(self, name: str = "flights", *modifiers: gen.Modifier, **spec: Any) -> TableTarget:
        self.index.put(topic_entry(gen.topic(name, *modifiers, **spec), self.config))
        return TableTarget(catalog="lake", namespace="demo", name=name)

    def policy(self, manifest: Manifest) -> None:
        self.policies.put(policy_index.policy_entry(manifest, self.config))

    def metrics(self) -> str:
        registry = CollectorRegistry()
        registry.register(DebtMetrics(lambda: list(self.survey.findings.values()), self.clock.now))
        return exposition(registry).decode()


@pytest.fixture
def scene() -> Scene:
    return Scene()


async def test_a_changed_debt_is_on_the_board_and_reported_once(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    scene.debts.append(target, [MIB] * 10)
    await scene.survey.round()
    await scene.survey.round()
    assert scene.board.debts[UID].small_files == 10
    assert scene.changed_topics == [("demo", "flights")]
    scene.debts.append(target, [MIB])
    await scene.survey.round()
    assert scene.changed_topics == [("demo", "flights")] * 2


async def test_the_governing_policy_has_the_settings_and_a_lag(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    scene.debts.append(target, [40 * MIB] * 10)
    scene.clock.advance(600)
    await scene.survey.round()
    assert scene.board.debts[UID].due_files == 10
    assert "firn_compaction_lag_seconds{" not in scene.metrics()
    scene.policy(gen.policy(selector={}, targetFileSize="40Mi"))
    await scene.survey.round()
    assert scene.board.debts[UID].due_files == 0
    assert 'firn_compaction_lag_seconds{namespace="demo",topic="flights"} 0.0' in scene.metrics()
    scene.policy(gen.policy(selector={}, targetFileSize="512Mi"))
    await scene.survey.round()
    scene.clock.advance(60)
    # Files are due since the end of their grace. No metadata tells which files were due under the former target size.
    assert 'firn_compaction_lag_seconds{namespace="demo",topic="flights"} 360.0' in scene.metrics()


async def test_an_invalid_policy_has_no_lag(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    scene.policy(gen.policy(selector={}, strategy="Sort", columns=["nothere"]))
    await scene.survey.round()
    assert UID in scene.survey.findings
    assert scene.survey.findings[UID].since is None


async def test_metrics_of_a_topic_end_with_it(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    for _ in range(3):
        scene.debts.append(target, [MIB, MIB])
    await scene.survey.round()
    metrics = scene.metrics().splitlines()
    for name, value in {
        "table_small_files": 6,
        "table_data_files": 6,
        "table_data_bytes": 6 * MIB,
        "table_delete_files": 0,
        "table_snapshots": 3,
        "table_manifests": 3,
    }.items():
        assert f'firn_{name}{{namespace="demo",topic="flights"}} {value}' in metrics
    scene.index.remove(("demo", "flights"), UID)
    await scene.survey.round()
    assert "flights" not in scene.metrics()
    assert scene.board.debts == {}


async def test_a_deleted_table_has_no_debt(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    await scene.survey.round()
    scene.debts.drop(target)
    await scene.survey.round()
    assert scene.board.debts == {}
    assert scene.survey.findings == {}


async def test_only_live_owners_of_a_table_are_measured(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    younger = gen.topic("younger", table={"name": "flights"})
    younger["metadata"]["creationTimestamp"] = "2026-03-01T11:00:00Z"
    scene.index.put(topic_entry(younger, scene.config))
    scene.topic("leaving", gen.deleting())
    await scene.survey.round()
    assert set(scene.board.debts) == {UID}
    assert scene.debts.asked == ["lake.demo.flights"]


async def test_a_stopped_catalog_is_not_queried_for_every_table(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_module, "AT_ONCE", 2)
    for number in range(40):
        scene.debts.create(scene.topic(f"t{number:02}"))
    await scene.survey.round()
    debts = dict(scene.board.debts)
    assert len(debts) == 40
    scene.debts.problem["lake"] = UnavailableError("catalog lake: it does not answer")
    scene.debts.asked.clear()
    await scene.survey.round()
    assert len(scene.debts.asked) <= survey_module.GIVEN_UP + 1
    assert scene.board.debts == debts, "the known debts stay"
    first = scene.debts.asked[0]
    scene.debts.asked.clear()
    await scene.survey.round()
    assert scene.debts.asked[0] != first, "another table comes first"
    scene.debts.problem.clear()
    scene.debts.asked.clear()
    await scene.survey.round()
    assert len(scene.debts.asked) == 40


async def test_a_table_that_fails_to_be_measured_affects_no_other(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b", "c"):
        scene.debts.create(scene.topic(name))
    real = scene.debts.measure

    async def broken(target: TableTarget, work: CompactionWork) -> TableDebt | None:
        if target.name == "b":
            raise KeyError("oops")
        return await real(target, work)

    scene.debts.measure = broken  # type: ignore[method-assign]
    await scene.survey.round()
    assert set(scene.board.debts) == {"uid-demo-a", "uid-demo-c"}
    assert "demo/b" in caplog.text


async def test_rounds_continue_at_their_interval(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    scene.survey._interval = 0.0
    task = asyncio.create_task(scene.survey.run())
    async with asyncio.timeout(30):
        while len(scene.debts.asked) < 3:
            await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_lag_never_begins_before_the_policy_was_created(scene: Scene) -> None:
    target = scene.topic()
    scene.debts.create(target)
    scene.debts.append(target, [MIB] * 4)
    scene.clock.advance(30 * 86_400)
    policy = gen.policy(selector={})
    policy["metadata"]["creationTimestamp"] = scene.clock.now().isoformat()
    scene.policy(policy)
    scene.clock.advance(60)
    await scene.survey.round()
    assert scene.survey.findings[UID].lag_seconds(scene.clock.now()) == 60


async def test_lag_counts_from_the_time_files_became_due(scene: Scene) -> None:
    target = scene.topic()
    scene.policy(gen.policy(selector={}))
    scene.debts.create(target)
    scene.debts.append(target, [MIB] * 4)
    scene.clock.advance(GRACE / 1000 - 1)
    await scene.survey.round()
    finding = scene.survey.findings[UID]
    assert finding.lag_seconds(scene.clock.now()) == 0, "the files are within the grace"
    scene.clock.advance(1)
    await scene.survey.round()
    finding = scene.survey.findings[UID]
    assert finding.lag_seconds(scene.clock.now()) == 0
    assert finding.lag_seconds(scene.clock.now() + timedelta(hours=1)) == 3600
    scene.debts.replace(target, [4 * MIB])
    await scene.survey.round()
    assert scene.survey.findings[UID].lag_seconds(scene.clock.now()) == 0
