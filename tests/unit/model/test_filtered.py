"""The numbers of records that the filter of a topic left out."""

import itertools
from random import Random

import pytest

from firn.model import names
from firn.model.progress import (
    FILTERED_RANGES,
    FILTERED_RANGES_EACH,
    FILTERED_RANGES_LEAST,
    Filtered,
    FilteredRange,
    joined_ranges,
)


def of(**ranges: list[tuple[int, int, int]]) -> Filtered:
    listed = {int(part[1:]): tuple(FilteredRange(*each) for each in each_part) for part, each_part in ranges.items()}
    return Filtered(topic_id="id-1", commit="c", ranges=listed)


def test_a_commit_adds_its_ranges_with_filtered_records() -> None:
    found = of(p0=[(0, 9, 2)]).plus(
        {0: FilteredRange(9, 20, 3), 1: FilteredRange(0, 5, 0), 2: FilteredRange(4, 6, 1)}, {}
    )
    assert found == of(p0=[(0, 9, 2), (9, 20, 3)], p2=[(4, 6, 1)])
    assert found.records == 6
    assert Filtered.read(found.model_dump_json()) == found


def test_ranges_before_the_log_are_dropped() -> None:
    known = of(p0=[(0, 9, 2), (9, 20, 3)], p1=[(0, 9, 1)])
    assert known.plus({}, {0: 9, 1: 10}) == of(p0=[(9, 20, 3)])
    assert known.plus({}, {0: 8}) == known


@pytest.mark.parametrize("partitions", [1, 3, 1000])
def test_the_number_of_ranges_is_bounded_and_no_record_is_forgotten(partitions: int) -> None:
    chance, known, total, position = Random(1), Filtered(topic_id="id-1"), 0, 0
    for _ in range(100 if partitions < 10 else 3):
        end = position + chance.randrange(1, 5000)
        passed = {part: FilteredRange(position, end, chance.randrange(1, 50)) for part in range(partitions)}
        known, position, total = known.plus(passed, {}), end, total + sum(each.records for each in passed.values())
    counts = [len(ranges) for ranges in known.ranges.values()]
    assert known.records == total
    assert sum(counts) <= max(FILTERED_RANGES, FILTERED_RANGES_LEAST * partitions)
    assert max(counts) <= FILTERED_RANGES_EACH
    for ranges in known.ranges.values():
        assert ranges[0].start == 0
        assert all(one.end <= other.start for one, other in itertools.pairwise(ranges))
    if partitions == 1:
        assert max(each.end - each.start for each in known.ranges[0]) < position / 4, "no range takes most of the log"


@pytest.mark.parametrize("partitions", [1, 300])
def test_ranges_end_while_the_log_moves_on(partitions: int) -> None:
    known, kept = Filtered(topic_id="id-1"), 50
    for end in range(10, 1010, 10):
        start = max(0, end - kept)
        passed = {part: FilteredRange(end - 10, end, 1) for part in range(partitions)}
        known = known.plus(passed, dict.fromkeys(range(partitions), start))
        oldest = min(ranges[0].start for ranges in known.ranges.values())
        assert oldest >= start - 2 * kept, "the numbers of offsets before the log are dropped"


def test_a_rollback_takes_ranges_back_and_leaves_numbers_open_that_it_divides() -> None:
    known = of(p0=[(0, 9, 2), (9, 20, 3)], p1=[(0, 9, 1)], p2=[(0, 9, 1)])
    left, unknown = known.before({0: 15, 1: 9})
    assert left == of(p0=[(0, 9, 2)], p1=[(0, 9, 1)])
    assert unknown == {0: 15}
    assert known.before({0: 20, 1: 9, 2: 9}) == (known, {})


def test_the_numbers_of_another_topic_or_commit_do_not_count() -> None:
    known = of(p0=[(0, 9, 2)])
    assert known.as_of("c", "id-1") is known
    assert known.as_of("d", "id-1") == Filtered(topic_id="id-1")
    assert known.as_of("c", "id-2") == Filtered(topic_id="id-2")


def test_ranges_of_several_tables_become_one_where_they_overlap() -> None:
    one = of(p0=[(0, 9, 2), (20, 30, 3)], p1=[(0, 5, 1)])
    other = of(p0=[(4, 12, 1), (11, 15, 4), (15, 20, 2)], p2=[(7, 8, 1)])
    joined = of(p0=[(0, 15, 7), (15, 20, 2), (20, 30, 3)], p1=[(0, 5, 1)], p2=[(7, 8, 1)])
    assert joined_ranges([one.ranges, other.ranges]) == joined.ranges
    assert joined_ranges([one.ranges]) == one.ranges


@pytest.mark.parametrize("text", [None, "", "[]", "no json", '{"ranges": {"0": [[1]]}}'])
def test_a_value_that_is_not_valid_counts_as_none(text: str | None) -> None:
    assert Filtered.read(text) == Filtered()


def test_a_table_counts_the_numbers_of_its_last_commit() -> None:
    known = of(p0=[(0, 9, 2)])
    own = {names.TABLE_FILTERED: known.model_dump_json(), names.SUMMARY_COMMIT_ID: "c"}
    assert Filtered.of_table(own, "id-1", shared=False) == known
    assert Filtered.of_table({**own, names.SUMMARY_COMMIT_ID: "d"}, "id-1", shared=False).records == 0
    assert Filtered.of_table({}, "id-1", shared=False).records == 0


def test_a_topic_of_a_shared_table_has_numbers_of_its_own_after_any_commit() -> None:
    known = of(p0=[(0, 9, 2)])
    shared = {
        names.of_topic(names.TABLE_FILTERED, "id-1"): known.model_dump_json(),
        names.SUMMARY_COMMIT_ID: "of another",
    }
    assert Filtered.of_table(shared, "id-1", shared=True) == known
    assert Filtered.of_table(shared, "id-2", shared=True).records == 0
