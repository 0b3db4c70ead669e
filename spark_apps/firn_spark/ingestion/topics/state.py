"""Parts of a topic's state: its log, its table, its dead letters, its reading, its attempts, its totals."""

import datetime
import math
import random
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from firn.model.errors import FencedError, FirnError, NotReadyError
from firn.model.jobs import Epoch, RecordSchema, Rename, WriterSchema
from firn.model.progress import (
    HistoryProgress,
    LeaderEpochs,
    Look,
    Losses,
    Offsets,
    Proposal,
    PublishProgress,
    RecentRecords,
    SuspiciousTimes,
)
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.branches.statistics import Figures
from firn_spark.tables.commits import Landed
from firn_spark.worker.data_files import TableSpec
from firn_spark.worker.fetched import Identities
from firn_spark.worker.formats.format import Times
from firn_spark.worker.formats.writer_schemas import Reference, Refusal

FIRST_RECORD_BYTES = 1024.0
"""Assumed size of a record before any was read."""
FIRST_ROUND_SECONDS = 5.0
"""Assumed length of a round before there was any: the first rounds wait for Python workers and for Java's compiler."""
BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
NOT_READY_MOST = 5.0
"""Longest backoff of a topic that is not ready yet, because a dependency is starting."""
REFUSED_SECONDS = 60.0
"""Seconds until the driver asks again for a schema that the registry did not have."""
MOST_SCHEMAS = 1000
"""Schemas of values, and of keys, that the driver keeps for a topic when a round needs others."""
SEEN_MOST = 128
RECENT_MOST = 1000
"""Number of newest records that count as recent."""
FENCED_LOOK = 5.0
"""Seconds between two looks of a fenced topic at its table."""
FENCED_QUIET = (10.0, 30.0)
"""Least and most seconds without a commit of the other driver, although records wait, before a topic that was fenced
for the first time is taken back. In between, the time is twice the freshness."""
FENCED_IDLE = 40.0
"""Seconds without a commit of the other driver after which a topic is reported as if it was not fenced. It is taken back when
records wait, not before: a driver that is idle too would then be fenced by the next record."""
FENCED_IDLE_LOOK = 30.0
"""Seconds between two looks after `FENCED_IDLE`, because idle topics may stay so for days."""
FENCED_QUIET_MOST = 40.0
"""Longest quiet time of a topic that is fenced again and again. With the looks and a round, its records land within
60 seconds after the other driver stops."""
FENCED_MEMORY = 3600.0
"""Seconds without a fence after which earlier fences no longer count."""
CONTESTED_FRESHNESS = 15.0
"""Longest freshness, in seconds, of a contested topic. Its commits are the only sign for the other driver that this one
is alive, so they must be more frequent than the quiet time allows."""
CONTESTED_SHARE = 16
"""Rounds of a contested topic may become smaller by this factor, so that they end within the other's quiet time."""


