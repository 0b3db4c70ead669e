"""Idempotent producers on brokers that die, over stores that lose answers: nothing acknowledged is lost, doubled or out of order, and no
offset is used twice."""

import asyncio
import os
import struct
from contextlib import suppress

import pytest

from firn_broker.coordinates import Topic
from firn_broker.router import Client
from firn_broker.wire import records
from tests.fakes.virtual_time import run
from tests.simulation.broker.world import Dead, World, fetch_body, fetched, produce_body, produced
from tests.unit.broker.batches import raw

SEEDS = 1000 if os.environ.get("FIRN_LONG") else 40
PARTITIONS, PRODUCERS, WINDOWS = 3, 4, 25
TOPIC = "t"
RETRIABLE = {2, 3, 56, 6, 7}


class Producer:
    """Sends windows of up to five batches without waiting in between, and each window again, in its order, until all of it is taken."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.partition = number % PARTITIONS
        self.sequence = 0
        self.acknowledged: list[tuple[int, int, int]] = []
        """(first sequence, records, offset)."""

    async def run(self) -> None:
        chance = self.world.chance
        for _ in range(WINDOWS):
            await asyncio.sleep(chance.random() * 0.4)
            window = []
            for _ in range(chance.randint(1, 5)):
                count = chance.randint(1, 4)
                body = b"x" * chance.randrange(1500)
                batch = raw(count, body=body, producer=self.number, epoch=0, sequence=self.sequence)
                window.append((self.sequence, count, batch))
                self.sequence += count
            while window:
                window = await self._send(window)

    async def _send(self, window: list[tuple[int, int, memoryview]]) -> list[tuple[int, int, memoryview]]:
        """What is left to send."""
        if not self.world.brokers:
            await asyncio.sleep(0.1)
            return window
        broker, client = self.world.chance.choice(self.world.brokers), Client("peer")
        answers = await asyncio.gather(
            *(
                self.world.ask(broker, client, 0, 7, produce_body(TOPIC, self.partition, bytes_of))
                for _, _, bytes_of in window
            ),
            return_exceptions=True,
        )
        taken = 0
        for (sequence, count, _), answer in zip(window, answers, strict=True):
            if isinstance(answer, Dead):
                break
            if isinstance(answer, BaseException):
                raise answer
            error, offset = produced(answer, TOPIC)
            if error:
                # Behind a batch that has to come again all others are out of order, which is no loss: they come again with it.
                assert error in RETRIABLE or (error == 45 and taken < len(window)), error
                break
            self.acknowledged.append((sequence, count, offset))
            taken += 1
        for (sequence, _, _), answer in list(zip(window, answers, strict=True))[taken + 1 :]:
            if isinstance(answer, bytes) and not isinstance(answers[taken], Dead):
                assert produced(answer, TOPIC)[0], f"{sequence} got in front of {window[taken][0]}"
        if taken < len(window):
            await asyncio.sleep(self.world.chance.random())
        return window[taken:]


class Consumer:
    """Reads a partition to its end, from whatever broker, again and again. High watermarks never go back, whoever tells them."""

    def __init__(self, world: World, partition: int) -> None:
        self.world = world
        self.partition = partition
        self.offset = 0
        self.high = 0
        self.seen: list[tuple[int, int, int]] = []

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self.world.chance.random() * 0.3)
            if not self.world.brokers:
                continue
            broker = self.world.chance.choice(self.world.brokers)
            try:
                body = await self.world.ask(
                    broker, Client("reader"), 1, 11, fetch_body(TOPIC, self.partition, self.offset)
                )
            except Dead:
                continue
            error, high, data = fetched(body, TOPIC)
            if error:
                assert error in RETRIABLE, f"{error} at {self.offset}, which exists"
                continue
            assert high >= self.high, f"the high watermark went back from {self.high} to {high}"
            self.high = high
            for place, size, count in records.walk(data):
                batch = data[place : place + size]
                (base,) = struct.unpack_from(">q", batch)
                assert base == self.offset, "a batch was left out"
                producer, _, sequence = struct.unpack_from(">qhi", batch, 43)
                self.seen.append((base, producer, sequence))
                self.offset = base + count


async def read_all(world: World, partition: int) -> list[tuple[int, int, int, int]]:
    """(offset, records, producer, first sequence) of each batch, through a broker that caches nothing yet."""
    broker, client, offset, found = await world.start(), Client("reader"), 0, []
    while True:
        error, high, data = fetched(await world.ask(broker, client, 1, 11, fetch_body(TOPIC, partition, offset)), TOPIC)
        assert not error, error
        if offset == high:
            return found
        for place, size, count in records.walk(data):
            batch = data[place : place + size]
            (base,) = struct.unpack_from(">q", batch)
            producer, _, sequence = struct.unpack_from(">qhi", batch, 43)
            found.append((base, count, producer, sequence))
            offset = base + count


async def story(seed: int) -> None:
    world = World(seed)
    await world.coordinator.start()
    producers = [Producer(world, number) for number in range(PRODUCERS)]
    for _ in range(3):
        await world.start()
    await world.coordinator.create_topic(
        Topic(world.brokers[0].identifiers.uuid4(), TOPIC, PARTITIONS, {"retention.ms": "-1"})
    )
    world.trouble, world.slowness = world.chance.choice((0.02, 0.1, 0.3)), world.chance.choice((0.01, 0.2, 1.0))

    async def deaths() -> None:
        while True:
            await asyncio.sleep(world.chance.expovariate(0.4))
            if world.brokers:
                world.kill(world.chance.choice(world.brokers))
            await asyncio.sleep(world.chance.random() * 3)
            await world.start()

    dying = asyncio.create_task(deaths())
    consumers = [Consumer(world, partition) for partition in range(PARTITIONS)]
    reading = [asyncio.create_task(consumer.run()) for consumer in consumers]
    await asyncio.gather(*(producer.run() for producer in producers))
    dying.cancel()
    await asyncio.sleep(120)  # janitors at work: what is referenced has to survive them
    world.trouble = 0.0
    await asyncio.sleep(30)
    for task in reading:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
    for partition in range(PARTITIONS):
        found = await read_all(world, partition)
        offset = 0
        following: dict[int, int] = {}
        for base, count, producer, sequence in found:
            assert base == offset, "a gap, or an offset that was used twice"
            offset += count
            assert following.get(producer, 0) == sequence, (
                f"producer {producer}: {sequence} after {following.get(producer, 0)}"
            )
            following[producer] = sequence + count
        assert consumers[partition].seen == [(base, producer, sequence) for base, _, producer, sequence in found]
        at = {(producer, sequence): base for base, _, producer, sequence in found}
        for one in producers:
            if one.partition == partition:
                assert following[one.number] == one.sequence, "something was lost"
                for sequence, _, base in one.acknowledged:
                    assert at[one.number, sequence] == base, "another offset than the one that was told"
    for broker in list(world.brokers):
        world.kill(broker)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_is_acknowledged_stays(seed: int) -> None:
    run(story(seed))
