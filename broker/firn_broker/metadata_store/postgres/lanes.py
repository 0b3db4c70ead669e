"""The division of a broker's connections: however many reads wait, leases, commits and groups have their own."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from firn.model.errors import UnavailableError

WAITING = 1_000
"""Calls that may wait in a lane. More would wait longer than their clients do."""


class Lane:
    """Connections for one purpose. Calls wait for them in the order of their arrival, within bounds."""

    def __init__(self, connections: int, seconds: float) -> None:
        self._connections = asyncio.Semaphore(connections)
        self._seconds = seconds
        self._waiting = 0

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Hold one of the connections.

        Raises UnavailableError if too many calls wait already, or if none of them ends in time.
        """
        if self._waiting >= WAITING:
            raise UnavailableError(f"coordinator: {WAITING} calls wait for a connection already")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._seconds):
                await self._connections.acquire()
        except TimeoutError as error:
            raise UnavailableError(f"coordinator: no free connection for {self._seconds:g} s") from error
        finally:
            self._waiting -= 1
        try:
            yield
        finally:
            self._connections.release()


class Lanes:
    """All connections of a broker."""

    def __init__(self, connections: int, seconds: float) -> None:
        """Divide ``connections``; calls wait up to ``seconds`` for one."""
        reads = max(connections - 5, 1)
        self.lease = Lane(1, seconds)
        """For the lease of this node."""
        self.commits = Lane(2, seconds)
        """For reservations and commits of objects."""
        self.groups = Lane(2, seconds)
        """For states and offsets of groups, and the leases of shards and maintenance. These can wait for locks of other
        brokers, and must not delay the lease of this node."""
        self.others = Lane(reads, seconds)
        """For all other calls."""
        self.connections = reads + 5