@dataclass(slots=True)
class Log:
    """The topic's log as its brokers describe it. The watcher of the brokers sets it."""

    live: TopicInfo | None = None
    error: FirnError | None = None
    described_at: float | None = None
    """When the brokers were last asked for id and partitions (monotonic seconds)."""
    checked_at: float | None = None
    """When the brokers were last asked for the ends (monotonic seconds)."""
    ends: Offsets = field(default_factory=dict)
    ends_at: float = 0.0
    """When ``ends`` were asked for (monotonic seconds)."""
    seen: tuple[tuple[float, Offsets], ...] = ()
    """Earlier ends with the last time each was current, from the newest that has landed completely. Thinned to
    `SEEN_MOST`."""
    seen_since: float | None = None
    """When the ends were first asked for (monotonic seconds)."""
    oldest_at: float | None = None
    """When the oldest record was written that waited before ``seen_since`` (monotonic seconds, at most a quarter of its
    age too early), None if it is not known."""
    aged_at: float | None = None
    """When ``oldest_at`` was asked for last (monotonic seconds)."""
    cut_back: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition -> lowest end, and the position above it: the brokers lost records that the table has. A later leader
    may have written other records with these offsets."""
    told: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The part of ``cut_back`` that a commit has recorded."""

    def forget(self) -> None:
        """Forget the ends: the log is another log, or no longer exists."""
        self.ends, self.ends_at, self.seen, self.seen_since, self.cut_back = {}, 0.0, (), None, {}
        self.told, self.oldest_at, self.aged_at = {}, None, None

    def forget_cuts(self) -> None:
        """Forget where the log was cut back, because another table has other records."""
        self.cut_back, self.told = {}, {}

    def limit_cuts(self, position: Offsets) -> None:
        """Keep the cuts of records before ``position``: the table no longer has the others, and they land again."""
        for cuts in (self.cut_back, self.told):
            for part, (low, high) in list(cuts.items()):
                end = min(high, position.get(part, 0))
                if low < end:
                    cuts[part] = (low, end)
                else:
                    del cuts[part]

    def observe(self, now: float, ends: Offsets, position: Offsets | None) -> None:
        """Store the ends that were asked for at ``now``. An answer older than the newest is ignored.

        ``position`` holds the next offsets to read; None while they belong to another topic of the same name.
        """
        if now < self.ends_at:
            return
        self.ends, self.ends_at = ends, now
        if self.seen_since is None:
            self.seen_since = now
        earlier = self.seen[:-1] if self.seen and self.seen[-1][1] == ends else self.seen
        seen = (*earlier, (now, ends))
        if position is not None and ends:
            landed = [index for index, (_, then) in enumerate(seen) if covered(then, position)]
            seen = seen[landed[-1] :] if landed else seen
            for part, end in ends.items():
                low, high = self.told.get(part, (0, 0))
                if end < position.get(part, 0) and not low <= end < position[part] <= high:
                    self.lose(part, end, position[part])
        self.seen = (*seen[:-1:2], seen[-1]) if len(seen) > SEEN_MOST else seen

    def lose(self, part: int, end: int, position: int) -> None:
        """Record that the brokers lost the records from ``end`` to ``position``, which the table has."""
        low, high = self.cut_back.get(part, (end, position))
        self.cut_back[part] = (min(end, low), max(high, position))


def covered(ends: Offsets, position: Offsets) -> bool:
    """Return True if everything before ``ends`` was read."""
    for part, end in ends.items():  # noqa: SIM110 - `all` takes twice the time, and the driver asks thousands of times a second.
        if end > position.get(part, end):
            return False
    return True


@dataclass(slots=True)
class Table:
    """The topic's table. ``java`` is Iceberg's object, None until the topic is prepared."""

    java: Any = None
    uuid: str | None = None
    location: str | None = None
    error: FirnError | None = None
    spec: TableSpec | None = None
    ids: tuple[int, int, int] | None = None
    """Ids of schema, partition spec and sort order that ``spec`` was made from."""
    schema_id: int | None = None
    """Id of the schema with which the columns of the topic agreed last."""
    following: tuple[Rename, ...] = ()
    """Renames from all earlier names of the table's columns."""
    landed: Landed | None = None
    losses: Losses | None = None
    """Losses that the table records; None until it was read."""
    proposed: Proposal | None = None
    """Changes that the schemas of records need, and that wait for an approval."""
    look: Look | None = None
    """Which topics of a shared table the brokers have. The next commit records it."""


@dataclass(slots=True)
class DeadLetters:
    """The topic's dead-letter table, and the records that must not become rows because they are in it."""

    java: Any = None
    spec: TableSpec | None = None
    landed: Landed | None = None
    claimed: bool = False
    unsettled: bool = False
    """True if a commit of dead letters has begun whose success is not known. The catalog may still complete it."""
    exclude: Identities = field(default_factory=dict)


@dataclass(slots=True)
class Writers:
    """The schemas of a topic in a schema registry, of its values or of its keys."""

    schemas: dict[Reference, WriterSchema | Refusal | int] = field(default_factory=dict)
    """Schema id -> the schema, or why records with this id are bad records. GUID -> the id. In the order in which the driver got them."""
    incompatible: dict[Reference, Refusal] = field(default_factory=dict)
    """Schema id -> why the table cannot hold its values, if the contract has ``incompatible: DeadLetter``."""
    refused_at: dict[Reference, float] = field(default_factory=dict)
    """A schema that the registry does not have -> when a round first used this answer (monotonic seconds)."""
    needed: set[Reference] = field(default_factory=set)
    """Schemas that tasks need, and that the driver has to request."""

    def known(self, now: float) -> dict[Reference, WriterSchema | Refusal | int]:
        """Return the schemas for the tasks of a round at ``now`` (monotonic seconds).

        The registry may have a missing schema by now. So refusals are left out after `REFUSED_SECONDS`, and the driver asks again.
        """
        known = {
            reference: each
            for reference, each in self.schemas.items()
            if not isinstance(each, Refusal) or now - self.refused_at.setdefault(reference, now) <= REFUSED_SECONDS
        }
        return known | self.incompatible

    def keep_newest(self, most: int) -> None:
        """Forget all but ``most`` schemas, the oldest first. If a task needs one of them, the driver requests it again."""
        for reference in list(self.schemas)[:-most]:
            del self.schemas[reference]
            self.refused_at.pop(reference, None)

    def clear(self) -> None:
        """Forget all schemas, for example after a change of the subject."""
        self.schemas, self.incompatible = {}, {}
        self.refused_at.clear()
        self.needed.clear()


