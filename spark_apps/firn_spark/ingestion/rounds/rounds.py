"""One round: some topics' waiting records, read and written by one Spark job, committed one table at a time.

Whatever goes wrong with one topic ends in that topic's own failure. A Spark job that fails as a whole is tried again in halves,
down to single topics, so that one that cannot be read does not hold up those that shared a job with it.
"""

import functools
import json
import math
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog
from pyspark.errors.exceptions.captured import PythonException

from firn.model import errors
from firn.model.conditions import Reason
from firn.model.errors import (
    CommitConflictError,
    FencedError,
    FirnError,
    NotReadyError,
    UnavailableError,
)
from firn.model.jobs import IngestJob
from firn.model.progress import HaltedAt, Offsets
from firn_spark.credentials import without_secrets
from firn_spark.failpoints import Failpoints
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.sources import (
    SMALL_RECORD_BYTES,
    Kafka,
    Slice,
    TopicInfo,
    client_config,
    client_records,
    small_records_session,
    spark_options,
    spark_records,
    together,
)
from firn_spark.tables import dead_letters
from firn_spark.tables.commits import Committer, Landed, read_landed
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables
from firn_spark.worker.landing import RESULT_DDL, HaltPlace, Kind, LandingPlan, TaskStats, TopicLanding, land

log = structlog.get_logger()

CLIENT_READER_RECORDS = 20_000
"""Rounds of up to this many records are read by librdkafka: Spark's source makes a consumer for every partition."""
SLICE_RECORDS = 5_000
OVERFLOW = "long overflow"
"""What Spark's Kafka source says of a record whose time does not fit microseconds."""
EXECUTOR_KILLED = ("(SIGKILL, possible container OOM)", "(JVM OOM)")
"""What Spark says of an executor pod that ended so (ExecutorPodsLifecycleManager); the pod itself is gone by then."""
RAISED_BY_TASK = re.compile(r"^firn\.model\.errors\.(\w+Error): (.*)$", re.MULTILINE)
"""An error of ours in the traceback that Spark gives back of a task."""
EMPTY_RECORDS = 100_000
EMPTY_SECONDS = 600.0
"""Ranges in which nothing was found to land are committed on their own only when they are this long or this old."""


class Meter(Protocol):
    """Who counts what rounds do."""

    def landed(self, topic: Topic, rows: int, read_bytes: int, dead: int, skipped: int, seconds: float) -> None:
        """A commit of ``topic``; ``seconds`` from the start of its round."""
        ...


@dataclass(slots=True)
class Found:
    """What the tasks of a job gave back for one topic."""

    data: list[str] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    halts: list[HaltPlace] = field(default_factory=list)
    rows: int = 0
    dead_rows: int = 0
    skipped: int = 0
    excluded: int = 0
    bytes: int = 0
    largest: int = 0
    records: int = 0
    dead_letters_missing: bool = False
    error: str | None = None


def parse_results(rows: Iterable[tuple[str, str, str]]) -> dict[str, Found]:
    """The result rows of all tasks, by topic."""
    found: dict[str, Found] = {}
    for topic, kind, text in rows:
        one = found.setdefault(topic, Found())
        match Kind(kind):
            case Kind.DATA:
                one.data.append(text)
            case Kind.DEAD:
                one.dead.append(text)
            case Kind.HALT:
                one.halts.append(json.loads(text))
            case Kind.DEAD_LETTERS_MISSING:
                one.dead_letters_missing = True
            case Kind.STATS:
                stats: TaskStats = json.loads(text)
                one.rows += stats["rows"]
                one.dead_rows += stats["dead"]
                one.skipped += stats["skipped"]
                one.excluded += stats["excluded"]
                one.bytes += stats["bytes"]
                one.largest = max(one.largest, stats["largest"])
                one.records += sum(numbers[0] for numbers in stats["partitions"].values())
            case Kind.ERROR:
                problem = json.loads(text)
                one.error = f"{problem['type']}: {problem['message']}"
    return found


