"""Bytes that all connections together may hold in memory; who would pass the bound waits in line, and its socket with it."""

from collections import deque
from collections.abc import Callable


class Budget:
    """First come, first served. A single request larger than the whole is admitted when nothing else is held."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: deque[tuple[int, Callable[[], bool]]] = deque()

    def take(self, size: int, ready: Callable[[], bool]) -> bool:
        """True when ``size`` bytes are yours now. Otherwise they are when ``ready`` is called, which answers whether they are still
        wanted."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting.append((size, ready))
        return False

    def _fits(self, size: int) -> bool:
        return self.used + size <= self.total or self.used == 0

    def give(self, size: int) -> None:
        """Bytes are free again."""
        self.used -= size
        while self._waiting and self._fits(self._waiting[0][0]):
            size, ready = self._waiting.popleft()
            self.used += size
            if not ready():
                self.used -= size

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self._waiting)
