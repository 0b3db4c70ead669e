"""Sample the CPU and memory of a process and all its descendants over time, from /proc."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

_TICK = os.sysconf("SC_CLK_TCK")
_LIBC = ctypes.CDLL(None, use_errno=True)
_KCMP = {"x86_64": 312, "aarch64": 272}


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat. ``cpu``: seconds of the process and of the children that it has waited for."""

    pid: int
    command: str
    parent: int
    session: int
    cpu: float


def processes() -> dict[int, Process]:
    """Return all running processes by number."""
    by_pid = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := _read(int(entry))) is not None:
            by_pid[process.pid] = process
    return by_pid


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    start, end = text.index("("), text.rindex(")")  # A command may contain spaces and parentheses.
    fields = text[end + 2 :].split()
    cpu = sum(int(field) for field in fields[11:15]) / _TICK
    return Process(pid, text[start + 1 : end], int(fields[1]), int(fields[3]), cpu)


def members(root: int, everyone: dict[int, Process]) -> list[Process]:
    """Return ``root``, its descendants, and orphans of them in the session that ``root`` leads."""
    tree: list[Process] = []
    for process in everyone.values():
        ancestor: Process | None = process
        while ancestor is not None and ancestor.pid != root:
            ancestor = everyone.get(ancestor.parent)
        if ancestor is not None or process.session == root:
            tree.append(process)
    return tree


def cpu_by_part(root: int, everyone: dict[int, Process] | None = None) -> dict[str, float]:
    """Return the user and system time of the tree by part: ``root``, and the others by command.

    It includes dead processes for which a living member has waited.
    """
    seconds: dict[str, float] = {}
    for process in members(root, processes() if everyone is None else everyone):
        part = "root" if process.pid == root else process.command
        seconds[part] = seconds.get(part, 0.0) + process.cpu
    return seconds


def foreign_cpu(everyone: dict[int, Process]) -> float:
    """Return the CPU seconds since boot of all processes except this one and its descendants.

    The descendants are what a benchmark starts: contestants and servers. The rest disturbs its measurement.
    """
    return busy_cpu() - sum(process.cpu for process in members(os.getpid(), everyone))


def busy_cpu() -> float:
    """Return the user and system time of all processes since boot."""
    user, nice, system = (int(ticks) for ticks in Path("/proc/stat").read_text().split(maxsplit=4)[1:4])
    return (user + nice + system) / _TICK


def memory_bytes(root: int) -> int:
    """Return the proportional set size of the tree. Pages that forked workers share count once.

    A process that is just starting another one (vfork) shares all of its memory with it, which also counts once.
    """
    return sum(
        _proportional(process.pid)
        for process in members(root, processes())
        if process.pid == root or not share_memory(process.pid, process.parent)
    )


def share_memory(pid: int, other: int) -> bool:
    """Return True if both have one address space (kcmp(2), KCMP_VM). False also if the kernel does not answer."""
    number = _KCMP.get(os.uname().machine)
    return number is not None and _LIBC.syscall(number, pid, other, 1, 0, 0) == 0


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except (FileNotFoundError, ProcessLookupError):
        pass  # The process has ended, or is a zombie.
    return 0


@dataclass(frozen=True)
class Sample:
    """CPU seconds up to a time (Unix seconds), in total and by part, and those of `foreign_cpu`."""

    time: float
    cpu: float
    parts: Mapping[str, float] = field(default_factory=dict)
    foreign: float = 0.0


class Usage:
    """CPU and memory of a process tree, from samples of its run."""

    def __init__(self, samples: Sequence[Sample], peak_bytes: int) -> None:
        self.samples = list(samples)
        self.peak_bytes = peak_bytes

    def cpu_at(self, moment: float, part: str | None = None) -> float:
        """Return the CPU seconds up to ``moment``, of one part or in total. Interpolates linearly between samples."""

        def spent(sample: Sample) -> float:
            return sample.cpu if part is None else sample.parts.get(part, 0.0)

        index = bisect_left(self.samples, moment, key=lambda sample: sample.time)
        if index == 0:
            return spent(self.samples[0])
        if index == len(self.samples):
            return spent(self.samples[-1])
        before, after = self.samples[index - 1], self.samples[index]
        share = (moment - before.time) / (after.time - before.time)
        return spent(before) + share * (spent(after) - spent(before))

    def cpu_between(self, start: float, end: float, part: str | None = None) -> float:
        """Return the CPU seconds from ``start`` to ``end``."""
        return self.cpu_at(end, part) - self.cpu_at(start, part)

    @property
    def foreign_cores(self) -> float:
        """Return the mean number of cores that processes outside of the benchmark used between the samples."""
        first, last = self.samples[0], self.samples[-1]
        return max(0.0, last.foreign - first.foreign) / (last.time - first.time) if last.time > first.time else 0.0

    @property
    def parts(self) -> list[str]:
        """Return every part of the samples."""
        return sorted({part for sample in self.samples for part in sample.parts})


class Sampler(Usage):
    """A sampler of a process tree: CPU every ``interval`` seconds, memory every ``memory_interval``."""

    def __init__(self, root: int, interval: float = 0.25, memory_interval: float = 2.0) -> None:
        super().__init__([], 0)
        self._root = root
        self._interval = interval
        self._memory_interval = memory_interval
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        memory_due = 0.0
        while not self._stop.wait(self._interval):
            self.sample()
            if time.monotonic() >= memory_due:
                self.peak_bytes = max(self.peak_bytes, memory_bytes(self._root))
                memory_due = time.monotonic() + self._memory_interval

    def sample(self) -> None:
        """Add a sample of this moment."""
        everyone = processes()
        parts = cpu_by_part(self._root, everyone)
        # Never less than before: the time of a dead process for which no other has waited is lost.
        before = self.samples[-1].cpu if self.samples else 0.0
        self.samples.append(Sample(time.time(), max(sum(parts.values()), before), parts, foreign_cpu(everyone)))

    @contextmanager
    def sampling(self) -> Iterator[Sampler]:
        """Sample inside the with block."""
        self.sample()
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
