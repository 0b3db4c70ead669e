"""The comparison of an audit: words of rows become ranges without a row, and surplus rows are counted."""

import random
from collections import Counter as Tally
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from firn.model import names
from firn.model.maintenance import AuditReport, OffsetRange
from firn.model.progress import AuditFrom, Cause, Gap, Losses
from firn_spark.kafka import gaps as gaps_search
from firn_spark.kafka.admin import TopicInfo
from firn_spark.maintenance.steps import audit
from firn_spark.maintenance.steps.audit import CHUNK, WORD, Bounds, Counted, compared, windows
from firn_spark.tables.commits import Landed
from tests.fakes.lake.java import JavaMap

ODD = pa.list_(pa.struct([("w", pa.int64()), ("n", pa.int64()), ("bits", pa.int64())]))
SCHEMA = pa.schema([("p", pa.int32()), ("c", pa.int64()), ("whole", pa.int64()), ("odd", ODD)])


def signed(bits: int) -> int:
    return bits - 2**WORD if bits >= 2 ** (WORD - 1) else bits


def chunks(window: Bounds, rows: Tally[tuple[int, int]]) -> pa.Table:
    """Return what Spark returns for these rows."""
    words: dict[tuple[int, int], Tally[int]] = defaultdict(Tally)
    for (partition, offset), count in rows.items():
        start, end = window.get(partition, (0, 0))
        if start <= offset < end and count:
            words[partition, offset // WORD][offset % WORD] += count
    whole: dict[tuple[int, int], int] = defaultdict(int)
    odd: dict[tuple[int, int], list[Any]] = defaultdict(list)
    for (partition, word), offsets in words.items():
        start, end = window[partition]
        width = min(end, (word + 1) * WORD) - max(start, word * WORD)
        place = (partition, word // WORD)
        whole[place] |= 0
        if offsets.total() == len(offsets) == width:
            whole[place] |= 1 << word % WORD
        else:
            bits = signed(sum(1 << offset for offset in offsets))
            odd[place].append({"w": word, "n": offsets.total(), "bits": bits})
    made = [
        {"p": part, "c": chunk, "whole": signed(bits), "odd": odd[part, chunk]} for (part, chunk), bits in whole.items()
    ]
    return pa.Table.from_pylist(made, SCHEMA)


def counted(window: Bounds, rows: Tally[tuple[int, int]], decided: dict[int, int] | None = None) -> Counted:
    result = Counted(decided or {})
    result.add(window, chunks(window, rows))
    return result


def test_a_log_whose_offsets_all_have_a_row_has_no_gap() -> None:
    bounds = {0: (CHUNK - 2, 3 * CHUNK + 3), 1: (5, 7)}
    rows = Tally((part, offset) for part, (start, end) in bounds.items() for offset in range(start, end))
    result = counted(bounds, rows)
    assert (dict(result.gaps), result.doubled, result.undecided) == ({}, 0, 0)


def test_a_log_without_rows_is_one_gap() -> None:
    assert dict(counted({0: (7, 3 * CHUNK)}, Tally()).gaps) == {0: [(7, 3 * CHUNK)]}


def test_ranges_without_rows_cross_chunks() -> None:
    result = counted({0: (10, 3 * CHUNK)}, Tally({(0, 10): 1, (0, 3 * CHUNK - 1): 1}))
    assert dict(result.gaps) == {0: [(11, 3 * CHUNK - 1)]}


@pytest.mark.parametrize("seed", range(8))
def test_any_rows_are_compared_as_sets_of_offsets(seed: int) -> None:
    draw = random.Random(seed)
    first = draw.randrange(2 * CHUNK)
    last = first + draw.randrange(1, 3 * CHUNK)
    density = draw.choice([0.0, 0.5, 0.99, 1.0])
    rows = Tally({(3, offset): 1 for offset in range(first, last) if draw.random() < density})
    for _ in range(draw.randrange(4)):
        rows[3, draw.randrange(max(0, first - 50), last + 50)] += 1
    decided = draw.choice([0, first + (last - first) // 3])
    result = counted({3: (first, last)}, rows, {3: decided})
    missing = {offset for low, high in result.gaps[3] for offset in range(low, high)}
    without = {offset for offset in range(first, last) if not rows[3, offset]}
    assert missing == {offset for offset in without if offset >= decided}
    assert result.undecided == len(without - missing)
    surplus = {offset: count - 1 for (_, offset), count in rows.items() if first <= offset < last and count > 1}
    assert result.doubled == sum(surplus.values())
    assert (result.doubled_at is None) == (not surplus)
    words = {offset // WORD for offset in surplus}
    assert {word for _, low, high in result.surplus for word in range(low // WORD, high // WORD)} == words
    assert all(low < high for low, high in result.gaps[3])
    assert all(before[1] < after[0] for before, after in zip(result.gaps[3], result.gaps[3][1:], strict=False))


def test_more_ranges_than_an_audit_looks_for_are_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_GAPS", 2)
    result = counted({0: (0, 10)}, Tally({(0, offset): 1 for offset in (1, 3, 5, 7)}))
    assert (dict(result.gaps), result.undecided) == ({0: [(0, 1), (2, 3)]}, 1 + 1 + 2)
    assert result.unlisted == [OffsetRange(0, 4, 10)]


def test_many_ranges_of_surplus_rows_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MOST_SURPLUS", 2)
    words = (0, 10, 20, 21, 30, 41)
    result = counted({0: (0, 50 * WORD)}, Tally({(0, word * WORD): 2 for word in words}))
    assert result.surplus == [OffsetRange(0, 0, 31 * WORD), OffsetRange(0, 41 * WORD, 42 * WORD)]


def test_the_log_from_its_start_to_the_landed_offsets_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared({0: 5, 1: 9, 2: 0}, {0: 9, 1: 9, 3: 4}) == {0: (5, 9)}
    monkeypatch.setattr(audit, "MOST_OFFSETS", 10)
    assert compared({0: 0, 1: 0}, {0: 90, 1: 10}) == {0: (81, 90), 1: (9, 10)}


def test_windows_cover_the_bounds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WINDOW", 10)
    bounds = {0: (0, 25), 1: (100, 103), 2: (5, 9)}
    made = list(windows(bounds))
    assert made == [{0: (0, 10)}, {0: (10, 20)}, {0: (20, 25), 1: (100, 103), 2: (5, 7)}, {2: (7, 9)}]
    assert list(windows({})) == []


class Brokers:
    """A topic that was created again, whose log has these starts and ends."""

    def __init__(self, start: int, end: int) -> None:
        self.starts = lambda topics: {name: dict.fromkeys(parts, start) for name, parts in topics.items()}
        self.ends = lambda topics: {name: dict.fromkeys(parts, end) for name, parts in topics.items()}

    def topics(self, names: list[str]) -> dict[str, TopicInfo]:
        return {name: TopicInfo("id-2", (0, 1)) for name in names}


@pytest.mark.parametrize(("end", "report"), [(7, AuditReport(topic_id="id-2", offsets=0)), (8, None)])
def test_a_topic_that_has_landed_nothing_is_exact_only_without_records(
    end: int, report: AuditReport | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "read_landed", lambda *_: Landed("id-1", 1, {0: 40}))
    table = SimpleNamespace(currentSnapshot=lambda: None, properties=dict, name=lambda: "lake.shop.orders")
    nothing: Any = None
    kafka: Any = Brokers(7, end)
    assert (
        audit.audit(nothing, [audit.Tables(audit.Source(table, "orders"), lambda: None)], kafka, "orders", lambda: None)
        == report
    )


def test_offsets_that_the_table_records_as_lost_are_no_gaps() -> None:
    result = Counted({3: 12}, {3: [(15, 20), (30, 99)]})
    window = {3: (10, 40), 4: (0, 3)}
    result.add(window, chunks(window, Tally({(3, 25): 1})))
    assert dict(result.gaps) == {3: [(12, 15), (20, 25), (26, 30)], 4: [(0, 3)]}
    assert result.undecided == 2


def test_an_audit_reads_the_losses_of_the_live_topic_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an unclean election, the log has a record where it had a marker: no row is missing there."""
    gap = Gap(partition=0, start=4, end=6, cause=Cause.CUT_BACK)
    of_earlier = Gap(partition=0, start=0, end=3, cause=Cause.CUT_BACK)
    losses = Losses().plus([of_earlier], "earlier", "3fa9c1d2", 0.0).plus([gap], "id-1", "3fa9c1d2", 0.0)
    properties = {
        names.TABLE_LOST: losses.model_dump_json(),
        names.TABLE_AUDIT_FROM: AuditFrom(topic_id="id-1", commit="c").model_dump_json(),
        names.SUMMARY_TOPIC_ID: "id-1",
        names.SUMMARY_EPOCH: "1",
        names.SUMMARY_OFFSETS: '{"0":8}',
        names.SUMMARY_COMMIT_ID: "c",
    }
    snapshot = SimpleNamespace(
        summary=lambda: JavaMap({**properties, names.SUMMARY_KIND: "ingest"}),
        snapshotId=lambda: 1,
        timestampMillis=lambda: 0,
        parentId=lambda: None,
    )
    table = SimpleNamespace(
        name=lambda: "lake.n.t",
        refresh=lambda: None,
        properties=lambda: JavaMap(properties),
        currentSnapshot=lambda: snapshot,
    )

    class FakeRows:
        def __init__(self, *_: object, replaying: bool) -> None:
            assert not replaying
            self.there = Tally({(0, offset): 1 for offset in (0, 1, 2, 3, 6)})

        def chunks(self, window: Bounds) -> pa.Table:
            return chunks(window, self.there)

        def beyond(self, landed: object) -> tuple[int, None, list[Any]]:
            return 0, None, []

    searched = []

    def find(config: object, topic: str, gaps: Any, may: object, filtered: object) -> gaps_search.Found:
        searched.append({part: list(ranges) for part, ranges in gaps.items()})
        return gaps_search.Found()

    monkeypatch.setattr(audit, "Rows", FakeRows)
    monkeypatch.setattr(audit, "find_records", find)
    monkeypatch.setattr(audit, "client_config", lambda connection: {})
    kafka: Any = SimpleNamespace(
        topics=lambda names: {"t": TopicInfo("id-1", (0,))}, starts=lambda asked: {"t": {0: 0}}, connection=None
    )
    report = audit.audit(None, [audit.Tables(audit.Source(table, "t"), lambda: None)], kafka, "t", lambda: None)
    assert report is not None
    assert (report.missing, report.unproved) == (0, 0)
    assert searched == [{0: [(7, 8)]}]
