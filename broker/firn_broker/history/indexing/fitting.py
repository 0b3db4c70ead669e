"""Fits shapes to batches: finds those that give back the values which producers sent."""

from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import pyarrow as pa

from firn.records.contents import MAX_BYTES, UndecodableError
from firn.records.values import first_bytes
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
    # Only batches that a client or a compaction made with gaps have fewer records than offsets.
    whole, bases = entry.heads.spans == entry.heads.counts, entry.heads.bases
    parts = reader.read_members(entry, chooser.columns, base, last)
    for first, end in entry.heads.portions(DECODED_BYTES):
        values: dict[int, bytes | None] = {}
        for place in (place for place in range(first, end) if not matches[place] and whole[place]):
            with suppress(UndecodableError):
                values.update(enumerate(first_bytes(batches[place], kept=MAX_BYTES), int(bases[place])))
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
