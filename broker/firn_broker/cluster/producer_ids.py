"""Producer ids, handed out from blocks that the coordinator gives to one broker only.

A block is there before it is needed: a producer that begins while the coordinator cannot be reached from here gets its id, and with it goes to
whoever leads its partitions. librdkafka (2.16) would ask this broker for one again and again, and no other.
"""

import asyncio

import structlog

from firn.model.errors import UnavailableError
from firn_broker.ports import NodeStore

log = structlog.get_logger()

BLOCK = 1000
LOOK_SECONDS = 1.0


class ProducerIds:
    """Ids that nobody else has."""

    def __init__(self, nodes: NodeStore) -> None:
        self._nodes = nodes
        self._next = 0
        self._end = 0
        self._spare: int | None = None
        """Where the block begins that is used next."""
        self._lock = asyncio.Lock()

    async def new(self) -> int:
        """One more. Raises UnavailableError."""
        while self._next >= self._end:
            # Others may have used it up meanwhile.
            await self.reserve()
            if self._next >= self._end and self._spare is not None:
                self._next, self._end, self._spare = self._spare, self._spare + BLOCK, None
        self._next += 1
        return self._next - 1

    async def reserve(self) -> None:
        """Have a block ahead. Raises UnavailableError."""
        async with self._lock:
            if self._spare is None:
                self._spare = await self._nodes.allocate_producer_ids(BLOCK)

    async def keep(self) -> None:
        """Always have one, for ever."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                await self.reserve()
            except UnavailableError as error:
                log.warning("cannot reserve producer ids", error=str(error))
            except Exception:
                log.exception("cannot reserve producer ids")
