"""A round: one Spark job reads and writes the waiting records of some topics, and the driver commits one table at a time.

While the round of one topic is committed, the job of its next round may run (`firn_spark.ingestion.rounds.ahead`).

A failure of a topic stays with that topic. A Spark job that fails as a whole is retried in halves, down to single topics. A topic that
cannot be read therefore does not delay the topics that shared its job.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import structlog

from firn.model.errors import FirnError, NotReadyError, UnavailableError
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.publishing.publisher import Publisher
from firn_spark.ingestion.rounds.ahead import Ahead, NextRound
from firn_spark.ingestion.rounds.committing import TopicCommits
from firn_spark.ingestion.rounds.elections import compare_ranges
from firn_spark.ingestion.rounds.failures import fail, short
from firn_spark.ingestion.rounds.landing_job import OLD_FORMAT, LandingJobs, TopicResult
from firn_spark.ingestion.rounds.planning import Plan, plan
from firn_spark.ingestion.rounds.preparation import Preparation
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, TopicInfo
from firn_spark.worker.fetching.slices import Ranges

log = structlog.get_logger()

COMMITS_PER_CATALOG = 8
MOST_REPEATS = 3
"""Rounds in a row that may need further schemas before the topic backs off."""


class Turns(Protocol):
    """Decides how much a round reads."""

    def round_bytes(self, topics: Sequence[Topic]) -> int:
        """Return how many bytes a round may read."""
        ...

    def next_bytes(self, topic: Topic) -> int:
        """Return how many bytes the next round of ``topic`` may read during the commit of the present one.

        0 means that the next round waits for the commit. Another topic may read meanwhile.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Written:
    """A round whose files are written. ``started`` is monotonic seconds."""

    planned: Plan
    results: Mapping[str, TopicResult]
    started: float

    def of_topics(self) -> list[tuple[Topic, TopicResult]]:
        """Return each topic with the result of the job for it."""
        return [(topic, self.results.get(topic.landing, TopicResult())) for topic in self.planned]


