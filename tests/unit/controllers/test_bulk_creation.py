"""Many topics at once, in virtual time: each is Ready soon after its driver reports it. The operator checks waiting
deletions at a bounded rate.

The delays of the ports make a creation take 1.6 s, so that 8 workers create 5 topics a second.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from firn.model import names
from firn.model.errors import UnavailableError
from firn.model.jobs import IngestJob
from firn.model.progress import GroupProgress, TopicProgress
from firn_controllers.ports import Manifest, Ports
from firn_controllers.queue import Key, NoReconcileMeter, ReconcileVerdict
from firn_controllers.reconcile import Controllers
from firn_controllers.reconcilers.topic import deletion
from tests import gen
from tests.fakes.cluster import FakeCluster
from tests.fakes.faults import Faults
from tests.fakes.progress import FakeProgress
from tests.fakes.schemas import FakeSchemas
from tests.fakes.tables import FakeTables
from tests.fakes.topics import FakeTopics
from tests.fakes.virtual_time import LoopClock, run

UNSEEN = 0.3
"""Seconds for which the brokers do not describe a topic that was created."""
PICKED_UP = 3.0
"""Seconds from a contract to the driver's first report of the topic."""
DELAYS = {
    "describe": 0.1,
    "create": 0.4,
    "ensure": 0.9,
    "apply": 0.05,
    "patch_status": 0.05,
}


class Delayed:
    """A port whose calls take as long as `DELAYS` says."""

    def __init__(self, port: Any) -> None:
        self._port = port

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        delay = DELAYS.get(name, 0.0)
        if not delay:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(delay)
            return await method(*args, **kwargs)

        return call


class HiddenTopics(FakeTopics):
    """Brokers that describe a topic only `UNSEEN` seconds after its creation."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(faults)
        self._created: dict[str, float] = {}

    async def describe(self, profile: str, topic: str) -> Any:
        state = await super().describe(profile, topic)
        now = asyncio.get_running_loop().time()
        return state if state is not None and self._created.setdefault(topic, now) + UNSEEN <= now else None


class Reconciles(NoReconcileMeter):
    """Counts the reconciles of topics that ended."""

    def __init__(self) -> None:
        self.count = 0

    def reconciled(self, key: Key, seconds: float, verdict: ReconcileVerdict) -> None:
        self.count += key[0] == "topic"


class Stage:
    """An operator process, and a driver that reports each topic `PICKED_UP` seconds after its contract."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        faults = Faults()
        self.cluster = FakeCluster(faults, self.clock)  # type: ignore[arg-type]
        self.tables, self.progress = FakeTables(faults), FakeProgress()
        ports = Ports(
            Delayed(HiddenTopics(faults)),
            Delayed(self.tables),
            Delayed(self.cluster),
            self.progress,
            FakeSchemas(),
            self.clock,
        )
        self.reconciles = Reconciles()
        self.operator = Controllers(
            gen.config(defaultProfile="outside", workers=8),
            "config-uid",
            ports,
            jitter=lambda: 0.5,
            meter=self.reconciles,
        )
        self.contracts: dict[str, float] = {}
        self.reports: dict[str, TopicProgress] = {}
        self.reported: dict[str, float] = {}
        self.ready: dict[str, float] = {}
        self.cluster.watch = [self._watched]

    def _watched(self, change: str, manifest: Manifest) -> None:
        if manifest["kind"] != "IcebergTopic":
            return
        self.operator.topic_seen(manifest)
        status, uid, now = manifest["status"], manifest["metadata"]["uid"], self.clock.monotonic()
        if any((condition["type"], condition["status"]) == ("Ready", "True") for condition in status["conditions"]):
            self.ready.setdefault(uid, now)

    async def drive(self) -> None:
        """Report each topic some time after its contract, until cancelled."""
        while True:
            await asyncio.sleep(0.5)
            now = self.clock.monotonic()
            if names.ingestion("default") not in {state.name[:-2] for state in self.cluster.pod_states.values()}:
                self.cluster.run_pods()
            for uid, contract in self.cluster.contracts().items():
                if uid not in self.reports and self.contracts.setdefault(uid, now) + PICKED_UP <= now:
                    self.reports[uid] = self._report(IngestJob.model_validate_json(contract["data"]["job.json"]))
                    self.reported[uid] = now
            document = GroupProgress(group="default", started=1.0, topics=list(self.reports.values()))
            self.progress.documents["default"] = (document, self.clock.monotonic())

    def _report(self, job: IngestJob) -> TopicProgress:
        table = self.tables.tables[job.table.identifier]
        return TopicProgress(
            uid=job.uid,
            generation=job.generation,
            state="CaughtUp",
            topic_id=job.topic_id,
            table_uuid=table.uuid,
            table_location="s3://firn",
            table_ready=True,
            lag_records=0,
            lag_seconds=0.0,
        )


