"""Time as a port, so that decisions can be tested without waiting and without patching the standard library."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The time source of a process."""

    def now(self) -> datetime:
        """The wall-clock time, in UTC, with zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean something."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """Return the wall-clock time in UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()
