"""Merges in PostgreSQL: the objects and batch ranges that they read, and the swaps of batch ranges."""

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from firn.model.errors import FencedError
from firn_broker.log_types import MergeSource, NodeLease, Partition, Rewrite, SourceRow, Swap
from firn_broker.metadata_store.batch_ranges import (
    RANGE_COLUMNS,
    RangeRow,
    has_table_ranges,
    ranges_of_row,
    rows_left,
    rows_of_ranges,
)
from firn_broker.metadata_store.postgres.database import Database
from firn_broker.metadata_store.postgres.migrations import TABLE_RANGES

NOWHERE = Partition(UUID(int=0), -1)
"""A partition before all others."""


class PostgresMerges:
    """`MergeStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def sources(self, level: int, age_ms: int, limit: int) -> Sequence[MergeSource]:
        # now_ms() is volatile: outside a subquery, no index would be used.
        rows = await self._database.rows(
            "SELECT key, size, runs, coalesce(records_ms, made_ms) FROM wal WHERE state = 1 AND level = $1 AND level < 127"
            " AND key NOT LIKE '%.compacted-%' AND key NOT LIKE '%.history'"
            " AND made_ms <= (SELECT now_ms() - $2) ORDER BY made_ms, id LIMIT $3",
            level, age_ms, limit,
        )  # fmt: skip
        return [MergeSource(*row) for row in rows]

    async def rows(self, keys: Sequence[str], after: SourceRow | None, limit: int) -> Sequence[SourceRow]:
        topic, part = NOWHERE if after is None else after.partition
        rows = await self._database.rows(
            f"SELECT topic_id, part, coalesce(records_ms, made_ms), {RANGE_COLUMNS} FROM wal JOIN run ON run.wal = wal.id"
            " JOIN log ON log.id = run.log WHERE wal.key = ANY($1::text[]) AND key NOT LIKE '%.history' AND entry_len IS NULL"
            " AND NOT deleted AND last_offset >= log_start"
            " AND (topic_id, part, last_offset) > ($2::uuid, $3::int, $4::bigint) ORDER BY topic_id, part, last_offset LIMIT $5",
            list(keys), topic, part, -1 if after is None else after.ranges[-1].last_offset, limit,
        )  # fmt: skip
        return [SourceRow(Partition(topic, part), made_ms, ranges_of_row(row)) for topic, part, made_ms, *row in rows]

    async def unfinished(self, lease: NodeLease, ending: str) -> Sequence[str]:
        rows = await self._database.rows(
            "SELECT key FROM wal WHERE state = 0 AND node = $1 AND node_epoch = $2 AND right(key, length($3)) = $3",
            lease.node, lease.epoch, ending,
        )  # fmt: skip
        return [row[0] for row in rows]

    async def finish(self, keys: Sequence[str]) -> None:
        await self._database.rows(
            "UPDATE wal SET level = 127 WHERE id IN (SELECT id FROM wal WHERE key = ANY($1::text[]) AND state = 1 ORDER BY id FOR UPDATE)",
            list(keys),
        )


async def swap_ranges(db: Any, rewrite: Rewrite) -> Sequence[bool]:
    """Do as `LogStore.rewrite`, inside a transaction."""
    # Objects are locked first and in order, as everywhere. `drop_runs` and other rewrites lock them too, so the old ranges
    # stay until the end. Appends wait only if the size of their log changes.
    keys = sorted({rewrite.key, *(old.place.key for swap in rewrite.swaps for old in swap.old)})
    await db.execute("SELECT 1 FROM wal WHERE key = ANY($1::text[]) ORDER BY id FOR UPDATE", keys)
    wal, reply = await _reserved(db, rewrite)
    if reply is not None:
        return list(json.loads(reply))
    rows = [0] * len(rewrite.swaps)
    pending = list(range(len(rewrite.swaps)))
    while pending:
        pending = await _swap_some(db, wal, rewrite.swaps, pending, rows)
    swapped = [count > 0 for count in rows]
    await db.execute(
        "UPDATE wal SET state = CASE WHEN $3 > 0 THEN 1 ELSE 2 END, size = $2, runs = $3, dead_ms = CASE WHEN $3 > 0 THEN NULL ELSE now_ms() END,"
        " made_ms = now_ms(), reply = $4::jsonb, level = $5, records_ms = $6 WHERE id = $1",
        wal, rewrite.size, sum(rows), json.dumps(swapped), rewrite.level, rewrite.made_ms,
    )  # fmt: skip
    return swapped


async def _swap_some(db: Any, wal: int, swaps: Sequence[Swap], numbers: Sequence[int], counts: list[int]) -> list[int]:
    """Do these swaps, and set the number of new rows of each; 0 if the log has other ranges there.

    Return the swaps that have to wait, because they need what is left of a row after another one."""
    wanted = [swaps[number] for number in numbers]
    logs = await _logs(db, wanted)
    waiting, used = list[int](), set[tuple[int, int]]()
    gone: list[Sequence[Any]] = []
    new: list[tuple[int, int, RangeRow]] = []
    kept: list[tuple[int, int, RangeRow]] = []
    added: list[tuple[int, int]] = []
    for number, swap, log, rows in zip(numbers, wanted, logs, await _rows(db, wanted), strict=True):
        of_rows = {(row[0], row[3]) for row in rows}
        if not used.isdisjoint(of_rows):
            waiting.append(number)
            continue
        used |= of_rows
        left = rows_left([row[1:] for row in rows], swap.old)
        if log is None or left is None:
            continue
        gone += rows
        kept += ((log, object, row) for object, row in left)
        made = rows_of_ranges(swap.new)
        new += ((log, wal, row) for row in made)
        added.append((log, swap.added))
        counts[number] = len(made)
    await db.execute(
        "WITH gone AS (DELETE FROM run USING unnest($1::bigint[], $2::bigint[]) AS it(log, last)"
        " WHERE run.log = it.log AND last_offset = it.last RETURNING wal),"
        " it AS (SELECT wal, sum(runs)::int AS runs FROM (SELECT wal, 1 AS runs FROM gone UNION ALL SELECT unnest($3::bigint[]), -1) u"
        " WHERE wal <> $4 GROUP BY wal)"
        " UPDATE wal SET runs = wal.runs - it.runs, state = CASE WHEN wal.runs = it.runs THEN 2 ELSE state END,"
        " dead_ms = CASE WHEN wal.runs = it.runs THEN now_ms() ELSE dead_ms END FROM it WHERE wal.id = it.wal",
        [row[0] for row in gone], [row[3] for row in gone], [object for _, object, _ in kept], wal,
    )  # fmt: skip
    stored = [*new, *kept]
    columns = list(zip(*(row for *_, row in stored), strict=True)) or [()] * 8
    await db.execute(
        "INSERT INTO run(log, wal, last_offset, base_offset, pos, len, max_ts, append_ms, parts, entry_len) SELECT * FROM unnest("
        "$1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], $6::int[], $7::bigint[], $8::bigint[], $9::bytea[],"
        " $10::int[])",
        [log for log, *_ in stored], [object for _, object, _ in stored], *columns,
    )  # fmt: skip
    await db.execute(
        "UPDATE log SET bytes = bytes + it.added FROM (SELECT log, sum(added)::bigint AS added FROM unnest($1::bigint[], $2::bigint[]) u(log, added)"
        " WHERE added <> 0 GROUP BY log) it WHERE log.id = it.log",
        [log for log, _ in added], [size for _, size in added],
    )  # fmt: skip
    if has_table_ranges(row for *_, row in new):
        # Also if it is there already: a way back, which lowers it, waits for this lock.
        await db.execute("UPDATE cluster SET compatible_from = greatest(compatible_from, $1)", TABLE_RANGES)
    return waiting


async def _logs(db: Any, swaps: Sequence[Swap]) -> list[int | None]:
    """Return the row id of each swap's log, None for one that is deleted. Lock the logs whose sizes change."""
    changed = sorted({swap.partition for swap in swaps if swap.added})
    await db.execute(
        "SELECT 1 FROM log WHERE (topic_id, part) IN (SELECT * FROM unnest($1::uuid[], $2::int[])) AND NOT deleted"
        " ORDER BY topic_id, part FOR UPDATE",
        [topic for topic, _ in changed], [part for _, part in changed],
    )  # fmt: skip
    rows = await db.fetch(
        "SELECT log.id FROM unnest($1::uuid[], $2::int[]) WITH ORDINALITY AS it(topic, part, n)"
        " LEFT JOIN log ON log.topic_id = it.topic AND log.part = it.part AND NOT deleted ORDER BY n",
        [swap.partition.topic for swap in swaps], [swap.partition.index for swap in swaps],
    )  # fmt: skip
    return [row[0] for row in rows]


