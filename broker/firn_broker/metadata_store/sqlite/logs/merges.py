"""Merges in SQLite: the objects and batch ranges that they read, and the swap of batch ranges."""

from collections import Counter
from collections.abc import Sequence
from uuid import UUID

from firn_broker.log_types import MergeSource, NodeLease, Partition, SourceRow, Swap
from firn_broker.metadata_store.batch_ranges import (
    RANGE_COLUMNS,
    has_table_ranges,
    ranges_of_row,
    rows_left,
    rows_of_ranges,
)
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.logs.commits import read_log
from firn_broker.metadata_store.sqlite.migrations import TABLE_RANGES


class SqliteMerges:
    """`MergeStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sources(self, level: int, age_ms: int, limit: int) -> Sequence[MergeSource]:
        database = self._database

        def work() -> Sequence[MergeSource]:
            rows = database.connection.execute(
                "SELECT key, size, runs, coalesce(records_ms, made_ms) FROM wal WHERE state=1 AND level=? AND level<127 AND made_ms<=?"
                " AND key NOT LIKE '%.compacted-%' AND key NOT LIKE '%.history' ORDER BY made_ms, id LIMIT ?",
                (level, database.now_ms() - age_ms, limit),
            )
            return [MergeSource(*row) for row in rows]

        return await database.run(work, write=False)

    async def rows(self, keys: Sequence[str], after: SourceRow | None, limit: int) -> Sequence[SourceRow]:
        database = self._database
        place = (
            (b"", -1, -1)
            if after is None
            else (after.partition.topic.bytes, after.partition.index, after.ranges[-1].last_offset)
        )

        def work() -> Sequence[SourceRow]:
            rows = database.connection.execute(
                f"SELECT topic_id, part, coalesce(records_ms, made_ms), {RANGE_COLUMNS} FROM wal CROSS JOIN run ON run.wal=wal.id"
                f" CROSS JOIN log ON log.id=run.log WHERE wal.key IN ({','.join('?' * len(keys))}) AND NOT deleted"
                " AND key NOT LIKE '%.history' AND entry_len IS NULL"
                " AND last_offset>=log_start AND (topic_id, part, last_offset) > (?,?,?) ORDER BY topic_id, part, last_offset LIMIT ?",
                (*keys, *place, limit),
            )
            return [
                SourceRow(Partition(UUID(bytes=topic), part), made_ms, ranges_of_row(row))
                for topic, part, made_ms, *row in rows
            ]

        return await database.run(work, write=False)

    async def unfinished(self, lease: NodeLease, ending: str) -> Sequence[str]:
        database = self._database

        def work() -> Sequence[str]:
            rows = database.connection.execute(
                "SELECT key FROM wal WHERE state=0 AND node=? AND node_epoch=? AND substr(key, -length(?)) = ?",
                (lease.node, lease.epoch, ending, ending),
            )
            return [row[0] for row in rows]

        return await database.run(work, write=False)

    async def finish(self, keys: Sequence[str]) -> None:
        database = self._database

        def work() -> None:
            database.connection.executemany(
                "UPDATE wal SET level=127 WHERE key=? AND state=1", [(key,) for key in keys]
            )

        await database.run(work)


def swap_ranges(database: Database, wal: int, swap: Swap, removed: Counter[int]) -> int:
    """Replace the old ranges by the new ones of the object with row id ``wal``, inside a transaction.

    Add the rows that other objects lose to ``removed``. Return the number of new rows. Return 0, and change nothing, if the
    log has other ranges there."""
    log = read_log(database, swap.partition)
    if log is None:
        return 0
    connection = database.connection
    rows = connection.execute(
        f"SELECT run.wal, {RANGE_COLUMNS} FROM run JOIN wal ON wal.id=run.wal WHERE log=?1 AND last_offset>=?2 AND last_offset<="
        "(SELECT min(last_offset) FROM run WHERE log=?1 AND last_offset>=?3) ORDER BY last_offset",
        (log.id, swap.old[0].base_offset, swap.old[-1].last_offset),
    ).fetchall()
    left = rows_left(rows, swap.old)
    if left is None:
        return 0
    connection.executemany("DELETE FROM run WHERE log=? AND last_offset=?", [(log.id, row[2]) for row in rows])
    new = [(wal, row) for row in rows_of_ranges(swap.new)]
    connection.executemany(
        "INSERT INTO run(log, wal, last_offset, base_offset, pos, len, max_ts, append_ms, parts, entry_len)"
        " VALUES (?,?,?,?,?,?,?,?,?,?)",
        [(log.id, object, *row) for object, row in (*new, *left)],
    )
    if has_table_ranges(row for _, row in new):
        connection.execute("UPDATE cluster SET compatible_from=max(compatible_from, ?)", (TABLE_RANGES,))
    removed.update(row[0] for row in rows)
    removed.subtract(object for object, _ in left)
    if swap.added:
        connection.execute("UPDATE log SET bytes=bytes+? WHERE id=?", (swap.added, log.id))
    return len(new)
