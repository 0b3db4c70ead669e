"""How often the broker uploads an object before its interval ends."""

import math

BUCKET_PUTS = 20.0
"""Default of ``writer.putsPerSecond`` for a bucket: 1.7 million PUTs a day, 9 dollars at 0.005 dollars for 1,000."""

DIRECTORY_PUTS = 200.0
"""Default of ``writer.putsPerSecond`` for a directory. Each object is a file and some rows of the coordinator, and is not
merged with others."""
ROUNDING = 1e-6
"""Part of a token that may be missing. Otherwise a wait shorter than the clock's resolution would repeat endlessly."""


class PutBudget:
    """A token bucket of uploads, of the size of one second. Every upload takes a token. Only uploads of an idle broker
    wait for a token."""

    def __init__(self, per_second: float) -> None:
        self._per_second = per_second
        self._size = max(1.0, per_second) if per_second else 0.0
        self._tokens = self._size
        self._counted = -math.inf

    def take(self, now: float) -> None:
        """Take one token, or what is left of it, at ``now`` in seconds of the event loop."""
        self._fill(now)
        self._tokens = max(0.0, self._tokens - 1)

    def wait(self, now: float) -> float:
        """Return the seconds until there is a token; 0 if there is one, infinity if there never will be."""
        self._fill(now)
        if self._tokens > 1 - ROUNDING:
            return 0.0
        return (1 - self._tokens) / self._per_second if self._per_second else math.inf

    def _fill(self, now: float) -> None:
        if now > self._counted:
            if math.isfinite(self._counted):
                self._tokens = min(self._size, self._tokens + (now - self._counted) * self._per_second)
            self._counted = now