async def _rows(db: Any, swaps: Sequence[Swap]) -> list[list[Sequence[Any]]]:
    """Return the rows with the offsets of each swap: row id of the log, row id of the object, `RANGE_COLUMNS`."""
    rows = await db.fetch(
        f"SELECT it.n, log.id, run.wal, {RANGE_COLUMNS} FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[]) WITH ORDINALITY"
        " AS it(topic, part, first, last, n) JOIN log ON log.topic_id = it.topic AND log.part = it.part AND NOT deleted"
        " CROSS JOIN LATERAL (SELECT * FROM run WHERE run.log = log.id AND last_offset >= it.first AND last_offset <= (SELECT"
        " min(last_offset) FROM run WHERE run.log = log.id AND last_offset >= it.last)) run"
        " JOIN wal ON wal.id = run.wal ORDER BY it.n, last_offset",
        [swap.partition.topic for swap in swaps], [swap.partition.index for swap in swaps],
        [swap.old[0].base_offset for swap in swaps], [swap.old[-1].last_offset for swap in swaps],
    )  # fmt: skip
    found: list[list[Sequence[Any]]] = [[] for _ in swaps]
    for number, *row in rows:
        found[number - 1].append(row)
    return found


async def _reserved(db: Any, rewrite: Rewrite) -> tuple[int, str | None]:
    """Return the new object's row id, and its stored reply if it has one.

    Raises FencedError when the caller may not use the object.
    """
    row = await db.fetchrow("SELECT id, state, node, node_epoch, reply FROM wal WHERE key = $1", rewrite.key)
    if row is None:
        raise FencedError(f"object {rewrite.key} is not reserved")
    if row["reply"] is not None:
        return row["id"], row["reply"]
    if row["state"] != 0:
        raise FencedError(f"the reservation of object {rewrite.key} was withdrawn")
    lease = rewrite.lease
    if (row["node"], row["node_epoch"]) != (lease.node, lease.epoch) or not await db.fetchval(
        "SELECT 1 FROM node WHERE id = $1 AND epoch = $2", lease.node, lease.epoch
    ):
        raise FencedError(f"another broker process holds the lease of node {lease.node} with a newer epoch")
    return row["id"], None
