"""A run prints each failure at once, with its cause, and each test that took long."""

import pytest

from tests.progress import LINES, SLOW_S, Progress

NODE = "tests/test_a.py::test_b"


class Lines:
    """A terminal that keeps its lines."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def ensure_newline(self) -> None: ...

    def write_line(self, line: str) -> None:
        self.written.append(line)


def report(when: str, outcome: str = "passed", duration: float = 1.0, why: str | None = None) -> pytest.TestReport:
    return pytest.TestReport(NODE, (NODE, 1, ""), {}, outcome, why, when, duration=duration)  # type: ignore[arg-type]


def printed(*reports: pytest.TestReport) -> list[str]:
    lines = Lines()
    progress = Progress(lines)
    for each in reports:
        progress.pytest_runtest_logreport(each)
    return lines.written


def test_a_failure_is_printed_with_its_last_lines() -> None:
    cause = "\n".join(f"line {number}" for number in range(LINES + 1))
    title, *lines = printed(report("setup", duration=2), report("call", "failed", 3, cause))
    assert f"{NODE} failed in call after 5 s (load" in title
    assert lines == [f"    line {number}" for number in range(1, LINES + 1)]


def test_a_quick_test_that_passes_prints_nothing() -> None:
    assert not printed(report("setup"), report("call"), report("teardown"))


def test_a_test_whose_phases_took_long_together_is_printed_once() -> None:
    (line,) = printed(report("setup", duration=SLOW_S - 1), report("call", duration=2), report("teardown"))
    assert f"{NODE} took {SLOW_S + 2:.0f} s" in line
