"""Ranges of partitions that tasks read."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

Ranges = Mapping[int, tuple[int, int]]
"""Partition -> (first offset to read, offset to stop before)."""


class ObjectRange(NamedTuple):
    """Batches of a partition that are next to each other in an object, and cover the offsets from ``base`` to ``last``."""

    key: str
    position: int
    length: int
    base: int
    last: int
    append_ms: int
    """The time of all records, in place of their own; -1 if they have their own times."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a partition for a task. ``ranges`` has the places of all its offsets, or is empty: then brokers serve it.

    ``rebuilt``: only brokers can serve it, because they rebuild batches of the partition from a table."""

    topic: str
    partition: int
    start: int
    end: int
    ranges: tuple[ObjectRange, ...] = ()
    rebuilt: bool = False
