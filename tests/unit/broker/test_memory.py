"""Memory that a direct write can take as it is."""

import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firn_broker.storage.memory import PAGE, uncleared, uncleared_pages, whole_pages


def address(data: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(data))


@given(st.integers(0, 5 * PAGE))
def test_uncleared_memory_has_its_size_and_can_be_written(size: int) -> None:
    memory = uncleared(size)
    memory[:] = b"x" * size
    assert memory == b"x" * size


@given(st.integers(1, 5 * PAGE))
def test_pages_begin_at_a_page_and_end_with_zeros(size: int) -> None:
    data = uncleared_pages(size)
    data[:] = b"x" * size
    pages = whole_pages(data)
    assert pages is not None
    assert address(pages) == address(data)
    assert address(pages) % PAGE == 0
    assert len(pages) % PAGE == 0
    assert bytes(pages) == b"x" * size + bytes(len(pages) - size)
    assert len(pages) - size < PAGE


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(memoryview(b"x" * PAGE), id="it cannot be written"),
        pytest.param(uncleared_pages(2 * PAGE)[1:], id="it begins inside a page"),
        pytest.param(memoryview(bytearray()), id="it is empty"),
    ],
)
def test_other_memory_has_no_pages(data: memoryview) -> None:
    assert whole_pages(data) is None


def test_memory_that_ends_inside_the_last_page_has_no_pages() -> None:
    memory = bytearray(3 * PAGE)
    start = -address(memoryview(memory)) % PAGE
    whole = memoryview(memory)[start : start + PAGE]
    assert whole_pages(whole) == whole
    assert whole_pages(memoryview(memory)[start:]) is None
