"""Groups are committed in a bounded number of commits."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model.maintenance import CompactionWork
from firn.tables.compaction import DataFile, Group
from firn_spark.maintenance.steps.compaction import ARRANGED, arranged_sequences, batches, digest, portions
from firn_spark.maintenance.steps.rewriting import Arrangement


def group(files: int) -> Group:
    members = tuple(DataFile(f"f{n}", 1, 1, "p", 0, 0) for n in range(files))
    return Group("p", 0, members, "SmallFiles", 1)


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 12))
def test_every_group_is_in_one_of_at_most_so_many_commits(sizes: list[int], commits: int) -> None:
    groups = [group(size) for size in sizes]
    batch_list = list(batches(groups, commits))
    assert [member for batch in batch_list for member in batch] == groups
    assert len(batch_list) <= commits
    assert all(batch_list)


def test_an_arrangement_is_remembered_as_long_as_it_is_wanted() -> None:
    arrangement, other = Arrangement("ZOrder", ("a", "b")), Arrangement("ZOrder", ("b", "a"))
    properties = {ARRANGED: f"{digest(arrangement)} 3 17"}
    assert arranged_sequences(properties, arrangement) == {3, 17}
    assert arranged_sequences(properties, other) == set()
    assert arranged_sequences({}, arrangement) == set()
    assert CompactionWork().strategy == Arrangement().strategy


@pytest.mark.parametrize("counts", [[], [0, 0], [1, 1, 1], [2, 2, 2], [9, 1, 0, 2, 1], [0, 3, 0], [0, 9, 9]])
def test_delete_files_are_read_in_portions(counts: list[int]) -> None:
    found = list(portions(counts, 3))
    assert sum(sum(counts[start:end]) for start, end in found) == sum(counts)
    assert all(sum(counts[start:end]) <= 3 or sum(map(bool, counts[start:end])) == 1 for start, end in found)
    places = [place for start, end in found for place in range(start, end)]
    assert places == list(range(len(places)))
