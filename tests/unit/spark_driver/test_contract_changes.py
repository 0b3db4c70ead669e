"""The topics that the loop serves while contracts appear, disappear and return."""

import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from firn.model.errors import ExitCode, FencedError, UnavailableError
from firn.model.jobs import GroupSettings, IngestJob, TableTarget
from firn_spark.ingestion.loop import PREPARATIONS_PER_KEY, Loop
from firn_spark.ingestion.progress import Metrics
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
    return Loop(GroupSettings(group="g"), contracts, lambda _: rounds, Metrics(), nothing, lambda: None)


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


@pytest.mark.parametrize("meanwhile", [{}, {"uid-orders": job(restart="1")}], ids=["removed", "changed"])
def test_the_same_contract_after_another_one_is_served_again(
    loop: Loop, contracts: Contracts, meanwhile: dict[str, IngestJob]
) -> None:
    first = contracts.jobs = {"uid-orders": job()}
    loop._take_jobs()
    [topic] = loop._topics.values()
    topic.busy = True
    contracts.jobs = meanwhile
    loop._take_jobs()
    assert topic.removed or topic.outdated
    contracts.jobs = dict(first)
    loop._take_jobs()
    assert not topic.removed
    assert not topic.outdated


@pytest.mark.parametrize("together", [True, False], ids=["at once", "later"])
def test_a_contract_takes_a_topic_and_a_table_that_another_released(
    loop: Loop, contracts: Contracts, together: bool
) -> None:
    contracts.jobs = {"a": job(uid="a", **claims(1))}
    loop._take_jobs()
    moved, new = {"a": job(uid="a", **claims(2))}, {"b": job(uid="b", **claims(1))}
    if not together:
        contracts.jobs = moved
        loop._take_jobs()
    contracts.jobs = moved | new
    # In the first turn, the claim may still belong to the other topic.
    loop._take_jobs()
    loop._take_jobs()
    assert {uid: topic.job.topic for uid, topic in loop._topics.items()} == {"a": "t2", "b": "t1"}
    contracts.jobs = moved | new | {"c": job(uid="c", **claims(1))}
    loop._take_jobs()
    assert loop._topics.keys() == {"a", "b"}


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


def take(loop: Loop) -> None:
    """Let the driver take the contracts, and the brokers describe their topics."""
    loop._take_jobs()
    for topic in loop._topics.values():
        topic.log.live = TopicInfo("id-1", (0,))


def test_an_unexpected_error_of_a_preparation_backs_off(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = {"uid-orders": job()}
    take(loop)
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


def several(count: int) -> dict[str, IngestJob]:
    return {f"uid-{number}": job(uid=f"uid-{number}", **claims(number)) for number in range(count)}


def claims(number: int) -> dict[str, Any]:
    return {"topic": f"t{number}", "table": job().table.model_copy(update={"name": f"t{number}"})}


def test_one_decision_prepares_all_topics_that_wait(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = several(3 * PREPARATIONS_PER_KEY)
    take(loop)
    prepared: list[Topic] = []
    loop._rounds.prepare = prepared.append  # type: ignore[assignment,method-assign]
    loop._decide()
    loop._workers.shutdown(wait=True)
    assert {topic.job.uid for topic in prepared} == contracts.jobs.keys()
    assert not any(topic.busy for topic in prepared)


def test_a_new_topic_waits_for_the_first_answer_of_its_brokers(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = several(3)
    loop._take_jobs()
    _, answered, refused = loop._topics.values()
    answered.log.live = TopicInfo("id-1", (0,))
    refused.log.error = UnavailableError("down")
    prepared: list[Topic] = []
    loop._rounds.prepare = prepared.append  # type: ignore[assignment,method-assign]
    loop._decide()
    loop._workers.shutdown(wait=True)
    # If the brokers refuse, the table is prepared all the same (`test_topics_without_brokers.py`).
    assert sorted(topic.job.uid for topic in prepared) == sorted([answered.job.uid, refused.job.uid])


def test_a_changed_topic_is_prepared_before_retries_and_before_new_ones(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = several(3 * PREPARATIONS_PER_KEY)
    take(loop)
    *_, changed, longer, shorter = loop._topics.values()
    for number, known in enumerate((changed, longer, shorter)):
        known.table.uuid = "of its first preparation"
        known.attempts.next_at = float(number)
    prepared: list[Topic] = []
    loop._rounds.prepare = prepared.append  # type: ignore[assignment,method-assign]
    submitted: list[Any] = []
    loop._workers = SimpleNamespace(submit=lambda *work: submitted.append(work))  # type: ignore[assignment]
    loop._decide()
    work, key = submitted[0]
    work(key)
    assert prepared[:3] == [changed, longer, shorter]
    assert len(prepared) == 3 * PREPARATIONS_PER_KEY


class Hanging:
    """Preparations of topics in the catalog ``lake`` that hang until `end`. ``begun`` has all that began."""

    def __init__(self, loop: Loop) -> None:
        self.begun: list[Topic] = []
        self._started = threading.Semaphore(0)
        self._ended = threading.Event()
        self._loop = loop
        loop._rounds.prepare = self._prepare  # type: ignore[method-assign]

    def _prepare(self, topic: Topic) -> None:
        self.begun.append(topic)
        self._started.release()
        if topic.job.table.catalog == "lake":
            self._ended.wait(30)

    def await_begun(self, count: int) -> None:
        for _ in range(count):
            assert self._started.acquire(timeout=30)

    def end(self) -> None:
        self._ended.set()
        self._loop._workers.shutdown(wait=True)


def test_a_catalog_that_hangs_holds_the_workers_of_its_topics_only(loop: Loop, contracts: Contracts) -> None:
    table = TableTarget(catalog="other", namespace="shop", name="other")
    contracts.jobs = several(3 * PREPARATIONS_PER_KEY) | {"other": job(uid="other", topic="other", table=table)}
    take(loop)
    hanging = Hanging(loop)
    loop._decide()
    hanging.await_begun(PREPARATIONS_PER_KEY + 1)
    assert "other" in {topic.job.uid for topic in hanging.begun}
    loop._decide()
    assert len(hanging.begun) == PREPARATIONS_PER_KEY + 1
    hanging.end()


def test_a_topic_that_is_removed_while_it_waits_is_not_prepared(loop: Loop, contracts: Contracts) -> None:
    contracts.jobs = several(PREPARATIONS_PER_KEY + 1)
    take(loop)
    hanging = Hanging(loop)
    loop._decide()
    hanging.await_begun(PREPARATIONS_PER_KEY)
    [waiting] = [topic for topic in loop._topics.values() if not topic.busy]
    contracts.jobs = {uid: kept for uid, kept in contracts.jobs.items() if uid != waiting.job.uid}
    loop._take_jobs()
    assert waiting.job.uid not in loop._topics
    hanging.end()
    assert waiting not in hanging.begun


def test_two_contracts_of_one_table_or_topic_are_served_one_after_the_other(loop: Loop, contracts: Contracts) -> None:
    for shared in ("topic", "table"):
        second = job(uid="second", **{**claims(2), shared: claims(1)[shared]})
        contracts.jobs = {"first": job(uid="first", **claims(1)), "second": second}
        loop._take_jobs()
        assert loop._topics.keys() == {"first"}, shared
        contracts.jobs = {"second": second}
        loop._take_jobs()
        loop._take_jobs()
        assert loop._topics.keys() == {"second"}, shared
        contracts.jobs = {}
        loop._take_jobs()
