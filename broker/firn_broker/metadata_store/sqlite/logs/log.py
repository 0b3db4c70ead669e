"""Logs of partitions in SQLite."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.model.errors import FencedError
from firn_broker.log_types import (
    LOOKUP_RANGES,
    MAX_TIMESTAMP,
    BatchOutcome,
    BatchRange,
    Commit,
    LogState,
    Lookup,
    LookupResult,
    NodeLease,
    Partition,
    Rewrite,
    Unindexed,
)
from firn_broker.metadata_store import time_marks
from firn_broker.metadata_store.batch_ranges import RANGE_COLUMNS, range_at, wanted_ranges
from firn_broker.metadata_store.commit_plan import outcomes_of, plan_commit, reply_of
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.logs.commits import Appends, append_in_order, read_log
from firn_broker.metadata_store.sqlite.logs.merges import swap_ranges
from firn_broker.metadata_store.time_marks import Mark
from firn_broker.ports import WentBackError
from firn_broker.storage import wal

RESERVED, LIVE, DEAD = 0, 1, 2
"""States of an object."""
TIMED_RANGES = 5_000
"""Batch ranges that one transaction of a search by time compares, which takes a few milliseconds.

Commits proceed between transactions.
"""


class SqliteLog:
    """`LogStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        database = self._database

        def work() -> None:
            now = database.now_ms()
            database.connection.executemany(
                "INSERT OR IGNORE INTO wal(key, node, node_epoch, state, size, runs, made_ms, producers) VALUES (?,?,?,0,-1,0,?,"
                " coalesce((SELECT value FROM counter WHERE name='producer'), 0))",
                [(key, lease.node, lease.epoch, now) for key in keys],
            )

        await database.run(work)

    async def adopt(self, lease: NodeLease, keys: Sequence[str]) -> None:
        database = self._database

        def work() -> None:
            now = database.now_ms()
            # Without a counter of producer ids, nothing proves that the log has the records of an object.
            database.connection.executemany(
                "INSERT OR IGNORE INTO wal(key, node, node_epoch, state, size, runs, made_ms) VALUES (?,?,?,0,-1,0,?)",
                [(key, lease.node, lease.epoch, now) for key in keys],
            )
            database.connection.executemany(
                "UPDATE wal SET node=?, node_epoch=?, state=0, dead_ms=NULL, retry_ms=NULL WHERE key=? AND size<0",
                [(lease.node, lease.epoch, key) for key in keys],
            )

        await database.run(work)

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        return await self._database.run(lambda: self._commit(commit))

    def _commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        self._check_progress(commit)
        wal, reply = self._reserved(commit.key, commit.lease)
        if reply is not None:
            return outcomes_of(json.loads(reply), commit.batches)
        now = self._database.now_ms()
        if (outcomes := self._commit_in_order(commit, wal, now)) is None:
            outcomes = self._commit_batches(commit, wal, now)
        if any(outcome.changed for outcome in outcomes):
            self._database.raise_counter(commit.lease.commits)
        return outcomes

    def _commit_in_order(self, commit: Commit, wal: int, now: int) -> Sequence[BatchOutcome] | None:
        """Commit if each batch is the next one of its producer; otherwise return None."""
        if not commit.batches or commit.repair or commit.required or (plan := plan_commit(commit.batches)) is None:
            return None
        bounds = append_in_order(self._database, plan, wal, now)
        if bounds is None:
            return None
        self._finish(wal, now, commit.size, len(plan.ranges), reply_of(now, *bounds))
        return plan.outcomes(now, *bounds)

    def _commit_batches(self, commit: Commit, wal: int, now: int) -> Sequence[BatchOutcome]:
        appends = Appends(self._database, now, repair=commit.repair)
        outcomes = [appends.append(entry) for entry in commit.batches]
        if (rejected := commit.rejected(outcomes)) is not None:
            raise WentBackError(rejected)
        ranges = appends.store(wal)
        self._finish(wal, now, commit.size, ranges, outcomes)
        return outcomes

    def _check_progress(self, commit: Commit) -> None:
        (stopped,) = self._database.row("SELECT stopped FROM cluster")
        if stopped and not commit.repair:
            raise WentBackError(stopped)
        row = self._database.row("SELECT value FROM counter WHERE name=?", commit.lease.commits)
        known = row[0] if row else 0
        if known < commit.after:
            raise WentBackError(
                f"coordinator: counter {commit.lease.commits} is {known}, and was {commit.after}: the last commits are lost"
            )

    async def rewrite(self, rewrite: Rewrite) -> Sequence[bool]:
        return await self._database.run(lambda: self._rewrite(rewrite))

    def _rewrite(self, rewrite: Rewrite) -> Sequence[bool]:
        wal, reply = self._reserved(rewrite.key, rewrite.lease)
        if reply is not None:
            return list(json.loads(reply))
        now = self._database.now_ms()
        removed = Counter[int]()
        rows = [swap_ranges(self._database, wal, swap, removed) for swap in rewrite.swaps]
        swapped = [stored > 0 for stored in rows]
        del removed[wal]
        lost = [(count, object) for object, count in removed.items()]
        self._database.connection.executemany("UPDATE wal SET runs=runs-? WHERE id=?", lost)
        self._database.connection.executemany(
            "UPDATE wal SET state=2, dead_ms=? WHERE id=? AND runs=0 AND state=1", [(now, object) for _, object in lost]
        )
        self._finish(wal, now, rewrite.size, sum(rows), swapped)
        self._database.connection.execute(
            "UPDATE wal SET level=?, records_ms=? WHERE id=?", (rewrite.level, rewrite.made_ms, wal)
        )
        return swapped

    def _reserved(self, key: str, lease: NodeLease) -> tuple[int, str | None]:
        """Return the object's row id, and its stored reply if it has one.

        Raises FencedError when ``lease`` may not commit it.
        """
        row = self._database.row("SELECT id, state, node, node_epoch, reply FROM wal WHERE key=?", key)
        if row is None:
            raise FencedError(f"object {key} is not reserved")
        wal, state, node, node_epoch, reply = row
        if reply is not None:
            return wal, reply
        if state != RESERVED:
            raise FencedError(f"the reservation of object {key} was withdrawn")
        if (node, node_epoch) != (lease.node, lease.epoch) or not self._database.row(
            "SELECT 1 FROM node WHERE id=? AND epoch=?", node, node_epoch
        ):
            raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
        return wal, None

    def _finish(self, wal: int, now: int, size: int, ranges: int, reply: Any) -> None:
        """Store the reply, for a repeated request. An object without ranges is dead."""
        self._database.connection.execute(
            "UPDATE wal SET state=?, size=?, runs=?, dead_ms=?, made_ms=?, reply=? WHERE id=?",
            (LIVE if ranges else DEAD, size, ranges, None if ranges else now, now, json.dumps(reply), wal),
        )

    async def find(self, lookups: Sequence[Lookup], max_ranges: int = LOOKUP_RANGES) -> Sequence[LookupResult]:
        return await self._database.run(lambda: [self._find(lookup, max_ranges) for lookup in lookups], write=False)

    def _find(self, lookup: Lookup, limit: int) -> LookupResult:
        log = read_log(self._database, lookup.partition)
        if log is None:
            return LookupResult(ErrorCode.unknown_topic_or_partition)
        if not log.start <= lookup.offset <= log.hw:
            return LookupResult(ErrorCode.offset_out_of_range, log.start, log.hw)
        ranges: Sequence[BatchRange] = ()
        if lookup.offset < log.hw:
            # SQLite reads rows as they are asked for: the ranges that the lookup does not want cost nothing.
            rows = self._database.connection.execute(
                f"SELECT {RANGE_COLUMNS} FROM run JOIN wal ON wal.id=run.wal WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?",
                (log.id, lookup.offset, limit),
            )
            ranges = wanted_ranges(rows, lookup, limit)
        return LookupResult(ErrorCode.none, log.start, log.hw, ranges)

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        return await self._database.run(lambda: [self._state(partition) for partition in partitions], write=False)

    def _state(self, partition: Partition) -> LogState | None:
        row = self._database.row(
            "SELECT log_start, hw, bytes FROM log WHERE topic_id=? AND part=? AND NOT deleted",
            partition.topic.bytes, partition.index,
        )  # fmt: skip
        return LogState(*row) if row else None

    async def unindexed(self, topic: UUID, generation: int, tagged: Sequence[int]) -> Unindexed:
        waiting = f"key NOT LIKE '%{wal.HISTORY}'"
        in_table = "entry_len IS NOT NULL AND CAST(substr(key, instr(key, '.') + 1) AS INTEGER)"
        older, untagged = f"{in_table}<?", f"{in_table} NOT IN (SELECT value FROM json_each(?))"

        def first(condition: str, *arguments: int | str) -> Mapping[int, int]:
            rows = self._database.connection.execute(
                f"SELECT part, (SELECT base_offset FROM run JOIN wal ON wal.id=run.wal WHERE run.log=log.id AND last_offset>=log_start"
                f" AND {condition} ORDER BY last_offset LIMIT 1) AS first FROM log WHERE topic_id=? AND NOT deleted",
                (*arguments, topic.bytes),
            )
            return {partition: offset for partition, offset in rows if offset is not None}

        def work() -> Unindexed:
            return Unindexed(first(waiting), first(older, generation), first(untagged, json.dumps([*tagged])))

        return await self._database.run(work, write=False)

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> BatchRange | None:
        return await time_marks.search(
            partial(self._last_mark, partition), partial(self._walk, partition), timestamp, since
        )

    async def _last_mark(self, partition: Partition, before: int) -> Mark | None:
        row = await self._database.run(
            lambda: self._database.row(
                "SELECT max_ts, off FROM time_mark WHERE topic_id=? AND part=? AND max_ts<? ORDER BY max_ts DESC, off DESC LIMIT 1",
                partition.topic.bytes, partition.index, before,
            ),
            write=False,
        )  # fmt: skip
        return Mark(*row) if row else None

    async def _walk(self, partition: Partition, timestamp: int, since: int) -> BatchRange | None:
        database = self._database
        best: BatchRange | None = None
        offset: int | None = since

        def step() -> None:
            nonlocal best, offset
            log = read_log(database, partition)
            if log is None:
                best = offset = None
                return
            # Each step is a transaction of its own, so that commits proceed in between.
            start = max(log.start, offset or 0)
            found, offset = self._best_of_step(log.id, timestamp, start)
            if found is not None and (best is None or found.max_timestamp > best.max_timestamp):
                best = found
            if best is not None and timestamp != MAX_TIMESTAMP:
                offset = None

        while offset is not None:
            await database.run(step, write=False)
        return best

    def _best_of_step(self, log: int, timestamp: int, start: int) -> tuple[BatchRange | None, int | None]:
        """Compare `TIMED_RANGES` rows from offset ``start`` on, or one that begins before it. Return the range that a search
        looks for, and the offset of the next row."""
        some = "SELECT * FROM run WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?"
        sql = f"SELECT {RANGE_COLUMNS} FROM ({some}) run JOIN wal ON wal.id=run.wal"
        first = self._database.row(f"{sql} ORDER BY last_offset", log, start, 1)
        if first is None:
            return None, None
        base, last, *_ = first
        if base < start:
            return range_at(first, timestamp, start), last + 1
        (following,) = self._database.row(f"SELECT max(last_offset) + 1 FROM ({some})", log, start, TIMED_RANGES)
        if timestamp == MAX_TIMESTAMP:
            row = self._database.row(f"{sql} ORDER BY max_ts DESC, last_offset LIMIT 1", log, start, TIMED_RANGES)
        else:
            row = self._database.row(
                f"{sql} WHERE max_ts>=? ORDER BY last_offset LIMIT 1", log, start, TIMED_RANGES, timestamp
            )
        return range_at(row, timestamp, start) if row else None, following

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        def work() -> LogState | None:
            self._database.connection.execute(
                "UPDATE log SET log_start=max(log_start, min(hw, ?)) WHERE topic_id=? AND part=? AND NOT deleted",
                (offset, partition.topic.bytes, partition.index),
            )
            return self._state(partition)

        return await self._database.run(work)
