"""The time that the event loop spends on one request, for the quota ``request_percentage``.

Kafka counts the time of its network and handler threads (KIP-124). A broker here has one event loop, which many requests
share. So the time counts in which the loop runs the task of the request: it decodes the request, handles it and encodes
the answer. While the request waits for records, uploads or the coordinator, the loop serves others, and no time counts.
Neither does work for several requests at once, such as an upload."""

from collections.abc import Awaitable, Coroutine, Generator
from time import perf_counter
from typing import Any, TypeVar

T = TypeVar("T")


class Meter:
    """Measures the time of the event loop that one request takes."""

    def __init__(self) -> None:
        self._seconds = 0.0
        """Seconds of earlier turns that are not counted yet."""
        self._began: float | None = None
        """Start of the current turn, if the request runs."""

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        if self._began is not None:
            now = perf_counter()
            seconds += now - self._began
            self._began = now
        return seconds

    def run(self, work: Coroutine[Any, Any, T]) -> Awaitable[T]:
        """Run ``work`` in the task of the caller, and measure each of its turns."""
        return _Turns(self, work)

    def begin(self) -> None:
        """Note that a turn begins."""
        self._began = perf_counter()

    def end(self) -> None:
        """Note that the turn ends."""
        if self._began is not None:
            self._seconds += perf_counter() - self._began
            self._began = None


class _Turns(Awaitable[T]):
    def __init__(self, meter: Meter, work: Coroutine[Any, Any, T]) -> None:
        self._meter = meter
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        """Pass what the coroutine yields to the event loop, and what the loop sends or throws to the coroutine."""
        work, meter, error = self._work, self._meter, None
        while True:
            meter.begin()
            try:
                awaited = work.send(None) if error is None else work.throw(error)
            except StopIteration as ended:
                result: T = ended.value
                return result
            finally:
                meter.end()
            try:
                yield awaited
                error = None
            except GeneratorExit:
                work.close()
                raise
            except BaseException as thrown:
                error = thrown