def _land_slices(
    config: Mapping[str, Any], plan: LandingPlan, parts: Iterator[Sequence[Slice]]
) -> Iterator[tuple[str, str, str]]:
    slices = [part for group in parts for part in group]
    for batch in land(client_records(config, slices), plan):
        yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _land_records(batches: Iterator[Any], plan: LandingPlan) -> Iterator[Any]:
    return land(together(batches), plan)


class Rounds:
    """Prepares topics and runs rounds. One worker has a topic at a time; several rounds may run at once."""

    def __init__(
        self,
        spark: Any,
        tables: Tables,
        kafkas: Callable[[str], Kafka],
        committer: Committer,
        failpoints: Failpoints,
        meter: Meter,
        *,
        tasks: int,
        round_bytes: Callable[[], int],
        buffer_bytes: int,
    ) -> None:
        self._spark = spark
        self._tables = tables
        self._kafkas = kafkas
        self._committer = committer
        self._failpoints = failpoints
        self._meter = meter
        self._tasks = tasks
        self._round_bytes = round_bytes
        self._buffer_bytes = buffer_bytes
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    @functools.cached_property
    def _small_records(self) -> Any:
        return small_records_session(self._spark)

    # Preparing

    def prepare(self, topic: Topic) -> None:
        """Loads or makes the table and reads what landed. Never raises: a failure is the topic's."""
        try:
            topic.was_prepared(wholly=self._prepare(topic))
        except Exception as error:
            self._fail(topic, error)

    def _prepare(self, topic: Topic) -> bool:
        """False where the brokers were not asked yet: the table is there all the same."""
        job = topic.job
        try:
            table = self._tables.ensure(job)
            landed = read_landed(table)
            topic.table_uuid, topic.table_location, topic.table_error = str(table.uuid()), str(table.location()), None
        except JAVA_ERRORS as error:
            topic.table_error = translate(error, f"table {job.table.identifier}")
            raise topic.table_error from error
        except FirnError as error:
            topic.table_error = error
            raise
        if topic.live is None and topic.live_error is None:
            return False
        topic.table, topic.claimed = table, False
        dead = dead_letters.load(self._tables, job)
        if dead is not None and topic.dead == 0:
            topic.dead = dead_letters.count(dead)
        dead_landed = read_landed(dead) if dead is not None else None
        topic.dead_table, topic.dead_landed = dead, dead_landed
        if topic.fenced:
            self._still_fenced(topic, landed)
        if topic.epoch is None or topic.fenced:
            topic.epoch = max((known.epoch for known in (landed, dead_landed) if known is not None), default=0) + 1
            topic.fenced = False
        else:
            self._committer.check(landed, topic.landed, topic.epoch, job.table.identifier)
        live = self._live(topic)
        topic.landed = landed
        if topic.last_commit is None and landed is not None and landed.committed_ms is not None:
            topic.last_commit = landed.committed_ms / 1000
        if landed is None and job.start_from.kind != "Earliest":
            self._first_offsets(topic, live)
        self._position(topic, live)
        topic.spec, topic.table_ids = self._tables.spec(table), None
        self._follow_table(topic)
        return True

    def _still_fenced(self, topic: Topic, landed: Landed | None) -> None:
        """Leaves a fenced topic to its other writer, unless that one has not moved since the last look although records wait."""
        moved = landed is not None and (topic.landed is None or landed.commit_id != topic.landed.commit_id)
        topic.landed = landed
        self._position(topic, self._live(topic))
        if moved or not topic.lag_records:
            raise FencedError(f"table {topic.job.table.identifier}: another driver serves this topic")

    def _live(self, topic: Topic) -> TopicInfo:
        if topic.live is None:
            raise topic.live_error or NotReadyError(f"topic {topic.job.topic}: not seen yet", reason=Reason.STARTING)
        if topic.job.topic_id is not None and topic.live.topic_id != topic.job.topic_id:
            raise NotReadyError(
                f"topic {topic.job.topic}: its id is {topic.live.topic_id}, the contract says {topic.job.topic_id}; "
                "waiting for the contract of the topic that is there now"
            )
        return topic.live

    def _first_offsets(self, topic: Topic, live: TopicInfo) -> None:
        """Writes down where a new table begins when that is not the log's start, so that a restart begins there too."""
        kafka, name, start = self._kafkas(topic.job.profile), topic.job.topic, topic.job.start_from
        offsets = _offsets(kafka.ends({name: live.partitions})[name])
        if start.kind == "Timestamp":
            since = _offsets(kafka.since({name: live.partitions}, start.timestamp_ms or 0)[name])
            offsets = {part: since[part] if since.get(part, -1) >= 0 else end for part, end in offsets.items()}
        assert topic.epoch is not None
        topic.landed = self._committer.commit(topic.table, (), None, live.topic_id, topic.epoch, offsets)

    def _position(self, topic: Topic, live: TopicInfo) -> None:
        landed = topic.landed.offsets if topic.landed is not None and topic.landed.topic_id == live.topic_id else {}
        # A partition without an offset is new, or its topic is: it begins at the log's start, which the round looks up.
        topic.position = {part: landed.get(part, 0) for part in live.partitions}
        topic.reading = live
        topic.empty_since, topic.empty_records = None, 0

    # Rounds

    def run(self, topics: Sequence[Topic]) -> None:
        """A round over ``topics``, which share brokers and catalog. Never raises: a failure is a topic's."""
        started = time.monotonic()
        ready: list[Topic] = []
        for topic in topics:
            try:
                self._begin(topic)
                ready.append(topic)
            except Exception as error:
                self._fail(topic, error)
        if ready:
            self._run(ready, started)

    def _begin(self, topic: Topic) -> None:
        """Before the first round of a preparation: nobody older can add dead letters from here on, and what they hold beyond the table is known."""
        reading = self._live(topic)
        if reading != topic.reading:
            raise NotReadyError(f"topic {topic.job.topic}: it was re-created or has grown; its offsets are read anew")
        if topic.claimed:
            return
        assert topic.epoch is not None
        topic.exclude = {}
        if topic.dead_table is not None:
            dead = dead_letters.claim(self._committer, topic.dead_table, topic.topic_id, topic.epoch)
            landed = read_landed(topic.table)
            self._committer.check(landed, topic.landed, topic.epoch, topic.job.table.identifier)
            topic.landed, topic.dead_landed = landed, dead
            # Not what is live by now: the claim was made for this one.
            self._position(topic, reading)
            topic.dead_spec = self._tables.spec(topic.dead_table)
            offsets = landed.offsets if landed is not None and landed.topic_id == topic.topic_id else {}
            beyond = dead_letters.ahead(dead, topic.topic_id, offsets)
            if beyond:
                topic.exclude = dead_letters.offsets_between(
                    self._spark, topic.job, topic.dead_table, dead, offsets, beyond
                )
                log.info(
                    "dead letters are ahead of the table: their offsets are left out",
                    topic=topic.job.topic,
                    namespace=topic.job.namespace,
                    records=sum(map(len, topic.exclude.values())),
                )
        topic.claimed = True

    def _run(self, topics: Sequence[Topic], started: float) -> None:
        try:
            planned = self._plan(topics)
        except Exception as error:
            # The brokers' answer, or none: it is the same for all.
            for topic in topics:
                self._fail(topic, error)
            return
        if not planned:
            return
        try:
            found = self._job(planned)
            self._failpoints.reach("after-data-files")
        except Exception as error:
            self._job_failed(list(planned), error, started)
            return
        try:
            current = self._kafkas(topics[0].job.profile).topics([topic.job.topic for topic in planned])
        except Exception as error:
            for topic in planned:
                self._discard(topic, found.get(topic.job.topic, Found()))
                self._fail(topic, error)
            return
        again: list[Topic] = []
        commits = []
        for topic, ranges in planned.items():
            one = found.get(topic.job.topic, Found())
            now_live = current.get(topic.job.topic)
            if isinstance(now_live, FirnError) or now_live is None or now_live.topic_id != topic.topic_id:
                self._discard(topic, one)
                self._fail(
                    topic, NotReadyError(f"topic {topic.job.topic}: it was deleted or re-created while it was read")
                )
            elif one.dead_letters_missing:
                self._discard(topic, one)
                try:
                    self._first_dead_letter(topic)
                    again.append(topic)
                except Exception as error:
                    self._fail(topic, error)
            elif one.error is not None:
                self._discard(topic, one)
                self._fail(topic, UnavailableError(f"topic {topic.job.topic}: writing failed: {one.error}"))
            else:
                commits.append((topic, ranges, one))
        pool = self._pool(topics[0].job.table.catalog)
        for future in [pool.submit(self._commit, topic, ranges, one, started) for topic, ranges, one in commits]:
            future.result()
        for topic in again:
            self._run([topic], started)

    def _job_failed(self, topics: Sequence[Topic], error: Exception, started: float) -> None:
        """Tries again what can be: with the other reader, or in halves, so that one topic does not take the others with it."""
        if OVERFLOW in str(error) and not any(topic.client_reader for topic in topics):
            for topic in topics:
                topic.client_reader = True
            self._run(topics, started)
        elif len(topics) == 1:
            self._fail(topics[0], error)
        else:
            middle = len(topics) // 2
            log.warning("a shared job failed, trying in halves", topics=len(topics), error=_text(error)[:300])
            self._run(topics[:middle], started)
            self._run(topics[middle:], started)

    def _plan(self, topics: Sequence[Topic]) -> dict[Topic, dict[int, tuple[int, int]]]:
        """Each topic's ranges, from the ends and log starts of this moment."""
        kafka = self._kafkas(topics[0].job.profile)
        asked = {topic.job.topic: tuple(topic.position) for topic in topics}
        now = time.monotonic()
        starts, ends = kafka.starts(asked), kafka.ends(asked)
        room = self._round_bytes() / len(topics)
        planned: dict[Topic, dict[int, tuple[int, int]]] = {}
        for topic in topics:
            try:
                first, last = _offsets(starts[topic.job.topic]), _offsets(ends[topic.job.topic])
            except FirnError as error:
                self._fail(topic, error)
                continue
            for part, start in first.items():
                if topic.position.get(part, start) < start:
                    known = (
                        topic.landed is not None
                        and part in topic.landed.offsets
                        and topic.landed.topic_id == topic.topic_id
                    )
                    if known:
                        topic.lost += start - topic.position[part]
                        log.error(
                            "records were deleted from the log before they landed",
                            topic=topic.job.topic,
                            namespace=topic.job.namespace,
                            partition=part,
                            offsets=start - topic.position[part],
                        )
                    topic.position[part] = start
            topic.observe(now, last)
            behind = topic.behind()
            allowed = max(1.0, room / topic.record_bytes)
            total = sum(end - start for start, end in behind.values())
            topic.backfilling = total > allowed
            share = min(1.0, allowed / total) if total else 1.0
            ranges = {
                part: (start, min(end, start + max(1, int((end - start) * share + 0.999))))
                for part, (start, end) in behind.items()
            }
            if ranges:
                planned[topic] = ranges
        return planned

    def _job(self, planned: Mapping[Topic, Mapping[int, tuple[int, int]]]) -> dict[str, Found]:
        """Runs the Spark job that reads and writes; nothing of it is visible in any table."""
        landings: dict[str, TopicLanding] = {}
        for topic in planned:
            assert topic.spec is not None
            landings[topic.job.topic] = TopicLanding(
                job=topic.job,
                table=topic.spec,
                dead_letters=topic.dead_spec,
                exclude=topic.exclude,
                force_dead=forced(topic.job),
            )
        moment = dead_letters.moment((topic.dead_landed for topic in planned), dead_letters.now())
        for topic in planned:
            topic.ingested_at = moment
        plan = LandingPlan(landings, moment, self._buffer_bytes)
        connection = self._kafkas(next(iter(planned)).job.profile).connection
        records = sum(end - start for ranges in planned.values() for start, end in ranges.values())
        if records <= CLIENT_READER_RECORDS or any(topic.client_reader for topic in planned):
            groups = slices(planned, min(self._tasks, -(-records // SLICE_RECORDS)))
            work = functools.partial(_land_slices, client_config(connection), plan)
            rows = self._spark.sparkContext.parallelize(groups, len(groups)).mapPartitions(work).collect()
        else:
            split = all(topic.job.on_bad_record != "Halt" for topic in planned)
            small = all((topic.largest_bytes or math.inf) <= SMALL_RECORD_BYTES for topic in planned)
            frame = spark_records(
                self._small_records if small else self._spark,
                spark_options(connection),
                {topic.job.topic: ranges for topic, ranges in planned.items()},
                self._tasks,
                split,
            )
            rows = [
                tuple(row)
                for row in frame.mapInArrow(functools.partial(_land_records, plan=plan), RESULT_DDL).collect()
            ]
        return parse_results(rows)

    def _first_dead_letter(self, topic: Topic) -> None:
        """Makes the dead-letter table and announces it in the topic's table; see `firn_spark.tables.dead_letters`."""
        assert topic.epoch is not None
        self._failpoints.reach("before-dlq-create")
        if topic.dead_table is None:
            topic.dead_table = dead_letters.create(self._tables, topic.job)
        offsets = topic.landed.offsets if topic.landed is not None and topic.landed.topic_id == topic.topic_id else {}
        topic.landed = self._committer.commit(topic.table, (), topic.landed, topic.topic_id, topic.epoch, offsets)
        self._failpoints.reach("after-dlq-create")
        topic.claimed = False
        self._begin(topic)

    def _commit(self, topic: Topic, ranges: Mapping[int, tuple[int, int]], one: Found, started: float) -> None:
        try:
            self._commit_both(topic, ranges, one, started)
            topic.succeeded()
        except Exception as error:
            self._fail(topic, error)

    def _commit_both(self, topic: Topic, ranges: Mapping[int, tuple[int, int]], one: Found, started: float) -> None:
        assert topic.epoch is not None
        halts = first_halts(one.halts)
        reached = {part: halts[part]["offset"] if part in halts else end for part, (_, end) in ranges.items()}
        if one.records:
            topic.record_bytes = max(16.0, one.bytes / one.records + 32)
            topic.largest_bytes = max(one.largest, (topic.largest_bytes or 0) * 3 // 4)
        base = topic.landed.offsets if topic.landed is not None and topic.landed.topic_id == topic.topic_id else {}
        offsets = {**base, **topic.position, **reached}
        if one.dead:
            self._failpoints.reach("before-dlq-commit")
            assert topic.dead_landed is not None
            topic.dead_landed = dead_letters.commit(
                self._committer,
                topic.dead_table,
                one.dead,
                topic.dead_landed,
                topic.epoch,
                offsets,
                topic.ingested_at,
            )
            self._failpoints.reach("after-dlq-commit")
        something = one.rows or one.dead_rows or one.skipped or one.excluded
        if something or self._empty_is_due(topic, ranges, reached):
            topic.landed = self._committer.commit(
                topic.table, one.data, topic.landed, topic.topic_id, topic.epoch, offsets
            )
            topic.empty_since, topic.empty_records = None, 0
            topic.exclude = {
                part: left
                for part, gone in topic.exclude.items()
                if (left := frozenset(o for o in gone if o >= offsets.get(part, 0)))
            }
        self._follow_table(topic)
        topic.position.update(reached)
        topic.rows += one.rows
        topic.dead += one.dead_rows
        topic.skipped += one.skipped
        if something:
            topic.last_commit = time.time()
            self._meter.landed(topic, one.rows, one.bytes, one.dead_rows, one.skipped, time.monotonic() - started)
        if topic.client_reader and not one.halts:
            topic.client_reader = False
        if halts:
            part, place = min(halts.items())
            topic.halted = HaltedAt(partition=part, offset=place["offset"], code=place["code"], detail=place["detail"])
            log.warning(
                "halted on a record",
                topic=topic.job.topic,
                namespace=topic.job.namespace,
                partition=part,
                offset=place["offset"],
                code=place["code"],
            )

    def _follow_table(self, topic: Topic) -> None:
        """The operator may have changed the table under us: what is written next follows its schema, partitioning and order."""
        table = topic.table
        ids = (table.schema().schemaId(), table.spec().specId(), table.sortOrder().orderId())
        if topic.table_ids is not None and topic.table_ids != ids:
            topic.spec = self._tables.spec(table)
        topic.table_ids = ids

    def _empty_is_due(self, topic: Topic, ranges: Mapping[int, tuple[int, int]], reached: Offsets) -> bool:
        now = time.monotonic()
        topic.empty_since = topic.empty_since or now
        topic.empty_records += sum(reached[part] - start for part, (start, _) in ranges.items())
        return topic.empty_records >= EMPTY_RECORDS or now - topic.empty_since >= EMPTY_SECONDS

    def _discard(self, topic: Topic, one: Found) -> None:
        if topic.table is not None:
            self._committer.discard(topic.table, one.data)
        if topic.dead_table is not None:
            self._committer.discard(topic.dead_table, one.dead)

    def _fail(self, topic: Topic, error: Exception) -> None:
        failure = classify(error, topic)
        # What a Python worker raised may be a bug of ours: its trace is all that tells where.
        known = isinstance(error, (FirnError, *JAVA_ERRORS)) and not isinstance(error, PythonException)
        log.warning(
            "topic failed",
            topic=topic.job.topic,
            namespace=topic.job.namespace,
            error=_text(failure)[:800],
            kind=type(failure).__name__,
            failures=topic.failures + 1,
            exc_info=None if known else error,
        )
        topic.failed(failure, time.monotonic())
        if isinstance(failure, CommitConflictError) and topic.failures <= 3:
            topic.next_attempt = 0.0

    def _pool(self, catalog: str) -> ThreadPoolExecutor:
        with self._lock:
            if catalog not in self._pools:
                self._pools[catalog] = ThreadPoolExecutor(8, thread_name_prefix=f"commit-{catalog}")
            return self._pools[catalog]


def forced(job: IngestJob) -> dict[int, frozenset[int]]:
    """The record that ``resume`` sends to the dead letters, by partition."""
    if job.resume is None:
        return {}
    _, partition, offset = job.resume.split(":")
    return {int(partition): frozenset({int(offset)})}


def first_halts(halts: Iterable[HaltPlace]) -> dict[int, HaltPlace]:
    """The first place of each partition."""
    first: dict[int, HaltPlace] = {}
    for place in halts:
        known = first.get(place["partition"])
        if known is None or place["offset"] < known["offset"]:
            first[place["partition"]] = place
    return first


def slices(planned: Mapping[Topic, Mapping[int, tuple[int, int]]], tasks: int) -> list[list[Slice]]:
    """The ranges dealt out to at most ``tasks`` tasks of about equal work. A topic stays in one task: each task makes files of its own."""
    groups: list[list[Slice]] = [[] for _ in range(max(1, tasks))]
    sizes = [0] * len(groups)
    by_size = sorted(planned.items(), key=lambda item: -sum(end - start for start, end in item[1].values()))
    for topic, ranges in by_size:
        least = sizes.index(min(sizes))
        groups[least] += [Slice(topic.job.topic, part, start, end) for part, (start, end) in sorted(ranges.items())]
        sizes[least] += sum(end - start for start, end in ranges.values())
    return [group for group in groups if group]


def classify(error: Exception, topic: Topic) -> FirnError:
    """What an exception means for ``topic``."""
    if isinstance(error, FirnError):
        return error
    subject = f"topic {topic.job.topic}"
    if any(sign in str(error) for sign in EXECUTOR_KILLED):
        return UnavailableError(
            f"{subject}: an executor was killed for want of memory: give the group's executors more memory or overhead",
            reason=Reason.OUT_OF_MEMORY,
        )
    raised = RAISED_BY_TASK.search(str(error))
    if raised is not None:
        kind: type[FirnError] = getattr(errors, raised[1], UnavailableError)
        return kind(raised[2])
    # What a Python worker raised stands in the text, and no Java exception behind it.
    if isinstance(error, JAVA_ERRORS) and not isinstance(error, PythonException):
        return translate(error, subject)
    return UnavailableError(f"{subject}: {_text(error)}")


def _text(error: Exception) -> str:
    text = without_secrets(str(error))
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith(("at ", "File "))]
    return f"{type(error).__name__}: {' '.join(lines[-3:] if len(lines) > 3 else lines)}"[:1000]


def _offsets(found: Mapping[int, int] | FirnError) -> Offsets:
    if isinstance(found, FirnError):
        raise found
    return dict(found)
