"""Producers and consumers that go by Metadata.

A producer's window is split over two brokers when the leader changes between its batches."""

import asyncio
from typing import Any

from firn_broker.network.router import Client
from tests.simulation.broker import wire
from tests.simulation.broker.clients import OUT_OF_ORDER, RETRIABLE, Consumer, Producer, somewhere
from tests.simulation.broker.history import History, Log, Sent
from tests.simulation.broker.wire import call
from tests.simulation.broker.world import Dead, Host, World

RESTARTS = 0.5
"""Share of windows for which the producer takes a new id, as a process that starts again."""
REFRESHES = 0.05
"""Share of fetches before which a consumer asks for the leader although nothing failed."""

Window = list[tuple[Sent, memoryview]]


class Leader:
    """The leader of a partition, as a client knows it from Metadata. It may be an old one."""

    def __init__(self, world: World, log: Log) -> None:
        self._world = world
        self._log = log
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        """Return the leader of the last refresh."""
        assert self._host is not None, "refresh first"
        return self._host

    async def refresh(self) -> None:
        """Ask any broker for the leader. After an error, the leader known before stays, unless it is dead."""
        world, (topic, partition) = self._world, self._log
        while True:
            host = await somewhere(world)
            named = None
            try:
                answer: Any = await call(
                    world, host, 3, 5, seconds=1.0, topics=[{"name": topic}], allow_auto_topic_creation=False
                )
            except Dead:
                pass
            else:
                ports = {broker.node_id: broker.port for broker in answer.brokers}
                leaders = {part.partition_index: part.leader_id for part in answer.topics[0].partitions}
                number = ports.get(leaders.get(partition, -1))
                named = next((host for host in world.hosts if host.number == number), None)
            if named is not None:
                self._host = named
                return
            if self._host is not None and not self._host.dead:
                return
            await asyncio.sleep(0.1)


class Follower(Producer):
    """An idempotent producer that sends each batch to the leader that Metadata names at that time, and asks again in the middle of a window.

    It sends a batch again to another broker only after all earlier ones are acknowledged. A batch that is out of order while
    all earlier ones are acknowledged will never be accepted: the producer reports its window as failed, and goes on with a new id.
    """

    _leader: Leader | None = None

    async def _refresh(self) -> Host:
        """Ask for the leader, and return it."""
        self._leader = self._leader or Leader(self._world, self._log)
        await self._leader.refresh()
        return self._leader.host

    async def _begin(self, id: int) -> int:
        if id >= 0 and self._world.chance.random() >= RESTARTS:
            return id
        return await self._restart()

    async def _restart(self) -> int:
        self._sequence = 0
        return await self._id()

    async def _send(self, window: Window, acks: int) -> Window:
        world = self._world
        split = world.chance.randint(0, len(window))
        clients: dict[int, Client] = {}
        again = window[0][0].times > 0
        asked = self._produce(await self._refresh(), window[:split], clients, acks)
        if not again or await _all_accepted(asked):
            asked += self._produce(await self._refresh(), window[split:], clients, acks)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        left = []
        for (sent, data), answer in zip(window[: len(answers)], answers, strict=True):
            if isinstance(answer, Dead):
                left.append((sent, data))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer[0]:
                assert answer[0] in RETRIABLE | {OUT_OF_ORDER}, f"error {answer[0]} for {sent}"
                left.append((sent, data))
            else:
                sent.offset, sent.acknowledged = answer[1], world.now()
        # The first batch of an attempt follows acknowledged batches only.
        if not isinstance(answers[0], BaseException) and answers[0][0] == OUT_OF_ORDER:
            # The acknowledged batches may be lost commits, which no broker has repeated yet.
            window[0][0].refused = not self._history.lost_seconds
            self._producer_id = await self._restart()
            return []
        left += window[len(answers) :]
        if left:
            await asyncio.sleep(world.chance.random())
        return left

    def _produce(
        self, host: Host, window: Window, clients: dict[int, Client], acks: int
    ) -> "list[asyncio.Task[tuple[int, int]]]":
        """Send batches to the leader, on the connection to it, without waiting for replies."""
        world = self._world
        asked = []
        for sent, data in window:
            sent.times += 1
            sent.began = world.now()
            client = clients.setdefault(host.number, Client("peer"))
            request = asyncio.ensure_future(wire.produce(world, host, client, *self._log, data, acks=acks))
            # The story may stop this producer before it waits for the reply.
            request.add_done_callback(lambda done: done.cancelled() or done.exception())
            asked.append(request)
        return asked


async def _all_accepted(asked: "list[asyncio.Task[tuple[int, int]]]") -> bool:
    """Wait for the answers, and return whether no batch has to be sent again."""
    answers = await asyncio.gather(*asked, return_exceptions=True)
    return not any(isinstance(answer, BaseException) or answer[0] for answer in answers)


class FollowingConsumer(Consumer):
    """A consumer that reads from the leader that Metadata named, until the leader disconnects, refuses or gets old."""

    def __init__(self, world: World, history: History, name: str, log: Log, pace: float = 0.8) -> None:
        super().__init__(world, history, name, log, pace)
        self._leader = Leader(world, log)
        self._is_known = False

    async def _choose(self) -> Host:
        if not self._is_known or self._leader.host.dead or self._world.chance.random() < REFRESHES:
            await self._leader.refresh()
        self._is_known = True
        return self._leader.host

    async def _fetch(self, host: Host, *, wait_ms: int = 0) -> wire.Fetched | None:
        answer = await super()._fetch(host, wait_ms=wait_ms)
        self._is_known &= answer is not None
        return answer
