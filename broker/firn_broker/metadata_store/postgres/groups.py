"""Groups and their offsets in PostgreSQL.

Each write first checks the lease of the group's shard, in the same transaction.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from firn.model.errors import FencedError
from firn_broker.log_types import CommittedOffset, Lease, Partition, StoredGroup, TopicLag
from firn_broker.metadata_store.postgres.database import Database, plain_uuid


class PostgresGroups:
    """`GroupStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def _guarded(self, held: Lease, *statements: tuple[str, Sequence[Any]]) -> None:
        """Run statements if ``held`` is the newest lease of its name. A lock on its row keeps it the newest."""

        async def work(db: Any) -> None:
            async with db.transaction():
                await _check(db, held)
                for sql, values in statements:
                    await db.execute(sql, *values)

        await self._database.use(work, self._database.lanes.groups)

    async def load_groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        rows = await self._database.rows(
            "SELECT name, version, state FROM grp WHERE $1::int IS NULL OR shard = $1 ORDER BY name", shard
        )
        return [StoredGroup(*row) for row in rows]

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        await self._guarded(
            held,
            (
                "INSERT INTO grp VALUES ($1, $2, $3, $4, now_ms()) ON CONFLICT (name) DO UPDATE SET shard = $2, version = $3, state = $4,"
                " saved_ms = now_ms() WHERE grp.version < $3",
                (group.name, shard, group.version, group.state),
            ),
        )

    async def delete_group(self, held: Lease, name: str, unused_ms: int | None = None) -> bool:
        async def work(db: Any) -> bool:
            async with db.transaction():
                await _check(db, held)
                if unused_ms is not None and await db.fetchval(
                    "SELECT EXISTS (SELECT 1 FROM grp WHERE name = $1 AND saved_ms > now_ms() - $2)"
                    " OR EXISTS (SELECT 1 FROM grp_offset WHERE grp = $1 AND committed_ms > now_ms() - $2)",
                    name, unused_ms,
                ):  # fmt: skip
                    return False
                await db.execute("DELETE FROM grp WHERE name = $1", name)
                await db.execute("DELETE FROM grp_offset WHERE grp = $1", name)
                return True

        return await self._database.use(work, self._database.lanes.groups)

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset], shard: int | None = None
    ) -> None:
        # Sorted, so that two commits of the same partitions never deadlock.
        pairs = sorted(offsets.items())
        statement = (
            "INSERT INTO grp_offset SELECT $1, it.*, now_ms(), $7::int FROM unnest($2::uuid[], $3::int[], $4::bigint[], $5::int[], $6::text[])"
            # The lock keeps the topic until this transaction ends; its deletion then deletes these offsets too.
            " AS it(topic_id, part, off, leader_epoch, metadata) JOIN topic ON topic.id = it.topic_id ORDER BY it.topic_id, it.part"
            " FOR KEY SHARE OF topic ON CONFLICT (grp, topic_id, part) DO UPDATE SET off = excluded.off, leader_epoch = excluded.leader_epoch,"
            " metadata = excluded.metadata, committed_ms = excluded.committed_ms, shard = excluded.shard"
        )
        values = (
            group, [partition.topic for partition, _ in pairs], [partition.index for partition, _ in pairs],
            [at.offset for _, at in pairs], [at.leader_epoch for _, at in pairs], [at.metadata for _, at in pairs], shard,
        )  # fmt: skip
        if held is None:
            await self._database.rows(statement, *values, lane=self._database.lanes.groups)
        else:
            await self._guarded(held, (statement, values))

    async def load_offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        rows = await self._database.rows(
            "SELECT topic_id, part, off, leader_epoch, metadata FROM grp_offset WHERE grp = $1", group
        )
        return {Partition(plain_uuid(topic), part): CommittedOffset(*rest) for topic, part, *rest in rows}

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        await self._guarded(
            held,
            (
                "DELETE FROM grp_offset USING unnest($2::uuid[], $3::int[]) AS it(topic_id, part) WHERE grp = $1"
                " AND grp_offset.topic_id = it.topic_id AND grp_offset.part = it.part",
                (group, [partition.topic for partition in partitions], [partition.index for partition in partitions]),
            ),
        )

    async def groups_with_offsets(self, shard: int | None = None) -> Sequence[str]:
        where = "" if shard is None else "WHERE shard = $1 OR shard IS NULL"
        sql = f"SELECT DISTINCT grp FROM grp_offset {where} ORDER BY grp"
        return [row[0] for row in await self._database.rows(sql, *(() if shard is None else (shard,)))]

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        rows = await self._database.rows(
            "SELECT grp, topic_id, sum(greatest(hw - off, 0))::bigint AS records FROM grp_offset JOIN log USING (topic_id, part)"
            " WHERE NOT deleted AND grp = ANY($1::text[]) GROUP BY grp, topic_id ORDER BY records DESC, grp, topic_id LIMIT $2",
            list(groups), limit,
        )  # fmt: skip
        return [TopicLag(*row) for row in rows]


async def _check(db: Any, held: Lease) -> None:
    if not await db.fetchval(
        "SELECT 1 FROM lease WHERE name = $1 AND epoch = $2 AND node >= 0 FOR SHARE", held.name, held.epoch
    ):
        raise FencedError(f"another broker holds lease {held.name} with an epoch newer than {held.epoch}")
