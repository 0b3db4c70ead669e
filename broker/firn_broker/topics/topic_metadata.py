"""This broker's copy of the topics. The broker refreshes it from the coordinator every second, and when a requested
topic is missing."""

import asyncio
from collections.abc import Mapping
from uuid import UUID

import structlog

from firn.model.errors import UnavailableError
from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Topic
from firn_broker.ports import TopicStore

log = structlog.get_logger()

REFRESH_SECONDS = 1.0


class TopicMetadata:
    """Topics by name and by id."""

    def __init__(self, topic_store: TopicStore, watermarks: Watermarks) -> None:
        self._topic_store = topic_store
        self._watermarks = watermarks
        self._version = -1
        self.by_name: Mapping[str, Topic] = {}
        self.by_id: Mapping[UUID, Topic] = {}
        self.partitions = 0
        """Partitions of all topics."""

    async def refresh(self) -> None:
        """Load the topics if they have changed. Raises UnavailableError."""
        loaded = await self._topic_store.load_topics(self._version)
        if loaded is None or loaded.version <= self._version:
            return
        self._version = loaded.version
        self.by_name = {topic.name: topic for topic in loaded.topics}
        self.by_id = {topic.id: topic for topic in loaded.topics}
        self.partitions = sum(topic.partitions for topic in loaded.topics)
        for partition in self._watermarks.watched():
            if partition.topic not in self.by_id:
                self._watermarks.wake_partition(partition)

    def add(self, topic: Topic) -> None:
        """Add a topic that this broker has created, without loading all topics."""
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
