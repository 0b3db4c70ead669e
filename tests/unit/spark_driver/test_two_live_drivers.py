"""Two drivers of one table, which know of each other only by the table: neither stops the other for ever, and each
takes over soon after the other has stopped.
"""

from dataclasses import dataclass, field

import pytest

from firn.model.errors import FencedError
from firn_spark.ingestion.topics.report import progress_of
from firn_spark.ingestion.topics.topic import Topic
from tests.unit.spark_driver.topic import topic

HOUR = 3600
BACKLOG = 4000
"""Records in the log at the start. One record per second follows."""
ROUND_RECORDS = 1000
"""Most records of a round, unless it is smaller because the topic is contested."""
ROUND_BYTES = ROUND_RECORDS * 1024


@dataclass
class Table:
    """The table that both drivers change."""

    landed: int = 0
    claim: str = ""
    version: int = 0
    takeovers: list[int] = field(default_factory=list)
    commits: list[int] = field(default_factory=list)


@dataclass
class Driver:
    """The decisions of a driver about its topic. A round of `ROUND_RECORDS` takes ``round_seconds``."""

    name: str
    topic: Topic
    round_seconds: float
    ends_at: float | None = None
    reads_to: int = 0
    stopped: bool = False

    def step(self, now: int, table: Table, end: int) -> None:
        """Do what the driver's loop does at ``now``, when the log has ``end`` records."""
        if self.stopped:
            return
        mine = self.topic
        if now % 5 == 0:
            mine.observe(float(now), {0: end})
        if mine.fenced:
            self._look(now, table)
        elif self.ends_at is not None:
            if now >= self.ends_at:
                self._end(now, table)
        elif (due := mine.due(ROUND_BYTES)) is not None and now >= due:
            self._begin(now, table, end)

    def _look(self, now: int, table: Table) -> None:
        if now >= self.topic.attempts.next_at:
            self.topic.reading.position = {0: table.landed}
            if self.topic.lift_fence(float(now), table.version):
                self.topic.prepared = True

    def _begin(self, now: int, table: Table, end: int) -> None:
        if self.topic.epoch is None:
            # A new driver, or one that takes the topic back: the claim fences the other one.
            table.takeovers.append(now)
            table.claim, table.version, self.topic.epoch = self.name, table.version + 1, len(table.takeovers)
            self.topic.reading.position = {0: table.landed}
        self.topic.observe(float(now), {0: end})
        start = self.topic.reading.position[0]
        records = min(end - start, int(ROUND_RECORDS * self.topic.fence.share(float(now))))
        self.ends_at = now + max(1.0, self.round_seconds * records / ROUND_RECORDS)
        self.reads_to = start + records

    def _end(self, now: int, table: Table) -> None:
        self.ends_at = None
        if table.claim != self.name:
            self.topic.failed(FencedError("the other driver claimed the table"), float(now))
            return
        table.landed, table.version = self.reads_to, table.version + 1
        table.commits.append(now)
        self.topic.reading.position = {0: self.reads_to}


def pair(freshness: float, round_seconds: float) -> list[Driver]:
    made = [topic(freshness_ms=int(freshness * 1000), epoch=None, waiting_since=0.0) for _ in range(2)]
    return [Driver(str(number), each, round_seconds) for number, each in enumerate(made)]


def run(drivers: list[Driver], table: Table, first: int, last: int, every: int = 1) -> None:
    """Run the drivers. A record follows ``every`` so many seconds."""
    for now in range(first, last):
        for driver in drivers:
            driver.step(now, table, BACKLOG + now // every)


@pytest.mark.parametrize("every", [50, 100, 700, 1500])
@pytest.mark.parametrize("freshness", [5, 60, 3600])
def test_two_live_drivers_of_a_quiet_topic_seldom_disturb_each_other(freshness: float, every: int) -> None:
    drivers, table = pair(freshness, 5), Table()
    run(drivers, table, 0, 6 * HOUR, every)
    later = [moment for moment in table.takeovers if moment >= HOUR]
    assert len(later) <= 10, "about twice an hour"
    assert table.landed >= BACKLOG + (6 * HOUR - max(freshness, 5) - 60) // every


@pytest.mark.parametrize("freshness", [5, 60])
def test_the_second_of_two_idle_drivers_is_ready_within_60_s_after_the_first_stops(freshness: float) -> None:
    drivers, table = pair(freshness, 5), Table()
    run(drivers, table, 0, HOUR, 100_000)
    (working,) = [driver for driver in drivers if driver.name == table.claim]
    (other,) = [driver for driver in drivers if driver is not working]
    working.stopped = True
    run(drivers, table, HOUR, HOUR + 60, 100_000)
    assert progress_of(other.topic, HOUR + 60.0, 0.0).state == "CaughtUp"


@pytest.mark.parametrize("round_seconds", [1, 35, 120, 400])
@pytest.mark.parametrize("freshness", [1, 60, 3600])
def test_two_live_drivers_seldom_disturb_each_other(freshness: float, round_seconds: float) -> None:
    drivers, table = pair(freshness, round_seconds), Table()
    run(drivers, table, 0, 3 * HOUR)
    later = [moment for moment in table.takeovers if moment >= HOUR]
    assert len(table.takeovers) - len(later) <= 12
    assert len(later) <= 8, "a few times an hour"
    assert table.landed >= BACKLOG + 3 * HOUR - max(freshness, round_seconds) - 60
    assert len(table.commits) <= 3 * HOUR / min(freshness, 7), "the drivers do not commit all the time"


@pytest.mark.parametrize("freshness", [1, 10, 60, 3600])
@pytest.mark.parametrize("stop", range(3000, 3100, 9))
def test_records_land_within_60_s_after_one_of_two_that_fenced_each_other_stops(stop: int, freshness: float) -> None:
    drivers, table = pair(freshness, 60), Table()
    for driver in drivers:
        driver.topic.fence.times, driver.topic.fence.lifted_at = 5, 0.0
    run(drivers, table, 0, stop)
    (working,) = [driver for driver in drivers if driver.name == table.claim]
    working.stopped = True
    run(drivers, table, stop, stop + 61)
    assert table.commits[-1] > stop