@dataclass(slots=True)
class Reading:
    """Position of the topic, and size and duration of its rounds."""

    position: Offsets = field(default_factory=dict)
    """Next offset to read: the landed offset, or a later one if there was nothing to land."""
    leader_epochs: LeaderEpochs = field(default_factory=dict)
    """Epochs of leaders that had every record before ``position``. A partition without one is not compared."""
    until: Offsets | None = None
    """Offsets up to which the present round reads, because other tables of the topic wait there."""
    held: int = 0
    """Rounds of other tables of the topic in a row for which this table waited."""
    topic: TopicInfo | None = None
    """The topic that ``position`` belongs to. `Log.live` may be another topic by the time a round commits."""
    empty_since: float | None = None
    empty_records: int = 0
    """Offsets read since the last commit in which there was nothing to land."""
    log_starts: Offsets = field(default_factory=dict)
    """First offset of the log by partition, when the last round was planned."""
    deleted: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Partition -> offsets that the log deleted before they landed, which no commit has recorded yet."""
    uncommitted: int = 0
    """Offsets whose files are written and whose commit is under way."""
    spark_source: bool = False
    """True if the log has messages that only Spark's own source reads."""
    record_bytes: float = FIRST_RECORD_BYTES
    measured: bool = False
    """True if a round has read records, so that ``record_bytes`` is no guess."""
    round_seconds: float = FIRST_ROUND_SECONDS
    """Duration of recent rounds from the time when they were due, including the wait for a worker."""
    schema: RecordSchema | None = None
    """The schema of a topic with a schema registry, with the columns of all schemas of ``writers`` that the table can hold. None before the
    first preparation, and without a registry."""
    writers: Writers = field(default_factory=Writers)
    """The schemas that values name."""
    key_writers: Writers = field(default_factory=Writers)
    """The schemas that keys name."""
    repeats: int = 0
    """Rounds in a row that needed further schemas."""
    older: Offsets | None = None
    """Ends of the log at the first preparation of a table without a commit. Records before them are older than the
    table."""

    def need(self, of_values: Set[Reference], of_keys: Set[Reference]) -> None:
        """Let the next preparation request the schemas that a round needs."""
        if not self.repeats:
            # Only before the first repeat: the repeated round needs all schemas that it gets from now on.
            self.writers.keep_newest(MOST_SCHEMAS)
            self.key_writers.keep_newest(MOST_SCHEMAS)
        self.writers.needed |= of_values
        self.key_writers.needed |= of_keys
        self.repeats += 1

    def measure(self, size: int, records: int) -> None:
        """Estimate the size of later records from ``records`` that have ``size`` bytes of keys and values."""
        if records:
            self.record_bytes, self.measured = max(16.0, size / records + 32), True


