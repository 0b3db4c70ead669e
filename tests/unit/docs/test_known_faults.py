"""The lists of faults, of other sinks and of earlier versions, name tests that exist, at least one for each fault."""

import re

from tests.markdown import ROOT

PAGE = ROOT / "docs/reference/faults-of-other-sinks.md"
ROWS = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and not line.startswith("| fault")]
OWN = (ROOT / "docs/reference/tested.md").read_text().partition("\n## Mended faults\n")[2].partition("\n## ")[0]
TESTS = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^ *(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE)
} | set(re.findall(r"def (test_\w+)", (ROOT / "tests/contract/driver_tables.py").read_text()))
REPORTS = {
    *(
        f"IC#{number}"
        for number in (12372, 13752, 13763, 15878, 16016, 16282, 17340, 17551, 17552, 17637, 17713, 18006)
    ),
    *("IC#18012", "DB#230", "DB#279", "DB#280"),
    *(f"RP#{number}" for number in (24222, 25215, 25866, 27188, 27393)),
}
"""Reports of lost and duplicate rows, and of tables that were deleted or changed under the writer."""


def test_each_fault_has_an_outcome_and_tests_that_exist() -> None:
    assert len(ROWS) > 20
    for row in ROWS:
        _, fault, _, outcome, tests, _ = (cell.strip() for cell in row.split("|"))
        named = set(re.findall(r"`(test_\w+)`", tests))
        assert fault, row
        assert outcome, row
        assert named, row
        assert named <= TESTS, named - TESTS


def test_each_report_has_a_fault() -> None:
    assert {report for row in ROWS for report in re.findall(r"[A-Z]{2}#\d+", row)} >= REPORTS


def test_each_fault_of_an_earlier_version_has_tests_that_exist() -> None:
    rows = [line for line in OWN.splitlines() if line.startswith("| ") and not line.startswith("| fault")]
    assert len(rows) > 10
    for row in rows:
        named = set(re.findall(r"`(test_\w+)`", row))
        assert named, row
        assert named <= TESTS, named - TESTS
