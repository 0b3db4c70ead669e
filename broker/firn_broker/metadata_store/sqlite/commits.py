"""The transaction of a commit in SQLite: it assigns offsets to batches, and stores batch ranges and producers.

`metadata_store.idempotence` judges the batches of idempotent producers. ``commit_wal`` in
`metadata_store.postgres.migrations` does the same in PL/pgSQL for PostgreSQL.
"""

import json

from kio.schema.errors import ErrorCode

from firn_broker.log_types import RANGE_BYTES, BatchEntry, BatchOutcome, Partition
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.idempotence import KnownBatch, ProducerState
from firn_broker.metadata_store.sqlite.database import Database


class PartitionLog:
    """A partition inside one commit.

    Offsets continue from its high watermark; batches that lie together become one range.
    """

    __slots__ = ("added", "hw", "id", "producers", "ranges", "start", "touched")

    def __init__(self, id: int, start: int, hw: int) -> None:
        self.id = id
        self.start = start
        self.hw = hw
        self.added = 0
        self.ranges: list[tuple[int, int, int, int, int, int]] = []
        self.producers: dict[int, ProducerState | None] = {}
        self.touched: set[int] = set()

    def append(self, entry: BatchEntry, append_ms: int) -> int:
        """Append a batch and return its base offset."""
        newest = append_ms if entry.append_time else entry.max_timestamp
        position, length, base = entry.position, entry.length, self.hw
        self.hw += entry.records
        self.added += length
        if self.ranges:
            first, _, start, size, before, at = self.ranges[-1]
            if start + size == position and at == append_ms and size + length <= RANGE_BYTES:
                self.ranges[-1] = (first, self.hw - 1, start, size + length, max(before, newest), at)
                return base
        self.ranges.append((base, self.hw - 1, position, length, newest, append_ms))
        return base


def read_producer(database: Database, log: int, pid: int) -> ProducerState | None:
    """Read the state of a producer inside a transaction; None for an unknown one."""
    row = database.row("SELECT epoch, batches FROM producer WHERE log=? AND pid=?", log, pid)
    return ProducerState(row[0], [KnownBatch(*batch) for batch in json.loads(row[1])]) if row else None


def may_be_forgotten(database: Database, entry: BatchEntry) -> bool:
    """Return whether the state of a batch's producer may have been forgotten."""
    row = database.row(
        "SELECT 1 FROM topic JOIN forgotten_producer f ON f.topic=topic.name WHERE id=? AND pid>=?",
        entry.partition.topic.bytes, entry.producer_id,
    )  # fmt: skip
    return row is not None


def read_log(database: Database, partition: Partition) -> PartitionLog | None:
    """Read a partition's log inside a transaction; None for one that does not exist."""
    row = database.row(
        "SELECT id, log_start, hw FROM log WHERE topic_id=? AND part=? AND NOT deleted",
        partition.topic.bytes, partition.index,
    )  # fmt: skip
    return PartitionLog(*row) if row else None


class Appends:
    """All that one commit appends."""

    def __init__(self, database: Database, now_ms: int, *, repair: bool = False) -> None:
        self._database = database
        self._now_ms = now_ms
        self._repair = repair
        """True if no client sends a rejected batch again."""
        self._logs: dict[Partition, PartitionLog | None] = {}

    def append(self, entry: BatchEntry) -> BatchOutcome:
        """Assign offsets to one batch, or reject it."""
        log = self._log(entry.partition)
        if log is None:
            return BatchOutcome(ErrorCode.unknown_topic_or_partition)
        append_ms = self._now_ms if entry.append_time else -1
        if entry.producer_id < 0:
            return BatchOutcome(ErrorCode.none, log.append(entry, append_ms), append_ms, log.start)
        producer = self._producer(log, entry.producer_id)
        verdict = idempotence.judge(
            producer, entry.producer_epoch, entry.base_sequence, entry.records,
            lambda: self._repair or may_be_forgotten(self._database, entry),
        )  # fmt: skip
        if isinstance(verdict, KnownBatch):
            return BatchOutcome(ErrorCode.none, verdict.base_offset, verdict.append_ms, log.start, duplicate=True)
        if self._repair and verdict is idempotence.HELD:
            verdict = None
        if self._repair and verdict is not None:
            return BatchOutcome(ErrorCode.none, log.append(entry, append_ms), append_ms, log.start)
        if verdict is idempotence.HELD:
            log.producers[entry.producer_id] = idempotence.hold(producer, entry.producer_epoch, entry.base_sequence)
            log.touched.add(entry.producer_id)
        if verdict is not None:
            return BatchOutcome(verdict, log_start=log.start)
        base = log.append(entry, append_ms)
        log.producers[entry.producer_id] = idempotence.remember(
            producer, entry.producer_epoch, entry.base_sequence, entry.records, base, append_ms
        )
        log.touched.add(entry.producer_id)
        return BatchOutcome(ErrorCode.none, base, append_ms, log.start)

    def _log(self, partition: Partition) -> PartitionLog | None:
        if partition not in self._logs:
            self._logs[partition] = read_log(self._database, partition)
        return self._logs[partition]

    def _producer(self, log: PartitionLog, pid: int) -> ProducerState | None:
        if pid not in log.producers:
            log.producers[pid] = read_producer(self._database, log.id, pid)
        return log.producers[pid]

    def store(self, wal: int) -> int:
        """Write what was appended from the object with row id ``wal``; return its number of batch ranges."""
        ranges = 0
        for log in self._logs.values():
            if log is not None and (log.ranges or log.touched):
                ranges += len(log.ranges)
                self._store(log, wal)
        return ranges

    def _store(self, log: PartitionLog, wal: int) -> None:
        connection = self._database.connection
        connection.execute("UPDATE log SET hw=?, bytes=bytes+? WHERE id=?", (log.hw, log.added, log.id))
        connection.executemany(
            "INSERT INTO run VALUES (?,?,?,?,?,?,?,?)",
            [(log.id, last, base, wal, pos, size, ts, at) for base, last, pos, size, ts, at in log.ranges],
        )
        touched = ((pid, state) for pid in log.touched if (state := log.producers[pid]) is not None)
        connection.executemany(
            "INSERT OR REPLACE INTO producer VALUES (?,?,?,?,?)",
            [(log.id, pid, state.epoch, json.dumps(state.batches), self._now_ms) for pid, state in touched],
        )
