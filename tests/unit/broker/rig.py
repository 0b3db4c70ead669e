"""The parts of a broker over memory. Tests can make the object store and the metadata store fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any
from uuid import UUID

from firn.model.errors import UnavailableError
from firn_broker.cluster.identifiers import Identifiers
from firn_broker.cluster.membership import Membership
from firn_broker.log.blocks import BlockCache
from firn_broker.log.reader import Reader
from firn_broker.log.watermarks import Watermarks
from firn_broker.log.writer import WalWriter
from firn_broker.log_types import (
    BatchOutcome,
    Commit,
    LogState,
    Lookup,
    Node,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Swap,
    Topic,
    TopicLag,
    Topics,
    TopicsVersion,
)
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.groups import SqliteGroups
from firn_broker.metadata_store.sqlite.logs.log import SqliteLog
from firn_broker.metadata_store.sqlite.nodes import SqliteNodes
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.metadata_store.sqlite.topics import SqliteTopics
from firn_broker.settings import ReaderSettings, WriterSettings
from firn_broker.storage import wal
from firn_broker.storage.objects import MemoryObjects
from firn_broker.storage.put_budget import PutBudget
from tests.contract.metadata_store.builders import in_entry
from tests.fakes.clock import FakeClock

TOPIC = UUID(int=1)
FIRST, SECOND = Partition(TOPIC, 0), Partition(TOPIC, 1)


class Objects(MemoryObjects):
    """Uploads wait for ``gate`` if there is one, and fail while ``broken``."""

    def __init__(self) -> None:
        super().__init__()
        self.gates: list[asyncio.Event] = []
        self.broken = False
        self.puts = 0
        self.reads = 0
        self.at_once = 0
        self.most_at_once = 0

    async def put(self, key: str, data: memoryview) -> None:
        self.puts += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            if self.gates:
                await self.gates.pop(0).wait()
            if self.broken:
                raise UnavailableError("the store is broken")
            await super().put(key, data)
        finally:
            self.at_once -= 1

    async def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        self.reads += 1
        await asyncio.sleep(0)
        if self.broken:
            raise UnavailableError("the store is broken")
        return await super().get_ranges(key, ranges)


class Store(SqliteStore):
    """A metadata store that loses the replies of the next ``lost`` commits, after they have happened, and raises ``trouble`` from next calls."""

    def __init__(self) -> None:
        super().__init__(":memory:", FakeClock(), "cluster", Inline())
        self.lost = 0
        self.trouble: list[Exception] = []
        self.commits: list[str] = []
        self.nodes = TroubledNodes(self)
        self.topics = TroubledTopics(self)
        self.log = TroubledLog(self)
        self.groups = TroubledGroups(self)

    def raise_trouble(self) -> None:
        if self.trouble:
            raise self.trouble.pop(0)


class TroubledNodes(SqliteNodes):
    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self._store = store

    async def renew(self, lease: NodeLease, ttl_ms: int) -> Sequence[Node]:
        self._store.raise_trouble()
        return await super().renew(lease, ttl_ms)


class TroubledTopics(SqliteTopics):
    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self._store = store

    async def load_topics(self, known: TopicsVersion | None = None) -> Topics | None:
        self._store.raise_trouble()
        return await super().load_topics(known)


class TroubledLog(SqliteLog):
    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self._store = store

    async def states(self, partitions: Sequence[Partition]) -> Sequence[LogState | None]:
        self._store.raise_trouble()
        return await super().states(partitions)

    async def commit(self, commit: Commit) -> Sequence[BatchOutcome]:
        self._store.raise_trouble()
        self._store.commits.append(commit.key)
        outcomes = await super().commit(commit)
        if self._store.lost:
            self._store.lost -= 1
            raise UnavailableError("the answer was lost")
        return outcomes


class TroubledGroups(SqliteGroups):
    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self._store = store

    async def lags(self, groups: Sequence[str], limit: int) -> Sequence[TopicLag]:
        self._store.raise_trouble()
        return await super().lags(groups, limit)


class Rig:
    """The parts, by name."""

    def __init__(self, puts_per_second: float = 0, **writer: Any) -> None:
        self.objects = Objects()
        self.store = Store()
        self.cache = BlockCache(1 << 24, 1 << 24)
        self.watermarks = Watermarks()
        self.membership = Membership(self.store.nodes, NodeAddress("h", 1), ttl_ms=60_000)
        self.writer = WalWriter(
            self.store.log, self.objects, self.membership, self.cache, self.watermarks,
            Identifiers(FakeClock(), Random(1)), WriterSettings(**{"flush_seconds": 0.01, "upload_seconds": 0.2, **writer}),
            PutBudget(puts_per_second),
        )  # fmt: skip
        self.reader = Reader(self.store.log, self.objects, self.cache, self.watermarks, ReaderSettings())


async def move_to_table(made: Rig, first: int, last: int) -> None:
    """Move the ranges of the first partition from offset ``first`` to ``last`` to a table."""
    (found,) = await made.store.log.find([Lookup(FIRST, first, 1 << 40)])
    old = [one for one in found.ranges if one.base_offset <= last]
    key = wal.history_key(UUID(int=1), 7)
    await made.store.log.reserve(made.membership.lease, [key])
    swap = Swap(FIRST, old, in_entry(key, old))
    assert await made.store.log.rewrite(Rewrite(made.membership.lease, key, 500, [swap])) == [True]


@asynccontextmanager
async def rig(puts_per_second: float = 0, **writer: Any) -> AsyncIterator[Rig]:
    """Run the parts of a broker with a topic of two partitions."""
    made = Rig(puts_per_second, **writer)
    await made.store.start()
    await made.store.topics.create_topic(Topic(TOPIC, "t", 2, {}))
    await made.membership.join()
    work = [asyncio.create_task(coroutine) for coroutine in (made.writer.run(), made.writer.settle())]
    try:
        yield made
    finally:
        for task in work:
            task.cancel()
        await made.store.close()
