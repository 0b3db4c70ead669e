"""Producer ids, from blocks of which the coordinator gives each to one broker only.

The broker reserves the next block of ids before the current one runs out. So a producer that starts while the
coordinator cannot be reached gets an id, with which it can produce to the leaders of its partitions. Without an id,
librdkafka 2.16 asks the same broker again and again.

Ids rise with time, over all brokers: a broker replaces its blocks after `BLOCK_SECONDS`. So the coordinator can tell a
new producer from a producer that it has forgotten (`metadata_store.idempotence`).

A coordinator that loses its last commits forgets blocks, and would give the same ids to another broker. The records of
one producer would then pass as duplicates of the other's. So each block begins at a random distance from the last one."""

import asyncio
from random import Random

import structlog

from firn.model.errors import UnavailableError
from firn_broker.ports import NodeStore

log = structlog.get_logger()

BLOCK = 1000
GAP = 1 << 30
"""Limit of the distance between two blocks. Two blocks at the same place share an id with a probability of 2 in a
million. Ids suffice for 8 thousand million blocks."""
BLOCK_SECONDS = 3600.0
"""Seconds after which a broker replaces its blocks. They are less than the time for which the coordinator remembers a
silent producer (``upkeep.producerSeconds``), unless an administrator lowers that time."""
CHECK_SECONDS = 1.0


class ProducerIds:
    """Allocates ids that no other broker allocates."""

    def __init__(self, nodes: NodeStore, random: Random) -> None:
        self._nodes = nodes
        self._random = random
        self._next = 0
        self._end = 0
        self._spare: int | None = None
        """The first id of the reserved block."""
        self._lock = asyncio.Lock()
        self._reserved = 0.0
        """The event loop's time of the last reservation."""

    async def allocate(self) -> int:
        """Return the next id. Raises UnavailableError."""
        while self._next >= self._end:
            # Other requests may use up the block during the await.
            await self.reserve()
            if self._next >= self._end and self._spare is not None:
                self._next, self._end, self._spare = self._spare, self._spare + BLOCK, None
        self._next += 1
        return self._next - 1

    async def reserve(self) -> None:
        """Reserve the next block of ids, if none is reserved. Raises UnavailableError."""
        async with self._lock:
            if self._spare is None:
                await self._reserve()

    async def _reserve(self) -> None:
        gap = self._random.randrange(GAP)
        self._spare = gap + await self._nodes.allocate_producer_ids(gap + BLOCK)
        self._reserved = asyncio.get_running_loop().time()

    async def _renew(self) -> None:
        """Replace both blocks when they are old. They stay in use while the coordinator cannot be reached."""
        async with self._lock:
            if asyncio.get_running_loop().time() - self._reserved > BLOCK_SECONDS:
                await self._reserve()
                self._next = self._end

    async def keep(self) -> None:
        """Keep a young block reserved until cancelled."""
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self.reserve()
                await self._renew()
            except UnavailableError as error:
                log.warning("cannot reserve producer ids", error=str(error))
            except Exception:
                log.exception("cannot reserve producer ids")
