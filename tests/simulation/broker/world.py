"""Brokers whose store and coordinator misbehave by a seed: answers are late, lost before or after the deed, and brokers die at any point."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from firn.model.errors import UnavailableError
from firn_broker import table
from firn_broker.broker import Broker, Ports
from firn_broker.coordinates import NodeAddress
from firn_broker.coordination.sqlite import Inline, SqliteCoordinator
from firn_broker.router import Client
from firn_broker.settings import (
    BrokerSettings,
    DirectorySettings,
    GroupSettings,
    SqliteSettings,
    UpkeepSettings,
    WriterSettings,
)
from firn_broker.storage.objects import MemoryObjects
from firn_broker.wire import headers
from firn_broker.wire.cursor import MalformedError
from tests.fakes.virtual_time import LoopClock

SETTINGS = BrokerSettings(
    coordinator=SqliteSettings(path=":memory:"),
    objects=DirectorySettings(path="/nowhere"),
    writer=WriterSettings(flush_bytes=4096, upload_seconds=3, early_bytes=1024),
    upkeep=UpkeepSettings(interval_seconds=5, grace_seconds=60, abandon_seconds=20),
    groups=GroupSettings(shards=4, consumer_session_ms=10_000),
)


class Dead(Exception):
    """The broker that was asked is gone: its connections break."""


class Outside:
    """What one broker has of the world: a port whose every call goes through here."""

    def __init__(self, inner: Any, chance: Random, world: "World") -> None:
        self._inner = inner
        self._chance = chance
        self._world = world
        self.dead = False
        self.cut = False

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*values: Any, **named: Any) -> Any:
            if name in ("start", "close"):
                return None
            await self._pass()
            fate = self._chance.random()
            if self.cut or fate < self._world.trouble / 2:
                raise UnavailableError("lost on the way there")
            result = await getattr(self._inner, name)(*values, **named)
            await self._pass()
            if fate > 1 - self._world.trouble / 2:
                raise UnavailableError("lost on the way back")
            return result

        return call

    async def _pass(self) -> None:
        delay = self._chance.random() ** 4 * self._world.slowness
        await asyncio.sleep(delay)
        if self.dead:
            await asyncio.get_running_loop().create_future()


class World:
    """Some brokers, some of which may be dead, over one log."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.objects = MemoryObjects()
        self.coordinator = SqliteCoordinator(":memory:", LoopClock(), "cluster", Inline())
        self.trouble = 0.0
        self.slowness = 0.01
        self.brokers: list[Broker] = []
        self._outside: dict[int, tuple[Outside, Outside]] = {}
        self._lives: dict[int, asyncio.Future[None]] = {}
        self._count = 0

    async def start(self) -> Broker:
        """One more broker."""
        self._count += 1
        coordinator = Outside(self.coordinator, Random(self.chance.random()), self)
        objects = Outside(self.objects, Random(self.chance.random()), self)
        ports: Any = Ports(coordinator, objects, LoopClock(), Random(self.chance.random()))  # type: ignore[arg-type]
        while True:
            broker = Broker(ports, SETTINGS)
            try:
                await broker.start(NodeAddress("127.0.0.1", self._count), table.routes(broker))
                break
            except UnavailableError:
                await asyncio.sleep(0.1)
        self._outside[id(broker)] = coordinator, objects
        self._lives[id(broker)] = asyncio.get_running_loop().create_future()
        self.brokers.append(broker)
        return broker

    def kill(self, broker: Broker) -> None:
        """Nothing that it began comes to anything that was not done already."""
        self.brokers.remove(broker)
        for port in self._outside[id(broker)]:
            port.dead = True
        for task in broker._background:
            task.cancel()
        self._lives[id(broker)].set_result(None)

    def cut_off(self, broker: Broker, cut: bool) -> None:
        """Whether the broker reaches the coordinator at all. Clients reach it as ever."""
        self._outside[id(broker)][0].cut = cut

    async def ask(self, broker: Broker, client: Client, api: int, version: int, body: bytes) -> bytes:
        """The answer's body. Raises Dead."""
        head = (
            api.to_bytes(2, "big")
            + version.to_bytes(2, "big")
            + b"\0\0\0\x07\0\0"
            + (b"\0" if headers.is_flexible(api, version) else b"")
        )
        frame = memoryview(bytearray(head + body))
        asked = asyncio.ensure_future(broker.router.handle(headers.read(frame), frame, client))
        life = self._lives[id(broker)]
        await asyncio.wait((asked, life), return_when=asyncio.FIRST_COMPLETED)
        if not asked.done():
            asked.cancel()
            raise Dead
        try:
            found = asked.result()
        except (UnavailableError, MalformedError) as error:
            raise Dead from error
        assert found is not None
        return b"".join(found)[len(headers.response(headers.read(frame))) :]


def produce_body(topic: str, partition: int, batch: memoryview) -> bytes:
    """Produce, version 7, one batch."""
    name = topic.encode()
    return (
        b"\xff\xff" + b"\xff\xff" + (1000).to_bytes(4, "big") + (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name
        + (1).to_bytes(4, "big") + partition.to_bytes(4, "big") + len(batch).to_bytes(4, "big") + bytes(batch)
    )  # fmt: skip


def fetch_body(topic: str, partition: int, offset: int) -> bytes:
    """Fetch, version 11, one partition, without waiting."""
    name = topic.encode()
    size = (1 << 16).to_bytes(4, "big")
    return (
        b"\xff\xff\xff\xff" + b"\0\0\0\0" + b"\0\0\0\0" + size + b"\0" + b"\0\0\0\0" + b"\xff\xff\xff\xff" + (1).to_bytes(4, "big")
        + len(name).to_bytes(2, "big") + name + (1).to_bytes(4, "big") + partition.to_bytes(4, "big") + b"\xff\xff\xff\xff"
        + offset.to_bytes(8, "big") + b"\xff" * 8 + size + b"\0\0\0\0" + b"\0\0"
    )  # fmt: skip


def produced(body: bytes, topic: str) -> tuple[int, int]:
    """(error, base offset) of the only partition."""
    place = 4 + 2 + len(topic) + 4 + 4
    return int.from_bytes(body[place : place + 2], "big", signed=True), int.from_bytes(
        body[place + 2 : place + 10], "big", signed=True
    )


def fetched(body: bytes, topic: str) -> tuple[int, int, memoryview]:
    """(error, high watermark, batches) of the only partition."""
    place = 4 + 2 + 4 + 4 + 2 + len(topic) + 4 + 4
    error = int.from_bytes(body[place : place + 2], "big", signed=True)
    high = int.from_bytes(body[place + 2 : place + 10], "big", signed=True)
    place += 2 + 8 + 8 + 8 + 4 + 4
    size = int.from_bytes(body[place : place + 4], "big", signed=True)
    return error, high, memoryview(body)[place + 4 : place + 4 + size]
