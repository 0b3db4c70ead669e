"""The audit finds every way in which a table can differ from the log."""

import pyarrow as pa
import pytest

from firn_operator import audit


def offsets(*pairs: tuple[int, int]) -> pa.Table:
    return pa.table(
        {
            "partition": pa.array([partition for partition, _ in pairs], pa.int32()),
            "offset": pa.array([offset for _, offset in pairs], pa.int64()),
        }
    )


LOG = [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1)]  # partition 0 has a gap at 2: an aborted transaction


def compare(good: list[tuple[int, int]], dead: list[tuple[int, int]], **kwargs: bool) -> list[audit.PartitionAudit]:
    tables = (iter([offsets(*rows)]) for rows in (LOG, good, dead))
    return audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, *tables, **kwargs)


def test_rows_and_dead_letters_together_are_the_log() -> None:
    found = compare(good=[(0, 0), (0, 3), (1, 0), (1, 1)], dead=[(0, 1)])
    assert [(part.partition, part.records, part.rows, part.dead_letters, part.exact) for part in found] == [
        (0, 3, 2, 1, True),
        (1, 2, 2, 0, True),
    ]


@pytest.mark.parametrize(
    ("good", "dead", "field", "example"),
    [
        pytest.param([(0, 0), (0, 3)], [(1, 0), (1, 1)], "missing", (0, 1), id="an offset is nowhere"),
        pytest.param([*LOG, (0, 1)], [], "doubled", (0, 1), id="an offset is twice in the table"),
        pytest.param(LOG, [(1, 1)], "doubled", (1, 1), id="an offset is in the table and in the dead letters"),
        pytest.param([*LOG, (0, 2)], [], "stray", (0, 2), id="a row has an offset that the log has not"),
    ],
)
def test_a_difference_is_found_with_an_example(
    good: list[tuple[int, int]], dead: list[tuple[int, int]], field: str, example: tuple[int, int]
) -> None:
    wrong = [part for part in compare(good, dead) if not part.exact]
    assert [(part.partition, part.example, getattr(part, field)) for part in wrong] == [(*example, 1)]


def test_what_came_before_a_later_start_is_not_missing() -> None:
    good = [(0, 3), (1, 1)]
    assert not all(part.exact for part in compare(good, []))
    assert all(part.exact for part in compare(good, [], from_earliest=False))


def test_rows_older_than_the_log_count_unless_they_are_doubled() -> None:
    log = iter([offsets((0, 5))])
    found = audit.compare({0: 6}, {0: 5}, log, iter([offsets((0, 3), (0, 4), (0, 4), (0, 5))]), iter([]))
    assert [(part.missing, part.doubled, part.stray) for part in found] == [(0, 1, 0)]
