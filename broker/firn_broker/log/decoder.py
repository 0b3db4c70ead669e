"""The decoding of records outside the event loop, where a long batch delays no other request."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

T = TypeVar("T")


class Decoder:
    """Runs the decoding of one batch at a time in a thread of its own.

    More threads would decode no faster, because they would share the interpreter's lock.
    """

    def __init__(self, executor: Executor | None) -> None:
        """Decode in the only thread of ``executor``; None decodes in the event loop, with the same result in each
        simulation."""
        self._executor = executor
        self.searches = asyncio.Semaphore(1)
        """Held by one search for a timestamp at a time. So producers of compacted topics wait for few searches."""

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, during which other requests run."""
        if self._executor is None:
            await asyncio.sleep(0)
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._executor, work)
