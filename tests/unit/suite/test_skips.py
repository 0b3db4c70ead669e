"""A skip that no list allows fails the run."""

import pytest

from tests import skips

LISTED = next(iter(skips.ALLOWED))


def report(nodeid: str, outcome: str, when: str = "call", **more: object) -> pytest.TestReport:
    longrepr = (nodeid, 1, "Skipped: no server") if outcome == "skipped" else None
    return pytest.TestReport(nodeid, (nodeid, 1, ""), {}, outcome, longrepr, when, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["setup", "call"])
def test_a_skip_fails_and_says_why_the_test_did_not_run(when: str) -> None:
    found = report("tests/test_a.py::test_b", "skipped", when)
    skips.check(found)
    assert found.outcome == "failed"
    assert "tests/test_a.py::test_b" in str(found.longrepr)
    assert "no server" in str(found.longrepr)


def test_an_expected_failure_fails() -> None:
    found = report("tests/test_a.py::test_b", "skipped", wasxfail="slow")
    skips.check(found)
    assert found.outcome == "failed"
    assert not hasattr(found, "wasxfail")


def test_an_unexpected_success_fails() -> None:
    found = report("tests/test_a.py::test_b", "passed", wasxfail="slow")
    skips.check(found)
    assert found.outcome == "failed"


def test_a_module_that_cannot_be_collected_fails() -> None:
    found = pytest.CollectReport("tests/test_a.py", "skipped", ("tests/test_a.py", 1, "Skipped: no module"), [])
    skips.check(found)
    assert found.outcome == "failed"


def test_a_listed_test_may_be_skipped() -> None:
    found = report(LISTED, "skipped")
    skips.check(found)
    assert found.outcome == "skipped"


@pytest.mark.parametrize("outcome", ["skipped", "passed"])
def test_a_test_that_depends_on_the_machine_may_be_skipped_and_may_run(outcome: str) -> None:
    found = report(f"{next(iter(skips.DEPENDS_ON_THE_MACHINE))}::test_a", outcome)
    skips.check(found)
    assert found.outcome == outcome


def test_a_listed_test_that_passes_is_to_leave_the_list() -> None:
    found = report(LISTED, "passed")
    skips.check(found)
    assert found.outcome == "failed"
    for when in ("setup", "teardown"):
        found = report(LISTED, "passed", when)
        skips.check(found)
        assert found.outcome == "passed"


def test_other_tests_stay_as_they_are() -> None:
    for outcome in ("passed", "failed"):
        found = report("tests/test_a.py::test_b", outcome)
        skips.check(found)
        assert found.outcome == outcome
