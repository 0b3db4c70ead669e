"""Buffers that are lent again, because the operating system clears each page of a new one.

Clearing took 8 % of the time of a worker that read compressed records.
"""

import sys
from collections.abc import Iterable

import numpy as np

from firn_spark.worker.fetched import Numbers

KEPT = 3
"""Number of buffers that a reader keeps: one for the records being decoded, one for those that wait, one for the answer being received."""
LARGEST = 32 << 20
"""Bytes above which a buffer is not kept."""
_SMALLEST = 64 << 10
"""Bytes below which a buffer is not kept, because the C library reuses its memory."""


def _references(buffers: Iterable[Numbers]) -> list[int]:
    """Return the number of references to each buffer. It includes those of this function, which differ between versions of Python."""
    return [sys.getrefcount(buffer) for buffer in buffers]


_UNUSED = _references([np.empty(1, np.uint8)])[0]
"""References to a buffer in a list that is not used otherwise."""


class Buffers:
    """A few buffers of one reader. They keep the pages that were written, so they take up to `KEPT` times `LARGEST` bytes. Not thread-safe."""

    def __init__(self) -> None:
        self._kept: list[Numbers] = []

    def lend(self, size: int) -> Numbers:
        """Return an array of ``size`` bytes with any content. The buffer becomes free when no reference to the array or to a part of it is left."""
        if not _SMALLEST <= size <= LARGEST:
            return np.empty(size, np.uint8)
        for place, references in enumerate(_references(self._kept)):
            if references == _UNUSED and len(self._kept[place]) >= size:
                return self._kept[place][:size]
        # Pages that are not written cost no memory, so the next loan of a similar size fits.
        new = np.empty(1 << (size - 1).bit_length(), np.uint8)
        self._kept = [*self._kept, new][-KEPT:]
        return new[:size]
