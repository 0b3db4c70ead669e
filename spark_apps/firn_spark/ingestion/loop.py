"""The ingestion loop: decides which topics are served and when each is due, and gives due topics to workers.

One thread decides (`Loop.run`), one thread per profile follows its brokers' offsets, and a pool of workers prepares
topics and runs rounds. A topic has one worker at a time. Topics on the same brokers and catalog share rounds and a
bounded number of workers, so that hanging brokers or a hanging catalog delay no other topics.
"""

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import structlog

from firn.model.errors import ExitCode, UnavailableError
from firn.model.jobs import GroupSettings, IngestJob
from firn.model.progress import GroupProgress, Offsets
from firn_spark.ingestion.jobs import JobSource
from firn_spark.ingestion.levelling import RoutedTables
from firn_spark.ingestion.progress import Metrics
from firn_spark.ingestion.rounds.planning import LARGE_BYTES
from firn_spark.ingestion.rounds.rounds import Rounds
from firn_spark.ingestion.topics.report import ReportLines, progress_of
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.ingestion.watcher import Watcher
from firn_spark.kafka.admin import Kafka

log = structlog.get_logger()

_Claim = tuple[str, ...]
"""``("table", identifier)``, ``("table", identifier, resource)`` of a shared table, or ``("topic", profile, name)``."""

TICK = 0.1
SHARED_TOPICS = 64
SOON_SHARE, SOON_MOST = 0.25, 10.0
"""A topic may share a round that begins before the topic is due. The round may be early by this share of the freshness, and by at
most `SOON_MOST` seconds."""
ROUNDS_PER_KEY = 2
LARGE_PER_KEY = ROUNDS_PER_KEY - 1
"""Number of rounds of a key that may read large topics at a time, so that small topics get a round beside many backlogs."""
PREPARATIONS_PER_KEY = 8
PUBLICATIONS_PER_KEY = 2
"""Number of topics of a key whose main may follow its branch at a time, besides those at the end of their rounds."""
DECIDING_SHARE = 0.1
"""Largest share of the loop's time for decisions. With thousands of topics, it decides less often than each `TICK`."""
LONGEST_PAUSE = 1.0
"""Longest time in seconds between two decisions."""
STUCK_SECONDS = 120.0
ALONE_FACTOR = 2
"""A round of the only active topic may read this many times as much as others."""


