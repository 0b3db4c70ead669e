"""An event loop whose time goes on only when nothing else is to do: hours pass in no time, and always the same. No sockets, no threads."""

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Any, TypeVar

from tests.gen import NOW

T = TypeVar("T")


class _Selector(selectors.SelectSelector):
    """Never waits, and never looks, as nothing comes from outside: where asyncio would wait, time is moved on."""

    ahead = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "nothing will ever happen any more"
        if timeout > 0:
            self.ahead += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.ahead


class LoopClock:
    """The running virtual loop's time, as `firn.model.clock.Clock`. Wall clocks may be wrong, by ``skew`` seconds."""

    def __init__(self) -> None:
        self.skew = 0.0

    def now(self) -> datetime:
        return NOW + timedelta(seconds=self.monotonic() + self.skew)

    def monotonic(self) -> float:
        try:
            return asyncio.get_running_loop().time()
        except RuntimeError:
            return 0.0


def run(work: Coroutine[Any, Any, T]) -> T:
    """``work`` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
