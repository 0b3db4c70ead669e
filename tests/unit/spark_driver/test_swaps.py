"""Only a change that is read back counts as made."""

from collections.abc import Callable
from typing import Any

import pytest

from firn.model.errors import CommitConflictError, FencedError
from firn_spark.failpoints import FailpointError, Failpoints
from firn_spark.tables.swaps import ATTEMPTS, swap


class Table:
    """A table whose metadata is a number. ``answers`` are the catalog's reactions to each request."""

    def __init__(self, *answers: Callable[["Table", int], None]) -> None:
        self.there = self.read = 0
        self.answers = list(answers)
        self.asked = 0

    def name(self) -> str:
        return "lake.n.t"

    def refresh(self) -> None:
        self.read = self.there

    def operations(self) -> "Table":
        return self

    def commit(self, base: int, updated: int) -> None:
        self.asked += 1
        self.answers.pop(0)(self, updated)


class Add:
    """A change that sets the number to ``goal``."""

    def __init__(self, goal: int, give_up_at: int | None = None) -> None:
        self.goal = goal
        self.give_up_at = give_up_at

    def done(self, table: Any) -> bool:
        if table.read == self.give_up_at:
            raise FencedError("another did it")
        return bool(table.read == self.goal)

    def build(self, table: Any) -> tuple[int, int]:
        return table.read, self.goal


def takes(table: Table, updated: int) -> None:
    table.there = updated


def refuses(table: Table, updated: int) -> None:
    raise CommitConflictError("moved")


def takes_and_fails(table: Table, updated: int) -> None:
    table.there = updated
    raise OSError("line is dead")


def fails(table: Table, updated: int) -> None:
    raise OSError("line is dead")


def becomes(number: int) -> Callable[[Table, int], None]:
    def answer(table: Table, updated: int) -> None:
        table.there = number
        raise CommitConflictError("moved")

    return answer


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("firn_spark.tables.swaps.time.sleep", lambda _: None)


def test_a_change_that_is_already_applied_is_not_requested() -> None:
    table = Table()
    table.there = 5
    swap(table, Add(5), Failpoints())
    assert table.asked == 0


def test_a_change_is_requested_once() -> None:
    table = Table(takes)
    swap(table, Add(5), Failpoints())
    assert (table.asked, table.there) == (1, 5)


def test_a_failed_request_that_took_effect_succeeds() -> None:
    table = Table(takes_and_fails)
    swap(table, Add(5), Failpoints())
    assert (table.asked, table.there) == (1, 5)


def test_a_conflict_is_retried_and_a_failure_is_not() -> None:
    table = Table(refuses, refuses, takes)
    swap(table, Add(5), Failpoints())
    assert table.asked == 3
    table = Table(fails, takes)
    with pytest.raises(OSError, match="line is dead"):
        swap(table, Add(5), Failpoints())
    assert (table.asked, table.there) == (1, 0)


def test_a_change_that_became_invalid_is_not_made() -> None:
    table = Table(becomes(7), takes)
    with pytest.raises(FencedError) as raised:
        swap(table, Add(5, give_up_at=7), Failpoints())
    assert isinstance(raised.value.__cause__, CommitConflictError)
    assert table.asked == 1


def test_retries_of_conflicts_are_limited() -> None:
    table = Table(*[refuses] * (ATTEMPTS + 1))
    with pytest.raises(CommitConflictError, match=f"{ATTEMPTS} attempts to commit failed"):
        swap(table, Add(5), Failpoints())
    assert table.asked == ATTEMPTS


def test_a_change_that_was_undone_is_a_conflict() -> None:
    def takes_and_is_undone(table: Table, updated: int) -> None:
        table.there = 3

    with pytest.raises(CommitConflictError, match="no longer"):
        swap(Table(takes_and_is_undone), Add(5), Failpoints())


@pytest.mark.parametrize(("place", "there"), [("in-commit", 0), ("after-commit", 5)])
def test_failpoints_surround_the_request(place: str, there: int) -> None:
    table = Table(takes)
    if there:
        swap(table, Add(5), Failpoints(f"{place}=raise:1"))
    else:
        with pytest.raises(FailpointError):
            swap(table, Add(5), Failpoints(f"{place}=raise:1"))
    assert table.there == there