@dataclass(slots=True)
class Fence:
    """The commits of the other driver that fenced a topic, as the topic sees them."""

    times: int = 0
    """How often the topic was fenced in a row."""
    lifted_at: float | None = None
    """When the topic was taken back last (monotonic seconds)."""
    seen: object = None
    """The newest commit and claim of the table."""
    seen_since: float = 0.0
    """Since when the table has them (monotonic seconds)."""
    lost_since: float | None = None
    """Since when the log has lost offsets that no commit has recorded (monotonic seconds)."""

    def fell(self, now: float) -> None:
        """Record that another driver took the topic at ``now`` (monotonic seconds)."""
        forgotten = self.lifted_at is not None and now - self.lifted_at >= FENCED_MEMORY
        self.times = 1 if forgotten else self.times + 1
        self.seen, self.seen_since, self.lost_since = None, now, None

    def quiet(self, freshness: float) -> float:
        """Return the quiet time of a topic with this freshness, in seconds."""
        least, most = FENCED_QUIET
        first = min(most, max(least, 2 * freshness))
        return float(min(first * 2 ** min(self.times - 1, 12), FENCED_QUIET_MOST))

    def contested(self, at: float) -> bool:
        """Return True if another live driver probably waits for the topic at ``at`` (monotonic seconds): each of the
        two has fenced the other."""
        return self.times > 1 and self.lifted_at is not None and at - self.lifted_at < FENCED_MEMORY

    def share(self, now: float) -> float:
        """Return the part of its usual bytes that a round of the topic may read."""
        return 1 / min(CONTESTED_SHARE, 2 ** (self.times - 1)) if self.contested(now) else 1.0

    def lifts(self, now: float, seen: object, waiting_since: float | None, freshness: float) -> bool:
        """Return True if the other driver has not moved the table for the quiet time, although records or losses wait.

        ``seen`` identifies the newest commit and claim. ``waiting_since``: when the oldest of the two came.
        """
        if seen != self.seen:
            self.seen, self.seen_since = seen, now
        return waiting_since is not None and now >= self._lifts_at(waiting_since, freshness)

    def idle(self, now: float) -> bool:
        """Return True if the other driver shows no sign of life at ``now`` (monotonic seconds)."""
        return self.seen is not None and now - self.seen_since >= FENCED_IDLE

    def next_look(self, now: float, waiting_since: float | None, freshness: float) -> float:
        """Return when to look at the table again (monotonic seconds)."""
        latest = now + (FENCED_IDLE_LOOK if self.idle(now) else FENCED_LOOK)
        return latest if waiting_since is None else max(now, min(latest, self._lifts_at(waiting_since, freshness)))

    def _lifts_at(self, waiting_since: float, freshness: float) -> float:
        return max(self.seen_since, waiting_since) + self.quiet(freshness)


@dataclass(slots=True)
class Backoff:
    """The time of the next attempt after failures."""

    failures: int = 0
    """Failures since the last success."""
    next_at: float = 0.0
    """No attempt is made before this time (monotonic seconds)."""

    def reset(self) -> None:
        """Forget earlier failures."""
        self.failures, self.next_at = 0, 0.0

    def delay(self, now: float, most: float = BACKOFF_MOST) -> None:
        """Count a failure, and put the next attempt off: at most ``most`` seconds, and a fifth more or less."""
        self.failures += 1
        self.wait(now, min(most, BACKOFF_FIRST * 2 ** min(self.failures - 1, 12)))

    def wait(self, now: float, seconds: float) -> None:
        """Put the next attempt off for about ``seconds``, so that topics do not try at the same time."""
        self.next_at = now + seconds * random.uniform(0.8, 1.2)


@dataclass(slots=True)
class Attempts(Backoff):
    """Failures of the topic and its backoff."""

    total: int = 0
    """Failures since the process started."""
    error: FirnError | None = None
    round_failed: bool = False
    """True if the last failure was a round's: only a round can show that the cause is gone."""

    def succeeded(self) -> None:
        """Forget earlier failures."""
        self.reset()
        self.error, self.round_failed = None, False

    def failed(self, error: FirnError, now: float, *, in_round: bool) -> None:
        """Count a failure and back off."""
        self.total += 1
        self.delay(now, NOT_READY_MOST if isinstance(error, NotReadyError) else BACKOFF_MOST)
        if isinstance(error, FencedError):
            self.wait(now, FENCED_LOOK)
        self.error, self.round_failed = error, in_round


@dataclass(slots=True)
class Share:
    """How many of the newest `RECENT_MOST` things are of one kind. The things of a round count as mixed evenly."""

    rounds: deque[tuple[float, float]] = field(default_factory=deque)
    """For each round: all things, and those of the kind."""

    def add(self, count: int, of_kind: int) -> None:
        """Add a round."""
        self.rounds.append((count, of_kind))
        surplus = sum(count for count, _ in self.rounds) - RECENT_MOST
        while surplus > 0:
            oldest, kind = self.rounds.popleft()
            if oldest > surplus:
                kept = oldest - surplus
                self.rounds.appendleft((kept, kind * kept / oldest))
            surplus -= oldest

    @property
    def count(self) -> int:
        """All recent things."""
        return round(sum(count for count, _ in self.rounds))

    @property
    def of_kind(self) -> int:
        """Recent things of the kind. A part of a thing counts as one."""
        return math.ceil(sum(kind for _, kind in self.rounds) - 1e-9)


