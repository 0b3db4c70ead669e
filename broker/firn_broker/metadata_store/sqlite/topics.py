"""Topics in SQLite.

These transactions also create and delete the topics' logs, and delete the offsets of deleted topics.
"""

import json
from collections.abc import Mapping
from uuid import UUID

from firn_broker.log_types import Topic, Topics
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.migrations import RAISE_FORGOTTEN


class SqliteTopics:
    """`TopicStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_topics(self, known_version: int = -1) -> Topics | None:
        database = self._database

        def work() -> Topics | None:
            row = database.row("SELECT value FROM counter WHERE name='topics'")
            version = row[0] if row else 0
            if version == known_version:
                return None
            rows = database.connection.execute("SELECT id, name, partitions, configs FROM topic ORDER BY name")
            return Topics(
                version,
                [Topic(UUID(bytes=id), name, parts, json.loads(configs)) for id, name, parts, configs in rows],
            )

        return await database.run(work, write=False)

    async def create_topic(self, topic: Topic) -> bool:
        database = self._database

        def work() -> bool:
            if database.row("SELECT 1 FROM topic WHERE name=?", topic.name):
                return False
            database.connection.execute(
                "INSERT INTO topic VALUES (?,?,?,?)",
                (topic.id.bytes, topic.name, topic.partitions, json.dumps(dict(topic.configs))),
            )
            self._add_logs(topic.id, 0, topic.partitions)
            database.raise_counter("topics")
            return True

        return await database.run(work)

    def _add_logs(self, topic: UUID, start: int, end: int) -> None:
        self._database.connection.executemany(
            "INSERT INTO log(topic_id, part) VALUES (?,?)", [(topic.bytes, part) for part in range(start, end)]
        )

    async def grow_topic(self, topic: UUID, partitions: int) -> bool:
        database = self._database

        def work() -> bool:
            row = database.row("SELECT partitions FROM topic WHERE id=?", topic.bytes)
            if row is None:
                return False
            if row[0] < partitions:
                database.connection.execute("UPDATE topic SET partitions=? WHERE id=?", (partitions, topic.bytes))
                self._add_logs(topic, row[0], partitions)
                database.raise_counter("topics")
            return True

        return await database.run(work)

    async def configure_topic(self, topic: UUID, expected: Mapping[str, str], configs: Mapping[str, str]) -> bool:
        database = self._database

        def work() -> bool:
            row = database.row("SELECT configs FROM topic WHERE id=?", topic.bytes)
            if row is None or json.loads(row[0]) != dict(expected):
                return False
            database.connection.execute(
                "UPDATE topic SET configs=? WHERE id=?", (json.dumps(dict(configs)), topic.bytes)
            )
            database.raise_counter("topics")
            return True

        return await database.run(work)

    async def delete_topic(self, topic: UUID) -> bool:
        database = self._database

        def work() -> bool:
            row = database.row("DELETE FROM topic WHERE id=? RETURNING name", topic.bytes)
            if row is None:
                return False
            database.connection.execute(
                "INSERT INTO forgotten_producer SELECT ?, coalesce(max(pid), -1), ? FROM log JOIN producer ON producer.log=log.id WHERE topic_id=?"
                f" {RAISE_FORGOTTEN}",
                (row[0], database.now_ms(), topic.bytes),
            )
            database.connection.execute("UPDATE log SET deleted=1 WHERE topic_id=?", (topic.bytes,))
            database.connection.execute("DELETE FROM grp_offset WHERE topic_id=?", (topic.bytes,))
            database.raise_counter("topics")
            return True

        return await database.run(work)
