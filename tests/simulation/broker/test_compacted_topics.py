"""Compacted topics on brokers that fail and die, while clients write and read and brokers compact.

The newest acknowledged value of each key stays, at its offset and in its order. A deleted key does not come back.
"""

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress

import pytest

from firn.records import keys, record_batch
from firn_broker.log_types import Topic
from firn_broker.network.router import Client
from firn_broker.storage import wal
from tests.contract.metadata_store.builders import ALL_KEYS
from tests.fakes.virtual_time import run
from tests.simulation.broker import wire
from tests.simulation.broker.world import LEASE_SECONDS, Dead, World
from tests.unit.broker.batches import raw
from tests.unit.broker.test_contents import record

SEEDS = 300 if os.environ.get("FIRN_LONG") else 10
TOPIC = "t"
PARTITIONS, PRODUCERS, WINDOWS, KEYS = 2, 4, 15, 5
RETENTION_SECONDS = 40
ROUND_SECONDS = 60
"""Longest round of maintenance in the slowest world: it reads some 40 objects one by one."""
PEACE_SECONDS = LEASE_SECONDS + 2 * PARTITIONS * ROUND_SECONDS + RETENTION_SECONDS
"""Time limit for compaction to remove all tombstones after the last fault. A slow round compacts only one partition.
Tombstones stay from the first pass over their partition for the retention, until the next pass."""
RETRIABLE = {2, 3, 6, 7, 56}

Window = list[tuple[int, list[tuple[bytes, bytes | None]]]]
"""Batches that are sent without waiting for replies: (first sequence, (key, value) of each record)."""


class Producer:
    """Writes its own keys, each value once, and repeats batches that are not acknowledged."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.partition = number % PARTITIONS
        self.sequence = 0
        self.newest: dict[bytes, int] = {}
        """The last acknowledged sequence of each key."""
        self.written: dict[int, tuple[bytes, bytes | None, int]] = {}
        """(key, value, offset) of each acknowledged sequence."""

    async def run(self) -> None:
        chance = self.world.chance
        for _ in range(WINDOWS):
            await asyncio.sleep(chance.random() * 3)
            window: Window = []
            for _ in range(chance.randint(1, 5)):
                pairs = []
                first = self.sequence
                for _ in range(chance.randint(1, 4)):
                    value = None if chance.random() < 0.3 else b"%d" % self.sequence + b"x" * chance.randrange(300)
                    pairs.append((b"%d-%d" % (self.number, chance.randrange(KEYS)), value))
                    self.sequence += 1
                window.append((first, pairs))
            while window:
                window = await self._send(window)

    async def _send(self, window: Window) -> Window:
        """Send the window and return the records that are left to send."""
        if not self.world.hosts:
            await asyncio.sleep(0.1)
            return window
        host, client = self.world.chance.choice(self.world.hosts), Client("peer")
        answers = await asyncio.gather(
            *(wire.produce(self.world, host, client, TOPIC, self.partition, self._batch(*batch)) for batch in window),
            return_exceptions=True,
        )
        for taken, (answer, (first, pairs)) in enumerate(zip(answers, window, strict=True)):
            if isinstance(answer, tuple):
                error, offset = answer
            elif isinstance(answer, Dead):
                error, offset = 7, -1
            else:
                raise answer
            if error:
                assert error in RETRIABLE or (error == 45 and taken), error
                await asyncio.sleep(self.world.chance.random())
                return window[taken:]
            for sequence, (key, value) in enumerate(pairs, first):
                self.newest[key] = sequence
                self.written[sequence] = key, value, offset + sequence - first
        return []

    def _batch(self, first: int, pairs: list[tuple[bytes, bytes | None]]) -> memoryview:
        body = b"".join(record(delta, key=key, value=value) for delta, (key, value) in enumerate(pairs))
        return raw(len(pairs), body=body, producer=self.number, epoch=0, sequence=first)


class Consumer:
    """Reads each batch of a partition once, from any broker."""

    def __init__(self, world: World, partition: int) -> None:
        self.world = world
        self.partition = partition
        self.offset = 0
        self.seen: list[tuple[int, bytes, bytes | None]] = []

    async def read(self) -> bool:
        """Fetch once, and return True if the end is reached."""
        await asyncio.sleep(self.world.chance.random())
        if not self.world.hosts:
            return False
        host = self.world.chance.choice(self.world.hosts)
        try:
            error, _, high, data = await wire.fetch_bytes(
                self.world, host, Client("reader"), TOPIC, self.partition, self.offset
            )
        except Dead:
            return False
        if error:
            assert error in RETRIABLE, f"{error} at {self.offset}, which exists"
            return False
        assert self.offset == high or len(data), f"no records at {self.offset} of {high}: a consumer could not continue"
        for place, size, offsets in record_batch.walk(data):
            batch = data[place : place + size]
            base = int.from_bytes(batch[:8], "big")
            assert base <= self.offset < base + offsets, f"{base} + {offsets} does not follow {self.offset}"
            self.seen += [
                (decoded.offset, decoded.key or b"", None if decoded.tombstone else decoded.rest)
                for decoded in keys.decode(batch)
                if decoded.offset >= self.offset
            ]
            self.offset = base + offsets
        return self.offset == high


def newest(seen: list[tuple[int, bytes, bytes | None]]) -> dict[bytes, int]:
    """Return the last offset of each key; -1 for a deleted key."""
    return {key: -1 if value is None else offset for offset, key, value in seen}


def final(producers: list[Producer], partition: int) -> Iterator[tuple[bytes, bytes | None, int]]:
    """Return (key, value, offset) of the newest acknowledged record of each key."""
    for producer in producers:
        if producer.partition == partition:
            yield from (producer.written[sequence] for sequence in producer.newest.values())


def check_order(producers: list[Producer], consumer: Consumer) -> None:
    """Check that every read record was written at its offset, and that offsets only rise."""
    there = {
        offset: (key, value)
        for producer in producers
        if producer.partition == consumer.partition
        for key, value, offset in producer.written.values()
    }
    assert [read[0] for read in consumer.seen] == sorted({read[0] for read in consumer.seen})
    for offset, key, value in consumer.seen:
        if offset in there:
            assert (key, value is None) == (there[offset][0], there[offset][1] is None)
            assert value is None or (there[offset][1] or b"") in value


async def newcomers(world: World, producers: list[Producer]) -> None:
    """Start readers at the beginning of a partition, and check that they find all records acknowledged before.

    This holds while reading takes less time than tombstones stay."""
    loop = asyncio.get_running_loop()
    while True:
        await asyncio.sleep(world.chance.random() * 10)
        began, consumer = loop.time(), Consumer(world, world.chance.randrange(PARTITIONS))
        before = list(final(producers, consumer.partition))
        while not await consumer.read():
            pass
        if loop.time() - began < RETENTION_SECONDS:
            check_acknowledged(before, newest(consumer.seen))


def check_acknowledged(before: list[tuple[bytes, bytes | None, int]], last_offsets: dict[bytes, int]) -> None:
    for key, value, offset in before:
        if value is None:
            assert last_offsets.get(key, -1) == -1 or last_offsets[key] > offset, f"{key!r} came back"
        else:
            # A later deletion may be stored and not acknowledged yet.
            assert last_offsets.get(key, -1) == -1 or last_offsets[key] >= offset, f"{key!r} is older than {offset}"


async def create_topic(world: World, ratio: str) -> None:
    """Create the compacted topic. ``ratio`` is its ``min.cleanable.dirty.ratio``."""
    configs = {
        "cleanup.policy": "compact", "delete.retention.ms": str(RETENTION_SECONDS * 1000), "min.cleanable.dirty.ratio": ratio
    }  # fmt: skip
    await world.store.topics.create_topic(Topic(world.hosts[0].broker.identifiers.uuid4(), TOPIC, PARTITIONS, configs))


async def kill_brokers(world: World) -> None:
    """Kill a broker about every 5 seconds and start another broker in its place, until cancelled."""
    while True:
        await asyncio.sleep(world.chance.expovariate(0.2))
        if world.hosts:
            world.kill(world.chance.choice(world.hosts))
        await asyncio.sleep(world.chance.random() * 3)
        await world.start()


async def follow(consumer: Consumer) -> None:
    """Let a consumer read until cancelled."""
    while True:
        await consumer.read()


async def stop(tasks: list["asyncio.Task[None]"]) -> None:
    """Cancel tasks. Raises the exception of a task that has failed."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def has_tombstones(world: World) -> bool:
    """Return whether a partition may have a tombstone, because it has records that are not compacted or wait for their
    horizon."""
    objects = await world.store.retention.list_objects(*ALL_KEYS)
    return any(runs and wal.horizon(key) != 0 for key, (_, runs) in objects.items())


