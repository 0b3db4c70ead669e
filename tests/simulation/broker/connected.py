"""Consumers that stay with their connection, so that the broker answers repeated fetches with a timer."""

import asyncio
from dataclasses import dataclass, field

from firn_broker.network.router import Client
from tests.simulation.broker import wire
from tests.simulation.broker.clients import Consumer, somewhere
from tests.simulation.broker.history import History, Log
from tests.simulation.broker.world import SETTINGS, Dead, Host, World

WAIT_MS = round(2000 * SETTINGS.reader.poll_seconds)
"""The shortest wait of a fetch that a timer answers."""
LEAVE = 0.05
"""Share of fetches before which a consumer connects to another broker."""


@dataclass
class _Connection:
    host: Host
    client: Client
    session: wire.Session = field(default_factory=wire.Session)


class ConnectedConsumer(Consumer):
    """A consumer that keeps its connection to a broker, and repeats the bytes of its last fetch while no record arrives.

    It connects to another broker after a failure, and before some of its fetches.
    """

    def __init__(self, world: World, history: History, name: str, log: Log, *, in_session: bool) -> None:
        """With ``in_session``, name the partition only if the offset changes (KIP-227)."""
        super().__init__(world, history, name, log)
        self._in_session = in_session
        self._connection: _Connection | None = None
        self._connections = 0

    async def run(self) -> None:
        chance = self._world.chance
        while True:
            await asyncio.sleep(chance.random() * 0.2)
            await self._fetch(await self._choose(), wait_ms=WAIT_MS)

    async def _choose(self) -> Host:
        connection = self._connection
        if connection is None or connection.host.dead or self._world.chance.random() < LEAVE:
            return await somewhere(self._world)
        return connection.host

    async def _ask(self, host: Host, wait_ms: int) -> wire.Fetched:
        connection = self._connect(host)
        world, client = self._world, connection.client
        try:
            if not self._in_session:
                return await wire.fetch(world, host, client, *self._log, self._offset, wait_ms=wait_ms)
            answer, connection.session = await wire.fetch_in(
                world, host, client, *self._log, self._offset, wait_ms=wait_ms, session=connection.session
            )
            return answer
        except Dead:
            self._close()
            raise

    def _connect(self, host: Host) -> _Connection:
        """Return the connection to this broker. Close one to another broker."""
        if self._connection is None or self._connection.host is not host:
            self._close()
            self._connections += 1
            # Brokers count by peer: no two connections have the same one.
            client = Client(f"{self._name}:{self._connections}")
            self._connection = _Connection(host, client)
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.client.close()
            self._connection = None
