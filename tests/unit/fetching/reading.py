"""Reads the bytes of a log as `firn_spark.worker.fetching.source` does, without brokers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from firn_spark.worker.fetched import Fetched
from firn_spark.worker.fetching.batches import Blocks, Position, wanted


class Row(NamedTuple):
    """A record that was read."""

    offset: int
    time: int
    time_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]


def blocks_of(
    data: bytes, start: int, end: int, aborted: Sequence[tuple[int, int]] = ()
) -> tuple[list[Fetched], Position]:
    """Read the offsets from ``start`` to ``end`` in an answer with ``data``. Return the blocks and the position behind them."""
    array = np.frombuffer(data, np.uint8)
    position, blocks = Position("orders", 3, start, end), Blocks()
    found = [block for batches in wanted(position, array, 0, len(array), aborted) for block in blocks.add(batches)]
    return [*found, *blocks.flush()], position


def rows_of(blocks: Sequence[Fetched]) -> list[Row]:
    """Return the records of blocks."""
    rows: list[Row] = []
    for block in blocks:
        assert block.topic == "orders"
        assert set(block.partitions.tolist()) <= {3}
        headers = block.headers.to_arrow().to_pylist()
        columns = (block.offsets.tolist(), block.times.tolist(), block.time_types.tolist())
        pairs = [tuple((one["key"], one["value"]) for one in listed) for listed in headers]
        rows += map(Row, *columns, block.keys.to_list(), block.values.to_list(), pairs)
    return rows
