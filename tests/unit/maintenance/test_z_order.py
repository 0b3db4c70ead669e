"""The Z-order curve along which rows are sorted."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.maintenance.steps.z_order import BITS, bounds, interleave, ranks

NOTHING = np.zeros(0, np.uint16)


def array_of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint16)


def test_keys_of_one_column_sort_as_its_ranks() -> None:
    values = [0, 1, 2, 511, 512, 2**BITS - 1]
    keys = interleave([array_of(*values)])
    assert keys == sorted(keys)
    assert len(set(keys)) == len(values)


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_bits_of_the_columns_alternate(columns: int) -> None:
    def morton(point: list[int]) -> int:
        key = 0
        for bit in reversed(range(BITS)):
            for value in point:
                key = key << 1 | value >> bit & 1
        return key

    points = np.random.default_rng(1).integers(0, 2**BITS, (200, columns)).tolist()
    keys = interleave([array_of(*(point[n] for point in points)) for n in range(columns)])
    assert sorted(range(200), key=lambda n: keys[n]) == sorted(range(200), key=lambda n: morton(points[n]))


def test_an_empty_table_has_no_keys() -> None:
    assert interleave([NOTHING, NOTHING]) == []


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=3000))
def test_ranks_follow_values_and_fit(values: list[float]) -> None:
    array = np.array(values)
    ranked = ranks(array, bounds(array), np.zeros(len(array), bool))
    assert ranked.max() < 2**BITS
    order = np.argsort(array, kind="stable")
    assert (np.diff(ranked[order].astype(int)) >= 0).all()


def test_few_values_have_one_rank_each_and_nulls_come_first() -> None:
    values = np.array(["b", None, "a", "c", "a"], object)
    missing = np.array([value is None for value in values])
    ranked = ranks(values, bounds(np.array(["a", "b", "c", "a"], object)), missing)
    assert ranked[1] == 0
    assert ranked[2] == ranked[4] < ranked[0] < ranked[3]


def test_a_column_of_few_values_counts_as_much_as_one_of_many() -> None:
    values = np.arange(1_000)
    many, few = values, values % 2
    nothing = np.zeros(len(values), bool)
    keys = interleave([ranks(many, bounds(many), nothing), ranks(few, bounds(few), nothing)])
    order = sorted(range(len(values)), key=lambda n: keys[n])
    # Each of four files in this order has one of the two values, and half of the thousand.
    for part in np.array_split(np.array(order), 4):
        assert len(set(few[part])) == 1
        assert many[part].max() - many[part].min() <= 501


def test_many_values_share_ranks_evenly() -> None:
    values = np.arange(100_000)
    ranked = ranks(values, bounds(values), np.zeros(len(values), bool))
    assert np.bincount(ranked)[1:].max() < 110