@dataclass(slots=True)
class Recent:
    """The newest records: how many were rejected, and the times in them."""

    rejected: Share = field(default_factory=Share)
    code: str = ""
    path: str = ""
    new_schema: bool = False
    """True if they are the records since a change of the schema."""
    times: dict[str, tuple[Share, Epoch, int]] = field(default_factory=dict)
    """Column -> share of times that need another epoch, that epoch, and a sample (decoded microseconds since 1970)."""
    changes: int = 0
    """Number of changes so far. While it is the same, `report` returns the same."""

    def add(self, accepted: int, rejected: int, code: str, path: str) -> None:
        """Add a round. ``code`` and ``path`` describe one of the rejected records."""
        if not accepted + rejected:
            return
        if rejected:
            self.code, self.path = code, path
        self.rejected.add(accepted + rejected, rejected)
        self.changes += 1

    def add_times(self, times: Mapping[str, Times]) -> None:
        """Add the times of a round, by column."""
        for column, counts in times.items():
            share, epoch, sample = self.times.get(column) or (Share(), counts.epoch, counts.sample)
            if counts.wrong:
                epoch, sample = counts.epoch, counts.sample
            share.add(counts.values, counts.wrong)
            self.times[column] = (share, epoch, sample)
        self.changes += 1

    def report(self) -> RecentRecords | None:
        """Return the counts, or None if no record is known."""
        records, rejected = self.rejected.count, self.rejected.of_kind
        if not records:
            return None
        suspicious = next(
            (
                SuspiciousTimes(column=column, epoch=epoch, sample=_year_and_day(sample))
                for column, (share, epoch, sample) in self.times.items()
                if 2 * share.of_kind > share.count
            ),
            None,
        )
        cause = {"code": self.code, "path": self.path} if rejected else {}
        return RecentRecords(records=records, rejected=rejected, times=suspicious, new_schema=self.new_schema, **cause)


def _year_and_day(micros: int) -> str:
    """Return a day of the years 1 to 9999 as a date, else the year alone, roughly."""
    days = micros // 86_400_000_000
    try:
        return (datetime.date(1970, 1, 1) + datetime.timedelta(days)).isoformat()
    except OverflowError:
        return f"the year {1970 + int(days / 365.2425)}"


@dataclass(frozen=True, slots=True)
class LookedAt:
    """The figures of the rows from main up to a snapshot. Later snapshots only add to them."""

    main: int | None
    """Snapshot of main then. None: main had none."""
    until: int
    key: Hashable
    """The columns that were read."""
    figures: Figures


@dataclass(slots=True)
class Publishing:
    """Main of the table, which follows the branch on which rows land."""

    next_at: float = 0.0
    """When to look at the rows that main lacks (monotonic seconds)."""
    backoff: Backoff = field(default_factory=Backoff)
    """Of looks that failed. A look comes before rounds, so one that always fails would keep rows from landing."""
    report: PublishProgress | None = None
    failures: Mapping[str, int] = field(default_factory=dict)
    """Check -> how often it failed since the process started. Replaced, not changed."""
    looked_at: LookedAt | None = None
    """The rows that main lacks, as far as they were read. None after a restart: they are then read again."""

    def count(self, failed: Iterable[str]) -> None:
        """Count checks that failed."""
        before = dict(self.failures)
        for name in failed:
            before[name] = before.get(name, 0) + 1
        self.failures = before

    def landed(self, rows: int, every_ms: int, now: float) -> None:
        """Record that rows landed on the branch at ``now`` (monotonic seconds)."""
        if self.report is not None:
            state = "Waiting" if self.report.state == "Published" else self.report.state
            self.report = self.report.model_copy(update={"rows": self.report.rows + rows, "state": state})
        self.next_at = min(self.next_at, now + every_ms / 1000)


@dataclass(slots=True)
class History:
    """The data files that brokers know, for a topic whose log keeps no copy of what its table has."""

    key: tuple[str, str] = ("", "")
    """History of the contract, and Kafka's id of the topic, to which the rest belongs."""
    since: float = 0.0
    """When this process first saw them (monotonic seconds)."""
    next_at: float = 0.0
    """When to name files again (monotonic seconds)."""
    named: Offsets = field(default_factory=dict)
    """Partition -> end of the offsets that were named. Replaced, not changed."""
    named_at: float = 0.0
    """When offsets were first named, or named again (monotonic seconds)."""
    cut: bool = False
    """True if the last request had only the first of the offsets. The next one continues, and does not begin again."""
    report: HistoryProgress | None = None


@dataclass(slots=True)
class Totals:
    """Counts since the process started; ``last_commit`` is Unix seconds, and may be that of an earlier process."""

    rows: int = 0
    dead: int = 0
    skipped: int = 0
    filtered: int = 0
    failed_rules: Mapping[str, int] = field(default_factory=dict)
    """Quality rule -> records that failed it. Replaced, not changed."""
    last_commit: float | None = None
