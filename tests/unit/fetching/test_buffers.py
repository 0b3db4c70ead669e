"""Buffers are lent again only when nothing can read what they had."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from firn_spark.worker.fetching.buffers import KEPT, LARGEST, Buffers

SIZE = 1 << 20


def root(array: Any) -> int:
    """Return the address of an array's memory."""
    return int(array.__array_interface__["data"][0])


def test_a_buffer_is_lent_again_when_it_is_not_used() -> None:
    buffers = Buffers()
    first = buffers.lend(SIZE)
    place = root(first)
    del first
    again = buffers.lend(SIZE - 1)
    assert root(again) == place
    assert len(again) == SIZE - 1
    assert again.flags.writeable


def test_a_buffer_in_use_is_not_lent() -> None:
    buffers = Buffers()
    keeps: tuple[Callable[[Any], object], ...] = (
        lambda lent: lent,
        lambda lent: lent[5:9],
        memoryview,
        pa.py_buffer,
        lambda lent: pa.Array.from_buffers(pa.uint8(), 4, [None, pa.py_buffer(lent[8:12])]),
        lambda lent: lent[:8].view(np.int64),
    )
    for keep in keeps:
        lent = buffers.lend(SIZE)
        place, kept = root(lent), keep(lent)
        lent.setflags(write=False)
        del lent
        assert root(buffers.lend(SIZE)) != place
        del kept


def test_a_reader_keeps_few_buffers_and_no_large_one() -> None:
    buffers = Buffers()
    held = [buffers.lend(SIZE) for _ in range(3 * KEPT)]
    places = [root(lent) for lent in held]
    del held
    assert [root(buffers.lend(SIZE)) in places[-KEPT:] for _ in range(2)] == [True, True]
    large = buffers.lend(LARGEST + 1)
    assert large.base is None, "the buffer is not a part of one that is kept"


def test_a_longer_loan_does_not_get_a_short_buffer() -> None:
    buffers = Buffers()
    buffers.lend(SIZE)
    assert len(buffers.lend(3 * SIZE)) == 3 * SIZE