class Loop:
    """Serves the topics of a group until `stop`."""

    def __init__(
        self,
        settings: GroupSettings,
        jobs: JobSource,
        rounds: Callable[["Loop"], Rounds],
        metrics: Metrics,
        connect: Callable[[str], Kafka],
        unfit: Callable[[], str | None],
        version: str = "",
    ) -> None:
        """``unfit`` returns None, or the reason why this process should end and start again. The loop calls it all
        the time."""
        self._settings = settings
        self._jobs = jobs
        self._metrics = metrics
        self._connect = connect
        self._unfit = unfit
        self._version = version
        self._topics: dict[str, Topic] = {}
        self._watchers: dict[str, Watcher] = {}
        self._rounds = rounds(self)
        self._workers = ThreadPoolExecutor(64, thread_name_prefix="round")
        self._running: Counter[tuple[str, str]] = Counter()
        self._publishing: Counter[tuple[str, str]] = Counter()
        self._reading: set[Topic] = set()
        """Large topics whose round is being read. During their commits, the job of another large topic may start."""
        self._preparing: Counter[tuple[str, str]] = Counter()
        self._unprepared: dict[tuple[str, str], deque[Topic]] = {}
        """Topics of each key that wait for a worker to prepare them, as the loop found them last."""
        self._lock = threading.Lock()
        self._reporting = threading.Lock()
        """Keeps a report from creating the series of a topic again that is removed at the same time."""
        self._lines = ReportLines()
        self._reporting_lines = threading.Lock()
        """Lets one request at a time use `_lines`."""
        self._stopping = threading.Event()
        self._seen: object = None
        self._holders: dict[_Claim, str] | None = None
        """Table or Kafka topic -> uid of the topic that has it. None after a topic released one: `_add_new` then builds it
        again."""
        self._failures: dict[str, int] = {}
        self._moved = time.monotonic()
        self._started = time.time()

    # For other components

    def stop(self) -> None:
        """Start no more rounds; `run` returns when the running ones have ended."""
        self._stopping.set()

    def topics(self) -> list[Topic]:
        """Return the present topics; none after `stop`."""
        return [] if self._stopping.is_set() else list(self._topics.values())

    def round_bytes(self, topics: Sequence[Topic]) -> int:
        """Return how many bytes one round of ``topics`` may read: `GroupSettings.bytes_per_commit` for each task, and more
        if only one topic is active."""
        alone = sum(topic.active for topic in list(self._topics.values())) <= 1
        tasks = self._settings.tasks
        if all(topic.job.halts for topic in topics):
            # A partition of such a topic stays in one task.
            tasks = min(tasks, max(1, sum(len(topic.reading.position) for topic in topics)))
        return self._settings.bytes_per_commit * tasks * (ALONE_FACTOR if alone else 1)

    def next_bytes(self, topic: Topic) -> int:
        """Implement `Turns.next_bytes`: a topic goes on while no other large topic waits for its place."""
        if topic not in self._reading or self._stopping.is_set() or topic.outdated or not topic.active:
            return 0
        now = time.monotonic()
        for other in list(self._topics.values()):
            if other.key == topic.key and not other.busy and self._large(other):
                at = other.due(self._settings.bytes_per_commit)
                if at is not None and at <= now:
                    self._reading.discard(topic)
                    return 0
        return self.round_bytes([topic])

    def report(self) -> bytes:
        """Return the `/progress` document."""
        now, wall = time.monotonic(), time.time()
        head = GroupProgress(group=self._settings.group, started=self._started, version=self._version)
        with self._reporting_lines:
            return head.encode(self._lines.of(list(self._topics.values()), now, wall))

    def measure(self) -> None:
        """Set the metrics of all topics, before Prometheus reads them."""
        now, wall = time.monotonic(), time.time()
        for uid, topic in list(self._topics.items()):
            document = progress_of(topic, now, wall)
            with self._reporting:
                if self._topics.get(uid) is not topic:
                    continue
                self._metrics.reported(topic, document, wall)
                self._metrics.failed(topic, topic.attempts.total - self._failures.get(uid, 0))
                self._failures[uid] = topic.attempts.total

    def ready(self) -> str | None:
        """Return None, or the reason why the application cannot serve topics yet."""
        if self._jobs.current() is None:
            return "the driver has not loaded its job contracts yet"
        return self.alive()

    def alive(self) -> str | None:
        """Return None, or a message if the deciding thread no longer runs."""
        stuck = time.monotonic() - self._moved
        return f"the driver's loop has not run for {stuck:.0f} s" if stuck > STUCK_SECONDS else None

    # Deciding

    def run(self) -> ExitCode:
        """Serve until `stop` (DONE), or until the process is unfit (TEMPORARY).

        A fenced topic does not end the process: a restart would fence the other driver, and that driver this one.
        Running rounds end before this returns.
        """
        self._jobs.start()
        pause = TICK
        try:
            while not self._stopping.wait(pause):
                self._moved = time.monotonic()
                self._take_jobs()
                reason = self._unfit()
                if reason is not None:
                    log.warning("the driver ends, and Kubernetes starts it again", reason=reason)
                    return ExitCode.TEMPORARY
                self._decide()
                spent = time.monotonic() - self._moved
                pause = min(LONGEST_PAUSE, max(TICK, spent / DECIDING_SHARE))
            return ExitCode.DONE
        finally:
            self._stopping.set()
            for watcher in self._watchers.values():
                watcher.stop()
            while any(topic.busy for topic in self._topics.values()):
                self._moved = time.monotonic()
                time.sleep(0.02)
            # After the rounds: from here on, another driver may serve the group.
            self._jobs.stop()
            self._workers.shutdown(wait=False)

    def _take_jobs(self) -> None:
        jobs = self._jobs.current()
        if jobs is None or jobs is self._seen:
            return
        complete = self._add_new(jobs)
        # Most topics keep their contract. To take the lock for thousands of them would take longer than all else here.
        changed = [
            (uid, topic)
            for uid, topic in self._topics.items()
            if jobs.get(uid) is not topic.job or topic.removed or topic.outdated
        ]
        for uid, topic in changed:
            job = jobs.get(uid)
            with self._lock:  # A worker must not begin with a topic that changes.
                topic.removed = job is None
                topic.outdated = job is not None and topic.job is not job and topic.job != job
                if not topic.removed and not topic.outdated:
                    continue
                if topic.busy:
                    complete = False
                    continue
                if job is None or _claims(job) != _claims(topic.job):
                    # A new contract may wait for what this topic releases.
                    self._holders, complete = None, False
                if job is not None:
                    topic.accept(job)
            if job is not None:
                log.info("topic changed", topic=job.topic, namespace=job.namespace, generation=job.generation)
                self._watch(job.profile)
                continue
            with self._reporting:
                del self._topics[uid]
                self._failures.pop(uid, None)
                self._metrics.forget(topic)
            log.info("topic removed", topic=topic.job.topic, namespace=topic.job.namespace)
        if complete:
            self._seen = jobs

    def _add_new(self, jobs: Mapping[str, IngestJob]) -> bool:
        """Add the topics of new contracts. Return False if one of them waits for the removal of an earlier topic."""
        new = [job for uid, job in jobs.items() if uid not in self._topics]
        if not new:
            return True
        if self._holders is None:
            self._holders = {claim: uid for uid, topic in self._topics.items() for claim in _claims(topic.job)}
        holders = self._holders
        complete = True
        for job in new:
            holder = next((holders[claim] for claim in _claims(job) if claim in holders), None)
            if holder is not None:
                # The same topic or table under another resource: it starts when the earlier resource's topic is removed.
                complete = complete and holder in jobs
                continue
            holders.update(dict.fromkeys(_claims(job), job.uid))
            self._topics[job.uid] = Topic(job)
            log.info("topic added", topic=job.topic, namespace=job.namespace)
            self._watch(job.profile)
        return complete

    def _watch(self, profile: str) -> None:
        if profile not in self._watchers:
            self._watchers[profile] = Watcher(
                profile,
                self._connect,
                lambda: [t for t in list(self._topics.values()) if t.job.profile == profile and not t.removed],
            )
            self._watchers[profile].start()

    def _decide(self) -> None:
        now = time.monotonic()
        soon: list[tuple[float, float, Topic]] = []
        unprepared: dict[tuple[str, str], list[Topic]] = {}
        tables = RoutedTables(self._settings.bytes_per_commit)
        for topic in self._topics.values():
            if topic.busy or topic.removed:
                continue
            live = topic.log.live
            if topic.prepared and live is not None and live is not topic.reading.topic and live != topic.reading.topic:
                # The topic got new partitions, or was re-created, while a worker had it.
                topic.prepared = False
            if not topic.prepared:
                if _needs_preparation(topic, now):
                    unprepared.setdefault(topic.key, []).append(topic)
                continue
            if topic.publish_due(now) and self._publishing[topic.key] < PUBLICATIONS_PER_KEY:
                self._start_publication(topic)
                continue
            tables.add(topic)
            at = topic.due(self._settings.bytes_per_commit)
            if at is not None and at <= now + min(SOON_MOST, topic.job.freshness_ms * SOON_SHARE / 1000):
                # A backlog stays due until it has landed completely. Its place in the queue counts from its last round.
                soon.append((max(at, topic.served_at), at, topic))
        self._prepare_waiting(unprepared)
        soon.sort(key=lambda item: item[0])
        queue = [topic for _, _, topic in soon]
        for _, at, topic in soon:
            if at <= now and not topic.busy and self._has_room(topic):
                levelling = tables.levelling(topic)
                if levelling is not None and self._has_room(levelling.group[0]):
                    self._start_round(levelling.group, levelling.held, levelling.end)
                else:
                    self._start_round(self._together(topic, queue, tables))

    def _has_room(self, topic: Topic) -> bool:
        if self._running[topic.key] >= ROUNDS_PER_KEY:
            return False
        reading = sum(other.key == topic.key for other in list(self._reading))
        return reading < LARGE_PER_KEY or not self._large(topic)

    def _together(self, first: Topic, queue: Sequence[Topic], tables: RoutedTables) -> list[Topic]:
        """Return ``first`` and the topics that can share its round: small, without failures.

        ``queue`` holds the topics that are due soon. The topics that have waited longest come first, so that an overloaded
        driver starves none of them. With a table of a topic with routes come the ``tables`` that share its read of the log.
        """
        alone = bool(first.attempts.failures) or first.reading.spark_source
        group = [first] if alone else tables.readers(first)
        if self._large(first) or alone:
            return group
        size = first.lag_bytes
        for topic in queue:
            if len(group) >= SHARED_TOPICS:
                break
            if (
                topic.busy
                or topic in group
                or topic.key != first.key
                or topic.attempts.failures
                or topic.reading.spark_source
                or self._large(topic)
                # A round reads one part of a log.
                or any(topic.job.topic == other.job.topic for other in group)
            ):
                continue
            if size + topic.lag_bytes > self._settings.bytes_per_commit or tables.levelling(topic) is not None:
                continue
            group += tables.readers(topic)
            size += topic.lag_bytes
        return group

    def _large(self, topic: Topic) -> bool:
        return topic.lag_bytes > min(LARGE_BYTES, self._settings.bytes_per_commit / 8)

    def _prepare_waiting(self, unprepared: Mapping[tuple[str, str], Sequence[Topic]]) -> None:
        """Let workers prepare these topics, a bounded number of each key at a time.

        Topics that were prepared before come first, so that an edit does not wait behind thousands of new topics. Among these,
        a changed contract comes before retries (`Topic.accept`).

        A worker takes the next topic of its key itself. So preparations do not wait for the loop, and a catalog that hangs
        holds only the workers of its key.
        """
        with self._lock:
            self._unprepared = {
                key: deque(sorted(waiting, key=lambda topic: (topic.table.uuid is None, topic.attempts.next_at)))
                for key, waiting in unprepared.items()
            }
            for key, waiting in unprepared.items():
                for _ in range(min(len(waiting), PREPARATIONS_PER_KEY - self._preparing[key])):
                    self._preparing[key] += 1
                    self._workers.submit(self._prepare, key)

    def _prepare(self, key: tuple[str, str]) -> None:
        while True:
            with self._lock:
                topic = self._next_unprepared(key)
                if topic is None:
                    self._preparing[key] -= 1
                    return
                topic.busy = True
            try:
                self._rounds.prepare(topic)
            except Exception as error:
                self._escaped([topic], error)
            finally:
                topic.busy = False

    def _next_unprepared(self, key: tuple[str, str]) -> Topic | None:
        """Return the next topic of a key to prepare. Others may have changed since the loop found them."""
        waiting = self._unprepared.get(key)
        now = time.monotonic()
        while waiting and not self._stopping.is_set():
            topic = waiting.popleft()
            if not topic.busy and not topic.removed and _needs_preparation(topic, now):
                return topic
        return None

    def _escaped(self, group: Sequence[Topic], error: Exception) -> None:
        """Log an exception that a round should have handled, and let its topics back off."""
        log.exception("a round ended with an unexpected error")
        for topic in group:
            topic.failed(
                UnavailableError(f"topic {topic.job.topic}: {type(error).__name__}: {error}"), time.monotonic()
            )

    def _start_publication(self, topic: Topic) -> None:
        """Let a worker look at the rows that main of the topic's table lacks."""
        with self._lock:
            self._publishing[topic.key] += 1
        topic.busy = True

        def work() -> None:
            try:
                self._rounds.publish(topic)
            except Exception as error:
                self._escaped([topic], error)
            finally:
                topic.busy = False
                with self._lock:
                    self._publishing[topic.key] -= 1

        self._workers.submit(work)

    def _start_round(self, group: Sequence[Topic], held: Sequence[Topic] = (), end: Offsets | None = None) -> None:
        """Let a worker run a round of ``group``, which reads up to ``end``. The topics of ``held`` wait until the round ends."""
        key = group[0].key
        if self._large(group[0]):
            self._reading.add(group[0])
        with self._lock:
            self._running[key] += 1
        started = time.monotonic()
        due = {topic: min(topic.due(self._settings.bytes_per_commit) or started, started) for topic in group}
        for topic in group:
            topic.busy, topic.reading.until, topic.reading.held = True, end, 0
        for topic in held:
            topic.busy = True
            topic.reading.held += 1

        def work() -> None:
            try:
                self._rounds.run(group)
            except Exception as error:
                self._escaped(group, error)
            finally:
                ended = time.monotonic()
                # Before another round of the topic can begin, which adds it again.
                self._reading.discard(group[0])
                for topic in group:
                    topic.reading.until = None
                    topic.took(ended - due[topic])
                    topic.served_at = ended
                for topic in (*group, *held):
                    topic.busy = False
                with self._lock:
                    self._running[key] -= 1

        self._workers.submit(work)


def _claims(job: IngestJob) -> tuple[_Claim, _Claim]:
    """Return the table and the Kafka topic of a contract. Two topics of a driver never have one of them in common.

    Contracts with routes share their Kafka topic.
    """
    table = ("table", job.table.identifier, *((job.table.shared_by,) if job.table.shared else ()))
    return table, (("topic", job.profile, job.topic) if job.route is None else table)


def _needs_preparation(topic: Topic, now: float) -> bool:
    """Return whether a worker should prepare the topic at ``now`` (monotonic seconds)."""
    if topic.prepared or topic.halted is not None or now < topic.attempts.next_at:
        return False
    # The brokers usually answer soon, and the topic is then prepared once. If they do not answer, only its table is.
    return topic.log.live is not None or (topic.log.error is not None and topic.table.uuid is None)
