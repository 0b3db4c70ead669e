"""Fits shapes to batches: finds those that give back the values which producers sent."""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from firn.records import contents
from firn_broker.history.entries import Entry
from firn_broker.history.rows import RowReader
from firn_broker.history.sections import Numbers
from firn_broker.history.shapes.choosing import Chooser
from firn_broker.history.shapes.rendering import NO_SHAPE

DECODED_BYTES = 16 << 20
"""Bytes of the batches whose values are in memory one by one."""


def fit(
    chooser: Chooser, entry: Entry, batches: Sequence[memoryview], matches: Sequence[bool], reader: RowReader
) -> Numbers:
    """Return the number of the shape of each offset: 0 for those of batches that match already.

    Raises CorruptDataError and UnavailableError if data files cannot be read."""
    base, last = entry.heads.base_offset, entry.heads.last_offset
    numbers = np.zeros(last - base + 1, np.uint8)
    parts = reader.read_members(entry, chooser.columns, base, last)
    for first, end in entry.heads.portions(DECODED_BYTES):
        values: dict[int, bytes | None] = {}
        for batch, matched in zip(batches[first:end], matches[first:end], strict=True):
            if not matched:
                values.update(_values(batch))
        wanted = np.zeros(len(numbers), np.bool_)
        wanted[np.fromiter(values, np.int64, len(values)) - base] = True
        numbers[wanted] = NO_SHAPE
        for records in parts:
            rows = np.flatnonzero(wanted[records.offsets - base])
            if len(rows):
                offsets = records.offsets[rows]
                texts = pa.array([values[offset] for offset in offsets.tolist()], pa.binary())
                numbers[offsets - base] = chooser.numbers(records.values.take(pa.array(rows)), texts)
    return numbers


def _values(batch: memoryview) -> Iterator[tuple[int, bytes | None]]:
    """Yield the offset and the value of each record of a batch, or of none that can be decoded."""
    try:
        for data, places in contents.open_batch(batch):
            for place in places:
                size, start = contents.zigzag(data, place.start)
                size, start = contents.zigzag(data, start + max(size, 0))
                yield place.offset, None if size < 0 else data[start : start + size]
    except (contents.UndecodableError, IndexError):
        return
