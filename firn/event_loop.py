"""Stalls of an event loop: times in which one piece of work of the process kept all others waiting."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress

CHECK_SECONDS = 0.02
"""Seconds between two checks. A check reports a stall as up to this much shorter than it was."""


async def follow_stalls(
    observe: Callable[[float], object],
    waited: Callable[[float], object],
    cpu_wait: Callable[[], float] | None = None,
) -> None:
    """Report the stalls of the running event loop, until cancelled.

    ``observe`` receives the seconds by which each check was late, without the time in which the thread waited for a CPU.
    ``waited`` receives this time: it comes from a busy machine or a CPU limit, and no change of the code removes it.
    ``cpu_wait`` returns the seconds waited so far; `CpuWait` reads them from the system by default.
    """
    loop = asyncio.get_running_loop()
    seconds = cpu_wait or CpuWait().seconds
    before = seconds()
    while True:
        due = loop.time() + CHECK_SECONDS
        await asyncio.sleep(CHECK_SECONDS)
        late = loop.time() - due
        now = seconds()
        observe(max(late - (now - before), 0.0))
        waited(now - before)
        before = now


class CpuWait:
    """The time for which the thread that made this object was ready to run and had no CPU. Linux counts it."""

    def __init__(self) -> None:
        self._file: int | None = None
        with suppress(OSError):  # Other systems do not have the file.
            self._file = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def seconds(self) -> float:
        """Return the seconds since the thread started; 0 where the system does not count them."""
        if self._file is None:
            return 0.0
        return int(os.pread(self._file, 100, 0).split()[1]) / 1e9