@asynccontextmanager
async def creating(stage: Stage, topics: int, **spec: Any) -> AsyncIterator[None]:
    """Create topics at once, on an operator that has been running with one topic. The operator stops after the with block."""
    stage.cluster.create(gen.topic("first"))
    stage.operator.synced()
    tasks = [asyncio.create_task(stage.operator.run()), asyncio.create_task(stage.drive())]
    await asyncio.sleep(20)
    for number in range(topics):
        stage.cluster.create(gen.topic(f"t{number}", **spec))
    yield
    stage.operator.stop()
    await tasks[0]
    tasks[1].cancel()


async def created(stage: Stage, topics: int) -> None:
    """Create topics at once, and run until all of them are ready."""
    async with creating(stage, topics):
        while len(stage.ready) <= topics:
            assert stage.clock.monotonic() < 3600
            await asyncio.sleep(5)


@pytest.mark.slow
@pytest.mark.parametrize("topics", [250, pytest.param(1000, marks=pytest.mark.long)])
def test_a_topic_is_ready_soon_after_its_driver_reports_it_while_others_are_created(topics: int) -> None:
    stage = Stage()
    run(created(stage, topics), tick=1e-9)
    waits = sorted(stage.ready[uid] - stage.reported[uid] for uid in stage.ready)
    assert max(stage.contracts.values()) > topics / 5, "the creations take minutes"
    assert waits[topics * 99 // 100] <= 5


async def edited(stage: Stage, topics: int, outage: float = 0.0) -> float:
    """Edit a topic while others are created. Return the seconds until its contract has the edit.

    The catalog does not answer for ``outage`` seconds from the edit on.
    """
    async with creating(stage, topics):
        await asyncio.sleep(1)
        uid, started = stage.cluster.topic("first")["metadata"]["uid"], stage.clock.monotonic()
        if outage:
            stage.tables.problem["lake"] = UnavailableError("catalog lake: no answer")
            asyncio.get_running_loop().call_later(outage, stage.tables.problem.clear)
        stage.cluster.edit("first", lambda live: live["spec"].update(ingestion={"freshness": "7s"}))
        while IngestJob.model_validate_json(stage.cluster.contracts()[uid]["data"]["job.json"]).freshness_ms != 7000:
            assert stage.clock.monotonic() < started + 600
            await asyncio.sleep(0.1)
        return stage.clock.monotonic() - started


def test_an_edit_does_not_wait_for_the_creation_of_other_topics() -> None:
    assert run(edited(Stage(), 250), tick=1e-9) < 5


def test_an_edit_that_an_outage_failed_does_not_wait_for_the_creation_of_other_topics() -> None:
    assert run(edited(Stage(), 250, outage=10.0), tick=1e-9) < 17


async def deleting(stage: Stage, topics: int, seconds: float) -> int:
    """Delete topics that the driver does not release. Return the reconciles in this time."""
    async with creating(stage, topics, deletionPolicy={"topic": "Delete"}):
        while len(stage.ready) <= topics:
            assert stage.clock.monotonic() < 3600
            await asyncio.sleep(5)
        for number in range(topics):
            stage.cluster.remove(f"t{number}")
        await asyncio.sleep(60)  # Every deletion waits by now, and the first statuses that say so are written.
        before = stage.reconciles.count
        await asyncio.sleep(seconds)
        return stage.reconciles.count - before


def test_many_deletions_that_wait_are_checked_at_a_bounded_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "CHECKS_PER_SECOND", 10.0)
    # Without the bound, each of the 60 topics would be checked every 2 s.
    assert 5 <= run(deleting(Stage(), 60, 20), tick=1e-9) / 20 <= 15
