"""Producer ids, handed out from blocks that the coordinator gives to one broker only."""

import asyncio

from firn_broker.ports import Coordinator

BLOCK = 1000


class ProducerIds:
    """Ids that nobody else has."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._next = 0
        self._end = 0
        self._lock = asyncio.Lock()

    async def new(self) -> int:
        """One more. Raises UnavailableError."""
        async with self._lock:
            if self._next >= self._end:
                self._next = await self._coordinator.producer_ids(BLOCK)
                self._end = self._next + BLOCK
            self._next += 1
            return self._next - 1
