"""Durations and sizes."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn.model import durations, quantities


@given(st.integers(1, 10**6), st.sampled_from(["ms", "s", "m", "h", "d"]))
def test_a_duration_is_its_number_times_its_unit(number: int, unit: str) -> None:
    factor = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}[unit]
    assert durations.milliseconds(f"{number}{unit}") == number * factor
    assert durations.parse(f"{number}{unit}") == timedelta(milliseconds=number * factor)


@pytest.mark.parametrize(
    "text", ["", "5", "0s", "-5s", "05s", "1.5s", "5 s", "5S", "5s\n", " 5s", "5w", "P1D", "1h30m", "\u0665s"]
)
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration: write a number and a unit"):
        durations.milliseconds(text)


def test_a_duration_beyond_the_calendar_is_rejected() -> None:
    with pytest.raises(ValueError, match="is too long"):
        durations.parse("99999999999999d")


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("1", 1), ("1k", 1000), ("1Ki", 1024), ("128Mi", 128 * 2**20), ("2G", 2 * 10**9), ("3Pi", 3 * 2**50)],
)
def test_a_size_is_its_number_times_its_unit(text: str, size: int) -> None:
    assert quantities.size(text) == size


@pytest.mark.parametrize("text", ["", "Mi", "1.5Gi", "1 Gi", "1gi", "1KB", "-1", "1Gi\n", "\u0661Gi"])
def test_an_invalid_size_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        quantities.size(text)


@pytest.mark.parametrize(
    ("text", "size"), [("1", 1), ("2k", 2048), ("768m", 768 * 2**20), ("1g", 2**30), ("1G", 2**30), ("1t", 2**40)]
)
def test_a_heap_is_a_size_in_the_notation_of_java(text: str, size: int) -> None:
    assert quantities.heap(text) == size


@pytest.mark.parametrize("text", ["", "m", "1.5g", "1Gi", "1x", "1g ", "-1g"])
def test_an_invalid_heap_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match="is not a heap size"):
        quantities.heap(text)
