"""A run's report fits into a termination message, and other messages are not read as a report."""

import random

import pytest

from firn.model import maintenance
from firn.model.maintenance import (
    ANY_PARTITION,
    MOST_RANGES,
    TABLES_PER_RUN,
    AuditReport,
    OffsetRange,
    Removed,
    RunReport,
    TableReport,
    covering,
    pack,
    unpack,
)


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


def test_failed_audits_of_a_full_run_fit_with_fewer_ranges() -> None:
    draw = random.Random(1)
    tables = []
    for number in range(TABLES_PER_RUN):
        offsets = sorted(draw.randrange(10**10) for _ in range(2 * MOST_RANGES))
        ranges = tuple(OffsetRange(7, *pair) for pair in zip(offsets[::2], offsets[1::2], strict=True))
        found = AuditReport(
            topic_id="".join(draw.choices("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", k=22)),
            offsets=draw.randrange(10**10),
            missing=draw.randrange(10**9),
            doubled=draw.randrange(10**9),
            partition=7,
            offset=offsets[0],
            missing_ranges=ranges,
            surplus_ranges=ranges,
        )
        tables.append(
            table(number).model_copy(update={"rows": None, "snapshots": None, "orphans": None, "audit": found})
        )
    unpacked = unpack(pack(RunReport(name="r", tables=tuple(tables))))
    assert len(unpacked.tables) == TABLES_PER_RUN
    for before, after in zip(tables, unpacked.tables, strict=True):
        assert before.audit is not None
        assert after.audit is not None
        assert after.audit.missing_ranges
        assert all(own.within(after.audit.missing_ranges) for own in before.audit.missing_ranges)
    alone = RunReport(name="r", tables=tuple(tables[:1]))
    assert unpack(pack(alone)) == alone


def test_close_ranges_are_joined_first() -> None:
    ranges = [
        OffsetRange(0, 0, 2),
        OffsetRange(0, 2, 5),
        OffsetRange(0, 8, 9),
        OffsetRange(0, 90, 91),
        OffsetRange(1, 9, 10),
    ]
    assert covering(ranges, 4) == (OffsetRange(0, 0, 5), *ranges[2:])
    assert covering(ranges, 3) == (OffsetRange(0, 0, 9), *ranges[3:])
    assert covering(ranges, 2) == (OffsetRange(0, 0, 91), ranges[4])
    assert covering(ranges, 1) == (OffsetRange(ANY_PARTITION, 0, 91),)
    assert covering(covering(ranges, 1), 1) == (OffsetRange(ANY_PARTITION, 0, 91),)
    assert covering([], 1) == ()


@pytest.mark.parametrize("seed", range(20))
def test_ranges_that_cover_the_rest_are_within_those_that_cover_all(seed: int) -> None:
    draw = random.Random(seed)
    partitions = draw.choice([1, 3, 6])
    all_ranges = [
        OffsetRange(draw.randrange(partitions), start, start + draw.randrange(1, 4))
        for start in (draw.randrange(60) for _ in range(12))
    ]
    for first in range(0, 60, 7):
        rest = [own._replace(start=max(own.start, first)) for own in all_ranges if own.end > first]
        for most in (1, 2, 4, 8):
            covers = covering(all_ranges, most)
            assert len(covers) <= most
            assert all(own.within(covers) for own in all_ranges)
            assert all(own.within(covers) for own in covering(rest, most))


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
