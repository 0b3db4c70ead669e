"""The comparison of an audit: bitmaps of chunks become ranges without a row, and surplus rows are counted."""

import random
from collections import Counter as Tally

import numpy as np
import pytest

from firn.model.progress import AuditFrom
from firn_spark.maintenance.steps import audit
from firn_spark.maintenance.steps.audit import CHUNK, Counted, compared, decidable


def bitmap(offsets: set[int]) -> bytes:
    bits = np.zeros(CHUNK, np.uint8)
    bits[[offset % CHUNK for offset in offsets]] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def chunks(bounds: dict[int, tuple[int, int]], rows: Tally[tuple[int, int]]) -> list[tuple[object, ...]]:
    """Return what Spark returns for these rows."""
    answer: list[tuple[object, ...]] = []
    for partition, (start, end) in bounds.items():
        places = {offset: count for (part, offset), count in rows.items() if part == partition and offset >= start}
        for chunk in sorted({offset // CHUNK for offset in places}):
            own = {offset: count for offset, count in places.items() if offset // CHUNK == chunk}
            inside = {offset for offset in own if offset < end}
            count = sum(own[offset] for offset in inside)
            whole = count == len(inside) == min(end, (chunk + 1) * CHUNK) - max(start, chunk * CHUNK)
            beyond = own.keys() - inside
            first = min(beyond, default=None)
            stray = sum(own[offset] for offset in beyond)
            answer.append((partition, chunk, count, None if whole else bitmap(inside), stray, first))
    return answer


def counted(bounds: dict[int, tuple[int, int]], rows: Tally[tuple[int, int]]) -> Counted:
    result = Counted()
    result.add(bounds, chunks(bounds, rows))  # type: ignore[arg-type]
    return result


def test_a_log_whose_offsets_all_have_a_row_has_no_gap() -> None:
    bounds = {0: (CHUNK - 2, 2 * CHUNK + 3), 1: (5, 7)}
    rows = Tally((part, offset) for part, (start, end) in bounds.items() for offset in range(start, end))
    result = counted(bounds, rows)
    assert (dict(result.gaps), result.doubled, result.stray) == ({}, 0, 0)


def test_ranges_without_rows_cross_chunks() -> None:
    result = counted({0: (10, 3 * CHUNK)}, Tally({(0, 10): 1, (0, 3 * CHUNK - 1): 1}))
    assert dict(result.gaps) == {0: [(11, 3 * CHUNK - 1)]}


@pytest.mark.parametrize("seed", range(5))
def test_any_rows_are_compared_as_sets_of_offsets(seed: int) -> None:
    draw = random.Random(seed)
    start = draw.randrange(2 * CHUNK)
    bounds = {3: (start, start + draw.randrange(1, 2 * CHUNK))}
    first, last = bounds[3]
    rows = Tally({(3, offset): 1 for offset in range(first, last) if draw.random() < 0.9})
    for _ in range(draw.randrange(4)):
        rows[3, draw.randrange(max(0, first - 50), last + 50)] += 1
    result = counted(bounds, rows)
    missing = {offset for low, high in result.gaps[3] for offset in range(low, high)}
    assert missing == {offset for offset in range(first, last) if not rows[3, offset]}
    assert result.doubled == sum(count - 1 for (_, offset), count in rows.items() if first <= offset < last and count)
    assert result.stray == sum(count for (_, offset), count in rows.items() if offset >= last)
    assert all(low < high for low, high in result.gaps[3])
    assert all(before[1] < after[0] for before, after in zip(result.gaps[3], result.gaps[3][1:], strict=False))


def test_gaps_before_the_offsets_of_the_table_are_undecided() -> None:
    known = AuditFrom(topic_id="id", offsets={0: 15, 1: 40})
    gaps = {0: [(3, 5), (10, 20), (30, 31)], 1: [(0, 40)], 2: [(1, 2)]}
    assert decidable(gaps, known.offsets) == ({0: [(15, 20), (30, 31)], 1: [], 2: [(1, 2)]}, 2 + 5 + 40)


def test_the_log_from_its_start_to_the_landed_offsets_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compared({0: 5, 1: 9, 2: 0}, {0: 9, 1: 9, 3: 4}) == {0: (5, 9)}
    monkeypatch.setattr(audit, "MOST_OFFSETS", 10)
    assert compared({0: 0, 1: 0}, {0: 90, 1: 10}) == {0: (81, 90), 1: (9, 10)}
