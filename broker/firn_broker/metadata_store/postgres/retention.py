"""The steps that delete data in PostgreSQL."""

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from firn_broker.log_types import KEPT_REPLIES, BatchEntry, DeadBacklog
from firn_broker.metadata_store import idempotence, time_marks
from firn_broker.metadata_store.idempotence import KnownBatch, ProducerState
from firn_broker.metadata_store.postgres.database import Database
from firn_broker.metadata_store.time_marks import Range

DROPPED_RANGES = 500
"""Batch ranges that one transaction of `PostgresRetention.drop_ranges` deletes. Commits wait for one transaction, which
locks the logs of its ranges."""
BEGINNING = (-1, -1)
"""A position before every (log, producer)."""
EPOCH_OVER = (
    "NOT EXISTS (SELECT 1 FROM node WHERE node.id = wal.node AND node.epoch = wal.node_epoch AND expires_ms > now_ms())"
)
"""The condition that the epoch of an object's node is over."""


class PostgresRetention:
    """`RetentionStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._examined = BEGINNING
        """The last (log, producer) that `forget_producers` examined."""
        self._marked = 0
        """The log with which `mark_times` continues."""

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        return int(
            await self._database.value(
                "SELECT expire_logs($1, $2, $3, $4)", topic, retention_ms, retention_bytes, limit
            )
        )

    async def drop_ranges(self, limit: int) -> int:
        # Read without locks. A lookup for each step would search all logs again.
        rows = await self._database.rows(
            "SELECT run.log, run.last_offset FROM log CROSS JOIN LATERAL ("
            " SELECT * FROM run WHERE run.log = log.id AND run.last_offset < CASE WHEN deleted THEN 9223372036854775807 ELSE log_start END"
            " ORDER BY run.last_offset LIMIT $1) run WHERE deleted OR log_start > 0 LIMIT $1",
            limit,
        )
        # A step has the ranges of few logs.
        ranges = sorted((log, last) for log, last in rows)
        dropped = 0
        for start in range(0, max(len(ranges), 1), DROPPED_RANGES):
            step = ranges[start : start + DROPPED_RANGES]
            dropped += await self._database.value(
                "SELECT drop_runs($1::bigint[], $2::bigint[])", [log for log, _ in step], [last for _, last in step]
            )
        return dropped

    async def stale_reservations(self, age_ms: int, limit: int) -> Sequence[str]:
        rows = await self._database.rows(
            f"SELECT key FROM wal WHERE state = 0 AND made_ms <= (SELECT now_ms() - $1) AND {EPOCH_OVER} ORDER BY id LIMIT $2",
            age_ms, limit,
        )  # fmt: skip
        return [row[0] for row in rows]

    async def withdraw_reservations(self, keys: Sequence[str], keep_ms: int | None = 0) -> int:
        rows = await self._database.rows(
            "UPDATE wal SET state = 2, dead_ms = now_ms() + $2::bigint WHERE size < 0 AND id IN (SELECT id FROM wal WHERE size < 0"
            f" AND key = ANY($1::text[]) AND {EPOCH_OVER} ORDER BY id FOR UPDATE SKIP LOCKED) RETURNING id",
            list(keys), keep_ms,
        )  # fmt: skip
        return len(rows)

    async def contains(self, key: str, batches: Sequence[BatchEntry]) -> Sequence[bool]:
        rows = await self._database.rows(
            "SELECT it.n, p.epoch, p.ring, EXISTS (SELECT 1 FROM topic JOIN forgotten_producer f ON f.topic = topic.name"
            " WHERE topic.id = it.topic AND f.pid >= it.pid) FROM unnest($2::uuid[], $3::int[], $4::bigint[]) WITH ORDINALITY"
            " AS it(topic, part, pid, n) JOIN wal ON wal.key = $1 AND it.pid BETWEEN 0 AND wal.producers - 1"
            " JOIN log ON log.topic_id = it.topic AND log.part = it.part AND NOT deleted"
            " JOIN producer p ON p.log = log.id AND p.pid = it.pid",
            key, [entry.partition.topic for entry in batches], [entry.partition.index for entry in batches],
            [entry.producer_id for entry in batches],
        )  # fmt: skip
        contained = [False] * len(batches)
        for number, epoch, ring, forgotten in rows:
            entry = batches[number - 1]
            state = ProducerState(epoch, [KnownBatch(*ring[start : start + 4]) for start in range(0, len(ring), 4)])
            contained[number - 1] = idempotence.contains(
                state, entry.producer_epoch, entry.base_sequence, entry.records, partial(bool, forgotten)
            )
        return contained

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        # A node repeats only the newest commits of its present epoch; after its epoch has ended it repeats none.
        # now_ms() is volatile: outside a subquery, no index would be used.
        rows = await self._database.rows(
            f"""
            UPDATE wal SET reply = NULL WHERE id IN (
              SELECT old.id FROM node CROSS JOIN LATERAL (
                SELECT id FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch = node.epoch
                  AND made_ms <= (SELECT now_ms() - $1) AND made_ms < (
                    SELECT made_ms FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch = node.epoch
                    ORDER BY made_ms DESC OFFSET {KEPT_REPLIES - 1} LIMIT 1)
                UNION ALL
                SELECT id FROM wal WHERE reply IS NOT NULL AND wal.node = node.id AND node_epoch < node.epoch
                  AND made_ms <= (SELECT now_ms() - $1)
                LIMIT $2
              ) old LIMIT $2) RETURNING id
            """,
            age_ms, limit,
        )  # fmt: skip
        return len(rows)

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        # A walk over all producers: with an index on touched_ms, every commit would write to it. SKIP LOCKED never
        # waits for a commit: a producer that a commit has locked is not silent. A trigger notes the deleted ones.
        rows = await self._database.rows(
            "WITH seen AS (SELECT log, pid FROM producer WHERE (log, pid) > ($3, $4) ORDER BY log, pid LIMIT $2),"
            " gone AS (DELETE FROM producer WHERE (log, pid) IN (SELECT log, pid FROM seen JOIN producer USING (log, pid)"
            " WHERE touched_ms <= (SELECT now_ms() - $1) FOR UPDATE OF producer SKIP LOCKED) RETURNING 1)"
            " SELECT log, pid, (SELECT count(*) FROM gone), (SELECT count(*) FROM seen) FROM seen ORDER BY log DESC, pid DESC LIMIT 1",
            age_ms, limit, *self._examined,
        )  # fmt: skip
        log, pid, forgotten, seen = rows[0] if rows else (*BEGINNING, 0, 0)
        self._examined = (log, pid) if seen == limit else BEGINNING
        if self._examined == BEGINNING:
            await self._database.rows(
                "DELETE FROM forgotten_producer WHERE forgotten_ms <= (SELECT now_ms() - $1)"
                " AND NOT EXISTS (SELECT 1 FROM topic WHERE name = forgotten_producer.topic)",
                age_ms,
            )
        return int(forgotten)

    async def mark_times(self, limit: int) -> bool:
        first, limit = self._marked, max(limit, time_marks.SPACING)
        last = await self._database.value(
            "SELECT max(id) FROM (SELECT id FROM log WHERE id >= $1 ORDER BY id LIMIT $2) few",
            first, time_marks.EXAMINED,
        )  # fmt: skip
        if last is None:
            self._marked = 0
            return False
        ranges = await self._unmarked(first, last, limit)
        if marks := time_marks.new_marks(ranges):
            await self._database.rows(
                "INSERT INTO time_mark SELECT * FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[]) ON CONFLICT DO NOTHING",
                *([mark[column] for mark in marks] for column in range(4)),
            )
        await self._database.rows(
            "DELETE FROM time_mark USING log CROSS JOIN LATERAL (SELECT * FROM time_mark m WHERE m.topic_id = log.topic_id"
            " AND m.part = log.part ORDER BY max_ts, off LIMIT $3) old WHERE log.id BETWEEN $1 AND $2 AND old.off <= log_start"
            " AND (time_mark.topic_id, time_mark.part, time_mark.max_ts, time_mark.off) = (old.topic_id, old.part, old.max_ts, old.off)",
            first, last, time_marks.OBSOLETE,
        )  # fmt: skip
        # A log that has more ranges, or of which the limit cut off some, is read again.
        self._marked = ranges[-1].log if len(ranges) == limit else last + 1
        return True

    async def _unmarked(self, first: int, last: int, limit: int) -> Sequence[Range]:
        """Read ranges of the logs from ``first`` to ``last`` that have enough of them for another mark."""
        rows = await self._database.rows(
            """
            SELECT it.id, it.topic_id, it.part, it.max_ts, run.last_offset, run.max_ts FROM (
              SELECT log.id, log.topic_id, log.part, hw, mark.max_ts, greatest(log_start, mark.off) AS start FROM log
              LEFT JOIN LATERAL (
                SELECT m.max_ts, m.off FROM time_mark m WHERE m.topic_id = log.topic_id AND m.part = log.part
                ORDER BY m.max_ts DESC, m.off DESC LIMIT 1
              ) mark ON true
              WHERE log.id BETWEEN $1 AND $2 AND NOT deleted ORDER BY log.id
            ) it CROSS JOIN LATERAL (
              SELECT last_offset, max_ts FROM run WHERE log = it.id AND last_offset >= it.start ORDER BY last_offset LIMIT $3
            ) run
            WHERE it.hw - it.start >= $4 AND EXISTS (
              SELECT 1 FROM run WHERE log = it.id AND last_offset >= it.start ORDER BY last_offset OFFSET $4 - 1
            ) ORDER BY it.id, run.last_offset LIMIT $3
            """,
            first, last, limit, time_marks.SPACING,
        )  # fmt: skip
        return [Range(*row) for row in rows]

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        rows = await self._database.rows(
            "SELECT key FROM wal WHERE state = 2 AND dead_ms <= (SELECT now_ms() - $1)"
            " AND coalesce(retry_ms, 0) <= (SELECT now_ms()) ORDER BY dead_ms LIMIT $2",
            grace_ms,
            limit,
        )
        return [row[0] for row in rows]

    async def postpone_objects(self, keys: Sequence[str], most_ms: int) -> None:
        await self._database.rows(
            "UPDATE wal SET retry_ms = now_ms() + least(now_ms() - dead_ms, $2) WHERE key = ANY($1::text[]) AND state = 2",
            list(keys), most_ms,
        )  # fmt: skip

    async def dead_backlog(self) -> DeadBacklog:
        (row,) = await self._database.rows(
            "SELECT count(dead_ms), coalesce(greatest(now_ms() - min(dead_ms), 0), 0), count(retry_ms), count(*) - count(dead_ms)"
            " FROM wal WHERE state = 2"
        )
        return DeadBacklog(*row)

    async def forget_objects(self, keys: Sequence[str]) -> None:
        await self._database.rows("DELETE FROM wal WHERE key = ANY($1::text[]) AND state = 2", list(keys))

    async def list_objects(self, start: str, end: str) -> Mapping[str, tuple[int, int]]:
        rows = await self._database.rows("SELECT key, size, runs FROM wal WHERE key >= $1 AND key < $2", start, end)
        return {key: (size, ranges) for key, size, ranges in rows}
