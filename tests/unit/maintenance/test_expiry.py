"""The snapshots that may expire."""

from hypothesis import given
from hypothesis import strategies as st

from firn.model.maintenance import SnapshotsWork
from firn_spark.maintenance.steps.retention import History, expired

NOW = 1_000_000
NOTHING_OF_ITS_OWN = SnapshotsWork(max_age_ms=0, min_keep=0)


def chain(*times: int, carries: bool = True) -> list[History]:
    """Return snapshots 1, 2, ... each the parent of the next, committed at ``times``."""
    return [History(n, n - 1 or None, at, carries) for n, at in enumerate(times, 1)]


def gone(snapshots: list[History], max_age: int, min_keep: int = 1, **refs: int) -> list[int]:
    branches = dict.fromkeys((name for name in refs if not name.startswith("tag")), NOTHING_OF_ITS_OWN)
    return expired(snapshots, refs, branches, SnapshotsWork(max_age_ms=max_age, min_keep=min_keep), NOW)


def test_age_counts_from_when_a_snapshot_was_superseded() -> None:
    # Snapshot 1 was current until 900_000, and 2 until 950_000.
    snapshots = chain(100_000, 900_000, 950_000, 960_000)
    assert gone(snapshots, 99_999, main=4) == [1]
    assert gone(snapshots, 100_000, main=4) == []
    assert gone(snapshots, 45_000, main=4) == [1, 2]


def test_the_minimum_number_of_snapshots_is_kept_at_any_age() -> None:
    snapshots = chain(1, 2, 3, 4, 5)
    assert gone(snapshots, 0, 1, main=5) == [1, 2, 3, 4]
    assert gone(snapshots, 0, 3, main=5) == [1, 2]
    assert gone(snapshots, 0, 9, main=5) == []


def test_snapshots_of_tags_and_branches_are_kept() -> None:
    snapshots = [*chain(1, 2, 3, 4), History(9, 2, 3)]
    assert gone(snapshots, 0, 1, main=4, tag=1, side=9) == [2, 3]
    assert gone(snapshots, 0, 2, main=4, side=9) == [1]


def test_snapshots_that_main_lacks_are_kept_on_the_landing_branch() -> None:
    snapshots, work = chain(1, 2, 3, 4, 5, 6), SnapshotsWork(max_age_ms=0, min_keep=1)
    branches = {"main": NOTHING_OF_ITS_OWN, "staging": NOTHING_OF_ITS_OWN}
    assert expired(snapshots, {"main": 3, "staging": 6}, branches, work, NOW, "staging") == [1, 2]
    assert expired(snapshots, {"main": 6, "staging": 6}, branches, work, NOW, "staging") == [1, 2, 3, 4, 5]


def test_a_branch_may_keep_more_snapshots_than_the_policy() -> None:
    snapshots = [*chain(1, 2, 3, 4), History(9, 2, 3)]
    wanted = SnapshotsWork(max_age_ms=0, min_keep=1)
    for own in (SnapshotsWork(max_age_ms=0, min_keep=2), SnapshotsWork(max_age_ms=NOW, min_keep=1)):
        branches = {"main": NOTHING_OF_ITS_OWN, "side": own}
        kept = {1, 2, 3, 4, 9} - set(expired(snapshots, {"main": 4, "side": 9}, branches, wanted, NOW))
        assert kept == ({4, 9, 2} if own.min_keep == 2 else {4, 9, 2, 1})


def test_snapshots_outside_all_branches_expire_by_their_own_age() -> None:
    snapshots = [*chain(1, 2), History(7, 1, 999_000), History(8, 1, 500_000)]
    assert gone(snapshots, 5_000, 1, main=2) == [1, 8]


def test_the_newest_snapshot_with_offsets_is_kept() -> None:
    def snapshot(number: int, carries: bool) -> History:
        return History(number, number - 1 or None, number, carries)

    foreign_on_top = [snapshot(1, True), snapshot(2, True), snapshot(3, False), snapshot(4, False)]
    assert gone(foreign_on_top, 0, 1, main=4) == [1]
    ours_on_top = [snapshot(1, True), snapshot(2, True), snapshot(3, False), snapshot(4, True)]
    assert gone(ours_on_top, 0, 1, main=4) == [1, 2, 3]
    never_ingested = [snapshot(1, False), snapshot(2, False)]
    assert gone(never_ingested, 0, 1, main=2) == [1]


def test_a_broken_lineage_ends_where_it_breaks() -> None:
    snapshots = [History(5, 4, 500), History(6, 5, 600, True)]
    assert gone(snapshots, 0, 1, main=6) == [5]


@given(st.lists(st.integers(0, NOW), min_size=1, max_size=30), st.integers(0, NOW), st.integers(1, 40), st.data())
def test_the_newest_never_expires_and_less_age_expires_no_fewer(
    times: list[int], age: int, keep: int, data: st.DataObject
) -> None:
    snapshots = chain(*sorted(times))
    head = len(snapshots)
    named = data.draw(st.integers(1, head))
    less = gone(snapshots, age, keep, main=head, tag=named)
    assert not {head, named} & set(less)
    assert set(less) <= set(gone(snapshots, age // 2, keep, main=head, tag=named))
    assert len(snapshots) - len(less) >= min(keep, len(snapshots))
    kept_old = [snapshot for snapshot in snapshots if snapshot.id in less and snapshot.committed_ms >= NOW - age]
    assert not kept_old
