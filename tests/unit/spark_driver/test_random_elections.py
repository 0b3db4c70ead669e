"""Random elections: the table records the landed offsets that the log has given to other records, and no others."""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, cast

import pytest

from firn_spark.ingestion.rounds.elections import compare_ranges
from firn_spark.ingestion.rounds.planning import plan
from firn_spark.kafka.admin import LogEnd
from tests.unit.spark_driver import results
from tests.unit.spark_driver.losing import Committer, landed_to, topic_commits


class Brokers:
    """Brokers of one partition. Source of the epochs: Kafka's LeaderEpochFileCache.java, ``endOffsetFor``."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.records: list[int] = []
        self.epochs = [(0, 0)]
        """Epoch and first offset. Followers have no entry for an epoch without records."""
        self.produced = 0

    @property
    def epoch(self) -> int:
        return self.epochs[-1][0]

    def produce(self, count: int) -> None:
        self.records += range(self.produced, self.produced + count)
        self.produced += count

    def elect(self, kept: int) -> None:
        """Elect a leader that has the first ``kept`` records."""
        epoch, ends = self.epoch + 1, [start for _, start in self.epochs[1:]] + [len(self.records)]
        entries = [
            (known, start)
            for (known, start), end in zip(self.epochs, ends, strict=True)
            if start < kept and (start < end or self.random.random() < 0.5)
        ]
        del self.records[kept:]
        self.epochs = [*entries, (epoch, kept)]

    def starts(self, topics: Any) -> Any:
        return {name: dict.fromkeys(parts, 0) for name, parts in topics.items()}

    def log_ends(self, topics: Any) -> Any:
        return {name: dict.fromkeys(parts, LogEnd(len(self.records), self.epoch)) for name, parts in topics.items()}

    def divergences(self, topics: Mapping[str, Mapping[int, LogEnd]]) -> Any:
        return {
            name: {part: found for part, end in ends.items() if (found := self._end_of(end)) < end.offset}
            for name, ends in topics.items()
        }

    def _end_of(self, end: LogEnd) -> int:
        assert end.epoch is not None
        assert end.epoch <= self.epoch
        later = bisect_right([epoch for epoch, _ in self.epochs], end.epoch)
        return self.epochs[later][1] if later < len(self.epochs) else len(self.records)


class Story:
    """A driver, its table, and the elections of its brokers."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.brokers = Brokers(self.random)
        self.committer = Committer()
        self.commits = topic_commits(self.committer, [])
        self.topic = landed_to(0)
        self.table = self.topic.table.java
        self.rows: dict[int, int] = {}
        self.replaced: set[int] = set()
        """Landed offsets that an election has removed from the log."""

    def restart(self) -> None:
        landed, self.topic = self.topic.table.landed, landed_to(0)
        self.topic.table.java, self.topic.table.losses = self.table, self.table.losses
        self.topic.table.landed = landed
        assert landed is not None
        self.topic.reading.position, self.topic.reading.leader_epochs = dict(landed.offsets), dict(landed.leader_epochs)

    def produce(self) -> None:
        self.brokers.produce(self.random.randrange(20))

    def elect(self) -> None:
        end = len(self.brokers.records)
        kept = end if self.random.random() < 0.5 else self.random.randrange(end + 1)
        self.brokers.elect(kept)
        self.replaced |= {offset for offset in self.rows if offset >= kept}

    def meanwhile(self) -> None:
        """Perhaps elect a leader, which producers perhaps use at once."""
        if self.random.random() < 0.2:
            self.elect()
            self.brokers.produce(self.random.randrange(30))

    def round(self) -> None:
        planned = plan([self.topic], cast(Any, self.brokers), 2**30)
        if not planned:
            if self.topic.gaps:
                self.commits.record_gaps(self.topic)
            return
        ranges = planned[self.topic]
        start, end = ranges[0]
        self.meanwhile()
        read = self.brokers.records[start:end]
        self.meanwhile()
        if len(read) < end - start or compare_ranges(planned, cast(Any, self.brokers)):
            self.restart()
            return
        self.commits.commit(self.topic, ranges, results.landed(ranges), 0.0)
        self.rows.update(zip(range(start, end), read, strict=True))
        # Between the read and the commit, the log may have changed.
        self.replaced |= {
            offset for offset in range(start, end) if self.brokers.records[offset:][:1] != [self.rows[offset]]
        }

    def lost(self) -> set[int]:
        return {offset for loss in self.table.losses.ranges for offset in range(loss.start, loss.end)}


@pytest.mark.parametrize("seed", range(20))
def test_exactly_the_replaced_offsets_are_lost(seed: int) -> None:
    story = Story(seed)
    steps: list[Callable[[], None]] = [story.round, story.round, story.elect, story.restart, story.produce]
    for _ in range(40):
        story.random.choice(steps)()
        assert story.lost() <= story.replaced
    story.brokers.produce(len(story.rows) + 1)
    story.random.random = lambda: 1.0  # type: ignore[method-assign]
    story.round()
    wrong = {offset for offset, row in story.rows.items() if story.brokers.records[offset] != row}
    assert wrong <= story.lost() <= story.replaced
