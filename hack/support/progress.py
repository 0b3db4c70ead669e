"""Progress lines with elapsed seconds, and steps run side by side."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

_STARTED = time.monotonic()


class Failure(Exception):
    """A step failed for a reason that its message explains to the user; shown without a traceback."""


def say(message: str) -> None:
    """Print one progress line, prefixed with the seconds since the command started, on stderr."""
    print(f"[{time.monotonic() - _STARTED:6.1f}s] {message}", file=sys.stderr, flush=True)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say that a slow step starts and how many seconds it took."""
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
    """Run steps in threads and wait for all of them; the first failure is raised after the others have ended."""
    with ThreadPoolExecutor(max_workers=max(1, len(steps))) as pool:
        for running in [pool.submit(each) for each in steps]:
            running.result()
