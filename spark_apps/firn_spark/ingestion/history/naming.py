"""Names landed offsets and their data files to the brokers, which then free the batches that the files give back.

The brokers know which offsets they have not compared yet, so a driver that restarts needs no state. Naming runs beside the rounds, in a
thread of its own, and changes nothing of the table but tags."""

import http.client
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import structlog
from pydantic import ValidationError

from firn.driver_requests.landed_offsets import (
    LANDED_PATH,
    MAX_FILES,
    UNINDEXED_PATH,
    DataFile,
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
from firn.model.jobs import DirectReads, SchemaFormat
from firn.model.progress import HistoryProgress, Offsets
from firn.tables import rows
from firn_spark.credentials import without_secrets
from firn_spark.ingestion.history import tags
from firn_spark.ingestion.topics.topic import Topic
from firn_spark.kafka.diskless.direct_reads import uuid_of
from firn_spark.kafka.diskless.listener import InternalListener
from firn_spark.tables.branches.landing import head
from firn_spark.tables.commits import newest
from firn_spark.tables.java_errors import JAVA_ERRORS, translate
from firn_spark.tables.java_tables import Tables

log = structlog.get_logger()

LOOK_SECONDS = 5.0
"""Seconds between two looks for topics that are due."""
AGAIN_SECONDS = 6 * 3_600.0
"""Seconds after which offsets that were named are named again, if the brokers still have them to compare."""
FAILED_SECONDS = 60.0
MOST_BYTES = 1 << 20
MOST_FILTERED = 100
"""Partitions whose offsets the filter of a scan has one by one."""
_KAFKA = ("partition", "offset", "timestamp_ms", "key")
REFUSALS = {
    Refusal.COPY: f"the topic does not have the config {names.HISTORY}={names.SINGLE} yet",
    Refusal.NO_STORE: "the brokers know no store of data files; add the store of the table to history.stores of the profile",
    Refusal.BUSY: "the brokers have too many topics to compare; the driver asks again",
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

        ``every``: seconds between two names of a topic's files. Many offsets at a time make few and large entries."""
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
                if (
                    topic.job.table.history == names.SINGLE
                    and topic.prepared
                    and not topic.fenced
                    and not topic.removed
                ):
                    self.look(topic)

    def look(self, topic: Topic) -> None:
        """Name the files of a topic if that is due. Never raises: a failure becomes part of the topic's report."""
        state, now = topic.history, time.monotonic()
        if now < state.next_at:
            return
        try:
            waiting = self._name(topic, now)
        except (FirnError, OSError, http.client.HTTPException, ValidationError, ValueError, LookupError) as error:
            problem = without_secrets(
                f"{type(error).__name__}: {str(error)[:300]}" if not isinstance(error, FirnError) else str(error)
            )
            state.next_at = now + min(self._every, FAILED_SECONDS)
            log.warning(
                "the data files of a topic were not named to the brokers", topic=topic.job.topic, problem=problem
            )
            before = state.report.waiting if state.report is not None else {}
            state.report = HistoryProgress(waiting=before, problem=problem)
        else:
            state.next_at = now + self._every
            state.report = HistoryProgress(waiting=waiting)

    def _name(self, topic: Topic, now: float) -> Offsets:
        """Name the files of a topic, and return the first offset of each partition that the brokers have still to compare."""
        job = topic.job
        listener = self._listeners.get(job.profile)
        if listener is None:
            raise NotReadyError(
                f"profile {job.profile}: the driver cannot reach the internal listener of its brokers; set directReads of the profile"
            )
        id = uuid_of(topic.topic_id)
        asked = Unindexed(topics=(id,))
        (first,) = listener.ask(UNINDEXED_PATH, asked, FirstOffsets, MOST_BYTES).topics
        if isinstance(first, str):
            raise NotReadyError(f"topic {job.topic}: the brokers answer {first}")
        try:
            named = self._landed(topic, id, first, now)
        except JAVA_ERRORS as error:
            raise translate(error, f"table {job.table.identifier}, history") from error
        if named is not None:
            refusal = listener.ask(LANDED_PATH, named, LandedAnswer, MOST_BYTES).refusal
            if refusal is not None:
                raise NotReadyError(f"topic {job.topic}: {REFUSALS[refusal]}")
            topic.history.named = {each.partition: each.last + 1 for each in named.ranges} | {
                part: end for part, end in topic.history.named.items() if part not in dict(_ends(named.ranges))
            }
            topic.history.named_at = now
            log.info(
                "named data files to the brokers", topic=job.topic, files=len(named.files), partitions=len(named.ranges)
            )
        return dict(first)

    def _landed(self, topic: Topic, id: UUID, first: Mapping[int, int], now: float) -> Landed | None:
        """Return the offsets that the brokers have to compare, and the files that have them; None without any. A tag holds the files."""
        job, state = topic.job, topic.history
        table = self._tables.load(job.table.catalog, job.table.namespace, job.table.name)
        snapshot = head(table) if table is not None else None
        landed = newest(table) if snapshot is not None else None
        if landed is None or landed.topic_id != topic.topic_id:
            return None
        if now >= state.named_at + AGAIN_SECONDS:
            state.named, state.named_at = {}, now
        ranges = [
            LandedRange(part, start, landed.offsets[part] - 1)
            for part, offset in sorted(first.items())
            if (start := max(offset, state.named.get(part, 0))) < landed.offsets.get(part, 0)
        ]
        if not ranges:
            return None
        fields = _fields(table, job.table.metadata_columns, job.record_schema.format)
        tags.hold(table, snapshot)
        tags.release(table, topic.reading.log_starts)
        files = list(self._files(table, snapshot, ranges, job.table.metadata_columns))
        while len(files) > MAX_FILES:
            # The next time, the driver names the rest.
            ranges = [each._replace(last=(each.first + each.last) // 2) for each in ranges]
            files = list(self._files(table, snapshot, ranges, job.table.metadata_columns))
        return Landed(topic=id, ranges=tuple(ranges), files=tuple(files), fields=fields)

    def _files(self, table: Any, snapshot: Any, ranges: Sequence[LandedRange], shape: str) -> Iterator[DataFile]:
        """Yield the files of a snapshot that may have these offsets."""
        scan = table.newScan().useSnapshot(int(snapshot.snapshotId())).filter(self._filter(ranges, shape))
        planned = scan.planFiles()
        try:
            tasks = planned.iterator()
            while tasks.hasNext():
                file = tasks.next().file()
                yield DataFile(str(file.location()), int(file.fileSizeInBytes()))
        finally:
            planned.close()

    def _filter(self, ranges: Sequence[LandedRange], shape: str) -> Any:
        expressions = self._tables.jvm.org.apache.iceberg.expressions.Expressions
        partition, offset = _column(shape, "partition"), _column(shape, "offset")
        if len(ranges) > MOST_FILTERED:
            return expressions.greaterThanOrEqual(offset, min(each.first for each in ranges))
        both, either = getattr(expressions, "and"), getattr(expressions, "or")
        found = None
        for each in ranges:
            bounds = both(
                expressions.greaterThanOrEqual(offset, each.first), expressions.lessThanOrEqual(offset, each.last)
            )
            one = both(expressions.equal(partition, each.partition), bounds)
            found = one if found is None else either(found, one)
        return found


def _ends(ranges: Iterable[LandedRange]) -> Iterator[tuple[int, int]]:
    return ((each.partition, each.last + 1) for each in ranges)


def _column(shape: str, name: str) -> str:
    return f"{rows.METADATA_COLUMN}{'.' if shape == 'Struct' else '_'}{name}"


def _fields(table: Any, shape: str, format: SchemaFormat) -> RecordFields:
    """Return the ids of the columns with the parts of a record. Raises NotReadyError if the table lacks one."""
    if format is not SchemaFormat.RAW:
        raise NotReadyError(f"table {table.name()}: brokers can rebuild raw values only")
    schema, ids = table.schema(), list[int]()
    for name in (*(_column(shape, each) for each in _KAFKA), "value", _column(shape, "headers")):
        found = schema.findField(name)
        if found is None:
            raise NotReadyError(
                f"table {table.name()}: brokers need column {name} to rebuild records; add it to the schema"
            )
        ids.append(int(found.fieldId()))
    return RecordFields(*ids)
