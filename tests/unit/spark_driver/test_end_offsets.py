"""The watcher of a profile's brokers updates its topics."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from firn.model.errors import UnavailableError
from firn.model.progress import Cause, Gap, Losses
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.state import SEEN_MOST
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.watcher import Watcher, pause_after
from firn_spark.kafka.admin import TopicInfo
from tests.unit.spark_driver.topic import job

DAY = 86_400.0
WALL = 1_700_000_000.0


class Brokers:
    """A Kafka of one topic."""

    def __init__(self) -> None:
        self.end = 10
        self.written: dict[int, float] = {}
        """Offset -> when its record was written (Unix seconds). Other records are new."""
        self.searches = 0

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return dict.fromkeys(names, TopicInfo("id", (0,)))

    def ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int]]:
        return {name: {0: self.end} for name in topics}

    def since(self, topics: Mapping[str, Sequence[int]], timestamp_ms: int) -> dict[str, dict[int, int]]:
        self.searches += 1
        later = (offset for offset in range(self.end) if self.written.get(offset, WALL) * 1000 >= timestamp_ms)
        return {name: {0: next(later, -1)} for name in topics}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("firn_spark.ingestion.watcher.time.monotonic", lambda: now[0])
    monkeypatch.setattr("firn_spark.ingestion.watcher.time.time", lambda: WALL)
    return now


@pytest.fixture
def brokers() -> Brokers:
    return Brokers()


@pytest.fixture
def watcher(brokers: Brokers) -> Watcher:
    kafka: Any = brokers
    return Watcher("classic", lambda _: kafka, lambda: [])


def prepared() -> Topic:
    made = Topic(job(freshness_ms=60_000))
    made.prepared, made.reading.position, made.reading.topic = True, {0: 0}, TopicInfo("id", (0,))
    return made


def test_records_seen_after_an_empty_check_arrived_since_then(
    watcher: Watcher, brokers: Brokers, clock: list[float]
) -> None:
    topic = prepared()
    topic.reading.position = {0: 10}
    watcher.check([topic])
    assert topic.waiting_since is None
    clock[0] += 6
    brokers.end = 11
    watcher.check([topic])
    assert topic.waiting_since == 1000


def test_records_that_waited_before_the_driver_started_have_their_age(
    watcher: Watcher, brokers: Brokers, clock: list[float]
) -> None:
    brokers.written = {0: WALL - 30 * DAY, 1: WALL - 4 * DAY, 2: WALL - 2 * DAY}
    topic = prepared()
    topic.reading.position = {0: 1}
    watcher.check([topic])
    lag = progress_of(topic, clock[0], WALL).lag_seconds
    assert lag is not None
    assert 4 * DAY <= lag <= 5 * DAY
    topic.reading.position = {0: 2}
    clock[0] += 60
    watcher.check([topic])
    lag = progress_of(topic, clock[0], WALL).lag_seconds
    assert lag is not None
    assert 2 * DAY <= lag <= 2.5 * DAY, "a part of the backlog has landed"
    topic.reading.position = {0: 10}
    clock[0] += 6
    watcher.check([topic])
    searches, brokers.end = brokers.searches, 11
    clock[0] += 60
    watcher.check([topic])
    assert topic.waiting_since == clock[0] - 60, "the driver has seen how long it waits"
    assert brokers.searches == searches


def test_records_whose_age_cannot_be_read_are_due_at_once(
    watcher: Watcher, brokers: Brokers, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brokers, "since", lambda topics, at: dict.fromkeys(topics, UnavailableError("no answer")))
    topic = prepared()
    watcher.check([topic])
    assert topic.log.error is None
    assert topic.waiting_since == clock[0] - 60


def test_records_left_by_a_round_keep_their_age(watcher: Watcher, brokers: Brokers, clock: list[float]) -> None:
    """A topic that is written faster than it lands is behind, although some of its records land often."""
    topic = prepared()
    topic.reading.position = {0: 10}
    for _ in range(40):
        watcher.check([topic])
        clock[0] += 6
        brokers.end += 100
        topic.reading.position = {0: topic.reading.position[0] + 50}
    assert topic.waiting_since is not None
    progress = progress_of(topic, clock[0], 0.0)
    assert progress.lag_records == brokers.end - 100 - topic.reading.position[0]
    # The oldest waiting record is number 2,000 of 4,000, written half of the time ago.
    assert progress.lag_seconds == pytest.approx(20 * 6, abs=12)


@pytest.mark.parametrize(
    ("topics", "state", "pause"),
    [
        (1, {}, 5),
        (5_000, {}, 5),
        (9_000, {}, 9),
        (30_000, {}, 15),
        (30_000, {"freshness_ms": 4_000}, 1),
        (1, {"freshness_ms": 4_000}, 0.5),
        (30_000, {"retention_ms": 48_000}, 6),
        (30_000, {"retention_ms": 8_000}, 5),
        (30_000, {"retention_bytes": 1 << 30}, 5),
    ],
)
def test_the_ends_of_many_topics_are_asked_for_less_often(
    watcher: Watcher, clock: list[float], topics: int, state: dict[str, Any], pause: float
) -> None:
    topic = Topic(job(**{"freshness_ms": 60_000, **state}))
    others = Topic(job("other"))
    others.log.error = UnavailableError("no answer")
    for made in (topic, others):
        made.log.live, made.log.described_at = TopicInfo("id", (0,)), clock[0]
    crowd = [topic, *[others] * (topics - 1)]
    watcher.check(crowd)
    first = clock[0]
    clock[0] = first + pause - 0.01
    watcher.check(crowd)
    assert topic.log.checked_at == first
    clock[0] = first + pause
    watcher.check(crowd)
    assert topic.log.checked_at == clock[0]


def test_the_ends_of_a_busy_topic_are_asked_for_after_its_work(watcher: Watcher, clock: list[float]) -> None:
    topic = prepared()
    watcher.check([topic])
    topic.busy = True
    clock[0] += 6
    watcher.check([topic])
    assert topic.log.checked_at == clock[0] - 6
    topic.busy = False
    watcher.check([topic])
    assert topic.log.checked_at == clock[0]


def test_all_topics_are_asked_for_soon_after_an_outage(watcher: Watcher, clock: list[float]) -> None:
    topics = [prepared() for _ in range(2_000)]
    watcher.check(topics)
    for topic in topics:
        topic.log.error = UnavailableError("no answer")
    clock[0] += 5
    watcher.check(topics)
    assert not any(topic.log.error for topic in topics)


@pytest.mark.parametrize(("seconds", "pause"), [(0.001, 0.2), (0.05, 0.5), (3.0, 1.0)])
def test_long_checks_are_less_frequent(seconds: float, pause: float) -> None:
    assert pause_after(seconds) == pytest.approx(pause)


def test_an_answer_to_an_earlier_request_is_ignored() -> None:
    topic = prepared()
    topic.log.live = topic.reading.topic
    topic.observe(100.0, {0: 20})
    topic.reading.position = {0: 20}
    topic.observe(99.0, {0: 10})
    assert topic.log.ends == {0: 20}
    assert not topic.log.cut_back


def test_the_history_of_ends_is_bounded_and_hides_no_age() -> None:
    topic = prepared()
    topic.log.live = topic.reading.topic
    for second in range(2_000):
        topic.observe(float(second), {0: second + 1})
    assert len(topic.log.seen) <= SEEN_MOST
    for landed in (500, 1_000, 1_500, 1_999):
        topic.reading.position = {0: landed}
        assert topic.waiting_since is not None
        assert topic.waiting_since <= landed
    assert topic.waiting_since is not None
    assert topic.waiting_since > 1_900


def test_a_log_that_ends_before_the_landed_offsets_has_a_gap(
    watcher: Watcher, brokers: Brokers, clock: list[float]
) -> None:
    topic = prepared()
    topic.reading.position = {0: 10}
    watcher.check([topic])
    topic.table.losses = Losses()
    assert not topic.gaps
    clock[0] += 6
    brokers.end = 7
    watcher.check([topic])
    clock[0] += 6
    brokers.end = 12
    watcher.check([topic])
    gap = Gap(partition=0, start=7, end=10, cause=Cause.CUT_BACK)
    assert topic.gaps == [gap]
    assert topic.due(2**40) == topic.attempts.next_at, "the gap is recorded although no record waits"
    topic.table.losses = Losses().plus([gap], topic.topic_id, "uuid", 0.0)
    assert not topic.gaps


def test_records_of_a_returning_topic_may_be_old(watcher: Watcher, clock: list[float]) -> None:
    """The first life of the topic does not show which records wait in its second."""
    watcher.check([prepared()])
    clock[0] += 2
    again = prepared()
    watcher.check([again])
    assert again.log.live == TopicInfo("id", (0,))
    assert again.waiting_since == clock[0] - 60


@pytest.mark.parametrize(("landed", "remains_known"), [(10, False), (4, True)])
def test_a_lag_of_0_is_unknown_after_brokers_have_not_answered_for_longer_than_the_freshness(
    watcher: Watcher, clock: list[float], landed: int, remains_known: bool
) -> None:
    topic = prepared()
    topic.reading.position = {0: landed}
    watcher.check([topic])
    known = [progress_of(topic, clock[0], 0.0).lag_records is not None]
    topic.log.error = UnavailableError("no answer")
    for seconds in (1.0, topic.job.freshness_ms / 1000 - 1, 2.0):
        clock[0] += seconds
        known.append(progress_of(topic, clock[0], 0.0).lag_records is not None)
    topic.log.error = None
    known.append(progress_of(topic, clock[0], 0.0).lag_records is not None)
    assert known == [True, True, True, remains_known, True]


def test_records_wait_from_the_newest_ends_that_a_worker_has_landed() -> None:
    topic = prepared()
    for seconds, end in ((100.0, 0), (160.0, 5), (220.0, 9), (280.0, 12)):
        topic.observe(seconds, {0: end})
    assert topic.waiting_since == 100.0
    topic.reading.position[0] = 9  # The worker changes the position in place.
    assert topic.waiting_since == 220.0
    topic.observe(340.0, {0: 12})
    assert topic.waiting_since == 220.0
