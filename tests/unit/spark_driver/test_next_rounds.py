"""A round is read while the round before it is committed, and lands only on top of that commit."""

import threading
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from firn.model.errors import CommitConflictError, NotReadyError, UnavailableError
from firn.model.progress import HaltedAt
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.rounds.landing_job import LandingJobs, TopicResult
from firn_spark.ingestion.rounds.planning import Plan, plan_next
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import TopicInfo
from firn_spark.worker.fetching.slices import Ranges
from firn_spark.worker.landing import HaltPlace
from tests.unit.spark_driver import results
from tests.unit.spark_driver.losing import Brokers, Committer, landed_to, topic_commits

ROUND = 10
RECORD_BYTES = 100.0
TASK_FAILED = UnavailableError("a task failed")


class Jobs(LandingJobs):
    """Jobs that write a file for each range. ``broken`` changes the result of the job that begins at an offset."""

    def __init__(self) -> None:
        self.read: list[Ranges] = []
        self.broken: dict[int, TopicResult | Exception] = {}

    def run(self, planned: Plan) -> dict[str, TopicResult]:
        [(topic, ranges)] = planned.items()
        self.read.append(ranges)
        result = self.broken.get(ranges[0][0], results.landed(ranges))
        if isinstance(result, Exception):
            raise result
        result.bytes = int(result.records * (RECORD_BYTES - 32))
        return {topic.job.topic: result}


class Driver:
    """The rounds of a topic whose records before offset 5 have landed."""

    def __init__(self, end: int) -> None:
        self.topic = landed_to(5, leader_epoch=1)
        self.topic.reading.record_bytes = RECORD_BYTES
        self.topic.letters.claimed = True
        self.brokers = Brokers(0, end, epoch=1)
        self.jobs, self.committer = Jobs(), Committer()
        self.discarded: list[str] = []
        self.may_continue = True
        cast(Any, self.committer).discard = lambda table, files: self.discarded.extend(files)
        commits = topic_commits(self.committer, [])
        begun: Any = SimpleNamespace(begin=self.begin)
        kafka: Any = self
        self.rounds = Rounds(lambda _: kafka, begun, self.jobs, commits, Failpoints(), self, cast(Any, None))
        self.meanwhile: Any = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.brokers, name)

    def topics(self, names: Any) -> Mapping[str, Any]:
        self.meanwhile()
        return dict.fromkeys(names, TopicInfo(self.topic.topic_id, (0,)))

    def begin(self, topic: Topic) -> None:
        pass

    def round_bytes(self, topics: Sequence[Topic]) -> int:
        return int(ROUND * RECORD_BYTES)

    def next_bytes(self, topic: Topic) -> int:
        return self.round_bytes([topic]) if self.may_continue else 0

    def run(self) -> list[int]:
        """Run rounds, and return the landed offset of each commit."""
        self.rounds.run([self.topic])
        return [offsets[0] for offsets, _ in self.committer.made]


def test_a_backlog_lands_round_after_round_without_a_pause() -> None:
    driver = Driver(end=35)
    assert driver.run() == [15, 25, 35]
    assert driver.jobs.read == [{0: (5, 15)}, {0: (15, 25)}, {0: (25, 35)}]
    assert driver.topic.lag_records == 0
    assert driver.discarded == []


def test_the_next_round_is_read_during_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(end=25)
    read = threading.Event()
    run, commit = driver.jobs.run, driver.committer.commit

    def job(planned: Plan) -> Any:
        result = run(planned)
        if len(driver.jobs.read) == 2:
            read.set()
        return result

    def wait(*values: Any) -> Any:
        assert read.wait(10)
        return commit(*values)

    monkeypatch.setattr(driver.jobs, "run", job)
    monkeypatch.setattr(driver.committer, "commit", wait)
    assert driver.run() == [15, 25]


@pytest.mark.parametrize("end", [15, 17])
def test_few_records_wait_for_a_round_of_their_own(end: int) -> None:
    assert Driver(end).run() == [15]


def test_another_topic_has_its_turn() -> None:
    driver = Driver(end=35)
    driver.may_continue = False
    assert driver.run() == [15]


