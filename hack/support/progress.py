"""Progress lines with elapsed seconds, and steps that run side by side."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_STARTED = time.monotonic()


class Failure(Exception):
    """A step failed for a reason that the message explains. Commands print it without a traceback."""


def say(message: str) -> None:
    """Print a progress line on standard error, with the seconds since the start of the command."""
    print(f"[{time.monotonic() - _STARTED:6.1f}s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Print the start of a slow step, and at its end the seconds that it took."""
    say(f"{name} ...")
    started = time.monotonic()
    yield
    say(f"{name}: done in {time.monotonic() - started:.1f}s")


@contextmanager
def every(seconds: float, report: Callable[[], object]) -> Iterator[None]:
    """Call `report` every `seconds` while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            report()

    with ThreadPoolExecutor(max_workers=1) as pool:
        repeating = pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()
        repeating.result()


def side_by_side(*steps: Callable[[], object]) -> None:
    """Run steps in threads and wait for all of them. Then raise the first failure."""
    with ThreadPoolExecutor(max_workers=max(1, len(steps))) as pool:
        for running in [pool.submit(each) for each in steps]:
            running.result()
