"""Processes that are not mistaken for later ones with the same number."""

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
    """A process: its number and its start time (clock ticks since boot). No other process has both."""

    pid: int
    started: int

    @classmethod
    def running(cls, pid: int) -> Process:
        """Return the running process of a number. Raises `ProcessLookupError` without one."""
        started = _start_time(pid)
        if started is None:
            raise ProcessLookupError(pid)
        return cls(pid, started)

    @staticmethod
    def write(path: Path, *processes: Process) -> None:
        """Record processes in a file, atomically."""
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_text(json.dumps([asdict(each) for each in processes]))
        unfinished.rename(path)

    @staticmethod
    def read(path: Path) -> list[Process]:
        """Return the recorded processes, none without the file."""
        try:
            return [Process(**entry) for entry in json.loads(path.read_text())]
        except FileNotFoundError:
            return []

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def end(self, seconds: float = 30) -> None:
        """Kill the process and wait for its end. Raises `Failure` if it still runs after `seconds`."""
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
    """Return field 22 of /proc/PID/stat, None if the process does not exist or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field, the name, may contain blanks and parentheses.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])
