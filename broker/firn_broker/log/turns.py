"""Turns at work that only a few callers may do at the same time. No party, such as the address of a client, delays
another one by more than a turn."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Turns:
    """Grants turns to the parties that wait, one after the other, and to the callers of a party in their order."""

    def __init__(self, total: int, of_party: int) -> None:
        """Grant at most ``total`` turns at the same time, and at most ``of_party`` of them to one party."""
        self._total = total
        self._of_party = of_party
        self._held: Counter[str] = Counter()
        self._lines: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        """The callers that wait, by party. The first party gets the next turn."""

    @asynccontextmanager
    async def turn(self, party: str) -> AsyncIterator[None]:
        """Wait for a turn of ``party``, and hold it until the end of the block."""
        await self._acquire(party)
        try:
            yield
        finally:
            self._release(party)

    async def _acquire(self, party: str) -> None:
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(party, deque()).append(granted)
        self._serve()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._release(party)
            elif (line := self._lines.get(party)) is not None and granted in line:
                line.remove(granted)
                if not line:
                    del self._lines[party]
            raise

    def _release(self, party: str) -> None:
        self._held[party] -= 1
        if not self._held[party]:
            del self._held[party]
        self._serve()

    def _serve(self) -> None:
        while self._held.total() < self._total:
            # At most total / of_party parties hold as many turns as they may.
            party = next((party for party in self._lines if self._held[party] < self._of_party), None)
            if party is None:
                return
            line = self._lines.pop(party)
            granted = line.popleft()
            if line:
                # Behind all parties that wait.
                self._lines[party] = line
            if not granted.done():
                self._held[party] += 1
                granted.set_result(None)
