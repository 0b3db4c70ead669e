"""What the watcher of a profile's brokers tells its topics."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from firn_spark.loop import Watcher
from firn_spark.sources import TopicInfo
from firn_spark.topics import Topic
from tests.unit.spark_driver.topic import job


class Brokers:
    """A Kafka of one topic with ten records."""

    def topics(self, names: Collection[str]) -> dict[str, TopicInfo]:
        return dict.fromkeys(names, TopicInfo("id", (0,)))

    def ends(self, topics: Mapping[str, Sequence[int]]) -> dict[str, dict[int, int]]:
        return {name: {0: 10} for name in topics}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr("firn_spark.loop.time.monotonic", lambda: now[0])
    return now


@pytest.fixture
def watcher() -> Watcher:
    brokers: Any = Brokers()
    return Watcher("classic", lambda _: brokers, lambda: [])


def prepared() -> Topic:
    found = Topic(job(freshness_ms=60_000))
    found.prepared, found.position, found.reading = True, {0: 0}, TopicInfo("id", (0,))
    return found


def test_what_is_seen_after_an_empty_look_arrived_since_then(watcher: Watcher, clock: list[float]) -> None:
    topic = prepared()
    topic.position = {0: 10}
    watcher._look([topic])
    assert topic.waiting_since is None
    clock[0] += 6
    topic.position = {0: 9}
    watcher._look([topic])
    assert topic.waiting_since == 1000


def test_a_topic_that_comes_back_may_have_waited_for_long(watcher: Watcher, clock: list[float]) -> None:
    """Its first life says nothing of what waits in its second."""
    watcher._look([prepared()])
    clock[0] += 2
    again = prepared()
    watcher._look([again])
    assert again.live == TopicInfo("id", (0,))
    assert again.waiting_since == clock[0] - 60
