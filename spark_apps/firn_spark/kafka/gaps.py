"""Looks for committed records at offsets of a log, without reading the rest of it."""

import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from confluent_kafka import Consumer, KafkaError, TopicPartition

from firn.model.conditions import Reason
from firn.model.errors import AccessDeniedError, UnavailableError
from firn.model.maintenance import OffsetRange
from firn.model.progress import FilteredRange
from firn_spark.kafka.clients import STALL_SECONDS, silent_logger
from firn_spark.kafka.refusals import denied
from firn_spark.worker.fetching.access import GRANT_HINT

MOST_RECORDS = 1_000_000
"""Number of records that a search reads. The offsets that it does not reach stay unknown."""
JUMP = 5_000
"""Distance to the next range from which the consumer seeks it, instead of reading up to it."""
BATCH = 1_000

Gaps = Mapping[int, Sequence[tuple[int, int]]]
"""Partition -> ranges of offsets, ascending, each without its end."""


class FilteredRecords:
    """The records that the filter of a topic left out, as numbers in ranges. The first records without a row count as these."""

    def __init__(self, ranges: Mapping[int, Sequence[FilteredRange]]) -> None:
        self._ranges = ranges
        self._ends = {part: [each.end for each in listed] for part, listed in ranges.items()}
        self._taken: Counter[tuple[int, int]] = Counter()

    def take(self, partition: int, offset: int) -> bool:
        """Count a record, unless its range has no more filtered records. Return whether it counts."""
        place = bisect_right(self._ends.get(partition, ()), offset)
        listed = self._ranges.get(partition, ())
        if (
            place == len(listed)
            or offset < listed[place].start
            or self._taken[partition, place] == listed[place].records
        ):
            return False
        self._taken[partition, place] += 1
        return True

    def decided(self, bounds: Mapping[int, tuple[int, int]]) -> tuple[int, int]:
        """Return the numbers of counted records in ranges within ``bounds``, and of those in other ranges.

        In a range that begins before its bounds, filtered records may be before them. So a counted record may be missing.
        """
        sure = unsure = 0
        for (partition, place), taken in self._taken.items():
            low, high = bounds.get(partition, (0, 0))
            each = self._ranges[partition][place]
            if low <= each.start and each.end <= high:
                sure += taken
            else:
                unsure += taken
        return sure, unsure


@dataclass(slots=True)
class Found:
    """The result of a search: committed records in the ranges, the place of the first, and offsets not looked at."""

    records: int = 0
    first: tuple[int, int] | None = None
    unknown: int = 0
    ranges: list[OffsetRange] = field(default_factory=list)
    """For each searched range with records: the offsets from its first to its last record."""
    unsearched: list[OffsetRange] = field(default_factory=list)
    """The ranges that were not searched to their ends."""
    filtered: "FilteredRecords" = field(default_factory=lambda: FilteredRecords({}), compare=False)

    def add(self, partition: int, start: int, offset: int) -> None:
        """Add the next record, in the range that begins at ``start``."""
        if self.filtered.take(partition, offset):
            return
        self.records += 1
        self.first = self.first or (partition, offset)
        last = self.ranges[-1] if self.ranges else None
        if last is not None and last.partition == partition and last.start >= start:
            self.ranges[-1] = last._replace(end=offset + 1)
        else:
            self.ranges.append(OffsetRange(partition, offset, offset + 1))


def find_records(
    config: Mapping[str, Any],
    topic: str,
    gaps: Gaps,
    may: Callable[[], None],
    most: int = MOST_RECORDS,
    filtered: Mapping[int, Sequence[FilteredRange]] = MappingProxyType({}),
) -> Found:
    """Count the committed records at the offsets of ``gaps``. ``may`` raises if the work has to stop.

    Offsets before the start of the log, and offsets without a record, such as markers, count as empty. ``filtered`` are the
    numbers of records without a row that are right. Raises
    AccessDeniedError and UnavailableError.
    """
    found = Found(filtered=FilteredRecords(filtered))
    waiting = {partition: list(ranges) for partition, ranges in gaps.items() if ranges}
    if not waiting:
        return found
    consumer = Consumer(
        {
            **config,
            "group.id": "firn-audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 16 * 1024,
            "max.partition.fetch.bytes": 1024 * 1024,
        },
        logger=silent_logger(),
    )
    try:
        left = most
        for partition, ranges in sorted(waiting.items()):
            if left > 0:
                left = _search(_Partition(consumer, topic, partition, ranges), found, may, left)
            found.unknown += sum(end - start for start, end in ranges)
            found.unsearched += [OffsetRange(partition, start, end) for start, end in ranges]
    finally:
        consumer.close()
    return found


@dataclass(slots=True)
class _Partition:
    """A partition, and the ranges that were not read to their ends."""

    consumer: Any
    topic: str
    number: int
    ranges: list[tuple[int, int]]

    def seek(self) -> None:
        self.consumer.assign([TopicPartition(self.topic, self.number, self.ranges[0][0])])

    def read(self) -> Iterable[int | None]:
        """Return the next offsets; None is the end of the partition. Raises if nothing arrives."""
        deadline = time.monotonic() + STALL_SECONDS
        while not (messages := self._consumed()):
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"topic {self.topic}, partition {self.number}: no record and no end of the partition within {STALL_SECONDS:.0f} s",
                    reason=Reason.BROKER_UNREACHABLE,
                )
        return [self._offset(message) for message in messages]

    def _consumed(self) -> list[Any]:
        # librdkafka asks for the group's coordinator, which this consumer does not use. A denial has no partition.
        here = (self.topic, self.number)
        return [
            message
            for message in self.consumer.consume(BATCH, timeout=1.0)
            if (message.topic(), message.partition()) == here
        ]

    def _offset(self, message: Any) -> int | None:
        error = message.error()
        if error is None:
            return int(message.offset())
        if error.code() == KafkaError._PARTITION_EOF:
            return None
        where = f"topic {self.topic}, partition {self.number}: {error.str()}"
        if denied(error):
            raise AccessDeniedError(f"{where}; {GRANT_HINT}")
        raise UnavailableError(where, reason=Reason.BROKER_UNREACHABLE)


def _search(part: _Partition, found: Found, may: Callable[[], None], left: int) -> int:
    """Read the ranges of a partition, and remove those that were read. Return how many more records may be read."""
    part.seek()
    while part.ranges and left > 0:
        may()
        offset: int | None = 0
        for offset in part.read():
            left -= 1
            while part.ranges and (offset is None or part.ranges[0][1] <= offset):
                part.ranges.pop(0)
            if offset is not None and part.ranges and part.ranges[0][0] <= offset:
                found.add(part.number, part.ranges[0][0], offset)
        if part.ranges and offset is not None and part.ranges[0][0] - offset > JUMP:
            part.seek()
    return left
