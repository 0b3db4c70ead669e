"""The round after the one that is being committed. Its Spark job runs meanwhile, so that tasks do not wait for commits.

The end of a round is known before its commit. The driver plans the next round from there if the log has the same leaders as in
the round, and lost no records. Otherwise it waits for the commit, which decides the offsets that the table records as landed or
lost. If the round does not land as planned, the driver discards the files of the next round.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import structlog

from firn.model.progress import Offsets
from firn_spark.ingestion.rounds.failures import short
from firn_spark.ingestion.rounds.landing_job import LandingJobs, TopicResult
from firn_spark.ingestion.rounds.planning import NextPlan, plan_next
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka
from firn_spark.worker.fetching.slices import Ranges

log = structlog.get_logger()

JOBS = 64
"""Most jobs that run ahead of commits at the same time: as many as rounds, so that hanging brokers delay no other topics."""


@dataclass(slots=True, eq=False)
class NextRound:
    """A round that is read while the round before it is committed. ``result`` is None if its job failed with ``error``."""

    topic: Topic
    planned: NextPlan
    started: float
    basis: tuple[Any, ...]
    """The state of the topic that the files depend on."""
    job: Any = None
    result: TopicResult | None = None
    error: Exception | None = None

    @property
    def tables(self) -> tuple[Any, Any]:
        """The tables of the files: that of the rows, and that of the dead letters."""
        return self.basis[0], self.basis[1]

    def follows(self) -> bool:
        """Return whether the round before it has landed as planned, and nothing changed that its files depend on."""
        topic = self.topic
        same = all(now is then for now, then in zip(_basis(topic), self.basis, strict=True))
        position = topic.reading.position
        return (
            topic.prepared
            and topic.halted is None
            and same
            and all(position.get(part) == start for part, start in self.planned.starts.items())
        )


class Ahead:
    """Starts the jobs of next rounds."""

    def __init__(self, kafkas: Callable[[str], Kafka], jobs: LandingJobs, next_bytes: Callable[[Topic], int]) -> None:
        """``next_bytes`` returns how many bytes the next round of a topic may read; 0 if it has to wait for the commit."""
        self._kafkas = kafkas
        self._jobs = jobs
        self._next_bytes = next_bytes
        self._threads = ThreadPoolExecutor(JOBS, thread_name_prefix="ahead")

    def start(self, topic: Topic, ranges: Ranges, result: TopicResult) -> NextRound | None:
        """Start the round after the one of ``ranges``, whose job gave ``result``. Return None if it waits for the commit."""
        started = time.monotonic()
        room = self._next_bytes(topic)
        if (
            result.error is not None
            or result.halts
            or result.dead_letters_missing
            or result.needs_schemas
            or topic.gaps
            or topic.reading.until is not None
        ):
            return None
        reached: Offsets = {**topic.reading.position, **{part: end for part, (_, end) in ranges.items()}}
        try:
            planned = plan_next(topic, reached, self._kafkas(topic.job.profile), room) if room else None
        except Exception as error:
            # The round after the commit meets the same problem, and reports it.
            log.info("the next round waits for the commit", topic=topic.job.topic, error=short(error)[:300])
            return None
        if planned is None:
            return None
        following = NextRound(topic, planned, started, _basis(topic))
        following.job = self._threads.submit(self._run, following)
        return following

    def _run(self, following: NextRound) -> None:
        topic = following.topic
        try:
            results = self._jobs.run({topic: following.planned.ranges})
            following.result = results.get(topic.landing, TopicResult())
        except Exception as error:
            following.error = error


def _basis(topic: Topic) -> tuple[Any, ...]:
    return (
        topic.table.java, topic.letters.java, topic.table.spec, topic.letters.spec, topic.reading.topic, topic.epoch,
        topic.job,
    )  # fmt: skip
