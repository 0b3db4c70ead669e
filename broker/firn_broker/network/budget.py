"""A bound on the bytes that all connections together hold in memory. A request that would exceed it waits in line, and
its socket is not read."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable


class Budget:
    """Grants bytes in the order of the requests. A request larger than the whole budget is granted when nothing else is
    held."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: OrderedDict[Callable[[int], None], int] = OrderedDict()

    def acquire(self, size: int, ready: Callable[[int], None]) -> bool:
        """Acquire ``size`` bytes now and return True, or return False and call ``ready`` with the size when they are
        granted.

        A caller waits for one grant at a time.
        """
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting[ready] = size
        return False

    def cancel(self, ready: Callable[[int], None]) -> None:
        """Remove a waiting caller from the line, if it is in it."""
        if self._waiting.pop(ready, None) is not None:
            self._serve()

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.total or self.used == 0

    def release(self, size: int) -> None:
        """Return bytes to the budget, and grant them to the callers in line."""
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._fits(next(iter(self._waiting.values()))):
            ready, size = self._waiting.popitem(last=False)
            self.used += size
            ready(size)

    @property
    def waiting(self) -> int:
        """Return the number of callers in line."""
        return len(self._waiting)


class Share:
    """The bytes of a budget that one request or one answer holds.

    It acquires them once. A request holds them until it is answered, an answer until it is sent or dropped.
    """

    __slots__ = ("_budget", "_ready", "_size")

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._size = 0
        self._ready: asyncio.Future[None]

    async def acquire(self, size: int) -> None:
        """Wait in line for ``size`` bytes. A share that holds bytes acquires no more, so that no two shares wait for
        each other."""
        if self._budget.acquire(size, self._granted):
            self._size = size
            return
        self._ready = asyncio.get_running_loop().create_future()
        try:
            await self._ready
        except asyncio.CancelledError:
            self._budget.cancel(self._granted)
            self.release()
            raise

    def _granted(self, size: int) -> None:
        self._size = size
        if not self._ready.done():
            self._ready.set_result(None)

    def release(self) -> None:
        """Return all bytes to the budget. A second call returns none."""
        size, self._size = self._size, 0
        self._budget.release(size)

    @property
    def contended(self) -> bool:
        """Return whether the share holds bytes while other callers wait for some."""
        return self._size > 0 and self._budget.waiting > 0


class Counted(list[bytes | memoryview]):
    """Buffers of an answer, with the share of a budget that they hold."""

    def __init__(self, buffers: list[bytes | memoryview], share: Share) -> None:
        super().__init__(buffers)
        self.share = share
