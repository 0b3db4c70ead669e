"""The deletes that apply to a file, compared with the rules written out one by one."""

import pytest
from hypothesis import given, seed
from hypothesis import strategies as st

from firn.tables.compaction import DataFile
from firn.tables.deletes import DeleteFile, applied


def data(path: str, sequence: int, records: int = 100, partition: str = "p", spec_id: int = 0) -> DataFile:
    return DataFile(path, 1000, records, partition, spec_id, 0, sequence=sequence)


def applies(delete: DeleteFile, file: DataFile) -> bool:
    """Return True if the delete applies to the file, by the scan planning of the Iceberg specification."""
    if delete.target is not None and delete.target != file.path:
        return False
    if delete.equality:
        here = delete.everywhere or (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
        return here and file.sequence < delete.sequence
    here = delete.target is not None or (delete.spec_id, delete.partition) == (file.spec_id, file.partition)
    return here and file.sequence <= delete.sequence


files_drawn = st.lists(
    st.builds(
        data,
        st.sampled_from("abcdefgh"),
        st.integers(0, 6),
        st.integers(1, 50),
        st.sampled_from("pq"),
        st.integers(0, 1),
    ),
    max_size=8,
    unique_by=lambda file: file.path,
)
position = st.builds(
    DeleteFile,
    st.integers(1, 20),
    st.integers(0, 6),
    st.integers(0, 1),
    st.sampled_from("pq"),
    target=st.one_of(st.none(), st.sampled_from("abcdefgh")),
)
equality = st.builds(
    DeleteFile,
    st.integers(1, 20),
    st.integers(0, 6),
    st.integers(0, 1),
    st.sampled_from("pq"),
    equality=st.just(True),
    everywhere=st.booleans(),
)


@seed(1)
@given(files_drawn, st.lists(st.one_of(position, equality), max_size=12))
def test_deletes_apply_as_the_specification_defines(files: list[DataFile], deletes: list[DeleteFile]) -> None:
    with_deletes = applied(files, deletes)
    assert [file.path for file in with_deletes] == [file.path for file in files]
    for file in with_deletes:
        mine = [delete for delete in deletes if applies(delete, file)]
        assert file.delete_files == len(mine)
        share = sum(
            delete.records * file.records / sum(other.records for other in files if applies(delete, other))
            for delete in mine
        )
        assert (
            file.deletes == (min(file.records, max(1, round(share))) if mine else 0)
            or abs(file.deletes - share) <= 0.5001
        )


def test_only_equality_deletes_spare_rows_of_their_own_commit() -> None:
    file = data("a", 5)
    assert applied([file], [DeleteFile(3, 5, 0, "p", equality=True)])[0].delete_files == 0
    assert applied([file], [DeleteFile(3, 5, 0, "p")])[0].deletes == 3


def test_a_deletion_vector_applies_to_its_file_alone() -> None:
    with_deletes = applied([data("a", 1), data("b", 1)], [DeleteFile(40, 2, 0, "p", target="a")])
    assert [file.deletes for file in with_deletes] == [40, 0]
    vectors = [DeleteFile(1, n, 0, "p", target="a", added_ms=100 - n) for n in (2, 3)]
    assert applied([data("a", 1)], vectors)[0].deleted_ms == 97


def test_deleted_rows_are_spread_in_proportion_to_records() -> None:
    with_deletes = applied([data("a", 1, 300), data("b", 1, 100), data("late", 3, 100)], [DeleteFile(40, 2, 0, "p")])
    assert [file.deletes for file in with_deletes] == [30, 10, 0]


@pytest.mark.parametrize("everywhere", [True, False])
def test_equality_deletes_of_an_unpartitioned_spec_reach_every_partition(everywhere: bool) -> None:
    files = [data("a", 1), data("b", 1, partition="q", spec_id=1)]
    with_deletes = applied(files, [DeleteFile(2, 2, 0, "p", equality=True, everywhere=everywhere)])
    assert [file.delete_files for file in with_deletes] == [1, 1 if everywhere else 0]


@pytest.mark.slow
def test_many_deletes_over_many_files_are_matched_fast() -> None:
    files = [data(f"f{n}", n) for n in range(20_000)]
    deletes = [DeleteFile(1, n, 0, "p", equality=True, added_ms=n) for n in range(20_000)]
    with_deletes = applied(files, deletes)
    assert with_deletes[0].delete_files == 19_999
    assert [with_deletes[n].deleted_ms for n in (0, 500)] == [1, 501]
    assert with_deletes[-1].delete_files == 0
