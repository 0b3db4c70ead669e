"""The transaction of a commit in SQLite: it assigns offsets to batches, and stores batch ranges and producers.

`append_in_order` stores a plan (`metadata_store.commit_plan`) with a few statements. `Appends` takes one batch after the
other: `metadata_store.idempotence` judges those of idempotent producers. ``commit_in_order`` and ``commit_wal`` in
`metadata_store.postgres.migrations` do the same in PL/pgSQL for PostgreSQL.
"""

import json
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any

from kio.schema.errors import ErrorCode

from firn.records.record_batch import following_sequence
from firn_broker.log_types import RANGE_BYTES, BatchEntry, BatchOutcome, Partition
from firn_broker.metadata_store import idempotence
from firn_broker.metadata_store.commit_plan import CommitPlan
from firn_broker.metadata_store.idempotence import KEPT, KnownBatch, ProducerState
from firn_broker.metadata_store.sqlite.database import Database

BETWEEN = "], ["
"""The text between two batches of a producer as ``json.dumps`` writes them. A JSON decoder would take more time than the
rest of the commit."""
INSERT_RANGES = "INSERT INTO run(log, last_offset, base_offset, wal, pos, len, max_ts, append_ms) VALUES"
PORTIONS = (256, 32, 4, 1)
"""Rows that one statement reads or writes. SQLite compiles a statement for each number, and keeps it."""


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
            f"{INSERT_RANGES} (?,?,?,?,?,?,?,?)",
            [(log.id, last, base, wal, pos, size, ts, at) for base, last, pos, size, ts, at in log.ranges],
        )
        touched = ((pid, state) for pid in log.touched if (state := log.producers[pid]) is not None)
        connection.executemany(
            "INSERT OR REPLACE INTO producer VALUES (?,?,?,?,?)",
            [(log.id, pid, state.epoch, json.dumps(state.batches), self._now_ms) for pid, state in touched],
        )


def append_in_order(
    database: Database, plan: CommitPlan, wal: int, now_ms: int
) -> tuple[Sequence[int], Sequence[int]] | None:
    """Append the batches of a plan from the object with row id ``wal``.

    Return high watermarks and log starts of its partitions before the commit. Return None, and change nothing, if a
    partition does not exist or a batch is not the next one of its producer.
    """
    keys = [(topic.bytes, part) for topic, part in plan.partitions]
    found = _many(
        database,
        "SELECT topic_id, part, id, hw, log_start FROM (VALUES {}) wanted CROSS JOIN log"
        " ON topic_id=wanted.column1 AND part=wanted.column2 AND NOT deleted",
        keys,
    )
    if [row[:2] for row in found] != keys:
        return None
    _, _, logs, highs, starts = zip(*found, strict=True)
    producers = _producers_in_order(database, plan, logs, highs, now_ms)
    if producers is None:
        return None
    database.connection.executemany(
        "UPDATE log SET hw=hw+?, bytes=bytes+? WHERE id=?", zip(plan.records, plan.sizes, logs, strict=True)
    )
    ranges = []
    for log, offset, records, position, length, newest, append_time in plan.ranges:
        base = highs[log] + offset
        times = (now_ms, now_ms) if append_time else (newest, -1)
        ranges.append((logs[log], base + records - 1, base, wal, position, length, *times))
    _many(database, INSERT_RANGES + " {}", ranges)
    _many(database, "INSERT OR REPLACE INTO producer VALUES {}", producers)
    return highs, starts


def _producers_in_order(
    database: Database, plan: CommitPlan, logs: Sequence[int], highs: Sequence[int], now_ms: int
) -> list[tuple[int, int, int, str, int]] | None:
    """Return the new rows of the producers; None if a batch is not the next one of its producer."""
    keys = [(logs[log], id) for log, id, *_ in plan.producers]
    known = _many(
        database,
        "SELECT wanted.column1, wanted.column2, epoch, batches FROM (VALUES {}) wanted LEFT JOIN producer"
        " ON log=wanted.column1 AND pid=wanted.column2",
        keys,
    )
    if [row[:2] for row in known] != keys:
        return None
    rows = []
    for (log, id, epoch, sequence, added), (row, _, before, stored) in zip(plan.producers, known, strict=True):
        batches = stored[2:-2].split(BETWEEN) if before == epoch else []
        if batches:
            if _is_held(batches[0]) or not _is_next(batches[-1], sequence):
                return None
        elif sequence or (before is not None and before > epoch):
            return None
        high = highs[log]
        for first, last, offset, append_time in added:
            batches.append(f"{first}, {last}, {high + offset}, {now_ms if append_time else -1}")
        rows.append((row, id, epoch, f"[[{BETWEEN.join(batches[-KEPT:])}]]", now_ms))
    return rows


def _is_next(newest: str, sequence: int) -> bool:
    """Return whether a batch with this sequence follows the newest stored one."""
    _, last, _, _ = newest.split(", ")
    return following_sequence(int(last), 1) == sequence


def _is_held(oldest: str) -> bool:
    """Return whether the oldest stored batch only marks the sequence at which a forgotten producer may begin."""
    _, _, base, _ = oldest.split(", ")
    return base[0] == "-"


def _many(database: Database, sql: str, rows: Sequence[Sequence[Any]]) -> list[Any]:
    """Run a statement for many rows of values, and return the rows of its answers in any order."""
    answers = []
    for portion in _portions(rows):
        statement = _with_values(sql, len(portion), len(portion[0]))
        answers += database.connection.execute(statement, tuple(chain.from_iterable(portion))).fetchall()
    return answers


def _portions(rows: Sequence[Sequence[Any]]) -> Iterator[Sequence[Sequence[Any]]]:
    start = 0
    for size in PORTIONS:
        while len(rows) - start >= size:
            yield rows[start : start + size]
            start += size


@lru_cache(maxsize=64)
def _with_values(sql: str, rows: int, columns: int) -> str:
    return sql.format(",".join([f"({','.join('?' * columns)})"] * rows))
