"""Names landed offsets and their data files to the brokers, which then free the batches that the files give back.

The brokers know which offsets they have not compared yet, so a driver that restarts needs no state. Naming runs beside the rounds, in a
thread of its own, and changes nothing of the table but tags."""

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from pydantic import ValidationError

from firn.driver_requests.landed_offsets import (
    LANDED_PATH,
    MAX_FILES,
    UNINDEXED_PATH,
    Asked,
    DataFile,
    FirstOffset,
    FirstOffsets,
    Landed,
    LandedAnswer,
    LandedRange,
    RecordFields,
    Refusal,
    Unindexed,
)
from firn.model import names
from firn.model.errors import FirnError, NotReadyError
from firn.model.jobs import DirectReads
from firn.model.progress import HistoryProgress, Offsets
from firn.tables import rows
from firn_spark.credentials import without_secrets
from firn_spark.ingestion.history import tags
from firn_spark.ingestion.history.record_fields import member_fields, record_fields
from firn_spark.ingestion.topics.state import History
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.diskless.direct_reads import uuid_of
from firn_spark.kafka.diskless.listener import InternalListener
from firn_spark.tables.branches.landing import head
from firn_spark.tables.commits import Claim, newest, read_claim
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Seconds between two looks for topics that are due."""
AGAIN_SECONDS = 6 * 3_600.0
"""Seconds after which offsets that were named are named again, if the brokers still have them to compare."""
FAILED_SECONDS = 60.0
VALID_SECONDS = 2 * 3_600.0
"""Seconds after which brokers do not begin to use named files."""
RELEASED_SECONDS = 2 * VALID_SECONDS
"""Seconds for which a tag stays after the next generation has begun. Brokers that compare its files may use them until `VALID_SECONDS`."""
BUSY_SECONDS = 300.0
MOST_FILE_BYTES = 1_500_000
"""Bytes of the names of files in a request."""
MOST_BYTES = 1 << 20
ALL_GENERATIONS = 1 << 62
MOST_FILTERED = 100
"""Partitions whose offsets the filter of a scan has one by one."""
REFUSALS = {
    Refusal.COPY: f"the topic does not have the config {names.HISTORY}={names.SINGLE} yet",
    Refusal.NO_STORE: "the brokers know no store of data files; add the store of the table to history.stores of the profile",
}


class HistoryNaming:
    """Names the data files of all topics whose log keeps no copy."""

    def __init__(
        self,
        tables: Tables,
        direct: Mapping[str, DirectReads],
        topics: Callable[[], Iterable[Topic]],
        every: float,
    ) -> None:
        """``direct`` are the internal listeners of the profiles, ``topics`` returns the present topics.

        ``every``: seconds between two requests with a topic's files. Rare requests name many offsets, so brokers write few, large entries."""
        self._tables = tables
        self._listeners = {profile: InternalListener(reads) for profile, reads in direct.items()}
        self._topics = topics
        self._every = every
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="history", daemon=True)

    def start(self) -> None:
        """Begin to name files."""
        self._thread.start()

    def stop(self) -> None:
        """Name no more files. A request that runs may still end."""
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.wait(min(LOOK_SECONDS, self._every)):
            for topic in list(self._topics()):
                if self._stopping.is_set():
                    return
                if topic.prepared and not topic.fenced and not topic.removed:
                    try:
                        self.look(topic)
                    except Exception:
                        # The next topics have their turn, and this one in an hour.
                        topic.history.next_at = time.monotonic() + self._every
                        log.exception("the data files of a topic were not named to the brokers", topic=topic.job.topic)

    def look(self, topic: Topic) -> None:
        """Name the files of a topic if that is due. A failure that an outage or a user causes becomes part of the topic's report."""
        now, key = time.monotonic(), (topic.job.table.history, topic.topic_id)
        if topic.history.key != key:
            topic.history = History(key=key, since=now)
        state = topic.history
        if now < state.next_at:
            return
        state.next_at = now + self._every
        try:
            report = self._name(topic, now) if self._has_history(topic) else None
        except (FirnError, OSError, http.client.HTTPException, ValidationError, ValueError, LookupError) as error:
            problem = str(error) if isinstance(error, FirnError) else f"{type(error).__name__}: {str(error)[:300]}"
            problem = without_secrets(problem)
            state.next_at = now + min(self._every, FAILED_SECONDS)
            log.warning(
                "the data files of a topic were not named to the brokers", topic=topic.job.topic, problem=problem
            )
            report = (state.report or HistoryProgress()).model_copy(update={"problem": problem})
        state.report = report

    def _has_history(self, topic: Topic) -> bool:
        """Return whether brokers rebuild the log of a topic from its table, or may still do so for earlier records."""
        if topic.job.table.history == names.SINGLE:
            return True
        java = topic.table.java if topic.job.profile in self._listeners else None
        try:
            return java is not None and tags.exist(java)
        except JAVA_ERRORS as error:
            raise translate(error, f"table {topic.job.table.identifier}, history") from error

    def _name(self, topic: Topic, now: float) -> HistoryProgress | None:
        """Name the files of a topic, and return the report; None for a topic whose log keeps its copy."""
        job = topic.job
        listener = self._listeners.get(job.profile)
        if listener is None:
            raise NotReadyError(
                f"profile {job.profile}: the driver cannot reach the internal listener of its brokers; set directReads of the profile"
            )
        table = self._tables.load(job.table.catalog, job.table.namespace, job.table.name)
        if table is None:
            raise NotReadyError(f"table {job.table.identifier} does not exist; the driver creates it")
        try:
            if job.table.history != names.SINGLE:
                # A request with files may have come before the change.
                if now >= topic.history.since + RELEASED_SECONDS:
                    self._release(topic, listener, table, ALL_GENERATIONS)
                return None
            return self._name_files(topic, listener, table, now)
        except JAVA_ERRORS as error:
            raise translate(error, f"table {job.table.identifier}, history") from error

    def _name_files(self, topic: Topic, listener: InternalListener, table: Any, now: float) -> HistoryProgress:
        state, snapshot, until = topic.history, head(table), int((time.time() + VALID_SECONDS) * 1000)
        landed = newest(table) if snapshot is not None else None
        claim = read_claim(table, topic.view)
        if _is_taken(topic, claim):
            return state.report or HistoryProgress()
        if landed is None or landed.topic_id != topic.topic_id:
            return state.report or HistoryProgress(untagged={})
        fields = record_fields(table, topic.job.table.metadata_columns, topic.job.record_schema.format)
        generation = tags.hold(table, snapshot)
        self._release(topic, listener, table, tags.replaced_before(table, time.time() - RELEASED_SECONDS))
        found = _unindexed(topic, listener, table, generation)
        report = HistoryProgress(waiting=dict(found.waiting), untagged=dict(found.untagged))
        ranges = self._ranges(topic, found, landed.offsets, now)
        if ranges:
            named = self._landed(topic, table, snapshot, ranges, generation, until, fields)
            refusal = listener.ask(LANDED_PATH, named, LandedAnswer, MOST_BYTES).refusal
            if refusal is Refusal.BUSY:
                state.next_at = now + min(self._every, BUSY_SECONDS)
                return report
            if refusal is not None:
                raise NotReadyError(f"topic {topic.job.topic}: {REFUSALS[refusal]}")
            state.named = state.named | {each.partition: each.last + 1 for each in named.ranges}
            state.cut = named.ranges != tuple(ranges)
            log.info(
                "named data files to the brokers", topic=topic.job.topic, files=len(named.files), generation=generation
            )
        return report

    def _release(self, topic: Topic, listener: InternalListener, table: Any, generation: int) -> None:
        """Drop the tags of generations before ``generation`` if brokers need none of them."""
        if generation and not _unindexed(topic, listener, table, generation).older:
            for name in tags.release(table, generation):
                log.info("dropped a tag whose data files no broker needs", table=topic.job.table.identifier, tag=name)

    def _ranges(self, topic: Topic, found: FirstOffset, landed: Offsets, now: float) -> list[LandedRange]:
        """Return the offsets to name: those that brokers have not compared, and those that files of earlier generations have."""
        state = topic.history
        if now >= state.named_at + AGAIN_SECONDS and not state.cut:
            state.named, state.named_at = {}, now
        starts = {part: max(offset, state.named.get(part, 0)) for part, offset in found.waiting.items()}
        for part, offset in found.older.items():
            starts[part] = min(offset, starts.get(part, offset))
        return [
            LandedRange(part, start, landed[part] - 1)
            for part, start in sorted(starts.items())
            if start < landed.get(part, 0)
        ]

    def _landed(
        self,
        topic: Topic,
        table: Any,
        snapshot: Any,
        ranges: list[LandedRange],
        generation: int,
        until: int,
        fields: RecordFields,
    ) -> Landed:
        """Return the request with the files of a snapshot that may have these offsets. Raises NotReadyError if one offset has too many."""
        shape = topic.job.table.metadata_columns
        files = list(self._files(table, snapshot, ranges, shape))
        while len(files) > MAX_FILES or sum(map(_bytes, files)) > MOST_FILE_BYTES:
            # The next time, the driver names the rest.
            ranges = _fewer(ranges)
            if not ranges:
                raise NotReadyError(
                    f"table {topic.job.table.identifier}: the data files that may have the rows of one offset do not fit into a request"
                    f" (at most {MAX_FILES} files and {MOST_FILE_BYTES} bytes of names); compact the table"
                )
            files = list(self._files(table, snapshot, ranges, shape))
        return Landed(
            topic=uuid_of(topic.topic_id),
            generation=generation,
            until_ms=until,
            ranges=tuple(ranges),
            files=tuple(files),
            fields=fields,
            members=member_fields(self._tables, table, topic.job) if fields.value is None else (),
        )

    def _files(self, table: Any, snapshot: Any, ranges: Sequence[LandedRange], shape: str) -> Iterator[DataFile]:
        """Yield the files of a snapshot that may have these offsets, and no more than one too many for a request."""
        scan = table.newScan().useSnapshot(int(snapshot.snapshotId())).filter(self._filter(ranges, shape))
        planned = scan.planFiles()
        try:
            tasks = planned.iterator()
            for _ in range(MAX_FILES + 1):
                if not tasks.hasNext():
                    break
                file = tasks.next().file()
                yield DataFile(str(file.location()), int(file.fileSizeInBytes()))
        finally:
            planned.close()

    def _filter(self, ranges: Sequence[LandedRange], shape: str) -> Any:
        expressions = self._tables.jvm.org.apache.iceberg.expressions.Expressions
        partition, offset, *_ = rows.record_columns(shape)
        both, either = getattr(expressions, "and"), getattr(expressions, "or")
        if len(ranges) > MOST_FILTERED:
            first, last = min(each.first for each in ranges), max(each.last for each in ranges)
            return both(expressions.greaterThanOrEqual(offset, first), expressions.lessThanOrEqual(offset, last))
        found = None
        for each in ranges:
            bounds = both(
                expressions.greaterThanOrEqual(offset, each.first), expressions.lessThanOrEqual(offset, each.last)
            )
            one = both(expressions.equal(partition, each.partition), bounds)
            found = one if found is None else either(found, one)
        return found


