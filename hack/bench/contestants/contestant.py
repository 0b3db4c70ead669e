"""A process that lands records while a benchmark measures it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass

_LOOK_SECONDS = 2.0
START_SECONDS = 300.0
"""Limit for the start of a contestant, which is long on a busy machine."""


@dataclass
class Contestant:
    """A running process, and a check of its work, which raises AssertionError if the process has given up."""

    process: subprocess.Popen[bytes]
    serving: Callable[[], bool]
    _asked: float = 0.0

    @property
    def pid(self) -> int:
        """Return the number of the root of its processes."""
        return self.process.pid

    def assert_alive(self) -> None:
        """Raise AssertionError if the process has ended or given up. Cheap enough for frequent calls."""
        assert self.process.poll() is None, f"{self.process.args!r:.200} ended with {self.process.returncode}"
        if time.monotonic() - self._asked > _LOOK_SECONDS:
            self.serving()
            self._asked = time.monotonic()
