"""Time as a port: tests of decisions need no waiting and no patched standard library."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """The clock of a process."""

    def now(self) -> datetime:
        """Return the wall-clock time, with the zone UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease. Only differences have a meaning."""
        ...


class SystemClock:
    """The clock of the machine."""

    def now(self) -> datetime:
        """Return the wall-clock time, with the zone UTC."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        return time.monotonic()
