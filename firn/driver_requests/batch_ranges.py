"""Contract between drivers and the internal listener of diskless brokers: where the record batches of partitions are stored.

A driver posts a `Question` to `PATH` with the header ``Authorization: Bearer TOKEN``, and gets an `Answer`. The broker limits an
answer. The driver asks again from the offset after the last range of a partition until it has all wanted ranges.
"""

from collections.abc import Iterator
from typing import Annotated, NamedTuple
from uuid import UUID

from pydantic import Field

from firn.model.jobs import Contract

PATH = "/v1/ranges"
MAX_REQUEST_BYTES = 1 << 20
MAX_PARTITIONS = 4_000
"""Partitions of a question. Each takes about 80 bytes of the request."""
MAX_RANGES = 20_000
"""Batch ranges of an answer over all its partitions. Beyond this number, each partition may still have one range."""
MAX_ANSWER_BYTES = 16 << 20
MAX_RANGE_BYTES = 1 << 30
IN_TABLE = "in_table"
"""In place of an error of a partition without ranges: brokers rebuild the first wanted batches from a table, so that only a
Fetch returns them."""

_Number = Annotated[int, Field(ge=0, le=1 << 62)]


class WantedRange(NamedTuple):
    """Offsets of a partition, from ``start`` to before ``end``. ``topic`` is Kafka's id of the topic."""

    topic: UUID
    partition: Annotated[int, Field(ge=0, lt=1 << 31)]
    start: _Number
    end: _Number


class StoredRange(NamedTuple):
    """Consecutive batches of a partition that are next to each other in an object, with the offsets that they cover.

    The base offsets in the bytes of the batches have no meaning. The first batch begins at ``base_offset``, and each other batch after
    the last offset of the batch before it.
    """

    object: Annotated[int, Field(ge=0, lt=MAX_RANGES + MAX_PARTITIONS)]
    """Place of the object's key in `Answer.objects`."""
    position: _Number
    length: Annotated[int, Field(ge=1, le=MAX_RANGE_BYTES)]
    base_offset: _Number
    last_offset: _Number
    append_ms: Annotated[int, Field(ge=-1, le=1 << 62)]
    """The time of all records, in place of their own (LogAppendTime); -1 if they have their own times."""


class FoundRanges(NamedTuple):
    """The ranges of a partition by offset, or Kafka's name of the error that prevents the answer, or `IN_TABLE`."""

    error: str
    ranges: tuple[StoredRange, ...]


class Question(Contract):
    """A request for the batch ranges of partitions."""

    partitions: Annotated[tuple[WantedRange, ...], Field(max_length=MAX_PARTITIONS)]


class Answer(Contract):
    """The keys of objects, and the ranges of each partition in the order of the question."""

    objects: Annotated[
        tuple[Annotated[str, Field(max_length=1024)], ...], Field(max_length=MAX_RANGES + MAX_PARTITIONS)
    ]
    partitions: Annotated[tuple[FoundRanges, ...], Field(max_length=MAX_PARTITIONS)]

    def keys_and_ranges(self, partition: int) -> Iterator[tuple[str, StoredRange]]:
        """Yield the ranges at this place of the answer with the keys of their objects. Raises IndexError for an answer without the key."""
        for stored in self.partitions[partition].ranges:
            yield self.objects[stored.object], stored