class Rounds:
    """Runs rounds. One worker has a topic at a time; several rounds may run at once."""

    def __init__(
        self,
        kafkas: Callable[[str], Kafka],
        preparation: Preparation,
        jobs: LandingJobs,
        commits: TopicCommits,
        failpoints: Failpoints,
        turns: Turns,
        publisher: Publisher,
    ) -> None:
        self._kafkas = kafkas
        self._preparation = preparation
        self._jobs = jobs
        self._commits = commits
        self._failpoints = failpoints
        self._turns = turns
        self._publisher = publisher
        self._ahead = Ahead(kafkas, jobs, turns.next_bytes)
        self._pools: dict[tuple[str, ...], ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def prepare(self, topic: Topic) -> None:
        """Prepare a topic for its rounds. Never raises: a failure is recorded on the topic."""
        self._preparation.prepare(topic)
        self._commits.settle(topic)

    def run(self, topics: Sequence[Topic]) -> None:
        """Run a round over ``topics``, which share brokers and catalog. Never raises: a failure is recorded on its topic."""
        started = time.monotonic()
        # The first round of a topic claims its table. A claim takes as long as a commit, so the claims of a round run at the same time.
        claims = self._pool("claim", *topics[0].key)
        new = {topic: claims.submit(self._begin, topic) for topic in topics if not topic.letters.claimed}
        ready = [topic for topic in topics if (new[topic].result() if topic in new else self._begin(topic))]
        if ready:
            self._run(ready, started)

    def publish(self, topic: Topic) -> None:
        """Let main of a topic's table follow its branch, if that is due. Never raises: a failure is recorded on the topic."""
        try:
            self._publisher.publish(topic)
            topic.publishing.backoff.reset()
        except Exception as error:
            topic.publishing.backoff.delay(time.monotonic())
            fail(topic, error)

    def _begin(self, topic: Topic) -> bool:
        """Claim the topic's table if that is still to do. Return False after a failure, which is recorded on the topic."""
        try:
            self._preparation.begin(topic)
        except Exception as error:
            fail(topic, error)
            return False
        return True

    def _run(self, topics: Sequence[Topic], started: float) -> None:
        written = self._write(topics, started)
        while written is not None:
            for topic, result in written.of_topics():
                topic.reading.measure(result.bytes, result.records)
            following = self._start_next(written)
            try:
                self._finish(written)
            except BaseException:
                if following is not None:
                    following.job.result()
                    self._commits.discard_from(following.tables, following.result or TopicResult())
                raise
            if following is not None:
                following.job.result()
            written = self._take(following) if following is not None else None

    def _write(self, topics: Sequence[Topic], started: float) -> _Written | None:
        """Plan a round and run its job. Return None if there is nothing to commit."""
        try:
            kafka = self._kafkas(topics[0].job.profile)
            planned = plan(topics, kafka, self._turns.round_bytes(topics))
        except Exception as error:
            # All topics of the round share these brokers, and so the error.
            for topic in topics:
                fail(topic, error)
            return None
        for topic in topics:
            if topic not in planned and topic.prepared and topic.gaps:
                self._record_gaps(topic)
        if not planned:
            return None
        try:
            results = self._jobs.run(planned)
            self._failpoints.reach("after-data-files")
        except Exception as error:
            self._job_failed(list(planned), error, started)
            return None
        return _Written(planned, results, started)

    def _start_next(self, written: _Written) -> NextRound | None:
        """Start the job of the round after ``written``, if that is a round of one topic."""
        [(topic, result), *others] = written.of_topics()
        return None if others else self._ahead.start(topic, written.planned[topic], result)

    def _take(self, following: NextRound) -> _Written | None:
        """Return the round whose files were written ahead. Discard them if the round before it did not land as planned."""
        topic, result = following.topic, following.result or TopicResult()
        try:
            if topic.prepared:
                self._preparation.begin(topic)
            if not following.follows():
                self._commits.discard_from(following.tables, result)
                return None
        except Exception as error:
            self._commits.discard_from(following.tables, result)
            fail(topic, error)
            return None
        topic.observe(following.planned.asked_at, following.planned.ends)
        if following.error is not None:
            self._job_failed([topic], following.error, following.started)
            return None
        return _Written({topic: following.planned.ranges}, {topic.landing: result}, following.started)

    def _finish(self, written: _Written) -> None:
        """Compare a round with the present logs, and commit its valid results."""
        planned = written.planned
        try:
            kafka = self._kafkas(next(iter(planned)).job.profile)
            current = kafka.topics([topic.job.topic for topic in planned])
            elected = compare_ranges(planned, kafka)
        except Exception as error:
            for topic, result in written.of_topics():
                self._refuse(topic, result, error)
            return
        self._commit_valid(written, current, elected)

    def _commit_valid(
        self, written: _Written, current: Mapping[str, TopicInfo | FirnError], elected: Mapping[Topic, FirnError]
    ) -> None:
        """Commit the valid results, then run the topics again that met their first dead letter.

        ``current`` describes the topics now, and ``elected`` names those with another leader.
        """
        planned, started = written.planned, written.started
        again: list[Topic] = []
        commits = []
        for topic, result in written.of_topics():
            problem = _problem(topic, result, current.get(topic.job.topic)) or elected.get(topic)
            if problem is not None:
                self._refuse(topic, result, problem)
            elif result.needs_schemas:
                # The next preparation requests these schemas and changes the table. Then the round begins again.
                self._commits.discard(topic, result)
                self._need_schemas(topic, result)
            elif result.dead_letters_missing:
                self._commits.discard(topic, result)
                try:
                    self._commits.create_dead_letters(topic)
                    again.append(topic)
                except Exception as error:
                    fail(topic, error)
            else:
                commits.append((topic, planned[topic], result))
        pool = self._pool("commit", next(iter(planned)).job.table.catalog)
        for topic, ranges, _ in commits:
            # Before they wait for a thread of the pool: other commits of a slow catalog may come first.
            topic.reading.uncommitted = sum(end - start for start, end in ranges.values())
        try:
            futures = [pool.submit(self._commit, topic, ranges, result, started) for topic, ranges, result in commits]
            for future in futures:
                future.result()
        finally:
            for topic, _, _ in commits:
                topic.reading.uncommitted = 0
        for topic in again:
            self._run([topic], started)

    def _need_schemas(self, topic: Topic, result: TopicResult) -> None:
        """Let the next preparation request schemas. A topic whose rounds need further schemas each time backs off."""
        reading = topic.reading
        reading.need(result.schemas_needed, result.key_schemas_needed)
        topic.route_schemas.need(result.route_schemas_needed)
        topic.prepared = False
        known = len(reading.writers.schemas) + len(reading.key_writers.schemas) + len(topic.route_schemas.known())
        if reading.repeats > MOST_REPEATS:
            fail(
                topic,
                NotReadyError(
                    f"topic {topic.job.topic}: its records name ever more schemas, {known} so far; check that their"
                    " producers use the schema registry"
                ),
            )

    def _record_gaps(self, topic: Topic) -> None:
        try:
            name = topic.job.topic
            current = self._kafkas(topic.job.profile).topics([name]).get(name)
            # The ends may be those of a topic that was created again under this name.
            if problem := _problem(topic, TopicResult(), current):
                raise problem
            self._commits.record_gaps(topic)
        except Exception as error:
            fail(topic, error)

    def _refuse(self, topic: Topic, result: TopicResult, error: Exception) -> None:
        self._commits.discard(topic, result)
        fail(topic, error)

    def _commit(self, topic: Topic, ranges: Ranges, result: TopicResult, started: float) -> None:
        try:
            self._commits.commit(topic, ranges, result, started)
            topic.attempts.succeeded()
            topic.reading.repeats = 0
            now = time.monotonic()
            if topic.job.publish is not None:
                topic.publishing.landed(result.rows, topic.job.publish.every_ms, now)
            if topic.publish_due(now):
                # A backlog leaves no pause between its rounds.
                self.publish(topic)
        except Exception as error:
            fail(topic, error)
        finally:
            topic.reading.uncommitted = 0

    def _job_failed(self, topics: Sequence[Topic], error: Exception, started: float) -> None:
        """Retry the topics in halves, so that one topic does not fail the others, or one topic with the other reader."""
        if len(topics) == 1:
            reading = topics[0].reading
            if OLD_FORMAT in str(error) and not reading.spark_source:
                reading.spark_source = True
                self._run(topics, started)
            else:
                fail(topics[0], error)
        else:
            middle = len(topics) // 2
            log.warning(
                "a Spark job of several topics failed; retrying it in two halves",
                topics=len(topics),
                error=short(error)[:300],
            )
            self._run(topics[:middle], started)
            self._run(topics[middle:], started)

    def _pool(self, *work: str) -> ThreadPoolExecutor:
        """Return the pool for this kind of work on these systems. What hangs on one of them delays no other pool."""
        with self._lock:
            if work not in self._pools:
                self._pools[work] = ThreadPoolExecutor(COMMITS_PER_CATALOG, thread_name_prefix="-".join(work))
            return self._pools[work]


def _problem(topic: Topic, result: TopicResult, current: TopicInfo | FirnError | None) -> FirnError | None:
    """Return why a result must not be committed."""
    if isinstance(current, FirnError) or current is None or current.topic_id != topic.topic_id:
        return NotReadyError(f"topic {topic.job.topic}: it was deleted or re-created while it was read")
    if result.error is not None and not result.dead_letters_missing and not result.needs_schemas:
        return UnavailableError(f"topic {topic.job.topic}: writing failed: {result.error}")
    return None