async def check_compacted(world: World) -> None:
    """Check that brokers have compacted some records."""
    compacted = [
        key
        for key, (_, runs) in (await world.store.retention.list_objects(*ALL_KEYS)).items()
        if runs and wal.horizon(key) is not None
    ]
    assert compacted, "nothing was compacted"


def check_newest(producers: list[Producer], consumer: Consumer) -> None:
    """Check that a consumer has read the newest acknowledged record of each key, and no other value after it."""
    check_order(producers, consumer)
    offsets = newest(consumer.seen)
    for key, value, offset in final(producers, consumer.partition):
        assert offsets.get(key, -1) == (-1 if value is None else offset), f"{key!r}, {value!r} at {offset}"


def check_only_values(producers: list[Producer], consumer: Consumer) -> None:
    """Check that a consumer has read one record of each key that is not deleted, and no tombstone."""
    live = {key for key, value, _ in final(producers, consumer.partition) if value is not None}
    assert [read[1] for read in consumer.seen] == [read[1] for read in consumer.seen if read[1] in live], (
        "a tombstone stayed"
    )
    assert len(consumer.seen) == len(live)


async def story(seed: int) -> None:
    world = World(seed)
    await world.store.start()
    for _ in range(3):
        await world.start()
    ratio = world.chance.choice(("0", "0.5"))
    await create_topic(world, ratio)
    world.trouble, world.slowness = world.chance.choice((0.02, 0.1, 0.3)), world.chance.choice((0.01, 0.2, 1.0))
    producers = [Producer(world, number) for number in range(PRODUCERS)]
    consumers = [Consumer(world, partition) for partition in range(PARTITIONS)]
    beside = [
        asyncio.create_task(work)
        for work in (kill_brokers(world), newcomers(world, producers), *map(follow, consumers))
    ]
    await asyncio.gather(*(producer.run() for producer in producers))
    await asyncio.sleep(30)
    world.trouble = 0.0
    beside[0].cancel()
    # Compaction removes tombstones, and retention deletes replaced objects.
    async with asyncio.timeout(PEACE_SECONDS):
        await asyncio.sleep(2 * RETENTION_SECONDS)
        while ratio == "0" and await has_tombstones(world):
            await asyncio.sleep(1)
    await stop(beside)
    await world.start()
    await check_compacted(world)
    for consumer in consumers:
        last = Consumer(world, consumer.partition)
        while not await last.read():
            pass
        check_newest(producers, last)
        check_newest(producers, consumer)
        if ratio == "0":
            check_only_values(producers, last)
    world.end()
    assert not world.errors


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_newest_value_of_each_key_stays(seed: int) -> None:
    run(story(seed))
