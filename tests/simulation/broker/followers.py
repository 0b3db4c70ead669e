"""Producers that go by Metadata. A window is split over two brokers when the leader changes between its batches."""

import asyncio
from typing import Any

from firn_broker.network.router import Client
from tests.simulation.broker import wire
from tests.simulation.broker.clients import OUT_OF_ORDER, RETRIABLE, Producer, somewhere
from tests.simulation.broker.history import Sent
from tests.simulation.broker.wire import call
from tests.simulation.broker.world import Dead, Host

RESTARTS = 0.5
"""Share of windows for which the producer takes a new id, as a process that starts again."""

Window = list[tuple[Sent, memoryview]]


class Follower(Producer):
    """An idempotent producer that sends each batch to the leader that Metadata names at that time, and asks again in the middle of a window.

    A batch that is out of order while all earlier ones are acknowledged will never be accepted: the producer reports
    its window as failed, and goes on with a new id.
    """

    _leader: Host | None = None

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
        await self._ask_for_the_leader()
        asked = self._produce(window[:split], clients, acks)
        await self._ask_for_the_leader()
        asked += self._produce(window[split:], clients, acks)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        left = []
        for (sent, data), answer in zip(window, answers, strict=True):
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
            window[0][0].refused = True
            self._producer_id = await self._restart()
            return []
        if left:
            await asyncio.sleep(world.chance.random())
        return left

    def _produce(self, window: Window, clients: dict[int, Client], acks: int) -> "list[asyncio.Task[tuple[int, int]]]":
        """Send batches to the leader as it is known now, on the connection to it, without waiting for replies."""
        world, host = self._world, self._leader
        asked = []
        for sent, data in window:
            assert host is not None
            sent.times += 1
            sent.began = world.now()
            client = clients.setdefault(host.number, Client("peer"))
            asked.append(asyncio.ensure_future(wire.produce(world, host, client, *self._log, data, acks=acks)))
        return asked

    async def _ask_for_the_leader(self) -> None:
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
                self._leader = named
                return
            if self._leader is not None and not self._leader.dead:
                return
            await asyncio.sleep(0.1)
