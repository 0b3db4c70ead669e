"""A topic in the driver: its contract, its progress, and the failures that delay it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from firn.model.errors import FencedError, FirnError
from firn.model.jobs import IngestJob, RecordSchema
from firn.model.progress import Cause, Gap, HaltedAt, Offsets, View
from firn_spark.ingestion.topics.route_schemas import RouteSchemas
from firn_spark.ingestion.topics.state import (
    CONTESTED_FRESHNESS,
    Attempts,
    DeadLetters,
    Fence,
    History,
    Log,
    Publishing,
    Reading,
    Recent,
    Table,
    Totals,
    covered,
)
from firn_spark.tables.commits import Landed, view_of

RETENTION_SHARE = 0.5
"""Share of the log's retention for which records may wait. The operator warns from there on."""
_OF_LOG = ("retention_ms", "retention_bytes")
"""Fields of a contract that describe the log."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class Topic:
    """State of one topic. It belongs to one worker while ``busy``.

    The watcher of its brokers sets ``log``, and clears ``prepared`` if the topic was re-created.
    """

    job: IngestJob
    log: Log = field(default_factory=Log)
    table: Table = field(default_factory=Table)
    letters: DeadLetters = field(default_factory=DeadLetters)
    reading: Reading = field(default_factory=Reading)
    attempts: Attempts = field(default_factory=Attempts)
    totals: Totals = field(default_factory=Totals)
    publishing: Publishing = field(default_factory=Publishing)
    history: History = field(default_factory=History)
    recent: Recent = field(default_factory=Recent)
    route_schemas: RouteSchemas = field(default_factory=RouteSchemas)
    """The schemas by which routes read the names of messages. After the first preparation, the contracts of a Kafka topic share them."""
    epoch: int | None = None
    """This process's epoch in the commits of both tables."""
    busy: bool = False
    removed: bool = False
    outdated: bool = False
    """True if a newer contract waits until the topic is no longer ``busy``."""
    prepared: bool = False
    fenced: bool = False
    fence: Fence = field(default_factory=Fence)
    halted: HaltedAt | None = None
    served_at: float = 0.0
    """When its last round ended (monotonic seconds)."""
    _known: tuple[object, Offsets, float | None] = ((), {}, None)
    """`Log.seen` and a position, and `_landed_at` as computed for them."""

    @property
    def key(self) -> tuple[str, str]:
        """Profile and catalog: topics with the same key can share a Spark job."""
        return (self.job.profile, self.job.table.catalog)

    @property
    def landing(self) -> str:
        """The name of the topic in the results of tasks. Contracts with routes share their Kafka topic, so it has their uid."""
        return self.job.topic if self.job.route is None else f"{self.job.topic}/{self.job.uid}"

    def reads_with(self, other: "Topic") -> bool:
        """Return whether one read of the log serves both: contracts with routes of one Kafka topic at the same offsets."""
        mine, others = self.reading, other.reading
        return (
            self.job.route is not None
            and other.job.route is not None
            and (self.key, self.job.topic, mine.topic) == (other.key, other.job.topic, others.topic)
            and (mine.position, mine.leader_epochs) == (others.position, others.leader_epochs)
            and not mine.spark_source
            and not others.spark_source
        )

    @property
    def schema(self) -> RecordSchema:
        """Return the conversion of records to columns. With a schema registry, it has the columns of all known schemas."""
        return self.reading.schema or self.job.record_schema

    @property
    def adapted_job(self) -> IngestJob:
        """Return the contract with `schema`."""
        return self.job if self.reading.schema is None else self.job.model_copy(update={"record_schema": self.schema})

    @property
    def view(self) -> View | None:
        """The topic in a shared table; None if the table has no other topic."""
        return view_of(self.job)

    @property
    def topic_id(self) -> str:
        """Kafka's id of the topic that the position belongs to."""
        assert self.reading.topic is not None
        return self.reading.topic.topic_id

    @property
    def landed(self) -> Landed | None:
        """The newest ingestion commit, None if that was of an earlier topic of the same name."""
        landed = self.table.landed
        return landed if landed is not None and landed.topic_id == self.topic_id else None

    @property
    def landed_offsets(self) -> Offsets:
        """Offsets of the newest ingestion commit of this topic."""
        return self.landed.offsets if self.landed is not None else {}

    @property
    def replaced_table(self) -> bool:
        """True if the table has no offsets yet, and replaced an earlier table of the resource."""
        first = self.job.first_table
        # The commit that makes the branch of a new table has no offsets.
        empty = self.table.landed is None or not self.table.landed.offsets
        return empty and first is not None and first != self.table.uuid

    @property
    def has_landed(self) -> bool:
        """True if an offset of this topic has landed."""
        return self.reading.topic is not None and any(self.landed_offsets.values())

    @property
    def backfilling(self) -> bool:
        """True while records wait that are older than the table."""
        older, position = self.reading.older or {}, self.reading.position
        return any(position.get(part, end) < end for part, end in older.items())

    @property
    def active(self) -> bool:
        """True while its records should land."""
        return not (self.job.suspended or self.removed or self.fenced or self.halted is not None)

    @property
    def gaps(self) -> list[Gap]:
        """Offsets that the next commit passes without landing them, and that the table does not record yet."""
        if self.table.losses is None or not (self.reading.deleted or self.log.cut_back):
            return []
        cause = Cause.REPLACED if self.replaced_table else Cause.DELETED
        gaps = [
            *(
                Gap(partition=part, start=start, end=end, cause=cause)
                for part, (start, end) in self.reading.deleted.items()
            ),
            *(
                Gap(partition=part, start=low, end=high, cause=Cause.CUT_BACK)
                for part, (low, high) in self.log.cut_back.items()
            ),
        ]
        return self.table.losses.missing(gaps, self.topic_id)

    def lose(self, partition: int, offset: int) -> bool:
        """Record that the log has other records from ``offset`` on than those that landed.

        Returns False if the table records that already.
        """
        position = self.reading.position[partition]
        gap = Gap(partition=partition, start=offset, end=position, cause=Cause.CUT_BACK)
        if self.table.losses is not None and not self.table.losses.missing([gap], self.topic_id):
            return False
        self.log.lose(partition, offset, position)
        return True

    def behind(self) -> dict[int, tuple[int, int]]:
        """Return partition -> (next offset to read, end) where records wait."""
        position = self.reading.position
        return {part: (position[part], end) for part, end in self.log.ends.items() if end > position.get(part, end)}

    def measured(self, now: float) -> bool:
        """Return whether the lag is known at ``now`` (monotonic seconds).

        Ends and position have to be known and to belong to the same topic. If no record waits, brokers that do not answer
        for longer than the freshness may have records that the ends do not show.
        """
        unanswered = self.log.error is not None and now - (self.log.checked_at or 0.0) > self._freshness
        return self._same_topic and bool(self.log.ends) and not (unanswered and not self.lag_records)

    @property
    def _same_topic(self) -> bool:
        live, read = self.log.live, self.reading.topic
        return live is not None and read is not None and live.topic_id == read.topic_id

    @property
    def lag_records(self) -> int:
        """Offsets between what was read and the end; aborted and compacted records count too."""
        return sum(end - start for start, end in self.behind().values())

    @property
    def lag_bytes(self) -> float:
        """Estimated bytes of waiting records, from the size of the records read so far."""
        return self.lag_records * self.reading.record_bytes

    @property
    def lag_partition_bytes(self) -> float | None:
        """Estimated waiting bytes of the partition with the most of them. The retention of a log counts by partition.

        None if records wait and the driver has not read any yet: then it can only guess their size.
        """
        waiting = self._partition_bytes
        return None if waiting and not self.reading.measured else waiting

    @property
    def _partition_bytes(self) -> float:
        most = max((end - start for start, end in self.behind().values()), default=0)
        return most * self.reading.record_bytes

    def observe(self, now: float, ends: Offsets) -> None:
        """Store the ends that were asked for at ``now`` (monotonic seconds)."""
        self.log.observe(now, ends, self.reading.position if self._same_topic else None)
        if not self.fenced or not self.gaps:
            self.fence.lost_since = None
        elif self.fence.lost_since is None:
            self.fence.lost_since = now

    @property
    def waiting_since(self) -> float | None:
        """The earliest time at which a waiting record can have arrived (monotonic seconds); None if no record waits.

        Records that waited when the driver first asked are of unknown age: they are due at once.
        """
        return self._waiting_since if self.lag_records else None

    @property
    def _waiting_since(self) -> float:
        landed = self._landed_at
        if landed is not None:
            return landed
        due = (self.log.ends_at if self.log.seen_since is None else self.log.seen_since) - self._freshness
        return due if self.log.oldest_at is None else min(due, self.log.oldest_at)

    @property
    def waits_since_before(self) -> bool:
        """True if records wait that waited already when the driver first asked for the ends."""
        return self._same_topic and bool(self.lag_records) and self._landed_at is None

    @property
    def _landed_at(self) -> float | None:
        """When the newest ends were seen that have landed completely."""
        seen, position = self.log.seen, self.reading.position
        known_seen, known_position, landed_at = self._known
        # The loop asks for every topic in each decision, and little changes between two of them.
        if seen is not known_seen or position != known_position:
            position = dict(position)  # A worker may change the position meanwhile.
            landed_at = next((at for at, then in reversed(seen) if covered(then, position)), None)
            self._known = (seen, position, landed_at)
        return landed_at

    @property
    def _freshness(self) -> float:
        return self.job.freshness_ms / 1000

    @property
    def _safe_seconds(self) -> float:
        """Seconds for which a record may wait without nearing its deletion by the log."""
        retention = self.job.retention_ms
        return math.inf if retention is None else retention * RETENTION_SHARE / 1000

    @property
    def longest_wait(self) -> float:
        """Seconds for which a record may wait: the freshness, or half of the log's ``retention.ms`` if that is shorter."""
        return min(self._freshness, self._safe_seconds)

    @property
    def _fills_log(self) -> bool:
        """True if the waiting records of a partition near the size above which the log deletes records."""
        most = self.job.retention_bytes
        return most is not None and self._partition_bytes >= most * RETENTION_SHARE / 2

    def took(self, seconds: float) -> None:
        """Record that a round ended ``seconds`` after it was due, so that the next round starts early enough.

        A slow round counts at once, quick rounds count little by little.
        """
        smoothed = max(seconds, 0.9 * self.reading.round_seconds + 0.1 * seconds)
        self.reading.round_seconds = min(smoothed, self._freshness / 2)

    def due(self, bytes_per_commit: int) -> float | None:
        """Return when its next round should start (monotonic seconds); None if no record waits."""
        if not self.active or not self.prepared:
            return None
        if self.gaps:
            return self.attempts.next_at
        lag_records = self.lag_records
        if not lag_records:
            return None
        due = self._waiting_since
        if lag_records * self.reading.record_bytes < bytes_per_commit and not self._fills_log:
            longest = self.longest_wait
            if self.fence.contested(due):
                longest = min(longest, CONTESTED_FRESHNESS)
            due += longest - min(longest / 2, 1.0 + 1.5 * self.reading.round_seconds)
        return max(due, self.attempts.next_at)

    def publish_due(self, now: float) -> bool:
        """Return whether a worker should look at the rows that main lacks at ``now`` (monotonic seconds)."""
        if self.job.publish is None or not self.prepared or self.job.suspended or self.removed or self.fenced:
            return False
        return now >= max(self.publishing.next_at, self.publishing.backoff.next_at, self.attempts.next_at)

    def was_prepared(self, *, complete: bool = True) -> None:
        """Record the end of a preparation. It ends the failure of a round only if no record waits for another round.

        If not ``complete``, the table is ready but the brokers have not described the topic. This ends an earlier failure of the catalog.
        """
        self.prepared = complete
        self.publishing.next_at = 0.0
        if not (self.attempts.round_failed and (self.lag_records or not complete)):
            self.attempts.succeeded()

    def failed(self, error: FirnError, now: float) -> None:
        """Back off and forget what was read of the tables, so that the next attempt reads them again."""
        if isinstance(error, FencedError):
            self.fenced = True
            self.fence.fell(now)
        self.attempts.failed(error, now, in_round=self.prepared)
        self.prepared = False
        self.letters.claimed = False
        self.table.java = self.letters.java = self.table.spec = self.letters.spec = None

    def lift_fence(self, now: float, seen: object) -> bool:
        """Take the topic back if the other driver is quiet; ``Fence.lifts`` says when. Otherwise plan the next look."""
        waiting_since = self.fence.lost_since if self.waiting_since is None else self.waiting_since
        if not self.fence.lifts(now, seen, waiting_since, self._freshness):
            self.attempts.next_at = self.fence.next_look(now, waiting_since, self._freshness)
            if not isinstance(self.attempts.error, FencedError):
                self.attempts.error = None  # This look succeeded.
            return False
        self.fenced, self.epoch, self.fence.lifted_at = False, None, now
        self.attempts.succeeded()
        return True

    def count_failed(self, rules: Mapping[str, int]) -> None:
        """Count records that failed quality rules. Every rule of the contract has a count."""
        if self.job.quality_rules:
            before = self.totals.failed_rules
            self.totals.failed_rules = {
                rule.name: before.get(rule.name, 0) + rules.get(rule.name, 0) for rule in self.job.quality_rules
            }

    def accept(self, job: IngestJob) -> None:
        """Take a new contract. A halted topic is retried under it, unless only the retention of the log changed.

        Another schema may accept what the earlier one rejected.
        """
        self.outdated = False
        if job == self.job.model_copy(update={key: getattr(job, key) for key in _OF_LOG}):
            self.job = job
            return
        if job.record_schema != self.job.record_schema:
            self.recent = Recent(new_schema=True)
            self.reading.schema = None
        if job.record_schema.subjects != self.job.record_schema.subjects:
            self.reading.writers.clear()
            self.reading.key_writers.clear()
        if job.quality_rules != self.job.quality_rules:
            unchanged = {rule.name for rule in job.quality_rules if rule in self.job.quality_rules}
            self.totals.failed_rules = {name: n for name, n in self.totals.failed_rules.items() if name in unchanged}
        if job.publish != self.job.publish:
            self.publishing = Publishing()
        self.job, self.halted = job, None
        self.prepared = False
        self.attempts.failures, self.attempts.next_at = 0, 0.0
