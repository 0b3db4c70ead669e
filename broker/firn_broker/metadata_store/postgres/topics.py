"""Topics in PostgreSQL.

These transactions also create and delete the topics' logs, and delete the offsets of deleted topics.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any
from uuid import UUID

from firn_broker.log_types import Topic, Topics, TopicsVersion
from firn_broker.metadata_store.postgres.database import Database, plain_uuid


class PostgresTopics:
    """`TopicStore` over PostgreSQL."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_topics(self, known: TopicsVersion | None = None) -> Topics | None:
        async def work(db: Any) -> Topics | None:
            async with db.transaction(isolation="repeatable_read", readonly=True):
                row = await db.fetchrow(
                    "SELECT value, coalesce(mark, '') FROM counter LEFT JOIN topic_change ON version = value WHERE name = 'topics'"
                )
                version = TopicsVersion(*row) if row else TopicsVersion(0, "")
                if version == known:
                    return None
                if known is not None and await db.fetchval(
                    "SELECT 1 FROM topic_change WHERE version = $1 AND mark = $2", *known
                ):
                    rows = await db.fetch(
                        "SELECT topic_id, name, partitions, configs FROM (SELECT DISTINCT topic_id FROM topic_change WHERE version > $1) it"
                        " LEFT JOIN topic ON id = topic_id ORDER BY name",
                        known.number,
                    )
                    deleted = [plain_uuid(row[0]) for row in rows if row[1] is None]
                    return Topics(version, _topics(rows), deleted, whole=False)
                rows = await db.fetch("SELECT id, name, partitions, configs FROM topic ORDER BY name")
            return Topics(version, _topics(rows))

        return await self._database.use(work)

    async def _change(self, sql: str, *values: Any, logs: Callable[[Any, Any], Awaitable[None]] | None = None) -> bool:
        """Run a statement. If it returns a row, it changed a topic: change its logs too. A trigger raises the version."""

        async def work(db: Any) -> bool:
            async with db.transaction():
                row = await db.fetchrow(sql, *values)
                if row is not None and logs is not None:
                    await logs(db, row)
                return row is not None

        return await self._database.use(work)

    async def create_topic(self, topic: Topic) -> bool:
        async def logs(db: Any, _: Any) -> None:
            await _add_logs(db, topic.id, topic.partitions)

        return await self._change(
            "INSERT INTO topic VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING id",
            topic.id, topic.name, topic.partitions, json.dumps(dict(topic.configs)), logs=logs,
        )  # fmt: skip

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        async def logs(db: Any, _: Any) -> None:
            await _add_logs(db, topic, partitions)

        return await self._change(
            "UPDATE topic SET partitions = greatest(partitions, $2) WHERE id = $1 RETURNING id",
            topic, partitions, logs=logs,
        )  # fmt: skip

    async def configure_topic(self, topic: UUID, expected: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        return await self._change(
            "UPDATE topic SET configs = $3 WHERE id = $1 AND configs = $2 RETURNING id",
            topic, json.dumps(dict(expected)), json.dumps(dict(configs)),
        )  # fmt: skip

    async def delete_topic(self, topic: UUID) -> bool:
        async def logs(db: Any, _: Any) -> None:
            # A trigger has locked the logs, and noted their producers.
            await db.execute("UPDATE log SET deleted = true WHERE topic_id = $1", topic)
            await db.execute("DELETE FROM grp_offset WHERE topic_id = $1", topic)

        return await self._change("DELETE FROM topic WHERE id = $1 RETURNING id", topic, logs=logs)


async def _add_logs(db: Any, topic: UUID, partitions: int) -> None:
    await db.execute(
        "INSERT INTO log(topic_id, part) SELECT $1, part FROM generate_series(0, $2::int - 1) part ON CONFLICT DO NOTHING",
        topic, partitions,
    )  # fmt: skip


def _topics(rows: Iterable[Any]) -> list[Topic]:
    """Convert rows of topics; leave out those without a name, which are deleted."""
    return [
        Topic(plain_uuid(id), name, parts, json.loads(configs)) for id, name, parts, configs in rows if name is not None
    ]
