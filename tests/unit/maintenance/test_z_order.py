"""The curve that rows are laid along."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_spark.maintenance.steps.z_order import BITS, bounds, interleave, ranks

NOTHING = np.zeros(0, np.uint16)


def of(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint16)


def test_keys_of_one_column_sort_as_its_ranks() -> None:
    values = [0, 1, 2, 511, 512, 2**BITS - 1]
    keys = interleave([of(*values)])
    assert keys == sorted(keys)
    assert len(set(keys)) == len(values)


@pytest.mark.parametrize("columns", [2, 3, 5])
def test_bits_take_turns(columns: int) -> None:
    def morton(point: list[int]) -> int:
        key = 0
        for bit in reversed(range(BITS)):
            for value in point:
                key = key << 1 | value >> bit & 1
        return key

    points = np.random.default_rng(1).integers(0, 2**BITS, (200, columns)).tolist()
    keys = interleave([of(*(point[n] for point in points)) for n in range(columns)])
    assert sorted(range(200), key=lambda n: keys[n]) == sorted(range(200), key=lambda n: morton(points[n]))


def test_no_rows_have_no_keys() -> None:
    assert interleave([NOTHING, NOTHING]) == []


@given(st.lists(st.floats(allow_nan=False), min_size=1, max_size=3000))
def test_ranks_follow_values_and_fit(values: list[float]) -> None:
    array = np.array(values)
    found = ranks(array, bounds(array), np.zeros(len(array), bool))
    assert found.max() < 2**BITS
    order = np.argsort(array, kind="stable")
    assert (np.diff(found[order].astype(int)) >= 0).all()


def test_few_values_have_a_rank_each_and_missing_ones_come_first() -> None:
    values = np.array(["b", None, "a", "c", "a"], object)
    missing = np.array([value is None for value in values])
    found = ranks(values, bounds(np.array(["a", "b", "c", "a"], object)), missing)
    assert found[1] == 0
    assert found[2] == found[4] < found[0] < found[3]


def test_few_values_weigh_as_much_as_many() -> None:
    values = np.arange(1_000)
    many, few = values, values % 2
    nothing = np.zeros(len(values), bool)
    keys = interleave([ranks(many, bounds(many), nothing), ranks(few, bounds(few), nothing)])
    order = sorted(range(len(values)), key=lambda n: keys[n])
    # Of four files in this order, each has one of the two and half of the thousand.
    for part in np.array_split(np.array(order), 4):
        assert len(set(few[part])) == 1
        assert many[part].max() - many[part].min() <= 501


def test_many_values_share_ranks_evenly() -> None:
    values = np.arange(100_000)
    found = ranks(values, bounds(values), np.zeros(len(values), bool))
    assert np.bincount(found)[1:].max() < 110
