"""Bytes that all connections together may hold in memory; who would pass the bound waits in line, and its socket with it."""

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
