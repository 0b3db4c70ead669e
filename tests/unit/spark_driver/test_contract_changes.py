"""The topics that the loop serves while contracts appear, disappear and return."""

import time
from typing import Any

import pytest

from firn.model.errors import ExitCode, FencedError, UnavailableError
from firn.model.jobs import GroupSettings, IngestJob
from firn_spark.ingestion.loop import Loop
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.watcher import Watcher
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import job


class Contracts:
    """A job source whose contracts the test sets."""

    def __init__(self) -> None:
        self.jobs: dict[str, IngestJob] = {}

    def start(self) -> None:
        pass

    def current(self) -> dict[str, IngestJob]:
        return self.jobs

    def stop(self) -> None:
        pass


class Rounds:
    """Rounds that raise unexpected errors."""

    def prepare(self, topic: object) -> None:
        raise RuntimeError("boom")


@pytest.fixture
def contracts() -> Contracts:
    return Contracts()


@pytest.fixture
def loop(contracts: Any, monkeypatch: pytest.MonkeyPatch) -> Loop:
    monkeypatch.setattr(Watcher, "start", lambda self: None)
    nothing: Any = None
    rounds: Any = Rounds()
    return Loop(GroupSettings(group="g"), contracts, lambda _: rounds, nothing, nothing, lambda: None)


def test_a_contract_restored_while_its_topic_is_busy_is_served(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    [topic] = loop._topics.values()
    topic.busy = True
    contracts.jobs = {}
    loop._take_jobs()
    assert not topic.active
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    assert topic.active


@pytest.mark.parametrize("fenced", [False, True])
def test_a_new_restart_value_ends_a_backoff_and_reloads_the_tables(
    loop: Loop, contracts: Contracts, fenced: bool
) -> None:
    contracts.jobs = {"uid-orders": job(restart="1")}
    loop._take_jobs()
    [topic] = loop._topics.values()
    topic.log.live, topic.prepared = TopicInfo("id-1", (0,)), True
    topic.failed(FencedError("another driver") if fenced else UnavailableError("down"), time.monotonic())
    prepared: list[Topic] = []
    loop._rounds.prepare = prepared.append  # type: ignore[assignment,method-assign]
    loop._decide()
    loop._workers.submit(lambda: None).result()
    assert prepared == []

    contracts.jobs = {"uid-orders": job(restart="2")}
    loop._take_jobs()
    assert (topic.attempts.failures, topic.job.restart) == (0, "2")
    loop._decide()
    loop._workers.shutdown(wait=True)
    assert prepared == [topic]


def test_a_new_restart_value_reloads_the_tables_of_a_running_topic(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    [topic] = loop._topics.values()
    topic.prepared = True
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    assert topic.prepared
    contracts.jobs = {"uid-orders": job(restart="1")}
    loop._take_jobs()
    assert not topic.prepared


def test_an_unexpected_error_of_a_preparation_backs_off(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    [topic] = loop._topics.values()
    loop._decide()
    loop._workers.shutdown(wait=True)
    assert topic.attempts.failures == 1
    assert "boom" in str(topic.attempts.error)
    assert not topic.busy


def test_a_driver_whose_topics_are_all_fenced_continues_to_watch_them(
    loop: Loop, contracts: Contracts, monkeypatch: pytest.MonkeyPatch
) -> None:
    contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    [topic] = loop._topics.values()
    topic.failed(FencedError("another driver"), time.monotonic())
    reasons = iter([None, None, "the test ends"])
    monkeypatch.setattr(loop, "_unfit", lambda: next(reasons))
    assert loop.run() is ExitCode.TEMPORARY


def test_an_unfit_process_exits_for_a_restart(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    reasons = iter([None, None, "secrets have changed"])
    monkeypatch.setattr(loop, "_unfit", lambda: next(reasons))
    assert loop.run() is ExitCode.TEMPORARY
