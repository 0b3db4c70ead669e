"""Cores of the machine for some of the processes of a benchmark, as if these ran on a machine of their own."""

import os
from collections.abc import Iterable, Iterator, Set
from contextlib import contextmanager, suppress

from hack.bench.measuring.process_tree import members, processes


def halves() -> tuple[Set[int], Set[int]]:
    """Return the cores of this process in two parts. The first one has one core more if their number is odd."""
    cores = sorted(os.sched_getaffinity(0))
    middle = (len(cores) + 1) // 2
    return set(cores[:middle]), set(cores[middle:])


@contextmanager
def only_on(cores: Set[int]) -> Iterator[None]:
    """Let this thread use only these cores inside the with block, and all that it starts there from then on."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def move(roots: Iterable[int], cores: Set[int]) -> None:
    """Let these processes and their descendants use only these cores."""
    everyone = processes()
    for process in (each for root in roots for each in members(root, everyone)):
        # A thread may end meanwhile.
        with suppress(FileNotFoundError):
            for thread in os.listdir(f"/proc/{process.pid}/task"):
                with suppress(ProcessLookupError):
                    os.sched_setaffinity(int(thread), cores)
