"""Batch ranges as rows of the table ``run``: columns and their conversion, which both stores use."""

from collections.abc import Sequence
from typing import Any

from firn_broker.log_types import BatchRange, WalRange

RANGE_COLUMNS = "run.base_offset, run.last_offset, wal.key, run.pos, run.len, run.max_ts, run.append_ms"
"""Columns of ``run`` joined with ``wal``, in the order of `range_of_row`."""


def range_of_row(row: Sequence[Any]) -> BatchRange:
    """Convert a row of `RANGE_COLUMNS`."""
    base, last, key, position, length, newest, append_ms = row
    return BatchRange(base, last, WalRange(key, position, length), newest, append_ms)
