"""The steps that delete data in SQLite."""

from collections.abc import Mapping, Sequence
from functools import partial
from uuid import UUID

from firn_broker.log_types import KEPT_REPLIES, BatchEntry, DeadBacklog
from firn_broker.metadata_store import idempotence, time_marks
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.logs.commits import may_be_forgotten, read_log, read_producer
from firn_broker.metadata_store.sqlite.migrations import RAISE_FORGOTTEN
from firn_broker.metadata_store.time_marks import Range

DROPPED_RANGES = 500
"""Batch ranges that one transaction of `SqliteRetention.drop_ranges` deletes. Commits proceed between transactions."""
BEGINNING = (-1, -1)
"""A position before every (log, producer)."""
EPOCH_OVER = "NOT EXISTS (SELECT 1 FROM node WHERE node.id=wal.node AND node.epoch=wal.node_epoch AND expires_ms>?)"
"""The condition that the epoch of an object's node is over at a time."""


class SqliteRetention:
    """`RetentionStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._examined = BEGINNING
        """The last (log, producer) that `forget_producers` examined."""
        self._marked = 0
        """The log with which `mark_times` continues."""

    async def expire(self, topic: UUID, retention_ms: int, retention_bytes: int, limit: int) -> int:
        database = self._database

        def work() -> int:
            too_old = database.now_ms() - retention_ms if retention_ms >= 0 else None
            passed = waiting = 0
            logs = database.connection.execute(
                "SELECT id, log_start, bytes FROM log WHERE topic_id=? AND NOT deleted AND hw > log_start ORDER BY part",
                (topic.bytes,),
            ).fetchall()
            for log, start, size in logs:
                if passed >= limit:
                    break
                excess = 0
                if retention_bytes >= 0 and waiting < limit:
                    # ``bytes`` counts ranges below the log start until they are dropped, so they are subtracted here.
                    # While ``limit`` of them wait, size expires no more.
                    below, ranges = database.row(
                        "SELECT coalesce(sum(len), 0), count(*) FROM (SELECT len FROM run WHERE log=? AND last_offset<? LIMIT ?)",
                        log, start, limit - waiting,
                    )  # fmt: skip
                    waiting += ranges
                    excess = size - below - retention_bytes if waiting < limit else 0
                passed += self._expire(log, start, too_old, excess, limit - passed)
            return passed

        return await database.run(work)

    def _expire(self, log: int, start: int, too_old: int | None, excess: int, limit: int) -> int:
        """Move one log's start past up to ``limit`` batch ranges; return past how many."""
        end, passed = start, 0
        # Records without a timestamp have the age of their object.
        for last, length, newest in self._database.connection.execute(
            "SELECT last_offset, len, CASE WHEN max_ts < 0 THEN (SELECT coalesce(records_ms, made_ms) FROM wal WHERE id=run.wal)"
            " ELSE max_ts END FROM run WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?",
            (log, start, limit),
        ):
            if not (too_old is not None and newest < too_old) and excess < length:
                break
            excess -= length
            end = last + 1
            passed += 1
        if end > start:
            self._database.connection.execute("UPDATE log SET log_start=? WHERE id=?", (end, log))
        return passed

    async def drop_ranges(self, limit: int) -> int:
        dropped = 0
        while dropped < limit:
            step = await self._drop(min(DROPPED_RANGES, limit - dropped))
            dropped += step
            if step < DROPPED_RANGES:
                break
        return dropped

    async def _drop(self, limit: int) -> int:
        database = self._database

        def work() -> int:
            connection, now = database.connection, database.now_ms()
            rows = connection.execute(
                "SELECT log, last_offset, wal, len FROM log CROSS JOIN run ON run.log=log.id AND last_offset < log_start UNION ALL"
                " SELECT log, last_offset, wal, len FROM log CROSS JOIN run ON run.log=log.id AND last_offset >= log_start WHERE deleted LIMIT ?",
                (limit,),
            ).fetchall()
            for log, last, wal, length in rows:
                connection.execute("DELETE FROM run WHERE log=? AND last_offset=?", (log, last))
                connection.execute("UPDATE log SET bytes=bytes-? WHERE id=?", (length, log))
                connection.execute("UPDATE wal SET runs=runs-1 WHERE id=?", (wal,))
                connection.execute("UPDATE wal SET state=2, dead_ms=? WHERE id=? AND runs=0 AND state=1", (now, wal))
            empty = "SELECT id FROM log WHERE deleted AND NOT EXISTS (SELECT 1 FROM run WHERE run.log=log.id)"
            connection.execute(f"DELETE FROM producer WHERE log IN ({empty})")
            connection.execute(
                f"DELETE FROM time_mark WHERE (topic_id, part) IN (SELECT topic_id, part FROM log WHERE id IN ({empty}))"
            )
            connection.execute(f"DELETE FROM log WHERE id IN ({empty})")
            return len(rows)

        return await database.run(work)

    async def stale_reservations(self, age_ms: int, limit: int) -> Sequence[str]:
        database = self._database

        def work() -> Sequence[str]:
            now = database.now_ms()
            rows = database.connection.execute(
                f"SELECT key FROM wal WHERE state=0 AND made_ms<=? AND {EPOCH_OVER} LIMIT ?", (now - age_ms, now, limit)
            )
            return [row[0] for row in rows]

        return await database.run(work, write=False)

    async def withdraw_reservations(self, keys: Sequence[str], keep_ms: int | None = 0) -> int:
        database = self._database

        def work() -> int:
            now = database.now_ms()
            return sum(
                database.connection.execute(
                    f"UPDATE wal SET state=2, dead_ms=? WHERE key=? AND size<0 AND {EPOCH_OVER}",
                    (None if keep_ms is None else now + keep_ms, key, now),
                ).rowcount
                for key in keys
            )

        return await database.run(work)

    async def contains(self, key: str, batches: Sequence[BatchEntry]) -> Sequence[bool]:
        database = self._database

        def known(entry: BatchEntry) -> bool:
            log = read_log(database, entry.partition)
            return log is not None and idempotence.contains(
                read_producer(database, log.id, entry.producer_id),
                entry.producer_epoch, entry.base_sequence, entry.records, partial(may_be_forgotten, database, entry),
            )  # fmt: skip

        def work() -> Sequence[bool]:
            (allocated,) = database.row("SELECT coalesce(producers, 0) FROM wal WHERE key=?", key) or (0,)
            return [0 <= entry.producer_id < allocated and known(entry) for entry in batches]

        return await database.run(work, write=False)

    async def forget_replies(self, age_ms: int, limit: int) -> int:
        database = self._database

        def work() -> int:
            forgotten = 0
            # A node repeats only the newest commits of its present epoch; after its epoch has ended it repeats none.
            for node, epoch in database.connection.execute("SELECT id, epoch FROM node").fetchall():
                old = "SELECT id FROM wal WHERE reply IS NOT NULL AND node=?1 AND made_ms<=?3"
                newest = (
                    "SELECT made_ms FROM wal WHERE reply IS NOT NULL AND node=?1 AND node_epoch=?2 ORDER BY made_ms DESC"
                    f" LIMIT 1 OFFSET {KEPT_REPLIES - 1}"
                )
                for condition in (f"node_epoch=?2 AND made_ms<({newest})", "node_epoch<?2"):
                    forgotten += database.connection.execute(
                        f"UPDATE wal SET reply=NULL WHERE id IN ({old} AND {condition} LIMIT ?4)",
                        (node, epoch, database.now_ms() - age_ms, limit - forgotten),
                    ).rowcount
            return forgotten

        return await database.run(work)

    async def forget_producers(self, age_ms: int, limit: int) -> int:
        database = self._database

        def work() -> int:
            # A walk over all producers: with an index on touched_ms, every commit would write to it.
            seen = database.connection.execute(
                "SELECT log, pid, touched_ms FROM producer WHERE (log, pid) > (?, ?) ORDER BY log, pid LIMIT ?",
                (*self._examined, limit),
            ).fetchall()
            now = database.now_ms()
            old = [(log, pid) for log, pid, touched in seen if touched <= now - age_ms]
            database.connection.executemany("DELETE FROM producer WHERE log=? AND pid=?", old)
            # A deleted topic has no row here: its producers were noted when it was deleted.
            database.connection.executemany(
                "INSERT INTO forgotten_producer SELECT name, ?, ? FROM log JOIN topic ON topic.id=topic_id WHERE log.id=?"
                f" {RAISE_FORGOTTEN}",
                [(pid, now, log) for log, pid in old],
            )
            self._examined = seen[-1][:2] if len(seen) == limit else BEGINNING
            if self._examined == BEGINNING:
                database.connection.execute(
                    "DELETE FROM forgotten_producer WHERE forgotten_ms<=? AND topic NOT IN (SELECT name FROM topic)",
                    (now - age_ms,),
                )
            return len(old)

        return await database.run(work)

    async def mark_times(self, limit: int) -> bool:
        database, first, limit = self._database, self._marked, max(limit, time_marks.SPACING)

        def read() -> tuple[int | None, list[Range]]:
            (last,) = database.row(
                "SELECT max(id) FROM (SELECT id FROM log WHERE id>=? ORDER BY id LIMIT ?)", first, time_marks.EXAMINED
            )
            return last, [] if last is None else self._unmarked(first, last, limit)

        def write() -> None:
            database.connection.executemany(
                "INSERT OR IGNORE INTO time_mark VALUES (?,?,?,?)",
                [(topic.bytes, *mark) for topic, *mark in time_marks.new_marks(ranges)],
            )
            for topic, part, start in database.connection.execute(
                "SELECT topic_id, part, log_start FROM log WHERE id BETWEEN ? AND ? AND log_start > 0", (first, last)
            ).fetchall():
                database.connection.execute(
                    "DELETE FROM time_mark WHERE topic_id=?1 AND part=?2 AND off<=?3 AND (max_ts, off) IN"
                    " (SELECT max_ts, off FROM time_mark WHERE topic_id=?1 AND part=?2 ORDER BY max_ts, off LIMIT ?4)",
                    (topic, part, start, time_marks.OBSOLETE),
                )

        last, ranges = await database.run(read, write=False)
        if last is None:
            self._marked = 0
            return False
        await database.run(write)
        # A log that has more ranges, or of which the limit cut off some, is read again.
        self._marked = ranges[-1].log if len(ranges) == limit else last + 1
        return True

    def _unmarked(self, first: int, last: int, limit: int) -> list[Range]:
        """Read ranges of the logs from ``first`` to ``last`` that have enough of them for another mark."""
        connection, ranges = self._database.connection, list[Range]()
        for log, topic, part, log_start, hw in connection.execute(
            "SELECT id, topic_id, part, log_start, hw FROM log WHERE id BETWEEN ? AND ? AND NOT deleted ORDER BY id",
            (first, last),
        ):
            marked, offset = self._database.row(
                "SELECT max_ts, off FROM time_mark WHERE topic_id=? AND part=? ORDER BY max_ts DESC, off DESC LIMIT 1",
                topic, part,
            ) or (None, 0)  # fmt: skip
            start = max(log_start, offset)
            if hw - start < time_marks.SPACING:
                continue
            rows = connection.execute(
                "SELECT last_offset, max_ts FROM run WHERE log=? AND last_offset>=? ORDER BY last_offset LIMIT ?",
                (log, start, limit - len(ranges)),
            ).fetchall()
            if len(rows) >= time_marks.SPACING or len(rows) == limit - len(ranges):
                ranges += (Range(log, UUID(bytes=topic), part, marked, *row) for row in rows)
            if len(ranges) == limit:
                break
        return ranges

    async def dead_objects(self, grace_ms: int, limit: int) -> Sequence[str]:
        database = self._database

        def work() -> Sequence[str]:
            rows = database.connection.execute(
                "SELECT key FROM wal WHERE state=2 AND dead_ms<=? AND coalesce(retry_ms, 0)<=? ORDER BY dead_ms LIMIT ?",
                (database.now_ms() - grace_ms, database.now_ms(), limit),
            )
            return [row[0] for row in rows]

        return await database.run(work, write=False)

    async def postpone_objects(self, keys: Sequence[str], most_ms: int) -> None:
        database = self._database

        def work() -> None:
            now = database.now_ms()
            database.connection.executemany(
                "UPDATE wal SET retry_ms=?1+min(?1-dead_ms, ?2) WHERE key=?3 AND state=2",
                [(now, most_ms, key) for key in keys],
            )

        await database.run(work)

    async def dead_backlog(self) -> DeadBacklog:
        database = self._database

        def work() -> DeadBacklog:
            count, oldest, postponed, kept = database.row(
                "SELECT count(dead_ms), min(dead_ms), count(retry_ms), count(*) - count(dead_ms) FROM wal WHERE state=2"
            )
            return DeadBacklog(count, max(database.now_ms() - oldest, 0) if count else 0, postponed, kept)

        return await database.run(work, write=False)

    async def forget_objects(self, keys: Sequence[str]) -> None:
        database = self._database

        def work() -> None:
            database.connection.executemany("DELETE FROM wal WHERE key=? AND state=2", [(key,) for key in keys])

        await database.run(work)

    async def list_objects(self, start: str, end: str) -> Mapping[str, tuple[int, int]]:
        database = self._database

        def work() -> Mapping[str, tuple[int, int]]:
            rows = database.connection.execute("SELECT key, size, runs FROM wal WHERE key>=? AND key<?", (start, end))
            return {key: (size, ranges) for key, size, ranges in rows}

        return await database.run(work, write=False)
