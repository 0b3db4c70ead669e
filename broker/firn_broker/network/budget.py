"""Bytes that all connections together may hold in memory; who would pass the bound waits in line, and its socket with it."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class Budget:
    """First come, first served. A single request larger than the whole is admitted when nothing else is held."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: OrderedDict[Callable[[int], None], int] = OrderedDict()

    def take(self, size: int, ready: Callable[[int], None]) -> bool:
        """True when ``size`` bytes are yours now. Otherwise they are when ``ready`` is called with them; nobody waits twice at a time."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting[ready] = size
        return False

    def forget(self, ready: Callable[[int], None]) -> None:
        """Who waits, if it does, is gone."""
        if self._waiting.pop(ready, None) is not None:
            self._serve()

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.total or self.used == 0

    def give(self, size: int) -> None:
        """Bytes are free again."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(next(iter(self._waiting.values()))):
            ready, size = self._waiting.popitem(last=False)
            self.used += size
            ready(size)

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)


class Share:
    """What one answer holds of a budget: taken once, before there is anything, and given back by whoever sent the answer or dropped it; or one
    request, until it is answered."""

    __slots__ = ("_budget", "_ready", "_size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._size = 0
        self._ready: asyncio.Future[None]

    async def take(self, size: int) -> None:
        """Wait in line for so many bytes. Who holds some does not ask for more, so nobody waits for who waits."""
        if self._budget.take(size, self._granted):
            self._size = size
            return
        self._ready = asyncio.get_running_loop().create_future()
        try:
            await self._ready
        except asyncio.CancelledError:
            self._budget.forget(self._granted)
            self.give()
            raise

    def _granted(self, size: int) -> None:
        self._size = size
        if not self._ready.done():
            self._ready.set_result(None)

    def give(self) -> None:
        """All of it, if there is any left."""
        size, self._size = self._size, 0
        self._budget.give(size)

    @property
    def wanted(self) -> bool:
        """Whether others wait for it."""
        return self._size > 0 and self._budget.waiting > 0


class Counted(list[bytes | memoryview]):
    """Buffers of an answer, with what they hold of a budget."""

    def __init__(self, buffers: list[bytes | memoryview], share: Share) -> None:
        super().__init__(buffers)
        self.share = share
