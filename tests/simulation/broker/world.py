"""Brokers in a world that fails by a seed.

Calls of ports are slow, lost before or after their effect, late, or repeated. Processes die at a chosen step, freeze
for a while, or lose the coordinator. The coordinator restarts, and wall clocks jump.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

import structlog

from firn.model.errors import FencedError, UnavailableError
from firn.records.cursor import MalformedError
from firn_broker import api_table
from firn_broker.broker import Broker, Ports
from firn_broker.log_types import NodeAddress
from firn_broker.metadata_store.sqlite.database import Inline
from firn_broker.metadata_store.sqlite.store import SqliteStore
from firn_broker.network.budget import Counted
from firn_broker.network.router import Client
from firn_broker.ports import WentBackError
from firn_broker.settings import (
    BrokerSettings,
    DirectorySettings,
    GroupSettings,
    MaintenanceSettings,
    ReaderSettings,
    SqliteSettings,
    WriterSettings,
)
from firn_broker.wire import headers
from tests.fakes.virtual_time import LoopClock
from tests.simulation.broker.flips import FlippingObjects

LEASE_SECONDS = 4.0
SETTINGS = BrokerSettings(
    coordinator=SqliteSettings(path=":memory:"),
    objects=DirectorySettings(path="/nowhere"),
    lease_seconds=LEASE_SECONDS,
    writer=WriterSettings(flush_bytes=4096, upload_seconds=3, early_bytes=1024, puts_per_second=5),
    reader=ReaderSettings(poll_seconds=0.5),
    upkeep=MaintenanceSettings(
        interval_seconds=2,
        grace_seconds=5,
        merge_seconds=3,
        merged_bytes=16_384,
        abandon_seconds=6,
        uncommitted_seconds=120,
    ),
    groups=GroupSettings(shards=4, initial_rebalance_ms=500, consumer_session_ms=10_000),
)
AGAIN = frozenset({"commit", "reserve", "put", "renew", "advance_start", "save_group", "forget_objects", "rewrite"})
"""Calls that may also take effect late, after the caller received an error, or twice."""
LATE_SECONDS = 4.0
COORDINATOR, OBJECTS = "coordinator", "objects"
PARTS = ("nodes", "topics", "log", "merges", "retention", "groups", "access")
"""The ports of the metadata store."""
BEFORE, AFTER = "before", "after"
STEPS = (
    ("put", BEFORE), ("put", AFTER), ("commit", BEFORE), ("commit", AFTER), ("find", BEFORE), ("find", AFTER), ("commit_offsets", BEFORE),
    ("commit_offsets", AFTER), ("save_group", BEFORE), ("save_group", AFTER), ("reserve", AFTER), ("get_ranges", BEFORE), ("renew", AFTER),
    ("acquire", AFTER), ("advance_start", AFTER), ("expire", AFTER), ("drop_ranges", AFTER), ("withdraw_reservations", AFTER),
    ("dead_objects", AFTER), ("delete", BEFORE), ("delete", AFTER), ("create_topic", AFTER), ("delete_topic", AFTER), ("release", AFTER),
    ("rewrite", BEFORE), ("rewrite", AFTER), ("finish", BEFORE),
)  # fmt: skip
"""Steps at which a broker may die: before or after a call of a port. Every broker reaches the first `OFTEN` of them
regularly."""
OFTEN = 10


class Dead(Exception):
    """The broker died, does not answer in time, or closed the connection."""


@dataclass(eq=False)
class Host:
    """A broker process and its machine."""

    number: int
    zone: str
    clock: LoopClock
    chance: Random
    broker: Broker = field(init=False)
    dead: bool = False
    thawed: asyncio.Future[None] | None = None
    """Set while the process is frozen."""
    cut: float = 0.0
    """Until when this broker does not reach the coordinator."""
    doom: tuple[str, str] | None = None
    """The step at which the broker dies."""
    spared: bool = False
    """The broker does not die for now."""
    open: dict[asyncio.Future[bytes], None] = field(default_factory=dict)
    """Answers that clients wait for, in order. A set would make the story of a seed depend on hashes."""

    async def running(self) -> None:
        """Wait while the process is frozen, and for ever after it died."""
        while self.thawed is not None:
            # A call that times out must not cancel the future, which the whole process waits for.
            await asyncio.shield(self.thawed)
        if self.dead:
            await asyncio.get_running_loop().create_future()

    def stalled(self) -> None:
        """Report that a producer waits for replies before it sends more."""
        if not self.dead and self.thawed is None:
            self.broker.router.stalled()


class Outside:
    """A port as a broker sees it: every call goes through here and may fail."""

    def __init__(self, port: str, host: Host, world: "World", part: str = "") -> None:
        """``part`` names one of the metadata store's ports."""
        self._port = port
        self._host = host
        self._world = world
        self._part = part

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*values: Any, **named: Any) -> Any:
            if name in ("start", "close"):
                return None
            return await self._call(name, values, named)

        # Python does not call __getattr__ again for an attribute that exists.
        self.__dict__[name] = call
        return call

    async def _call(self, name: str, values: Any, named: Any) -> Any:
        world, host, chance = self._world, self._host, self._host.chance
        world.calls += 1
        await host.running()
        await world.step(host, name, BEFORE)
        await self._pass(name)
        await self._reach()
        fate, trouble = chance.random(), world.trouble
        if fate < trouble * 0.4:
            world.faults["lost on the way there"] += 1
            raise UnavailableError("lost on the way there")
        life = world.life
        if name == "put":
            # A copy, as of now: the broker writes into these bytes later.
            values = values[0], bytes(values[1])
        if name in AGAIN and fate < trouble * 0.5:
            world.faults["done late"] += 1
            world.later(self._again(name, values, named, chance.random() * LATE_SECONDS))
            raise UnavailableError("timed out")
        result = await self._inner(name)(*values, **named)
        if name in AGAIN and fate < trouble * 0.6:
            world.faults["done twice"] += 1
            world.later(self._again(name, values, named, chance.random() * LATE_SECONDS))
        await world.step(host, name, AFTER)
        await self._pass("")
        await host.running()
        if fate > 1 - trouble * 0.4:
            world.faults["lost on the way back"] += 1
            raise UnavailableError("lost on the way back")
        if self._port == COORDINATOR and life != world.life:
            raise UnavailableError("the coordinator ended")
        return result

    def _inner(self, name: str) -> Callable[..., Awaitable[Any]]:
        world = self._world
        port: Any = world.store if self._port == COORDINATOR else world.objects
        call: Callable[..., Awaitable[Any]] = getattr(getattr(port, self._part) if self._part else port, name)
        return call

    async def _again(self, name: str, values: Any, named: Any, delay: float) -> None:
        losses = self._world.losses
        await asyncio.sleep(delay)
        if losses != self._world.losses and self._port == COORDINATOR:
            # The standby gets no request to the former primary.
            return
        with suppress(FencedError, WentBackError):
            await self._inner(name)(*values, **named)

    async def _pass(self, name: str) -> None:
        world, host = self._world, self._host
        delay = host.chance.random() ** 4 * world.slowness
        if name == "put" and host.chance.random() < world.trouble * 0.5:
            world.faults["slow upload"] += 1
            delay += host.chance.random() * 2 * SETTINGS.writer.upload_seconds
        # A shorter delay would only cost events.
        if delay > 0.002:
            await asyncio.sleep(delay)
            await host.running()

    async def _reach(self) -> None:
        now = self._world.now()
        until = self._world.down[self._port]
        if self._port == COORDINATOR:
            until = max(until, self._host.cut)
        if now < until:
            await asyncio.sleep(min(until - now, self._host.chance.random()))
            await self._host.running()
            raise UnavailableError(f"{self._port} cannot be reached")


