"""The audit finds every way in which a table can differ from the log."""

from typing import cast

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from firn.model.errors import UnavailableError
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
    rows = audit.Rows(iter([offsets(*good)]), iter([offsets(*dead)]))
    return audit.compare({0: 4, 1: 2}, {0: 0, 1: 0}, iter([offsets(*LOG)]), rows, **kwargs)


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
    rows = audit.Rows(iter([offsets((0, 3), (0, 4), (0, 4), (0, 5))]), iter([]))
    found = audit.compare({0: 6}, {0: 5}, log, rows)
    assert [(part.missing, part.doubled, part.stray) for part in found] == [(0, 1, 0)]


def test_what_compaction_removed_from_the_log_is_unproved() -> None:
    good = [*LOG, (0, 2)]
    found = compare(good, [], compacted=True)
    assert [(part.stray, part.unproved, part.exact) for part in found] == [(0, 1, True), (0, 0, True)]
    assert not compare([*good, (0, 2)], [], compacted=True)[0].exact, "twice is twice"
    assert not compare(LOG[1:], [], compacted=True)[0].exact, "what the log has must be there"


def test_what_may_have_been_skipped_is_unproved() -> None:
    found = compare(LOG[1:], [], skips=True)
    assert [(part.missing, part.unproved, part.exact) for part in found] == [(0, 1, True), (0, 0, True)]
    assert not compare([*LOG, (0, 2)], [], skips=True)[0].exact, "a stray row was not skipped"


def test_rows_of_an_earlier_topic_are_left_out() -> None:
    old, new = [(0, offset) for offset in range(6)], [(0, 0), (0, 1)]
    log = iter([offsets(*new, (0, 2))])
    rows = audit.Rows(
        iter([offsets(*old, *new)]),
        iter([offsets((0, 9), (0, 2))]),
        earlier_good=iter([offsets(*old)]),
        earlier_dead=iter([offsets((0, 9))]),
    )
    (found,) = audit.compare({0: 3}, {0: 0}, log, rows)
    assert (found.rows, found.dead_letters, found.exact) == (2, 1, True)


class History:
    """A table of nothing but snapshots: (id, parent, topic id)."""

    def __init__(self, *snapshots: tuple[int, int | None, str | None], **properties: str) -> None:
        self.properties = properties
        self._found = {number: self._snapshot(number, parent, topic) for number, parent, topic in snapshots}

    def _snapshot(self, number: int, parent: int | None, topic: str | None) -> Snapshot:
        ours = {"firn.topic-id": topic, "firn.offsets": f'{{"0":{number}}}'} if topic else {}
        summary = Summary(Operation.APPEND, **ours)
        return Snapshot(
            snapshot_id=number, parent_snapshot_id=parent, timestamp_ms=number, manifest_list="", summary=summary
        )

    def name(self) -> tuple[str, ...]:
        return ("demo", "orders")

    def current_snapshot(self) -> Snapshot | None:
        return self._found[max(self._found)] if self._found else None

    def snapshot_by_id(self, number: int) -> Snapshot | None:
        return self._found.get(number)


@pytest.mark.parametrize(
    ("history", "expected"),
    [
        pytest.param(History((1, None, "new"), (2, 1, "new")), (None, True), id="only this topic"),
        pytest.param(
            History((1, None, "old"), (2, 1, None), (3, 2, "new"), (4, 3, None), (5, 4, "new")),
            (2, True),
            id="re-created",
        ),
        pytest.param(History((4, 3, "new"), (5, 4, "new")), (None, False), id="expired"),
    ],
)
def test_where_an_earlier_topic_ends_in_the_history(history: History, expected: tuple[int | None, bool]) -> None:
    assert audit.before(cast(Table, history), "new") == expected


def test_offsets_of_another_topic_prove_nothing() -> None:
    history = cast(Table, History((1, None, "old"), (2, 1, None)))
    assert audit.landed_offsets(history, "old") == {0: 1}
    with pytest.raises(UnavailableError, match=r"demo\.orders: the topic was created anew"):
        audit.landed_offsets(history, "new")
    assert audit.landed_offsets(cast(Table, History()), "new") == {}


def test_a_failure_says_what_may_excuse_it() -> None:
    partition = compare([*LOG, (0, 2)], [])[0]
    assert audit.Audit([partition], compacted=False, skips=False, history=True).notes == []
    (note,) = audit.Audit([partition], compacted=False, skips=False, history=False).notes
    assert "re-created" in note
