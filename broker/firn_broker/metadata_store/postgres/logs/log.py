"""Logs of partitions in PostgreSQL.

A commit is one round trip, to a function that works on arrays and locks in one order: ``commit_in_order`` for many
partitions, and ``commit_wal`` for a few. If a batch is not in order, the former changes nothing, and a second round trip
calls the latter.
"""

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from itertools import accumulate, chain, count, groupby
from operator import itemgetter
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn_broker.log_types import (
    LOOKUP_RANGES,
    MAX_TIMESTAMP,
    RANGE_BYTES,
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
from firn_broker.metadata_store.commit_plan import CommitPlan, outcomes_of, plan_commit
from firn_broker.metadata_store.postgres.database import Database, NotInOrderError
from firn_broker.metadata_store.postgres.logs.merges import swap_ranges
from firn_broker.metadata_store.time_marks import Mark
from firn_broker.ports import WentBackError
from firn_broker.storage import wal

COMMIT_BATCHES = "SELECT commit_wal($1,$2,$3,$4,$5,$6,$7,$8,$9,$10,$11,$12,$13,$14,$15)"
PLANNED_PARTITIONS = 8
"""Least number of partitions of a commit that is stored as a plan. With fewer, ``commit_wal`` is faster."""
UNPLANNED = 16
"""Commits after a plan that was rolled back. A producer that repeats a rejected batch would have each plan rolled back."""
AFTER_CHECK = "FROM check_progress($16, $17)"


class PostgresLog:
    """`LogStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._scans = asyncio.Semaphore(max(1, database.settings.connections // 4))
        """Limits scans of whole partitions, so that they leave connections to other reads."""
        self._unplanned = 0
        """Commits that are not tried as a plan, because PostgreSQL had to roll an earlier plan back."""

    async def reserve(self, lease: NodeLease, keys: Sequence[str]) -> None:
        await self._database.rows(
            "INSERT INTO wal(key, node, node_epoch, state, size, runs, made_ms, producers) SELECT key, $2, $3, 0, -1, 0, now_ms(),"
            " coalesce((SELECT value FROM counter WHERE name = 'producer'), 0)"
            " FROM unnest($1::text[]) key ON CONFLICT DO NOTHING",
            list(keys), lease.node, lease.epoch, lane=self._database.lanes.commits,
        )  # fmt: skip

    async def adopt(self, lease: NodeLease, keys: Sequence[str]) -> None:
        # Without a counter of producer ids, nothing proves that the log has the records of an object.
        await self._database.rows(
            "INSERT INTO wal(key, node, node_epoch, state, size, runs, made_ms) SELECT key, $2, $3, 0, -1, 0, now_ms()"
            " FROM unnest($1::text[]) key ON CONFLICT DO NOTHING",
            list(keys), lease.node, lease.epoch,
        )  # fmt: skip
        await self._database.rows(
            "UPDATE wal SET node = $2, node_epoch = $3, state = 0, dead_ms = NULL, retry_ms = NULL WHERE key = ANY($1::text[]) AND size < 0",
            list(keys), lease.node, lease.epoch,
        )  # fmt: skip

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        plan = None if commit.repair or commit.required else plan_commit(commit.batches)
        if plan is not None and len(plan.partitions) >= PLANNED_PARTITIONS and not self._unplanned:
            try:
                return await self._commit_in_order(commit, plan)
            except NotInOrderError:
                self._unplanned = UNPLANNED
        self._unplanned = max(0, self._unplanned - 1)
        return await self._commit_batches(commit)

    async def _commit_in_order(self, commit: Commit, plan: CommitPlan) -> Sequence[BatchOutcome]:
        """Commit if each batch is the next one of its producer. Raises NotInOrderError."""
        reply = json.loads(
            await self._database.value(
                "SELECT commit_in_order($1,$2,$3,$4,$5,$6,$7) FROM check_progress($8, $9)",
                commit.key,
                commit.lease.node,
                commit.lease.epoch,
                commit.size,
                *_arguments(plan),
                commit.lease.commits,
                commit.after,
                lane=self._database.lanes.commits,
            )
        )
        if "high" in reply:
            return plan.outcomes(reply["at"], reply["high"], reply["start"])
        return outcomes_of(reply, commit.batches)

    async def _commit_batches(self, commit: Commit) -> Sequence[BatchOutcome]:
        """Commit, and judge each batch alone."""
        columns = _transposed(commit.batches, 9)
        values = [
            commit.key, commit.lease.node, commit.lease.epoch, commit.size,
            [topic for topic, _ in columns[0]], [part for _, part in columns[0]], *columns[1:], RANGE_BYTES,
        ]  # fmt: skip
        if commit.repair or commit.required:
            return await self._commit_or_roll_back(commit, values)
        reply = await self._database.value(
            f"{COMMIT_BATCHES} {AFTER_CHECK}",
            *values,
            commit.lease.commits,
            commit.after,
            lane=self._database.lanes.commits,
        )
        return outcomes_of(json.loads(reply), commit.batches)

    async def _commit_or_roll_back(self, commit: Commit, values: Sequence[Any]) -> Sequence[BatchOutcome]:
        async def work(db: Any) -> Sequence[BatchOutcome]:
            async with db.transaction():
                if commit.repair:
                    await db.execute("SET LOCAL firn_broker.repair = 'on'")
                    reply = await db.fetchval(COMMIT_BATCHES, *values)
                else:
                    reply = await db.fetchval(
                        f"{COMMIT_BATCHES} {AFTER_CHECK}", *values, commit.lease.commits, commit.after
                    )
                outcomes = outcomes_of(json.loads(reply), commit.batches)
                if (rejected := commit.rejected(outcomes)) is not None:
                    raise WentBackError(rejected)
                return outcomes

        return await self._database.use(work, self._database.lanes.commits)

    async def rewrite(self, rewrite: Rewrite) -> Sequence[bool]:
        async def work(db: Any) -> Sequence[bool]:
            async with db.transaction():
                return await swap_ranges(db, rewrite)

        return await self._database.use(work)

    async def find(self, lookups: Sequence[Lookup], max_ranges: int = LOOKUP_RANGES) -> Sequence[LookupResult]:
        rows = await self._database.rows(
            f"""
            SELECT w.n, log.log_start, log.hw, r.* FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[])
              WITH ORDINALITY AS w(topic, part, off, budget, n)
            JOIN log ON log.topic_id = w.topic AND log.part = w.part AND NOT deleted
            LEFT JOIN LATERAL (
              SELECT {RANGE_COLUMNS} FROM (
                SELECT *, sum(counted) OVER (ORDER BY last_offset) - counted AS before
                FROM (SELECT *, CASE WHEN base_offset < w.off AND parts IS NOT NULL THEN 1 ELSE len END AS counted FROM run
                  WHERE run.log = log.id AND last_offset >= w.off ORDER BY last_offset LIMIT $5) few
              ) run JOIN wal ON wal.id = run.wal WHERE before < w.budget
            ) r ON w.off >= log.log_start AND w.off <= log.hw
            ORDER BY w.n, r.last_offset
            """,
            [lookup.partition.topic for lookup in lookups], [lookup.partition.index for lookup in lookups],
            [lookup.offset for lookup in lookups], [max(lookup.max_bytes, 1) for lookup in lookups], max_ranges,
        )  # fmt: skip
        results: list[LookupResult] = [LookupResult(ErrorCode.unknown_topic_or_partition)] * len(lookups)
        for number, found in groupby(rows, key=itemgetter(0)):
            of_lookup, lookup = list(found), lookups[number - 1]
            _, start, high, *first = of_lookup[0]
            ranges = () if first[0] is None else wanted_ranges((row[3:] for row in of_lookup), lookup, max_ranges)
            error = ErrorCode.none if start <= lookup.offset <= high else ErrorCode.offset_out_of_range
            results[number - 1] = LookupResult(error, start, high, ranges)
        return results

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        rows = await self._database.rows(
            "SELECT w.n, log_start, hw, bytes FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS w(topic, part, n)"
            " JOIN log ON log.topic_id = w.topic AND log.part = w.part AND NOT deleted",
            [partition.topic for partition in partitions], [partition.index for partition in partitions],
        )  # fmt: skip
        states: list[LogState | None] = [None] * len(partitions)
        for number, start, high, size in rows:
            states[number - 1] = LogState(start, high, size)
        return states

    async def unindexed(self, topic: UUID, generation: int, tagged: Sequence[int]) -> Unindexed:
        waiting = f"key NOT LIKE '%{wal.HISTORY}'"
        older = "CASE WHEN entry_len IS NOT NULL THEN split_part(key, '.', 2)::bigint < $2 END"
        untagged = "CASE WHEN entry_len IS NOT NULL THEN split_part(key, '.', 2)::bigint <> ALL($2::bigint[]) END"
        found = []
        for condition, arguments in ((waiting, ()), (older, (generation,)), (untagged, (tagged,))):
            rows = await self._database.rows(
                "SELECT part, first FROM log CROSS JOIN LATERAL (SELECT base_offset AS first FROM run JOIN wal ON wal.id = run.wal"
                f" WHERE run.log = log.id AND last_offset >= log_start AND {condition}"
                " ORDER BY last_offset LIMIT 1) it WHERE topic_id = $1 AND NOT deleted",
                topic, *arguments,
            )  # fmt: skip
            found.append(dict(rows))
        return Unindexed(*found)

    async def find_by_time(self, partition: Partition, timestamp: int, since: int = 0) -> BatchRange | None:
        async with self._scans:
            return await time_marks.search(
                partial(self._last_mark, partition), partial(self._walk, partition), timestamp, since
            )

    async def _last_mark(self, partition: Partition, before: int) -> Mark | None:
        rows = await self._database.rows(
            "SELECT max_ts, off FROM time_mark WHERE topic_id = $1 AND part = $2 AND max_ts < $3"
            " ORDER BY max_ts DESC, off DESC LIMIT 1",
            partition.topic, partition.index, before,
        )  # fmt: skip
        return Mark(*rows[0]) if rows else None

    async def _walk(self, partition: Partition, timestamp: int, since: int) -> BatchRange | None:
        order = "max_ts DESC, last_offset" if timestamp == MAX_TIMESTAMP else "last_offset"
        rows = await self._database.rows(
            f"SELECT greatest(log_start, $4), {RANGE_COLUMNS} FROM log CROSS JOIN LATERAL (SELECT * FROM run WHERE run.log = log.id"
            f" AND last_offset >= greatest(log_start, $4) AND ($3::bigint = {MAX_TIMESTAMP} OR max_ts >= $3) ORDER BY {order} LIMIT 1) run"
            " JOIN wal ON wal.id = run.wal WHERE topic_id = $1 AND part = $2 AND NOT deleted",
            partition.topic, partition.index, timestamp, since,
        )  # fmt: skip
        if not rows:
            return None
        start, base, last, *_ = row = list(rows[0])
        found = range_at(row[1:], timestamp, start)
        if base >= start or (found is not None and timestamp != MAX_TIMESTAMP):
            return found
        # The record that the row was found by may lie before the start.
        other = await self._walk(partition, timestamp, last + 1)
        return max(filter(None, (found, other)), key=lambda one: one.max_timestamp, default=None)

    async def advance_start(self, partition: Partition, offset: int) -> LogState | None:
        rows = await self._database.rows(
            "UPDATE log SET log_start = greatest(log_start, least(hw, $3)) WHERE topic_id = $1 AND part = $2 AND NOT deleted"
            " RETURNING log_start, hw, bytes",
            partition.topic, partition.index, offset,
        )  # fmt: skip
        return LogState(*rows[0]) if rows else None


def _arguments(plan: CommitPlan) -> tuple[list[UUID], list[int], list[str]]:
    """Return a plan as ``commit_in_order`` expects it: topics, numbers of rows, and columns. It counts from 1."""
    topics = dict.fromkeys(topic for topic, _ in plan.partitions)
    numbers = dict(zip(topics, count(1)))
    batches = list(chain.from_iterable(batches for *_, batches in plan.producers))
    ends = accumulate(len(batches) for *_, batches in plan.producers)
    tables: list[Sequence[Sequence[Any]]] = [
        [
            (numbers[topic], part, *sums)
            for (topic, part), *sums in zip(plan.partitions, plan.records, plan.sizes, strict=True)
        ],
        [(log + 1, *others) for log, *others in plan.ranges],
        [(log + 1, *others, end) for (log, *others, _), end in zip(plan.producers, ends, strict=True)],
        batches,
    ]
    columns = [
        _packed(column)
        for table, width in zip(tables, (4, 7, 5, 4), strict=True)
        for column in _transposed(table, width)
    ]
    return list(topics), [len(table) for table in tables], columns


def _packed(column: Sequence[int]) -> str:
    """Return a column as text. The driver would need the time of a commit to encode all of them as arrays."""
    if len(set(column)) == 1:
        return str(int(column[0]))
    if column and column[-1] == len(column) and column == tuple(range(1, len(column) + 1)):
        return ""
    return "{" + str(list(map(int, column)))[1:-1] + "}"


def _transposed(rows: Sequence[Sequence[Any]], columns: int) -> Sequence[Sequence[Any]]:
    return list(zip(*rows, strict=True)) if rows else [()] * columns
