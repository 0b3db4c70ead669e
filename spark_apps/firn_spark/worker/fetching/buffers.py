"""Buffers that are lent again, because the kernel clears each page of a new one.

Clearing took 8 % of the time of a worker that read compressed records.
"""

import sys

import numpy as np

from firn_spark.worker.fetched import Numbers

KEPT = 2
"""Buffers that wait for the next loan. One has the records that are decoded, the other one receives the next ones."""
LARGEST = 32 << 20
"""Bytes above which a buffer is not kept."""
_SMALLEST = 64 << 10
"""Bytes below which the C library has memory at hand."""
_UNUSED = 3
"""References to a buffer that nobody uses: those of the list, of the loop over it, and of the call that counts."""


class Buffers:
    """A few buffers of one reader."""

    def __init__(self) -> None:
        self._kept: list[Numbers] = []

    def lend(self, size: int) -> Numbers:
        """Return an array of ``size`` bytes with any content. It goes back by itself when nothing refers to it or to a part of it."""
        if not _SMALLEST <= size <= LARGEST:
            return np.empty(size, np.uint8)
        for buffer in self._kept:
            if len(buffer) >= size and sys.getrefcount(buffer) == _UNUSED:
                return buffer[:size]
        # Pages that are not written cost no memory, so the next loan of a similar size fits.
        new = np.empty(1 << (size - 1).bit_length(), np.uint8)
        self._kept = [*self._kept, new][-KEPT:]
        return new[:size]
