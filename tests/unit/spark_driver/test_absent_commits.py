"""A commit is absent only if no snapshot that a reader can reach is its own. Otherwise its files must stay."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from firn_spark.failpoints import Failpoints
from firn_spark.tables.commits import COMMIT_ID, Committer, Landed

OURS = "ours"
BASE = Landed("id-1", 7, {0: 5}, commit_id="base", writer="before", snapshot_id=1)


@dataclass
class Snapshot:
    """Iceberg's snapshot, as far as the search uses it."""

    id: int
    parent: int | None
    commit: str

    def snapshotId(self) -> int:
        return self.id

    def parentId(self) -> int | None:
        return self.parent

    def summary(self) -> Mapping[str, str]:
        return {COMMIT_ID: self.commit}


@dataclass
class Table:
    """Iceberg's table with its snapshots. ``head`` is the current snapshot of main."""

    kept: list[Snapshot]
    head: int | None
    reads: list[int] = field(default_factory=list)

    def properties(self) -> Mapping[str, str]:
        return {}

    def snapshots(self) -> list[Snapshot]:
        return self.kept

    def snapshot(self, number: int) -> Snapshot | None:
        return next((snapshot for snapshot in self.kept if snapshot.id == number), None)

    def currentSnapshot(self) -> Snapshot | None:
        return self.snapshot(self.head) if self.head is not None else None


def absent(table: Table, base: Landed | None = BASE) -> bool:
    return Committer(cast(Any, None), "writer", Failpoints()).absent(table, OURS, base)


FIRST = Snapshot(1, None, "base")


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (Table([FIRST, Snapshot(2, 1, "theirs")], head=2), True),
        (Table([FIRST, Snapshot(2, 1, OURS), Snapshot(3, 2, "theirs")], head=3), False),
        # Main was rolled back behind our commit, another writer continued, and a tag keeps our snapshot.
        (Table([FIRST, Snapshot(2, 1, OURS), Snapshot(3, 1, "theirs")], head=3), False),
        # The history was expired: nothing is proved.
        (Table([Snapshot(9, 8, "theirs")], head=9), False),
    ],
    ids=["another commit came", "our commit came first", "a tag keeps our commit", "the history is not known"],
)
def test_a_commit_is_absent_only_if_no_snapshot_has_it(table: Table, expected: bool) -> None:
    assert absent(table) == expected


def test_a_commit_to_an_empty_table_is_absent_while_the_table_is_empty() -> None:
    assert absent(Table([], head=None), base=None)
    assert not absent(Table([Snapshot(1, None, OURS)], head=1), base=None)
    assert absent(Table([Snapshot(1, None, "theirs")], head=1), base=None)
