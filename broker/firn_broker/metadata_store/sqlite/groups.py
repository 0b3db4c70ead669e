"""Groups and their offsets in SQLite.

Each write first checks the lease of the group's shard, in the same transaction.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from firn.model.errors import FencedError
from firn_broker.log_types import CommittedOffset, Lease, Partition, StoredGroup, TopicLag
from firn_broker.metadata_store.sqlite.database import Database


class SqliteGroups:
    """`GroupStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def _check(self, held: Lease) -> None:
        if not self._database.row("SELECT 1 FROM lease WHERE name=? AND epoch=? AND node>=0", held.name, held.epoch):
            raise FencedError(f"another broker holds lease {held.name} with an epoch newer than {held.epoch}")

    async def load_groups(self, shard: int | None = None) -> Sequence[StoredGroup]:
        database = self._database

        def work() -> Sequence[StoredGroup]:
            rows = database.connection.execute(
                "SELECT name, version, state FROM grp WHERE ?1 IS NULL OR shard=?1 ORDER BY name", (shard,)
            )
            return [StoredGroup(*row) for row in rows]

        return await database.run(work, write=False)

    async def save_group(self, held: Lease, shard: int, group: StoredGroup) -> None:
        database = self._database

        def work() -> None:
            self._check(held)
            database.connection.execute(
                "INSERT INTO grp VALUES (?1,?2,?3,?4,?5) ON CONFLICT(name) DO UPDATE SET shard=?2, version=?3, state=?4, saved_ms=?5"
                " WHERE version<?3",
                (group.name, shard, group.version, group.state, database.now_ms()),
            )

        await database.run(work)

    async def delete_group(self, held: Lease, name: str, unused_ms: int | None = None) -> bool:
        database = self._database

        def work() -> bool:
            self._check(held)
            if unused_ms is not None and database.row(
                "SELECT 1 FROM grp WHERE name=?1 AND saved_ms > ?2 UNION ALL"
                " SELECT 1 FROM grp_offset WHERE grp=?1 AND committed_ms > ?2",
                name, database.now_ms() - unused_ms,
            ):  # fmt: skip
                return False
            database.connection.execute("DELETE FROM grp WHERE name=?", (name,))
            database.connection.execute("DELETE FROM grp_offset WHERE grp=?", (name,))
            return True

        return await database.run(work)

    async def commit_offsets(
        self, held: Lease | None, group: str, offsets: Mapping[Partition, CommittedOffset], shard: int | None = None
    ) -> None:
        database = self._database

        def work() -> None:
            if held is not None:
                self._check(held)
            now = database.now_ms()
            database.connection.executemany(
                "INSERT OR REPLACE INTO grp_offset SELECT ?1,?2,?3,?4,?5,?6,?7,?8 WHERE EXISTS (SELECT 1 FROM topic WHERE id=?2)",
                [
                    (group, partition.topic.bytes, partition.index, at.offset, at.leader_epoch, at.metadata, now, shard)
                    for partition, at in offsets.items()
                ],
            )

        await database.run(work)

    async def load_offsets(self, group: str) -> Mapping[Partition, CommittedOffset]:
        database = self._database

        def work() -> Mapping[Partition, CommittedOffset]:
            rows: Iterable[Any] = database.connection.execute(
                "SELECT topic_id, part, off, leader_epoch, metadata FROM grp_offset WHERE grp=?", (group,)
            )
            return {Partition(UUID(bytes=topic), part): CommittedOffset(*rest) for topic, part, *rest in rows}

        return await database.run(work, write=False)

    async def delete_offsets(self, held: Lease, group: str, partitions: Sequence[Partition]) -> None:
        database = self._database

        def work() -> None:
            self._check(held)
            database.connection.executemany(
                "DELETE FROM grp_offset WHERE grp=? AND topic_id=? AND part=?",
                [(group, partition.topic.bytes, partition.index) for partition in partitions],
            )

        await database.run(work)

    async def groups_with_offsets(self, shard: int | None = None) -> Sequence[str]:
        database = self._database
        where = "" if shard is None else "WHERE shard=?1 OR shard IS NULL"

        def work() -> Sequence[str]:
            sql = f"SELECT DISTINCT grp FROM grp_offset {where} ORDER BY grp"
            return [row[0] for row in database.connection.execute(sql, () if shard is None else (shard,))]

        return await database.run(work, write=False)

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        database = self._database

        def work() -> Sequence[TopicLag]:
            rows = database.connection.execute(
                "SELECT grp, topic_id, sum(max(hw - off, 0)) AS records FROM grp_offset JOIN log USING (topic_id, part)"
                " WHERE NOT deleted AND grp IN (SELECT value FROM json_each(?)) GROUP BY grp, topic_id"
                " ORDER BY records DESC, grp, topic_id LIMIT ?",
                (json.dumps(list(groups)), limit),
            )
            return [TopicLag(group, UUID(bytes=topic), records) for group, topic, records in rows]

        return await database.run(work, write=False)
