"""Answers of the internal listener: the batch ranges of partitions, as a Fetch would find them now."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from uuid import UUID

from kio.schema.errors import ErrorCode

from firn.driver_requests.batch_ranges import (
    IN_TABLE,
    MAX_RANGES,
    Answer,
    FoundRanges,
    Question,
    StoredRange,
    WantedRange,
)
from firn_broker.log_types import LOOKUP_RANGES, BatchRange, Lookup, Partition, TableRange
from firn_broker.ports import LogStore

LOOKUPS = 2_000
"""Partitions that one call of the coordinator looks up."""
ANY_BYTES = 1 << 60


_NOTHING: Mapping[UUID, ErrorCode] = MappingProxyType({})


async def find_ranges(log_store: LogStore, question: Question, errors: Mapping[UUID, ErrorCode] = _NOTHING) -> Answer:
    """Return the batch ranges of each partition from the offset that it wants on, at most `MAX_RANGES` of all.

    A partition that has more keeps its first ones, and so does one with table ranges: their objects have no batches.
    Partitions of the topics in ``errors`` have this error and no ranges.
    Raises UnavailableError if the coordinator does not answer.
    """
    search = _Search(question.partitions)
    pending = []
    for number, wanted in enumerate(question.partitions):
        if wanted.topic in errors:
            search.fail(number, errors[wanted.topic].name)
        elif wanted.start < wanted.end:
            pending.append(number)
    while pending and search.left > 0:
        some, pending = pending[:LOOKUPS], pending[LOOKUPS:]
        allowed = max(1, min(LOOKUP_RANGES, search.left // len(some)))
        results = await log_store.find([search.lookup(number) for number in some], allowed)
        for number, result in zip(some, results, strict=True):
            if result.error:
                search.fail(number, result.error.name)
            elif search.add(number, result.ranges):
                pending.append(number)
    return search.answer()


class _Search:
    """The ranges found so far, and the keys of their objects in the order in which they were found."""

    def __init__(self, wanted: Sequence[WantedRange]) -> None:
        self._wanted = wanted
        self._next = [part.start for part in wanted]
        self._errors = [""] * len(wanted)
        self._ranges: list[list[StoredRange]] = [[] for _ in wanted]
        self._objects: dict[str, int] = {}
        self.left = MAX_RANGES

    def lookup(self, number: int) -> Lookup:
        """Return the lookup that continues a partition."""
        part = self._wanted[number]
        return Lookup(Partition(part.topic, part.partition), self._next[number], ANY_BYTES)

    def fail(self, number: int, error: str) -> None:
        """Report an error of a partition that has no ranges yet. Otherwise the driver asks for the other ranges again."""
        if not self._ranges[number]:
            self._errors[number] = error

    def add(self, number: int, found: Sequence[BatchRange]) -> bool:
        """Add the ranges of a lookup. Return whether the partition may have more of the wanted ranges."""
        end = self._wanted[number].end
        for batch_range in found:
            if batch_range.base_offset >= end:
                break
            place = batch_range.place
            if isinstance(place, TableRange):
                self.fail(number, IN_TABLE)
                return False
            self._ranges[number].append(
                StoredRange(
                    self._objects.setdefault(place.key, len(self._objects)), place.position, place.length,
                    batch_range.base_offset, batch_range.last_offset, batch_range.append_ms,
                )
            )  # fmt: skip
            self._next[number] = batch_range.last_offset + 1
            self.left -= 1
        return bool(found) and self._next[number] < end

    def answer(self) -> Answer:
        """Return the ranges and errors found so far."""
        found = zip(self._errors, self._ranges, strict=True)
        # The values are our own, so checking them again would only take time.
        return Answer.model_construct(
            objects=tuple(self._objects), partitions=tuple(FoundRanges(error, tuple(ranges)) for error, ranges in found)
        )
