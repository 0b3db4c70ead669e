"""The page on faults of other sinks names tests that exist, at least one for each fault."""

import re

from tests.markdown import ROOT

PAGE = ROOT / "docs/reference/faults-of-other-sinks.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| fault")]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
}


def test_each_fault_has_tests_that_exist() -> None:
    assert len(ROWS) > 10
    for row in ROWS:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= TESTS, named - TESTS
