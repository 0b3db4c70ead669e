"""An event loop in virtual time: time advances when no task can run. Hours take no real time, and every run is the
same.

There are no sockets and no threads."""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from functools import partial
from typing import Any, TypeVar

from tests.gen import NOW

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """A selector that neither waits nor looks at sockets. It advances the time instead of waiting."""

    ahead = 0.0
    tick = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "no task can ever run again"
        self.ahead += max(timeout, self.tick)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self, tick: float = 0.0) -> None:
        self._virtual = _Selector()
        self._virtual.tick = tick
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.ahead


class LoopClock:
    """The time of the running virtual loop, as `firn.model.clock.Clock`. The wall clock may be wrong by ``skew``
    seconds."""

    def __init__(self) -> None:
        self.skew = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.monotonic() + self.skew)

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0


def run(work: Coroutine[Any, Any, T], tick: float = 0.0) -> T:
    """Run ``work`` in virtual time.

    Each turn of the loop takes at least ``tick`` seconds. Work that compares times needs some: with a time that stands
    still, it would never end where rounding makes a timer early.
    """
    with asyncio.Runner(loop_factory=partial(VirtualLoop, tick)) as runner:
        return runner.run(work)
