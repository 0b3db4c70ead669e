"""The time of a commit does not depend on the number of commits before it."""

import json
import time
from statistics import median
from typing import Any

import pytest

from firn_spark.tables import commits, old_snapshots
from firn_spark.tables.commits import Extras
from firn_spark.worker.landing import LandingPlan, TopicLanding, land
from tests.integration.maintenance.lake import Lake, Topic
from tests.unit.spark import records
from tests.unit.spark.tables import results

PARTITIONS = 1_000
COMMITS_PER_HOUR = 30
HOURS = 10


def data_file(topic: Topic, number: int) -> list[str]:
    value = json.dumps({"id": number, "name": "n", "at": "2024-05-05T12:00:00Z"}).encode()
    plan = LandingPlan({"t": TopicLanding(topic.job, topic.spec)}, ingested_at=0)
    output: dict[str, Any] = results(land(iter([records.batch([value], offset=[number])]), plan))["t"]
    return [json.dumps(descriptor) for descriptor in output["data"]]


class Seconds:
    """Durations of commits."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.all: list[float] = []

    def commit(self, number: int, keep_ms: int) -> None:
        """Commit a file, and offsets of which all have moved."""
        topic, files = self.topic, data_file(self.topic, number)
        offsets = {partition: 10**9 + 1_000 * number + partition for partition in range(PARTITIONS)}
        extras = Extras(keep_ms=keep_ms, leader_epochs=dict.fromkeys(range(PARTITIONS), 7))
        began = time.perf_counter()
        topic.landed = topic.committer.commit(topic.table, files, topic.landed, "topic-id", 1, offsets, extras)
        self.all.append(time.perf_counter() - began)


@pytest.mark.long
def test_a_commit_takes_as_long_after_ten_hours_as_after_two(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """All 1,000 partitions of a topic move with each commit. Time runs as fast as the commits are made."""
    topic = lake.topic()
    seconds = Seconds(topic)
    for number in range(COMMITS_PER_HOUR // 2):
        seconds.commit(number, keep_ms=10**9)
    hour_ms = int(COMMITS_PER_HOUR * 1000 * median(seconds.all[5:]))
    monkeypatch.setattr(commits, "SLOT_MS", hour_ms // 12)
    monkeypatch.setattr(old_snapshots, "SLOT_MS", hour_ms)
    monkeypatch.setattr(old_snapshots, "SLOTS_MS", 26 * hour_ms)
    hours = []
    for number in range(len(seconds.all), HOURS * COMMITS_PER_HOUR):
        seconds.commit(number, keep_ms=hour_ms)
        if len(seconds.all) % COMMITS_PER_HOUR == 0:
            hours.append(median(seconds.all[-COMMITS_PER_HOUR:]))
            print(f"hour {len(hours)}: a commit takes {1000 * hours[-1]:.0f} ms (median)", flush=True)
    kept = len(list(topic.fresh().snapshots()))
    # The first two hours fill the metadata with the snapshots that stay.
    assert min(hours[-3:]) < 1.3 * max(hours[1:4])
    assert kept < 3 * COMMITS_PER_HOUR
