"""The progress of a run of tests: each failure with its cause, and the tests that take long.

CI stops a run at its limit of time, and pytest prints its summary at the end only. Without these lines, a run that CI
stopped would not say which tests failed, nor which ones were slow."""

import os
import time
from pathlib import Path
from typing import Protocol

import pytest

SLOW_S = 60.0
"""A test that takes longer is printed, in seconds."""
LINES = 30
"""Lines of a failure that are printed, from its end."""
STATISTICS = Path("/proc/stat")
"""proc_stat(5): the first line has the CPU time of the machine by use."""


class Terminal(Protocol):
    """The part of pytest's TerminalReporter that prints lines."""

    def ensure_newline(self) -> None: ...

    def write_line(self, line: str) -> None: ...


class Progress:
    """Print failures and slow tests while the run goes on."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.began = time.monotonic()
        self.before = processor()
        self.spent: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print a failed phase of a test at once, and a slow test after its last phase."""
        spent = self.spent.pop(report.nodeid, 0.0) + report.duration
        if report.when != "teardown":
            self.spent[report.nodeid] = spent
        elif spent > SLOW_S:
            self.write(f"{report.nodeid} took {spent:.0f} s")
        if report.failed:
            self.write(f"{report.nodeid} failed in {report.when} after {spent:.0f} s")
            for line in report.longreprtext.splitlines()[-LINES:]:
                self.terminal.write_line(f"    {line}")

    def write(self, text: str) -> None:
        """Print a line with the age of the run, the load of the machine, and its use of the CPU since the start of the run."""
        self.terminal.ensure_newline()
        total, busy, stolen = (now - then for now, then in zip(processor(), self.before, strict=True))
        machine = f"load {os.getloadavg()[0]:.0f}, CPU busy {busy / max(1, total):.0%}, of it stolen {stolen / max(1, busy):.0%}"
        self.terminal.write_line(f"[{time.monotonic() - self.began:6.0f}s] {text} ({machine})")


def processor() -> tuple[int, int, int]:
    """Return the time of all cores, the time for which they worked, and the part of it that other machines took, in ticks.

    Zeros on a system without proc(5)."""
    if not STATISTICS.exists():
        return 0, 0, 0
    user, nice, system, idle, wait, interrupts, soft, stolen = map(
        int, STATISTICS.read_text().splitlines()[0].split()[1:9]
    )
    busy = user + nice + system + interrupts + soft + stolen
    return busy + idle + wait, busy, stolen
