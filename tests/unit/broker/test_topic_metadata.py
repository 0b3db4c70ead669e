"""A broker's copy of the topics equals the coordinator's, whatever happens between two refreshes."""

import asyncio
from collections.abc import AsyncIterator
from uuid import UUID

import pytest

from firn_broker.log.watermarks import Watermarks
from firn_broker.log_types import Topic, Topics, TopicsVersion
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.topics.topic_metadata import TopicMetadata
from tests.fakes.clock import FakeClock


class Copy:
    """A copy of the topics, with the coordinator behind it."""

    def __init__(self) -> None:
        self.store = SqliteStore(":memory:", FakeClock(), "cluster", Inline())
        self.copy = TopicMetadata(self.store.topics, Watermarks())

    async def create(self, *numbers: int) -> None:
        """Create topics through another broker."""
        for number in numbers:
            assert await self.store.topics.create_topic(topic(number))

    async def create_here(self, number: int) -> None:
        """Create a topic through the broker that has this copy."""
        await self.create(number)
        self.copy.add(topic(number))

    def backup(self) -> bytes:
        return self.store.database.connection.serialize()

    def go_back(self, backup: bytes) -> None:
        self.store.database.connection.deserialize(backup)

    async def check(self, *numbers: int) -> None:
        """Refresh, and compare the copy with the topics that exist."""
        await self.copy.refresh()
        assert sorted(id.int for id in self.copy.by_id) == list(numbers)
        assert sorted(self.copy.by_name) == [f"t{number}" for number in numbers]
        assert self.copy.partitions == len(numbers)


def topic(number: int) -> Topic:
    return Topic(UUID(int=number), f"t{number}", 1, {})


@pytest.fixture
async def topics() -> AsyncIterator[Copy]:
    made = Copy()
    await made.store.start()
    yield made
    await made.store.close()


@pytest.mark.parametrize("others", [(4,), (4, 5), (4, 5, 6)], ids=["fewer", "as many", "more"])
async def test_changes_of_a_lost_history_are_forgotten(topics: Copy, others: tuple[int, ...]) -> None:
    """The coordinator went back, and then reached a version below, equal to or above the known one."""
    await topics.create(1)
    backup = topics.backup()
    await topics.create(2, 3)
    await topics.check(1, 2, 3)
    topics.go_back(backup)
    await topics.create(*others)
    if len(others) == 1:
        # Brokers do this when the counter has fallen.
        await topics.store.nodes.raise_counter("topics", 4)
    await topics.check(1, *others)
    await topics.create(7)
    await topics.check(1, *others, 7)


@pytest.mark.parametrize("others", [(), (4,)])
async def test_a_created_topic_that_the_coordinator_lost_is_forgotten(topics: Copy, others: tuple[int, ...]) -> None:
    await topics.create(1)
    await topics.check(1)
    backup = topics.backup()
    await topics.create_here(2)
    topics.go_back(backup)
    await topics.create(*others)
    await topics.check(1, *others)


async def test_created_topics_stay(topics: Copy) -> None:
    await topics.create_here(1)
    await topics.check(1)
    await topics.create_here(2)
    for _ in range(3):
        await topics.check(1, 2)


async def test_a_topic_that_is_created_during_a_refresh_stays(topics: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its creation is answered before or after a refresh that has it or lacks it."""
    load = topics.store.topics.load_topics
    answers = asyncio.Queue[None]()
    loaded = asyncio.Queue[None]()

    async def late(known: TopicsVersion | None = None) -> Topics | None:
        answer = await load(known)
        loaded.put_nowait(None)
        await answers.get()
        return answer

    await topics.create(1)
    await topics.check(1)
    monkeypatch.setattr(topics.store.topics, "load_topics", late)
    without = asyncio.create_task(topics.copy.refresh())
    await loaded.get()
    await topics.create_here(2)
    answers.put_nowait(None)
    await without
    assert sorted(topics.copy.by_name) == ["t1", "t2"]
    await topics.create(3)
    with_it = asyncio.create_task(topics.copy.refresh())
    await loaded.get()
    topics.copy.add(topic(3))
    answers.put_nowait(None)
    await with_it
    await topics.create(4)
    answers.put_nowait(None)
    await topics.copy.refresh()
    topics.copy.add(topic(4))
    monkeypatch.undo()
    for _ in range(2):
        await topics.check(1, 2, 3, 4)


async def test_the_earlier_of_two_answers_changes_nothing(topics: Copy, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics.create(1)
    await topics.check(1)
    await topics.create(2)
    earlier = await topics.store.topics.load_topics()
    await topics.store.topics.delete_topic(UUID(int=2))
    await topics.check(1)

    async def answered(known: TopicsVersion | None = None) -> Topics | None:
        return earlier

    monkeypatch.setattr(topics.store.topics, "load_topics", answered)
    await topics.copy.refresh()
    monkeypatch.undo()
    await topics.check(1)
