"""A run's report fits into a termination message, and other messages are not read as a report."""

import random

import pytest

from firn.model import maintenance
from firn.model.maintenance import TABLES_PER_RUN, Removed, RunReport, TableReport, pack, unpack


def table(number: int, noise: int = 0) -> TableReport:
    """Return a report with the largest figures, and ``noise`` characters that do not compress."""
    draw = random.Random(number)
    text = "".join(draw.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(noise))
    removed = Removed(
        files=draw.randrange(10**5),
        bytes=draw.randrange(10**12),
        items=draw.randrange(10**9),
        sample=(text, text[::-1]),
    )
    return TableReport(
        uid=f"{draw.randrange(2**32):08x}-7c4f-4d0e-9a57-{draw.randrange(2**48):012x}",
        outcome=draw.choice(["Done", "Nothing", "Failed"]),
        message=text,
        seconds=draw.random() * 1000,
        commits=draw.randrange(20),
        files_before=draw.randrange(10**5),
        files_after=draw.randrange(10**4),
        bytes_rewritten=draw.randrange(10**12),
        rows=removed,
        snapshots=removed,
        orphans=removed,
    )


@pytest.mark.parametrize("noise", [0, 40, 400])
def test_a_report_of_a_full_run_has_every_table(noise: int) -> None:
    report = RunReport(name="firn-run-x", tables=tuple(table(number, noise) for number in range(TABLES_PER_RUN)))
    text = pack(report)
    assert len(text) <= maintenance.MESSAGE_BYTES
    unpacked = unpack(text)
    if noise == 400:
        assert len(unpacked.tables) >= TABLES_PER_RUN // 3
        assert all(
            table_report.message == full.message[:80]
            for table_report, full in zip(unpacked.tables, report.tables, strict=False)
        )
    else:
        assert [table_report.uid for table_report in unpacked.tables] == [
            table_report.uid for table_report in report.tables
        ]
        assert [table_report.bytes_rewritten for table_report in unpacked.tables] == [
            table_report.bytes_rewritten for table_report in report.tables
        ]


def test_a_small_report_keeps_its_samples() -> None:
    report = RunReport(name="r", tables=(table(1, 60),))
    assert unpack(pack(report)) == report
    assert unpack(f" {pack(report)}\n") == report


@pytest.mark.parametrize(
    "message",
    ["", "Traceback (most recent call last):", "OOMKilled", "{}", "c$@<O0001", pack(RunReport(name="r"))[:-3]],
)
def test_an_invalid_report_raises_one_error(message: str) -> None:
    with pytest.raises(ValueError, match="is not a report"):
        unpack(message)
