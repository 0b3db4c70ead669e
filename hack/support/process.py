"""Processes that can be distinguished from later processes with the same number."""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from hack.support.progress import Failure


@dataclass(frozen=True)
class Process:
    """A process by its number and the moment it started (clock ticks since boot), which no later process shares."""

    pid: int
    started: int

    @classmethod
    def running(cls, pid: int) -> Process:
        """The running process of that number. Raises `ProcessLookupError` when there is none."""
        started = _start_time(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started)

    @staticmethod
    def write(path: Path, *processes: Process) -> None:
        """Remember processes in a file, whole or not at all."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps([asdict(each) for each in processes]))
        unfinished.rename(path)

    @staticmethod
    def read(path: Path) -> list[Process]:
        """Remembered processes; none when the file is missing."""
        try:
            return [Process(**entry) for entry in json.loads(path.read_text())]
        except FileNotFoundError:
            return []

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def end(self, seconds: float = 30) -> None:
        """Kill this very process and wait until it is gone. Raises `Failure` when it is still there after `seconds`."""
        if self.alive:
            os.kill(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() > deadline:
                raise Failure(
                    f"process {self.pid} did not end within {seconds:.0f}s of SIGKILL; see /proc/{self.pid}/stack"
                )
            time.sleep(0.02)


def _start_time(pid: int) -> int | None:
    """Field 22 of /proc/PID/stat; None when there is no such process or only its exit status is left."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the name, may hold blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