def _unindexed(topic: Topic, listener: InternalListener, table: Any, generation: int) -> FirstOffset:
    """Ask the brokers for the offsets that they have not compared, those of earlier generations, and those of generations without a tag.

    Raises NotReadyError."""
    question = Unindexed(topics=(Asked(uuid_of(topic.topic_id), generation, tags.generations(table)),))
    (found,) = listener.ask(UNINDEXED_PATH, question, FirstOffsets, MOST_BYTES).topics
    if found.error:
        raise NotReadyError(f"topic {topic.job.topic}: the brokers answer {found.error}")
    return found


def _is_taken(topic: Topic, claim: Claim | None) -> bool:
    """Return whether another driver has begun to work on the table since. Only one driver may move a tag."""
    return claim is not None and topic.epoch is not None and claim.epoch > topic.epoch


def _bytes(file: DataFile) -> int:
    """Return the bytes that a file takes in a request."""
    return len(file.path) + 40


def _fewer(ranges: Sequence[LandedRange]) -> list[LandedRange]:
    """Return the first halves of ranges; of ranges with one offset each, the first half of them."""
    if all(each.first == each.last for each in ranges):
        return list(ranges[: len(ranges) // 2])
    return [each._replace(last=(each.first + each.last) // 2) for each in ranges]
