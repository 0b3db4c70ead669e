"""A clock that stands still until a test moves it."""

from datetime import datetime, timedelta

from tests.gen import NOW


class FakeClock:
    def __init__(self, now: datetime = NOW) -> None:
        self._start = now
        self._seconds = 0.0
        self.skew = 0.0
        """Seconds by which the wall clock is wrong."""

    def now(self) -> datetime:
        return self._start + timedelta(seconds=self._seconds + self.skew)

    def monotonic(self) -> float:
        return 1000.0 + self._seconds

    def advance(self, seconds: float) -> None:
        self._seconds += seconds
