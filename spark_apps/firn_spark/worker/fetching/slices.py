"""Ranges of partitions that tasks read."""

from collections.abc import Mapping
from dataclasses import dataclass

Ranges = Mapping[int, tuple[int, int]]
"""Partition -> (first offset to read, offset to stop before)."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A range of a partition for a task."""

    topic: str
    partition: int
    start: int
    end: int
