"""Follows the ends of one profile's topics, in a thread, so that silent brokers delay no other profile."""

import threading
import time
from collections.abc import Callable, Sequence

import structlog

from firn.model.errors import FirnError, NotReadyError
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.admin import Kafka, TopicInfo

log = structlog.get_logger()

TICK = 0.2
"""Least seconds between two checks."""
CHECKING_SHARE, LONGEST_PAUSE = 0.1, 1.0
"""Share of a CPU for checks, while a check takes at most 0.1 CPU seconds. A longer one is followed by `LONGEST_PAUSE` seconds."""
METADATA_SECONDS = 5.0
"""Seconds between two requests for the id and partitions of a topic that exists."""
DESCRIBED_PER_SECOND = 100
"""Number of existing topics that the driver describes per second. With more than 500 topics, the pause between two requests is longer
than `METADATA_SECONDS`."""
ENDS_SECONDS = (0.5, 5.0)
"""Least and most seconds between two requests for the ends of a topic. In between, the time is a tenth of the freshness."""
ENDS_PER_SECOND = 1000
"""Number of topics whose ends the driver asks for per second. With more topics, the pause between two requests is longer, but at
most a quarter of `Topic.longest_wait`."""
RETRY_SECONDS = 0.5
"""Seconds between two requests for a topic that did not exist."""

AGE_SECONDS = 60.0
"""Seconds between two searches for the age of records that waited before the driver first saw the ends."""
FIRST_AGE, LAST_AGE, AGE_STEP = 60.0, 400 * 86_400.0, 1.25


def pause_after(seconds: float) -> float:
    """Return the pause in seconds after a check that took ``seconds`` of CPU time."""
    return min(LONGEST_PAUSE, max(TICK, seconds / CHECKING_SHARE))


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
        pause = TICK
        while not self._stop.wait(pause):
            started = time.thread_time()
            topics = self._topics()
            try:
                self.check(topics)
            except FirnError as error:
                self._report(topics, error)
            except Exception as error:
                log.exception("watching offsets failed", profile=self._profile)
                problem = f"reading offsets failed with {type(error).__name__}; see the driver's log"
                self._report(topics, NotReadyError(f"profile {self._profile}: {problem}"))
            pause = pause_after(time.thread_time() - started)

    def _report(self, topics: Sequence[Topic], error: FirnError) -> None:
        for topic in topics:
            topic.log.error = error
        self._stop.wait(1.0)

    def check(self, topics: Sequence[Topic]) -> None:
        """Ask the brokers for ids, partitions and ends of the topics that are due. Raises FirnError if they do not answer."""
        now = time.monotonic()
        kafka = self._connect(self._profile)
        self._describe(kafka, topics, now)
        due = [topic for topic in topics if _ends_are_due(topic, now, len(topics) / ENDS_PER_SECOND)]
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
        self._find_ages(kafka, due, now)

    def _find_ages(self, kafka: Kafka, topics: Sequence[Topic], now: float) -> None:
        """Ask how old the records are that waited before the driver first saw the ends. Ages grow by steps."""
        asked = {topic: topic.behind() for topic in topics if _age_is_due(topic, now)}
        for topic in asked:
            topic.log.aged_at, topic.log.oldest_at = now, None
        wall, age = time.time(), FIRST_AGE
        while asked and age < LAST_AGE:
            wanted: dict[str, set[int]] = {}
            for topic, parts in asked.items():
                wanted.setdefault(topic.job.topic, set()).update(parts)
            found = kafka.since(
                {name: tuple(sorted(parts)) for name, parts in wanted.items()}, int((wall - age) * 1000)
            )
            older = {}
            for topic, parts in asked.items():
                offsets = found[topic.job.topic]
                # Without an answer, the age stays unknown until the next search.
                if not isinstance(offsets, FirnError) and any(
                    not 0 <= offsets.get(part, 0) <= start for part, (start, _) in parts.items()
                ):
                    older[topic] = parts
                    topic.log.oldest_at = now - age * AGE_STEP
            asked, age = older, age * AGE_STEP

    def _describe(self, kafka: Kafka, topics: Sequence[Topic], now: float) -> None:
        pause = max(METADATA_SECONDS, len(topics) / DESCRIBED_PER_SECOND)
        due = [
            topic
            for topic in topics
            if topic.log.described_at is None or now - topic.log.described_at >= _describe_pause(topic, pause)
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


def _describe_pause(topic: Topic, usual: float) -> float:
    """Return the seconds between two requests for id and partitions; ``usual`` is that of topics without trouble."""
    if topic.log.live is None:
        return RETRY_SECONDS
    # Only an answer ends an error, and no end is asked for before.
    return usual if topic.log.error is None else METADATA_SECONDS


def _age_is_due(topic: Topic, now: float) -> bool:
    return topic.waits_since_before and (topic.log.aged_at is None or now - topic.log.aged_at >= AGE_SECONDS)


def _ends_are_due(topic: Topic, now: float, long_pause: float) -> bool:
    """Return whether to ask for the ends at ``now``. ``long_pause`` is the pause in seconds that the number of topics demands."""
    if topic.log.live is None or topic.log.error is not None or topic.busy:
        return False
    least, most = ENDS_SECONDS
    pause = min(most, max(least, topic.job.freshness_ms / 10_000))
    if topic.job.retention_bytes is None:  # A log that is limited by its size may fill up within any pause.
        pause = max(pause, min(long_pause, topic.longest_wait / 4))
    return topic.log.checked_at is None or now - topic.log.checked_at >= pause
