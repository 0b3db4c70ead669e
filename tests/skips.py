"""The tests that may be skipped or expected to fail, each with its reason. Any other skip fails the run: a missing server, jar or program
must not pass for a test."""

import pytest

ALLOWED = {
    "tests/contract/test_debts.py::test_a_file_is_at_most_as_old_as_the_oldest_snapshot[rest-s3]": (
        "the Nessie server expires snapshots itself"
    ),
    "tests/contract/test_tables.py::test_a_table_may_be_partitioned_by_a_nested_column[nessie]": (
        "Nessie 0.99 rejects partition fields of nested columns"
    ),
    "tests/contract/test_tables.py::test_an_existing_table_of_version_3_is_read_and_not_written[nessie]": (
        "the test registers a table by its metadata file, which Nessie does not accept"
    ),
}
"""Test id -> reason. These tests are skipped on every machine."""
DEPENDS_ON_THE_MACHINE = {
    "tests/e2e/cluster/test_local_cluster.py": "the local provider needs root",
    "tests/integration/broker/test_json_serialisers.py": "cargo is not installed",
    "tests/integration/ingestion/test_roll_back.py": "the history of this clone does not have version 0.2.0",
}
"""Module -> reason, which the skip must name. These tests run on some machines only."""


def check(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Turn a skip or an expected failure into a failure unless the list allows it, and fail a listed test that runs."""
    module = report.nodeid.partition("::")[0]
    allowed = report.nodeid in ALLOWED or (
        module in DEPENDS_ON_THE_MACHINE and DEPENDS_ON_THE_MACHINE[module] in cause(report)
    )
    if report.skipped and not allowed:
        report.outcome = "failed"
        report.longrepr = (
            f"{report.nodeid} was skipped or failed as expected: {cause(report)}. "
            f"Provide what the test needs, or add the test and its reason to ALLOWED in tests/skips.py."
        )
        # The terminal reporter counts a report with this attribute as an expected failure.
        report.__dict__.pop("wasxfail", None)
    elif report.passed and hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} passes: remove its mark xfail."
        del report.wasxfail
    elif report.passed and report.nodeid in ALLOWED and getattr(report, "when", "") == "call":
        report.outcome = "failed"
        report.longrepr = f"{report.nodeid} runs now: remove the test from ALLOWED in tests/skips.py."


def cause(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason that the skip or the expected failure names."""
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail) or "expected to fail"
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else str(report.longrepr)
