"""One topic as the driver knows it: what it has to do, how far it is, what is in its way."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from firn.model import names
from firn.model.conditions import Reason
from firn.model.errors import FencedError, FirnError, NotReadyError
from firn.model.jobs import IngestJob
from firn.model.progress import HaltedAt, Offsets, TopicProgress
from firn_spark.kafka.admin import TopicInfo
from firn_spark.tables.commits import Landed
from firn_spark.worker.data_files import TableSpec

FIRST_RECORD_BYTES = 1024.0
"""Assumed size of a record before any was read."""
FIRST_ROUND_SECONDS = 5.0
"""Assumed length of a round before there was any: the first ones wait for Python workers and for Java's compiler."""
BACKOFF_FIRST = 1.0
BACKOFF_MOST = 60.0
NOT_READY_MOST = 5.0
"""What is on its way is looked for again sooner."""
SEEN_MOST = 128
FENCED_QUIET = 300.0
"""Seconds after which a fenced topic is looked at again: its other writer may be gone."""


@dataclass(slots=True, eq=False)
class Topic:
    """State of one topic. Belongs to one worker while ``busy``; the watcher of its brokers sets what is under "Log", and takes
    ``prepared`` back when the topic is another one."""

    job: IngestJob
    # Log
    live: TopicInfo | None = None
    live_error: FirnError | None = None
    described_at: float | None = None
    checked_at: float | None = None
    """When its brokers were asked last for its id and partitions, and for its ends (monotonic seconds)."""
    ends: Offsets = field(default_factory=dict)
    ends_at: float = 0.0
    """When ``ends`` were asked for (monotonic seconds)."""
    seen: tuple[tuple[float, Offsets], ...] = ()
    """Earlier ends, by the last time they were the ends: from the newest on that has landed wholly, thinned to `SEEN_MOST`."""
    seen_since: float | None = None
    """When the log was looked at first."""
    cut_back: dict[int, int] = field(default_factory=dict)
    """Partition -> lowest end that was seen below what had landed: its brokers lost records that the table has."""
    # Table
    table: Any = None
    table_uuid: str | None = None
    table_location: str | None = None
    table_error: FirnError | None = None
    spec: TableSpec | None = None
    table_ids: tuple[int, int, int] | None = None
    """Ids of schema, partition spec and sort order that ``spec`` was made from."""
    landed: Landed | None = None
    epoch: int | None = None
    # Dead letters
    dead_table: Any = None
    dead_spec: TableSpec | None = None
    dead_landed: Landed | None = None
    claimed: bool = False
    exclude: Mapping[int, frozenset[int]] = field(default_factory=dict)
    ingested_at: int = 0
    """The time that its running round writes into dead letters; microseconds since 1970."""
    # Reading
    position: Offsets = field(default_factory=dict)
    """Next offset to read: what landed, or further where nothing was found to land."""
    reading: TopicInfo | None = None
    """The topic that ``position`` is about. ``live`` may be another one by the time a round commits."""
    empty_since: float | None = None
    empty_records: int = 0
    lost: int = 0
    client_reader: bool = False
    record_bytes: float = FIRST_RECORD_BYTES
    largest_bytes: int | None = None
    """The largest record of late, fading; None before any was read."""
    round_seconds: float = FIRST_ROUND_SECONDS
    """How long rounds took of late from when they were due, waiting for their turn included."""
    # Scheduling
    busy: bool = False
    removed: bool = False
    prepared: bool = False
    failures: int = 0
    next_attempt: float = 0.0
    served_at: float = 0.0
    """When its last round ended (monotonic seconds)."""
    error: FirnError | None = None
    round_failed: bool = False
    """The last failure was a round's: only a round can show that it is over."""
    fenced: bool = False
    halted: HaltedAt | None = None
    # Totals of this process
    rows: int = 0
    dead: int = 0
    skipped: int = 0
    last_commit: float | None = None
    backfilling: bool = False

    @property
    def key(self) -> tuple[str, str]:
        """What it depends on: topics with the same key can share a Spark job."""
        return (self.job.profile, self.job.table.catalog)

    @property
    def topic_id(self) -> str:
        """Kafka's id of the topic that ``position`` is about."""
        assert self.reading is not None
        return self.reading.topic_id

    @property
    def landed_offsets(self) -> Offsets:
        """Offsets of the newest ingestion commit, empty if that was of an earlier topic of the same name."""
        if self.landed is None or self.landed.topic_id != self.topic_id:
            return {}
        return self.landed.offsets

    @property
    def active(self) -> bool:
        """True while records of it should land."""
        return not (self.job.suspended or self.removed or self.fenced or self.halted is not None)

    def behind(self) -> dict[int, tuple[int, int]]:
        """Partition -> (next offset to read, end) where records wait."""
        return {
            part: (self.position[part], end) for part, end in self.ends.items() if end > self.position.get(part, end)
        }

    @property
    def measured(self) -> bool:
        """True while ``ends`` and ``position`` are known and of the same topic: only then is it known what waits."""
        same = self.live is not None and self.reading is not None and self.live.topic_id == self.reading.topic_id
        return same and bool(self.ends)

    @property
    def lag_records(self) -> int:
        """Offsets between what was read and the end; aborted and compacted ones count too."""
        return sum(end - start for start, end in self.behind().values())

    @property
    def lag_bytes(self) -> float:
        """An estimate from the records seen so far."""
        return self.lag_records * self.record_bytes

    def observe(self, now: float, ends: Offsets) -> None:
        """Takes the ends that were asked for at ``now``; an answer older than the newest is passed over."""
        if now < self.ends_at:
            return
        self.ends, self.ends_at = ends, now
        if self.seen_since is None:
            self.seen_since = now
        earlier = self.seen[:-1] if self.seen and self.seen[-1][1] == ends else self.seen
        seen = (*earlier, (now, ends))
        if self.measured:
            landed = [index for index, (_, then) in enumerate(seen) if self._covered(then)]
            seen = seen[landed[-1] :] if landed else seen
        self.seen = (*seen[:-1:2], seen[-1]) if len(seen) > SEEN_MOST else seen
        if self.measured:
            for part, end in ends.items():
                if end < self.position.get(part, 0):
                    self.cut_back[part] = min(end, self.cut_back.get(part, end))

    def forget_log(self) -> None:
        """The log is another one, or gone."""
        self.ends, self.ends_at, self.seen, self.seen_since, self.cut_back = {}, 0.0, (), None, {}

    def _covered(self, ends: Offsets) -> bool:
        return all(end <= self.position.get(part, end) for part, end in ends.items())

    @property
    def waiting_since(self) -> float | None:
        """No record that waits can have arrived before this time (monotonic seconds), as far as is known; None while none waits. Of what
        waited at the first look nothing is known: it is due at once."""
        if not self.lag_records:
            return None
        landed = [moment for moment, then in self.seen if self._covered(then)]
        if landed:
            return landed[-1]
        return (self.ends_at if self.seen_since is None else self.seen_since) - self.job.freshness_ms / 1000

    def took(self, seconds: float) -> None:
        """A round ended so long after it was due: the next one starts early enough for one like it. Slow ones count at once, quick ones
        little by little."""
        known = max(seconds, 0.9 * self.round_seconds + 0.1 * seconds)
        self.round_seconds = min(known, self.job.freshness_ms / 2000)

    def due(self, bytes_per_commit: int) -> float | None:
        """When its next round should start (monotonic seconds); None where nothing waits."""
        if not self.active or not self.prepared or not self.lag_records:
            return None
        due = self.waiting_since or 0.0
        if self.lag_bytes < bytes_per_commit:
            freshness = self.job.freshness_ms / 1000
            due += freshness - min(freshness / 2, 1.0 + 1.5 * self.round_seconds)
        return max(due, self.next_attempt)

    def succeeded(self) -> None:
        """What failed before is over."""
        self.failures, self.next_attempt, self.error, self.round_failed = 0, 0.0, None, False

    def was_prepared(self, *, wholly: bool = True) -> None:
        """A preparation came to its end; the failure of a round is over with it only where no record waits for another. Not ``wholly``: the
        table is there, and what is wrong with the brokers is told now, not what once was with the catalog."""
        self.prepared = wholly
        if not (self.round_failed and (self.lag_records or not wholly)):
            self.succeeded()

    def failed(self, error: FirnError, now: float) -> None:
        """Backs off and forgets what was read of the tables, so that the next attempt starts from what they say then."""
        self.failures += 1
        most = NOT_READY_MOST if isinstance(error, NotReadyError) else BACKOFF_MOST
        delay = min(most, BACKOFF_FIRST * 2 ** min(self.failures - 1, 12))
        if isinstance(error, FencedError):
            self.fenced, delay = True, FENCED_QUIET
        self.next_attempt = now + delay * random.uniform(0.8, 1.2)
        self.error, self.round_failed = error, self.prepared
        self.reset()

    def reset(self) -> None:
        """The next round prepares again. The epoch stays: it is this process's."""
        self.prepared = False
        self.claimed = False
        self.table = self.dead_table = self.spec = self.dead_spec = None

    def accept(self, job: IngestJob) -> None:
        """Takes a new contract. A halted topic tries again under it."""
        self.job, self.halted = job, None
        self.prepared = False
        self.failures, self.next_attempt = 0, 0.0

    def progress(self, now: float, wall: float) -> TopicProgress:
        """What is told of it; ``now`` monotonic, ``wall`` Unix seconds."""
        lag = self.lag_records if self.measured else None
        error = self.error or self.live_error
        state, reason = "Starting", "Starting"
        if self.job.suspended:
            state, reason = "Suspended", Reason.SUSPENDED
        elif self.halted is not None:
            state, reason = "Halted", Reason.BAD_RECORD_HALT
        elif self.fenced:
            state, reason = "Fenced", Reason.FENCED
        elif error is not None:
            state, reason = "BackingOff", error.reason
        elif self.prepared:
            state, reason = ("Running", Reason.RUNNING) if lag else ("CaughtUp", Reason.CAUGHT_UP)
        message = str(error) if error is not None else ""
        if self.halted is not None:
            message = f"partition {self.halted.partition}, offset {self.halted.offset}: {self.halted.code} {self.halted.detail}".rstrip()
        elif not message and self.cut_back:
            parts = ", ".join(f"partition {part} to offset {end}" for part, end in sorted(self.cut_back.items()))
            message = (
                f"the log was cut back below what had landed ({parts}): its brokers lost records that the table has; "
                "what is written anew at these offsets is not taken up"
            )
        elif not message and self.lost:
            message = f"the log no longer had {self.lost} offsets when they were due: retention deleted them before they landed"
        return TopicProgress(
            uid=self.job.uid,
            generation=self.job.generation,
            state=state,
            reason=reason,
            message=message,
            failures=self.failures,
            next_attempt=wall + (self.next_attempt - now) if self.next_attempt > now else None,
            topic_id=self.live.topic_id if self.live is not None else None,
            table_uuid=self.table_uuid,
            table_location=self.table_location,
            table_ready=self.table_uuid is not None and self.table_error is None,
            table_reason=self.table_error.reason if self.table_error is not None else "",
            table_message=str(self.table_error) if self.table_error is not None else "",
            last_commit=self.last_commit,
            lag_records=lag,
            lag_seconds=None if lag is None else max(0.0, now - (self.waiting_since or now)),
            backfilling=self.backfilling,
            rows=self.rows,
            dead_letters=self.dead,
            skipped=self.skipped,
            dead_letter_table=f"{self.job.table.identifier}{names.DEAD_LETTER_SUFFIX}"
            if self.dead_landed is not None
            else None,
            halted_at=self.halted,
        )
