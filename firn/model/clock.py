"""Time as a port, so that decisions can be tested without waiting and without patching the standard library."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Where a process gets the time from."""

    def now(self) -> datetime:
        """The wall-clock time, in UTC, with zone."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go backwards; only differences mean something."""
        ...


class SystemClock:
    """The machine's own clock."""

    def now(self) -> datetime:
        """See `Clock.now`."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """See `Clock.monotonic`."""
        return time.monotonic()
