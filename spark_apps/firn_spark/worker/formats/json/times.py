"""Integers that are sensible times only in another unit than that of their field.

The check reads decoded columns, because nearly all wrong units lead to times that no producer writes as text: 1970, or
a year beyond 30000. Nanoseconds in a field of milliseconds are beyond 64 bits, and are checked as refused integers.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa

from firn.decoders.json_limits import EPOCHS
from firn.model.jobs import Column, Epoch
from firn_spark.worker.formats.format import Times

SENSIBLE = (946_684_800_000_000, 4_102_444_800_000_000)
"""Microseconds from 1970 to the years 2000 and 2100. The range is narrower than a factor of 1000, so only one unit fits."""

_NONE: Mapping[str, Sequence[int]] = {}


def read_times(
    fields: Sequence[Column], arrays: Sequence[pa.Array], refused: Mapping[str, Sequence[int]] = _NONE
) -> dict[str, Times]:
    """Count, for each field with times, those that are sensible only in another unit.

    ``refused`` has integers of each field that exceed 64 bits as microseconds, so that they are in no array.
    """
    found = {}
    for field, array in zip(fields, arrays, strict=True):
        if "timestamp" not in field.type:
            continue
        leaves = [_microseconds(leaf.drop_null()) for leaf in _timestamps(array)]
        values = leaves[0] if len(leaves) == 1 else np.concatenate([np.empty(0, np.int64), *leaves])
        factor, divisor = EPOCHS[field.epoch]
        beyond = [number * factor // divisor for number in refused.get(field.name, ())]
        if len(values) or beyond:
            found[field.name] = _times(field, values, beyond)
    return found


def _times(field: Column, values: "np.ndarray[tuple[int], np.dtype[np.int64]]", beyond: Sequence[int]) -> Times:
    sensible = (values >= SENSIBLE[0]) & (values < SENSIBLE[1])
    odd = values[:0] if sensible.all() else values[~sensible]
    # Floating point, because products may exceed 64 bits.
    every = np.concatenate([odd.astype(np.float64), np.array(beyond, np.float64)])
    best = Times(len(values) + len(beyond), 0, field.epoch, 0)
    factor, divisor = EPOCHS[field.epoch]
    for epoch in get_args(Epoch) if len(every) else ():
        other_factor, other_divisor = EPOCHS[epoch]
        ratio = other_factor * divisor / (factor * other_divisor)
        fits = np.flatnonzero((every * ratio >= SENSIBLE[0]) & (every * ratio < SENSIBLE[1]))
        if len(fits) > best.wrong:
            first = int(fits[0])
            sample = int(odd[first]) if first < len(odd) else beyond[first - len(odd)]
            best = Times(best.values, len(fits), epoch, sample)
    return best


def _microseconds(moments: pa.Array) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    values: np.ndarray[tuple[int], np.dtype[np.int64]] = moments.cast(pa.int64()).to_numpy()
    return values // 1000 if moments.type.unit == "ns" else values


def _timestamps(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the arrays of timestamps inside ``array``."""
    if pa.types.is_timestamp(array.type):
        yield array
    elif pa.types.is_struct(array.type):
        for child in array.flatten():
            yield from _timestamps(child)
    elif pa.types.is_list(array.type):
        yield from _timestamps(array.flatten())
    elif pa.types.is_map(array.type):
        yield from _timestamps(array.items)
