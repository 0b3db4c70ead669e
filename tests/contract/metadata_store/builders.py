"""Builders that all suites of the metadata store use: topics, nodes, and the batches of objects."""

from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import pytest

from firn_broker.log_types import (
    BatchEntry,
    BatchOutcome,
    BatchRange,
    Commit,
    Lookup,
    NodeAddress,
    NodeLease,
    Partition,
    Rewrite,
    Swap,
    TableRange,
    Topic,
    WalRange,
)
from firn_broker.ports import MetadataStore

TOPIC = UUID(int=7)
FIRST, SECOND = Partition(TOPIC, 0), Partition(TOPIC, 1)
ADDRESS = NodeAddress("127.0.0.1", 9092)
TTL = 10_000
ALL_KEYS = ("wal/", "walz")
"""Bounds of the keys of all objects."""
SERVED = 250
"""Bytes of a rebuilt batch range. Its producers sent 100."""
Advance = Callable[[float], Awaitable[None]]


class Log:
    """A node that commits batches of one topic, one object after the other."""

    def __init__(self, store: MetadataStore, lease: NodeLease) -> None:
        self.store = store
        self.lease = lease
        self.number = 0

    async def key(self) -> str:
        self.number += 1
        key = f"wal/{self.lease.epoch}-{self.number}"
        await self.store.log.reserve(self.lease, [key])
        return key

    async def commit(self, *batches: BatchEntry, key: str | None = None) -> Sequence[BatchOutcome]:
        return await self.store.log.commit(Commit(self.lease, key or await self.key(), 1000, placed(batches)))


def placed(batches: Sequence[BatchEntry]) -> list[BatchEntry]:
    """Place the batches one after the other, as in an object."""
    position = 32
    entries = []
    for entry in batches:
        entries.append(entry._replace(position=position))
        position += entry.length
    return entries


def batch(
    partition: Partition = FIRST, records: int = 1, *, length: int = 100, time: int = 1000, append_time: bool = False
) -> BatchEntry:
    return BatchEntry(partition, 0, length, records, time, append_time)


def produced(
    sequence: int, records: int = 1, *, epoch: int = 0, producer: int = 5, partition: Partition = FIRST
) -> BatchEntry:
    return BatchEntry(partition, 0, 100, records, 1000, False, producer, epoch, sequence)


def offsets(outcomes: Sequence[BatchOutcome]) -> list[int]:
    return [outcome.base_offset for outcome in outcomes]


def in_entry(key: str, old: Sequence[BatchRange], entry: int = 1000, position: int = 0) -> list[BatchRange]:
    """Place ranges next to each other in an entry."""
    return [
        each._replace(place=TableRange(key, position + SERVED * number, SERVED, entry, 40, each.stored))
        for number, each in enumerate(old)
    ]


async def rewritten(log: Log, *, count: int = 1 << 30) -> Rewrite:
    """Build a rewrite of the first partition's first ranges into one range of another object."""
    (result,) = await log.store.log.find([Lookup(FIRST, 0, 100_000)])
    old = result.ranges[:count]
    key = await log.key()
    new = BatchRange(old[0].base_offset, old[-1].last_offset, WalRange(key, 32, 40), old[-1].max_timestamp, -1)
    return Rewrite(log.lease, key, 500, [Swap(FIRST, old, [new])])


class StoreContract:
    """Fixtures of each implementation: ``store``, started and empty, and ``advance``, which moves its clock forward."""

    @pytest.fixture
    async def log(self, store: MetadataStore) -> Log:
        await store.topics.create_topic(Topic(TOPIC, "orders", 2, {}))
        return Log(store, await store.nodes.join(ADDRESS, TTL))
