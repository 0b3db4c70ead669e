"""Which snapshots may go."""

from hypothesis import given
from hypothesis import strategies as st

from firn.model.maintenance import SnapshotsWork
from firn_spark.maintenance.steps.retention import History, expired

NOW = 1_000_000
NOTHING_OF_ITS_OWN = SnapshotsWork(max_age_ms=0, min_keep=0)


def chain(*times: int, carries: bool = True) -> list[History]:
    """Snapshots 1, 2, ... each the parent of the next, committed at ``times``."""
    return [History(n, n - 1 or None, at, carries) for n, at in enumerate(times, 1)]


def gone(snapshots: list[History], max_age: int, min_keep: int = 1, **refs: int) -> list[int]:
    branches = dict.fromkeys((name for name in refs if not name.startswith("tag")), NOTHING_OF_ITS_OWN)
    return expired(snapshots, refs, branches, SnapshotsWork(max_age_ms=max_age, min_keep=min_keep), NOW)


def test_age_counts_from_when_a_snapshot_was_superseded() -> None:
    # 1 was the table until 900_000, 2 until 950_000.
    found = chain(100_000, 900_000, 950_000, 960_000)
    assert gone(found, 99_999, main=4) == [1]
    assert gone(found, 100_000, main=4) == []
    assert gone(found, 45_000, main=4) == [1, 2]


def test_as_many_as_wanted_are_kept_whatever_their_age() -> None:
    found = chain(1, 2, 3, 4, 5)
    assert gone(found, 0, 1, main=5) == [1, 2, 3, 4]
    assert gone(found, 0, 3, main=5) == [1, 2]
    assert gone(found, 0, 9, main=5) == []


def test_what_tags_and_branches_name_is_kept() -> None:
    found = [*chain(1, 2, 3, 4), History(9, 2, 3)]
    assert gone(found, 0, 1, main=4, tag=1, side=9) == [2, 3]
    assert gone(found, 0, 2, main=4, side=9) == [1]


def test_a_branch_may_want_more_of_its_history_than_the_policy() -> None:
    found = [*chain(1, 2, 3, 4), History(9, 2, 3)]
    wanted = SnapshotsWork(max_age_ms=0, min_keep=1)
    for own in (SnapshotsWork(max_age_ms=0, min_keep=2), SnapshotsWork(max_age_ms=NOW, min_keep=1)):
        branches = {"main": NOTHING_OF_ITS_OWN, "side": own}
        kept = {1, 2, 3, 4, 9} - set(expired(found, {"main": 4, "side": 9}, branches, wanted, NOW))
        assert kept == ({4, 9, 2} if own.min_keep == 2 else {4, 9, 2, 1})


def test_what_no_branch_leads_to_goes_by_its_own_age() -> None:
    found = [*chain(1, 2), History(7, 1, 999_000), History(8, 1, 500_000)]
    assert gone(found, 5_000, 1, main=2) == [1, 8]


def test_history_reaches_to_where_ingestion_is_known() -> None:
    def one(number: int, carries: bool) -> History:
        return History(number, number - 1 or None, number, carries)

    foreign_on_top = [one(1, True), one(2, True), one(3, False), one(4, False)]
    assert gone(foreign_on_top, 0, 1, main=4) == [1]
    ours_on_top = [one(1, True), one(2, True), one(3, False), one(4, True)]
    assert gone(ours_on_top, 0, 1, main=4) == [1, 2, 3]
    never_ingested = [one(1, False), one(2, False)]
    assert gone(never_ingested, 0, 1, main=2) == [1]


def test_a_broken_lineage_ends_where_it_breaks() -> None:
    found = [History(5, 4, 500), History(6, 5, 600, True)]
    assert gone(found, 0, 1, main=6) == [5]


@given(st.lists(st.integers(0, NOW), min_size=1, max_size=30), st.integers(0, NOW), st.integers(1, 40), st.data())
def test_the_newest_is_never_gone_and_less_age_never_takes_less(
    times: list[int], age: int, keep: int, data: st.DataObject
) -> None:
    found = chain(*sorted(times))
    head = len(found)
    named = data.draw(st.integers(1, head))
    less = gone(found, age, keep, main=head, tag=named)
    assert not {head, named} & set(less)
    assert set(less) <= set(gone(found, age // 2, keep, main=head, tag=named))
    assert len(found) - len(less) >= min(keep, len(found))
    kept_old = [one for one in found if one.id in less and one.committed_ms >= NOW - age]
    assert not kept_old