def test_the_files_of_the_next_round_are_deleted_if_the_commit_fails() -> None:
    driver = Driver(end=35)
    driver.committer.failure = CommitConflictError("another commit came first")
    assert driver.run() == []
    assert len(driver.jobs.read) == 2
    assert len(driver.discarded) == 1
    assert driver.topic.attempts.failures == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda topic: setattr(topic.table, "spec", SimpleNamespace(schema="")),
        lambda topic: setattr(topic, "epoch", 9),
        lambda topic: setattr(topic, "prepared", False),
        lambda topic: setattr(topic, "halted", HaltedAt(partition=0, offset=16)),
        lambda topic: setattr(topic.reading, "topic", TopicInfo("id-1", (0, 1))),
        lambda topic: setattr(topic, "job", topic.job.model_copy()),
    ],
    ids=["table", "epoch", "topic", "halt", "partitions", "contract"],
)
def test_the_next_round_is_discarded_if_its_basis_changes(change: Any) -> None:
    driver = Driver(end=25)
    driver.meanwhile = lambda: change(driver.topic)
    assert driver.run() == [15]
    assert (len(driver.jobs.read), len(driver.discarded)) == (2, 1)


def halting(offset: int) -> TopicResult:
    place: HaltPlace = {
        "partition": 0,
        "offset": offset,
        "code": "c",
        "stage": "s",
        "path": "",
        "detail": "",
        "rule": "",
    }
    result = results.landed({0: (5, offset)})
    result.halts = [place]
    return result


@pytest.mark.parametrize(
    "result", [halting(12), TopicResult(error="OSError: no space")], ids=["halt", "task with an error"]
)
def test_no_round_is_read_beyond_one_that_does_not_land_as_planned(result: TopicResult) -> None:
    driver = Driver(end=35)
    driver.jobs.broken[5] = result
    driver.run()
    assert driver.jobs.read == [{0: (5, 15)}]


def test_a_failed_job_of_the_next_round_is_a_failure_of_the_topic() -> None:
    driver = Driver(end=35)
    driver.jobs.broken[15] = TASK_FAILED
    assert driver.run() == [15]
    assert driver.topic.attempts.error is TASK_FAILED


def test_an_election_during_the_commit_refuses_the_next_round() -> None:
    """Its records may come from another leader than the leader that the driver compared."""
    driver = Driver(end=25)

    def elect() -> None:
        driver.brokers.epoch, driver.brokers.differs = 2, 20

    asked = iter([lambda: None, elect])
    driver.meanwhile = lambda: next(asked, lambda: None)()
    assert driver.run() == [15]
    assert len(driver.discarded) == 1
    assert "got a leader with other records" in str(driver.topic.attempts.error)


def ahead(topic: Topic, brokers: Brokers) -> Any:
    return plan_next(topic, {0: 15}, cast(Any, brokers), int(ROUND * RECORD_BYTES))


def test_a_plan_ahead_changes_nothing_of_the_topic() -> None:
    driver = Driver(end=35)
    before = repr((driver.topic.log, driver.topic.reading))
    found = ahead(driver.topic, driver.brokers)
    assert (found.ranges, found.starts, found.ends) == ({0: (15, 25)}, {0: 15}, {0: 35})
    assert repr((driver.topic.log, driver.topic.reading)) == before


@pytest.mark.parametrize(
    "brokers",
    [Brokers(16, 35, epoch=1), Brokers(0, 14, epoch=1), Brokers(0, 35, epoch=2)],
    ids=["deleted records", "a shorter log", "another leader"],
)
def test_a_log_that_changed_waits_for_the_commit(brokers: Brokers) -> None:
    assert ahead(Driver(end=35).topic, brokers) is None


def test_brokers_that_do_not_answer_delay_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(end=35)
    starts = driver.brokers.starts

    def once(topics: Any) -> Any:
        if driver.jobs.read:
            raise NotReadyError("no answer")
        return starts(topics)

    monkeypatch.setattr(driver.brokers, "starts", once)
    assert driver.run() == [15]
