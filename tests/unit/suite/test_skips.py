"""A skip that is not on the list fails the run."""

import pytest

from tests import skips

LISTED = next(iter(skips.ALLOWED))


def report(nodeid: str, outcome: str, when: str = "call", why: str = "no server", **more: object) -> pytest.TestReport:
    longrepr = (nodeid, 1, f"Skipped: {why}") if outcome == "skipped" else None
    return pytest.TestReport(nodeid, (nodeid, 1, ""), {}, outcome, longrepr, when, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize("when", ["setup", "call"])
def test_a_skip_fails_with_its_cause(when: str) -> None:
    skipped = report("tests/test_a.py::test_b", "skipped", when)
    skips.check(skipped)
    assert skipped.outcome == "failed"
    assert "tests/test_a.py::test_b" in str(skipped.longrepr)
    assert "no server" in str(skipped.longrepr)


def test_an_expected_failure_fails() -> None:
    expected = report("tests/test_a.py::test_b", "skipped", wasxfail="slow")
    skips.check(expected)
    assert expected.outcome == "failed"
    assert not hasattr(expected, "wasxfail")


def test_an_unexpected_success_fails() -> None:
    unexpected = report("tests/test_a.py::test_b", "passed", wasxfail="slow")
    skips.check(unexpected)
    assert unexpected.outcome == "failed"


def test_a_module_that_cannot_be_collected_fails() -> None:
    uncollected = pytest.CollectReport("tests/test_a.py", "skipped", ("tests/test_a.py", 1, "Skipped: no module"), [])
    skips.check(uncollected)
    assert uncollected.outcome == "failed"


def test_a_listed_test_may_be_skipped() -> None:
    listed = report(LISTED, "skipped")
    skips.check(listed)
    assert listed.outcome == "skipped"


@pytest.mark.parametrize("outcome", ["skipped", "passed"])
def test_a_test_that_depends_on_the_machine_may_be_skipped_and_may_run(outcome: str) -> None:
    module, reason = next(iter(skips.DEPENDS_ON_THE_MACHINE.items()))
    listed = report(f"{module}::test_a", outcome, why=reason)
    skips.check(listed)
    assert listed.outcome == outcome


def test_a_test_that_depends_on_the_machine_is_skipped_only_for_the_listed_reason() -> None:
    skipped = report(f"{next(iter(skips.DEPENDS_ON_THE_MACHINE))}::test_a", "skipped")
    skips.check(skipped)
    assert skipped.outcome == "failed"


def test_a_listed_test_that_passes_fails() -> None:
    listed = report(LISTED, "passed")
    skips.check(listed)
    assert listed.outcome == "failed"
    for when in ("setup", "teardown"):
        listed = report(LISTED, "passed", when)
        skips.check(listed)
        assert listed.outcome == "passed"


def test_other_results_are_unchanged() -> None:
    for outcome in ("passed", "failed"):
        other = report("tests/test_a.py::test_b", outcome)
        skips.check(other)
        assert other.outcome == outcome
