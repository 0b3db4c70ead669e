"""Follows the ends of one profile's topics, in a thread, so that silent brokers delay no other profile."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from firn.model.errors import FirnError, NotReadyError
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, TopicInfo

log = structlog.get_logger()

METADATA_SECONDS = 5.0
"""Seconds between two requests for the id and partitions of a topic that exists."""
RETRY_SECONDS = 0.5
"""Seconds between two requests for a topic that did not exist."""


class Watcher:
    """Follows the ends of one profile's topics."""

    def __init__(self, profile: str, connect: Callable[[str], Kafka], topics: Callable[[], Sequence[Topic]]) -> None:
        self._profile = profile
        self._connect = connect
        self._topics = topics
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch-{profile}", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ask the thread to end, without waiting for it."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            topics = self._topics()
            try:
                self.check(topics)
            except FirnError as error:
                self._report(topics, error)
            except Exception as error:
                log.exception("watching offsets failed", profile=self._profile)
                problem = f"reading offsets failed with {type(error).__name__}; see the driver's log"
                self._report(topics, NotReadyError(f"profile {self._profile}: {problem}"))

    def _report(self, topics: Sequence[Topic], error: FirnError) -> None:
        for topic in topics:
            topic.log.error = error
        self._stop.wait(1.0)

    def check(self, topics: Sequence[Topic]) -> None:
        """Ask the brokers for ids, partitions and ends of the topics that are due. Raises FirnError if they do not answer."""
        now = time.monotonic()
        kafka = self._connect(self._profile)
        self._describe(kafka, topics, now)
        due = [topic for topic in topics if _ends_are_due(topic, now)]
        if not due:
            return
        ends = kafka.ends({topic.job.topic: topic.log.live.partitions for topic in due if topic.log.live is not None})
        for topic in due:
            topic.log.checked_at = now
            offsets = ends[topic.job.topic]
            if isinstance(offsets, FirnError):
                topic.log.error = offsets
            elif not topic.busy:
                topic.observe(now, offsets)

    def _describe(self, kafka: Kafka, topics: Sequence[Topic], now: float) -> None:
        due = [
            topic
            for topic in topics
            if topic.log.described_at is None
            or now - topic.log.described_at >= (METADATA_SECONDS if topic.log.live else RETRY_SECONDS)
        ]
        if not due:
            return
        answers = kafka.topics(sorted({topic.job.topic for topic in due}))
        for topic in due:
            topic.log.described_at = now
            _follow(topic, answers[topic.job.topic])


def _follow(topic: Topic, answer: TopicInfo | FirnError) -> None:
    if isinstance(answer, FirnError):
        topic.log.error = answer
        if isinstance(answer, NotReadyError) and topic.log.live is not None:
            topic.log.live, topic.prepared = None, False
            topic.log.forget()
        return
    topic.log.error = None
    if topic.log.live is not None and topic.log.live != answer:
        # Re-created, or grown: offsets and positions are read again.
        topic.prepared = False
        if topic.log.live.topic_id != answer.topic_id:
            topic.log.forget()
        if not topic.fenced:
            topic.attempts.next_at = 0.0
    topic.log.live = answer


def _ends_are_due(topic: Topic, now: float) -> bool:
    if topic.log.live is None or topic.log.error is not None:
        return False
    pause = min(5.0, max(0.5, topic.job.freshness_ms / 10_000))
    return topic.log.checked_at is None or now - topic.log.checked_at >= pause
