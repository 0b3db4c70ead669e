"""The metrics of a driver count what happened once, and show no value that is not known."""

import threading
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import CommitUnknownError, UnavailableError
from firn.model.jobs import GroupSettings
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.loop import Loop
from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.rounds import rounds
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.losing import Brokers, Committer, landed_to
from tests.unit.spark_driver.results import landed
from tests.unit.spark_driver.topic import topic

LABELS = {"namespace": "shop", "topic": "orders"}


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def committer() -> Committer:
    return Committer()


@pytest.fixture
def commits(metrics: Metrics, committer: Committer) -> TopicCommits:
    preparation: Any = SimpleNamespace(follow_table=lambda topic: None, begin=lambda topic: None)
    return TopicCommits(cast(Any, None), cast(Any, committer), preparation, Failpoints(), metrics)


@pytest.fixture
def loop(metrics: Metrics) -> Loop:
    nothing: Any = None
    return Loop(GroupSettings(group="g"), nothing, lambda _: nothing, metrics, nothing, lambda: None)


def value(metrics: Metrics, name: str) -> float | None:
    return metrics.registry.get_sample_value(f"firn_ingest_{name}", LABELS)


def test_a_lag_that_is_not_known_has_no_value(metrics: Metrics) -> None:
    made = topic()
    report = progress_of(made, 0.0, 0.0)
    known = {"lag_records": 50, "lag_seconds": 9.0, "lag_bytes": 800.0}
    metrics.reported(made, report.model_copy(update=known), 0.0)
    assert value(metrics, "lag_seconds") == 9
    metrics.reported(made, report.model_copy(update=dict.fromkeys(known)), 0.0)
    for gauge in ("lag_records", "lag_seconds", "lag_bytes", "uncommitted_records"):
        assert value(metrics, gauge) is None, gauge
    assert value(metrics, "freshness_seconds") == 60


def test_the_bytes_of_waiting_records_are_unknown_until_a_round_has_read_records(metrics: Metrics) -> None:
    """Their size is a guess after a restart. The alert for records that the log deletes soon compares the bytes."""
    made = topic(lag=50)
    metrics.reported(made, progress_of(made, 0.0, 0.0).model_copy(update={"lag_bytes": 800.0}), 0.0)
    report = progress_of(made, 0.0, 0.0)
    metrics.reported(made, report, 0.0)
    assert (report.lag_records, report.lag_bytes) == (50, None)
    assert (value(metrics, "lag_records"), value(metrics, "lag_bytes")) == (50, None)
    assert progress_of(topic(lag=0), 0.0, 0.0).lag_bytes == 0
    made.reading.record_bytes, made.reading.measured = 20.0, True
    report = progress_of(made, 0.0, 0.0)
    metrics.reported(made, report, 0.0)
    assert value(metrics, "lag_bytes") == report.lag_bytes == 1000


def test_records_whose_commit_waits_for_a_thread_are_uncommitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight commits of a catalog run at the same time; the files of other topics are written, too."""
    waiting = landed_to(0)
    jobs: Any = SimpleNamespace(run=lambda planned: {"orders": landed({0: (0, 40)})})
    kafka: Any = SimpleNamespace(topics=lambda names: {"orders": waiting.reading.topic})
    nothing: Any = None
    turns: Any = SimpleNamespace(round_bytes=lambda topics: 2**30, next_bytes=lambda topic: 0)
    made = Rounds(lambda _: kafka, nothing, jobs, nothing, Failpoints(), turns, nothing)
    monkeypatch.setattr(rounds, "plan", lambda *_: {waiting: {0: (0, 40)}})
    monkeypatch.setattr(rounds, "compare_ranges", lambda *_: {})
    seen: list[int] = []

    class Pool:
        def submit(self, *_: object) -> "Future[None]":
            seen.append(waiting.reading.uncommitted)
            future: Future[None] = Future()
            future.set_result(None)
            return future

    monkeypatch.setattr(made, "_pool", lambda *_: Pool())
    made._run([waiting], 0.0)
    assert seen == [40]
    assert waiting.reading.uncommitted == 0


def test_a_report_during_the_removal_of_its_topic_leaves_no_series(
    loop: Loop, metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving = topic()
    loop._topics["uid"] = leaving
    loop._jobs = cast(Any, SimpleNamespace(current=lambda: {}))
    reported, removal = metrics.reported, threading.Thread(target=loop._take_jobs)

    def while_removed(*given: Any) -> None:
        removal.start()
        removal.join(0.2)
        reported(*given)

    monkeypatch.setattr(metrics, "reported", while_removed)
    loop.measure()
    removal.join(10)
    assert loop._topics == {}
    assert value(metrics, "freshness_seconds") is None
    assert value(metrics, "failures_total") is None


def test_each_failure_is_counted_although_a_success_followed(loop: Loop, metrics: Metrics) -> None:
    flapping = topic()
    loop._topics["uid"] = flapping
    for count in (1, 2, 3):
        flapping.failed(UnavailableError("down"), time.monotonic())
        flapping.attempts.succeeded()
        loop.measure()
        assert value(metrics, "failures_total") == count


def test_offsets_without_a_record_count_when_their_commit_succeeds(
    commits: TopicCommits, committer: Committer, metrics: Metrics
) -> None:
    behind = landed_to(10)
    result = landed({0: (10, 38)})
    committer.failure = RuntimeError("no answer")
    for _ in range(3):
        with pytest.raises(RuntimeError):
            commits.commit(behind, {0: (10, 40)}, result, 0.0)
    assert not value(metrics, "empty_offsets_total")
    committer.failure = None
    commits.commit(behind, {0: (10, 40)}, result, 0.0)
    assert value(metrics, "empty_offsets_total") == 2


@pytest.mark.parametrize("happened", [True, False])
def test_a_commit_without_an_answer_counts_if_it_happened(
    commits: TopicCommits, committer: Committer, metrics: Metrics, happened: bool
) -> None:
    behind: Topic = landed_to(10)
    ranges = plan([behind], cast(Any, Brokers(25, 40)), 2**30)[behind]
    before, committer.failure = behind.table.landed, CommitUnknownError("no answer")
    with pytest.raises(CommitUnknownError):
        commits.commit(behind, ranges, landed(ranges), 0.0)
    committer.failure = None
    if happened:
        committer.commit(behind.table.java, (), before, "id-1", 1, {0: 40}, _gaps(behind))
        behind.table.landed = committer.landed
    behind.prepared = True
    for _ in range(2):
        commits.settle(behind)
    assert (value(metrics, "rows_total") or 0) == (15 if happened else 0)
    assert (value(metrics, "lost_records_total") or 0) == (15 if happened else 0)
    assert behind.totals.rows == (15 if happened else 0)
    assert (behind.totals.last_commit is not None) == happened


def _gaps(behind: Topic) -> Any:
    return SimpleNamespace(gaps=behind.gaps, leader_epochs={})