class OutsideStore(Outside):
    """The metadata store as a broker sees it."""

    def __init__(self, host: Host, world: "World") -> None:
        super().__init__(COORDINATOR, host, world)
        for part in PARTS:
            setattr(self, part, Outside(COORDINATOR, host, world, part))


class World:
    """Some brokers, some of which may be dead, over one log."""

    def __init__(self, seed: int, settings: BrokerSettings = SETTINGS) -> None:
        self.chance = Random(seed)
        self.settings = settings
        self.faults: Counter[str] = Counter()
        self.objects = FlippingObjects(Random(self.chance.random()), self.faults)
        self.clock = LoopClock()
        self.store = SqliteStore(":memory:", self.clock, "cluster", Inline())
        self.life = 0
        """How often the coordinator was restarted."""
        self.losses = 0
        """How often it lost its newest commits then."""
        self.down = {COORDINATOR: 0.0, OBJECTS: 0.0}
        """The time until which no broker reaches it."""
        self.trouble = 0.0
        self.slowness = 0.01
        self.hosts: list[Host] = []
        self.began: dict[int, float] = {}
        """When each broker became ready."""
        self.calls = 0
        self.requests = 0
        self.repeated = 0
        """Answers that a timer sent again."""
        self.errors: list[Any] = []
        """Errors that no fault explains."""
        self._count = 0
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def operations(self) -> int:
        """Count requests of clients and calls of ports."""
        return self.calls + self.requests

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return asyncio.get_running_loop().time()

    def later(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start a background task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.errors.append(error)

    # Processes

    async def start(self, zone: str = "") -> Host:
        """Start another broker."""
        self._count += 1
        host = Host(self._count, zone, LoopClock(), Random(self.chance.random()))
        ports: Any = Ports(
            OutsideStore(host, self), Outside(OBJECTS, host, self), host.clock, Random(host.chance.random())  # type: ignore[arg-type]
        )  # fmt: skip
        host.broker = Broker(ports, self.settings)
        await host.broker.start(NodeAddress("127.0.0.1", host.number, zone), api_table.routes(host.broker))
        self.hosts.append(host)
        self.began[host.number] = self.now()
        return host

    def kill(self, host: Host) -> None:
        """End a broker. Calls that it began and that have not taken effect never will."""
        if host.dead:
            return
        host.dead = True
        self.thaw(host)
        self.hosts.remove(host)
        for task in host.broker._background:
            task.cancel()
        for answer in list(host.open):
            if not answer.done():
                answer.set_exception(Dead())

    async def step(self, host: Host, name: str, when: str) -> None:
        """Let a broker reach a step, and kill it there if the step is its last."""
        if host.doom == (name, when) and not host.spared:
            host.doom = None
            self.faults[f"death {when} {name}"] += 1
            # After this call: a task cannot be cancelled from inside itself.
            asyncio.get_running_loop().call_soon(self.kill, host)
            self.freeze(host)
            await host.running()

    def freeze(self, host: Host) -> None:
        """Freeze a process, which does not notice."""
        if host.thawed is None and not host.dead:
            host.thawed = asyncio.get_running_loop().create_future()

    def thaw(self, host: Host) -> None:
        """Continue a frozen process where it was."""
        thawed, host.thawed = host.thawed, None
        if thawed is not None:
            thawed.set_result(None)

    # The coordinator's process

    async def restart_coordinator(self, backup: bytes | None = None) -> None:
        """Restart the coordinator with its durable data, or with a backup. Calls under way get no reply."""
        kept = backup or self.backup()
        await self.store.close()
        self.life += 1
        self.losses += backup is not None
        self.store = SqliteStore(":memory:", self.clock, "other", Inline())
        await self.store.start()
        self.store.database.connection.deserialize(kept)

    def backup(self) -> bytes:
        """Return all data of the coordinator."""
        return self.store.database.connection.serialize()

    # Clients

    async def ask(
        self, host: Host, client: Client, api: int, version: int, body: bytes, *, name: str = "", seconds: float = 4.0
    ) -> bytes:
        """Send a request and return the body of the reply; empty if the protocol has none. Raises Dead."""
        self.requests += 1
        head = (
            api.to_bytes(2, "big") + version.to_bytes(2, "big") + b"\0\0\0\x07" + len(name).to_bytes(2, "big") + name.encode()
            + (b"\0" if headers.is_flexible(api, version) else b"")
        )  # fmt: skip
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        host.open[answer] = None
        timer = loop.call_later(seconds, _late, answer)
        # A client that times out does not take its request back.
        self.later(self._deliver(host, client, memoryview(bytearray(head + body)), answer))
        try:
            return await answer
        finally:
            timer.cancel()
            host.open.pop(answer, None)

    async def _deliver(self, host: Host, client: Client, frame: memoryview, answer: "asyncio.Future[bytes]") -> None:
        await host.running()
        header = headers.read(frame)
        served: list[asyncio.Task[Any]] = []

        def serve() -> "asyncio.Task[Any]":
            served.append(asyncio.create_task(host.broker.router.handle(header, frame, client)))
            return served[-1]

        # A connection asks first whether the request repeats the last one.
        repeated = None if client.repeatable is None else client.repeatable.again(frame, serve)
        try:
            reply = await (serve() if repeated is None else repeated)
            if not served:
                self.repeated += 1
            if isinstance(reply, Counted):
                reply.share.release()
        except (UnavailableError, MalformedError):
            await host.running()
            _late(answer)
            return
        await host.running()
        if not answer.done():
            answer.set_result(b"" if reply is None else b"".join(reply)[len(headers.response(header)) :])

    def end(self) -> None:
        """Kill all brokers and stop all tasks."""
        for host in list(self.hosts):
            self.kill(host)
        for task in self._tasks:
            task.cancel()


def _late(answer: "asyncio.Future[bytes]") -> None:
    if not answer.done():
        answer.set_exception(Dead())


@contextmanager
def only_errors(errors: list[Any]) -> Iterator[None]:
    """Collect the error logs of brokers in ``errors``, and drop all other logs."""

    def keep(_: Any, __: str, event: Any) -> Any:
        errors.append(dict(event))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(
        processors=[structlog.processors.format_exc_info, keep],
        wrapper_class=structlog.make_filtering_bound_logger(40),
        cache_logger_on_first_use=False,
    )
    try:
        yield
    finally:
        structlog.configure(**before)
