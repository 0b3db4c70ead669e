"""Topics in SQLite.

These transactions also create and delete the topics' logs, and delete the offsets of deleted topics.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from firn_broker.log_types import Topic, Topics, TopicsVersion
from firn_broker.metadata_store.sqlite.database import Database
from firn_broker.metadata_store.sqlite.migrations import RAISE_FORGOTTEN

KEPT_CHANGES = 10_000
"""Newest changes of topics that are stored, as in PostgreSQL. A broker that knows an older version loads all topics."""


class SqliteTopics:
    """`TopicStore` over SQLite."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def load_topics(self, known: TopicsVersion | None = None) -> Topics | None:
        database = self._database

        def work() -> Topics | None:
            row = database.row(
                "SELECT value, coalesce(mark, '') FROM counter LEFT JOIN topic_change ON version=value WHERE name='topics'"
            )
            version = TopicsVersion(*row) if row else TopicsVersion(0, "")
            if version == known:
                return None
            if known is not None and database.row(
                "SELECT 1 FROM topic_change WHERE version=? AND mark=?", known.number, known.mark
            ):
                rows = database.connection.execute(
                    "SELECT topic_id, name, partitions, configs FROM (SELECT DISTINCT topic_id FROM topic_change WHERE version>?)"
                    " LEFT JOIN topic ON id=topic_id ORDER BY name",
                    (known.number,),
                ).fetchall()
                return Topics(
                    version, _topics(rows), [UUID(bytes=row[0]) for row in rows if row[1] is None], whole=False
                )
            rows = database.connection.execute(
                "SELECT id, name, partitions, configs FROM topic ORDER BY name"
            ).fetchall()
            return Topics(version, _topics(rows))

        return await database.run(work, write=False)

    def _note_change(self, topic: UUID) -> None:
        version = self._database.raise_counter("topics") + 1
        self._database.connection.execute(
            "INSERT INTO topic_change VALUES (?, ?, hex(randomblob(16)))", (version, topic.bytes)
        )
        self._database.connection.execute("DELETE FROM topic_change WHERE version<=?", (version - KEPT_CHANGES,))

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
            self._note_change(topic.id)
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
                self._note_change(topic)
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
            self._note_change(topic)
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
            self._note_change(topic)
            return True

        return await database.run(work)


def _topics(rows: Iterable[Any]) -> list[Topic]:
    """Convert rows of topics; leave out those without a name, which are deleted."""
    return [
        Topic(UUID(bytes=id), name, parts, json.loads(configs)) for id, name, parts, configs in rows if name is not None
    ]
