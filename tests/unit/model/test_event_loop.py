"""Stalls of an event loop."""

import asyncio
import time

from firn.event_loop import CpuWait, follow_stalls

STALL = 0.2


async def _stalls(cpu_wait: list[float]) -> tuple[list[float], list[float]]:
    """Stall the loop once, while the thread's wait for a CPU grows by each value of ``cpu_wait``; return what was reported."""
    stalls: list[float] = []
    waits: list[float] = []
    readings = iter(cpu_wait)
    last = [0.0]

    def waited() -> float:
        last[0] += next(readings, 0.0)
        return last[0]

    following = asyncio.create_task(follow_stalls(stalls.append, waits.append, waited))
    await asyncio.sleep(0)
    time.sleep(STALL)  # noqa: ASYNC251
    while not stalls:
        await asyncio.sleep(0.001)
    following.cancel()
    return stalls, waits


async def test_a_stall_has_the_length_of_the_work() -> None:
    stalls, waits = await _stalls([])
    assert max(stalls) >= STALL - 0.03
    assert sum(waits) == 0


async def test_waiting_for_a_cpu_is_no_stall() -> None:
    stalls, waits = await _stalls([1.0, 60.0])
    assert stalls[0] == 0.0
    assert waits[0] == 60.0


def test_the_wait_for_a_cpu_of_this_thread_never_decreases() -> None:
    wait = CpuWait()
    first = wait.seconds()
    assert 0 <= first <= wait.seconds() < 1e6
