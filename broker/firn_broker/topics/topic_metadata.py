"""This broker's copy of the topics. The broker refreshes it from the coordinator every second, and when a requested
topic is missing."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import structlog

from firn.model.errors import UnavailableError
from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Topic, Topics, TopicsVersion
from firn_broker.ports import TopicStore

log = structlog.get_logger()

REFRESH_SECONDS = 1.0


class TopicMetadata:
    """Topics by name and by id."""

    def __init__(self, topic_store: TopicStore, watermarks: Watermarks) -> None:
        self._topic_store = topic_store
        self._watermarks = watermarks
        self._version: TopicsVersion | None = None
        self.by_name: Mapping[str, Topic] = {}
        self.by_id: Mapping[UUID, Topic] = {}
        self.partitions = 0
        """Partitions of all topics."""
        self._added: dict[UUID, Topic] = {}
        """Topics that this broker has created, until a refresh that began later has loaded them."""

    async def refresh(self) -> None:
        """Load the topics that have changed. Raises UnavailableError."""
        expected = set(self._added)
        loaded = await self._topic_store.load_topics(self._version)
        if loaded is None:
            if not expected or self._version is None:
                return
            loaded = Topics(self._version, (), whole=False)
        # Of two refreshes at the same time, the earlier answer may arrive last.
        if self._version is not None and loaded.version.number < self._version.number:
            return
        self._version = loaded.version
        changed = {topic.id: topic for topic in loaded.topics}
        # A coordinator that went back has lost an expected topic that it does not report.
        gone = expected.union(loaded.deleted)
        self._added = {id: topic for id, topic in self._added.items() if id not in gone and id not in changed}
        by_id = {} if loaded.whole else {id: topic for id, topic in self.by_id.items() if id not in gone}
        by_id |= self._added | changed
        self.by_id = by_id
        self.by_name = {topic.name: topic for topic in by_id.values()}
        self.partitions = sum(topic.partitions for topic in by_id.values())
        for partition in self._watermarks.watched():
            if partition.topic not in self.by_id:
                self._watermarks.forget(partition)

    def add(self, topic: Topic) -> None:
        """Add a topic that this broker has created, without loading all topics."""
        if topic.id in self.by_id:
            return
        self._added[topic.id] = topic
        self.by_name = {**self.by_name, topic.name: topic}
        self.by_id = {**self.by_id, topic.id: topic}
        self.partitions += topic.partitions

    async def keep(self) -> None:
        """Refresh every second until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            try:
                await self.refresh()
            except UnavailableError as error:
                log.warning("cannot refresh topics", error=str(error))
            except Exception:
                log.exception("cannot refresh topics")

    async def find(self, name: str) -> Topic | None:
        """Return the topic of that name, after a refresh if it is missing. Raises UnavailableError."""
        if name not in self.by_name:
            await self.refresh()
        return self.by_name.get(name)

    async def find_id(self, id: UUID) -> Topic | None:
        """Return the topic of that id, after a refresh if it is missing. Raises UnavailableError."""
        if id not in self.by_id:
            await self.refresh()
        return self.by_id.get(id)
